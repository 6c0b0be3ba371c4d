import type { Job, JobPage, Overlap, StepPage, WatchedRuns } from "./shapes";
import { currentToken, tokenRefused } from "./token";

const TIMEOUT_MS = 10_000;

/** The service answered with a problem document (RFC 9457). */
export class Problem extends Error {
  constructor(
    readonly status: number,
    message: string,
  ) {
    super(message);
  }
}

/** The service did not answer, or what answered is not the service. */
export class Unreachable extends Error {}

type Query = Record<string, string | number | null>;

export function fetchJobs(cursor: string | null, limit: number): Promise<JobPage> {
  return request("GET", "v1/jobs", { cursor, limit });
}

export function fetchJob(id: string): Promise<Job> {
  return request("GET", jobPath(id), {});
}

export function fetchOverlap(id: string): Promise<Overlap> {
  return request("GET", `${jobPath(id)}/overlap`, {});
}

export function fetchSteps(id: string, after: number, rank: number | null, limit: number): Promise<StepPage> {
  return request("GET", `${jobPath(id)}/steps`, { after, rank, limit });
}

export function fetchRuns(limit: number): Promise<WatchedRuns> {
  return request("GET", "v1/runs", { limit });
}

export function stopJob(id: string): Promise<Job> {
  return request("POST", `${jobPath(id)}/stop`, {});
}

function jobPath(id: string): string {
  return `v1/jobs/${encodeURIComponent(id)}`;
}

async function request<Answer>(method: string, path: string, query: Query): Promise<Answer> {
  const token = currentToken();
  const response = await reach(method, path + search(query), token);
  if (response.status === 401) tokenRefused(token);
  const body: unknown = await response.json().catch(() => null);
  if (body === null) throw new Unreachable(`${method} ${path} answered ${response.status} without JSON`);
  if (!response.ok) throw new Problem(response.status, problemText(body, response.status));
  return body as Answer;
}

async function reach(method: string, path: string, token: string | null): Promise<Response> {
  const authorization = token === null ? {} : { Authorization: `Bearer ${token}` };
  try {
    return await fetch(path, {
      method,
      headers: { Accept: "application/json", ...authorization },
      cache: "no-store",
      signal: AbortSignal.timeout(TIMEOUT_MS),
    });
  } catch (error) {
    throw new Unreachable(`${method} ${path}: ${error instanceof Error ? error.message : String(error)}`);
  }
}

function search(query: Query): string {
  const given = Object.entries(query).filter((entry): entry is [string, string | number] => entry[1] !== null);
  if (given.length === 0) return "";
  return `?${new URLSearchParams(given.map(([name, value]) => [name, String(value)]))}`;
}

function problemText(body: unknown, status: number): string {
  if (typeof body === "object" && body !== null) {
    const { title, detail } = body as { title?: unknown; detail?: unknown };
    const parts = [title, detail].filter((part) => typeof part === "string" && part !== "");
    if (parts.length > 0) return parts.join(": ");
  }
  return `The service answered ${status}`;
}
