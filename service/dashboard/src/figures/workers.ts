import type { Job } from "../api/shapes";

/** How many workers a job has and what they take; an elastic group also says how many it has now, or had at last. */
export function workers(job: Pick<Job, "resources" | "plan" | "ended_at">): string {
  const { workers: least, max_workers: most, cpus, gpus } = job.resources;
  if (most === null) return `${least} with ${cpus} CPU, ${gpus} GPU in all`;
  const size = job.plan === null ? "" : `, ${job.ended_at === null ? "now" : "at last"} ${job.plan.world_size}`;
  return `${least}-${most}${size}; the smallest group takes ${cpus} CPU, ${gpus} GPU`;
}
