import type { Job, JobState } from "../api/shapes";

const ENDED: readonly JobState[] = ["succeeded", "failed", "stopped", "lost"];

export function hasEnded(state: JobState): boolean {
  return ENDED.includes(state);
}

/** Stopping is under way already, and an ended job has nothing to stop. */
export function canStop(state: JobState): boolean {
  return !hasEnded(state) && state !== "stopping";
}

export interface Progress {
  done: number;
  total: number | null;
}

/** Finished and planned steps. The API counts steps from 0, people count finished steps. */
export function progress(job: Job): Progress {
  const done = job.result?.steps ?? (job.latest ? job.latest.step + 1 : 0);
  return { done, total: job.latest?.steps ?? job.plan?.steps ?? null };
}

/** Seconds from the start to the end, or to `now_ms` while the job runs; null before the start. */
export function elapsedSeconds(job: Job, now_ms: number): number | null {
  if (job.started_at === null) return null;
  const end = job.ended_at === null ? now_ms : Date.parse(job.ended_at);
  return Math.max(0, (end - Date.parse(job.started_at)) / 1000);
}
