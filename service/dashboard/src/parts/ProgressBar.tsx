import type { Job } from "../api/shapes";
import { integer } from "../figures/format";
import { progress } from "../figures/progress";

/** Finished steps of the planned ones; a bar only where the total is known. */
export function ProgressBar({ job }: { job: Job }) {
  const { done, total } = progress(job);
  return (
    <span class="progress">
      <span data-field="steps_done" data-value={done}>
        {integer(done)}
      </span>
      <span class="quiet"> / {integer(total)}</span>
      {total !== null && <progress value={done} max={total} aria-label={`Steps of ${job.name}`} />}
    </span>
  );
}
