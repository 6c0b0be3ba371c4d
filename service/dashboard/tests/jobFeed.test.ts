import { afterEach, describe, expect, it, vi } from "vitest";
import { JobFeed, type Measured, type Snapshot, WINDOW_STEPS } from "../src/live/jobFeed";

/** A service with one job; `requests` collects what the page asked for. */
function serve(job: { state: string; attempts: number; newest: number }, page = 1000) {
  const requests: string[] = [];
  vi.stubGlobal("fetch", async (path: string) => {
    requests.push(path);
    return new Response(JSON.stringify(answer(path, job, page)), { headers: { "Content-Type": "application/json" } });
  });
  return requests;
}

function answer(path: string, job: { state: string; attempts: number; newest: number }, page: number): unknown {
  const url = new URL(path, "http://localhost/");
  if (url.pathname.endsWith("/overlap")) return { collectives: [], ranks: [] };
  if (!url.pathname.endsWith("/steps")) return { ...job, latest: job.newest < 0 ? null : { step: job.newest } };
  const after = Number(url.searchParams.get("after"));
  const count = Math.min(job.newest - after, page);
  const items = Array.from({ length: Math.max(count, 0) }, (_, index) => ({
    step: after + 1 + index,
    rank: 0,
    step_ms: 1,
    exposed_ms: 0,
    loss: null,
  }));
  return { items, next_after: items.at(-1)?.step ?? null };
}

function measured({ measured }: Snapshot): Measured {
  if ("archived" in measured) throw new Error(measured.archived);
  return measured;
}

function stepsOf(snapshot: Snapshot): readonly number[] {
  return measured(snapshot).columns.steps;
}

afterEach(() => vi.unstubAllGlobals());

describe("JobFeed", () => {
  it("asks only for steps that are new, and is complete once an ended job is drained", async () => {
    const job = { state: "running", attempts: 1, newest: 4 };
    const requests = serve(job, 3);
    const feed = new JobFeed("job-1", null);
    expect(stepsOf(await feed.turn())).toEqual([0, 1, 2, 3, 4]);
    requests.length = 0;
    Object.assign(job, { state: "succeeded", newest: 6 });
    const last = await feed.turn();
    expect(stepsOf(last)).toEqual([0, 1, 2, 3, 4, 5, 6]);
    expect(last.complete).toBe(true);
    expect(requests.filter((path) => path.includes("/steps"))[0]).toContain("after=4");
  });

  it("begins the charts of a long run near its end", async () => {
    serve({ state: "running", attempts: 1, newest: 20_000 });
    const first = await new JobFeed("job-1", null).turn();
    expect(stepsOf(first)[0]).toBeGreaterThanOrEqual(20_000 - WINDOW_STEPS);
    expect(first.complete).toBe(false);
  });

  it("begins again when the worker group was restarted", async () => {
    const job = { state: "running", attempts: 1, newest: 9 };
    serve(job);
    const feed = new JobFeed("job-1", null);
    await feed.turn();
    Object.assign(job, { attempts: 2, newest: 3 });
    expect(stepsOf(await feed.turn())).toEqual([0, 1, 2, 3]);
  });

  it("asks for one rank when one was picked", async () => {
    const requests = serve({ state: "queued", attempts: 0, newest: -1 });
    const first = await new JobFeed("job 1", 3).turn();
    expect(stepsOf(first)).toEqual([]);
    expect(first.complete).toBe(false);
    expect(requests).toContain("v1/jobs/job%201/steps?after=-1&rank=3&limit=1000");
  });

  it("is complete, and says where the steps are, when they have been archived", async () => {
    const problem = { title: "The steps of the job are archived", detail: "archive/job-1.parquet has them" };
    vi.stubGlobal("fetch", async (path: string) =>
      path === "v1/jobs/job-1"
        ? new Response(JSON.stringify({ state: "succeeded", attempts: 1, latest: null }))
        : new Response(JSON.stringify(problem), { status: 410 }),
    );
    const { measured, complete } = await new JobFeed("job-1", null).turn();
    expect(measured).toEqual({ archived: `${problem.title}: ${problem.detail}` });
    expect(complete).toBe(true);
  });
});
