import type { Job } from "../api/shapes";
import { duration, integer, NOTHING } from "../figures/format";
import { canStop, elapsedSeconds } from "../figures/progress";
import { ProgressBar } from "../parts/ProgressBar";
import { StateBadge } from "../parts/StateBadge";
import { Value } from "../parts/Value";
import { Failure } from "./Failure";
import { Result } from "./Result";
import { StopButton } from "./StopButton";

export function JobHeader({ job }: { job: Job }) {
  const elapsed = elapsedSeconds(job, Date.now());
  const rate = job.latest?.samples_per_s;
  return (
    <header class="job-header">
      <div class="title-line">
        <h1>{job.name}</h1>
        <span aria-live="polite">
          <StateBadge state={job.state} />
        </span>
        <ProgressBar job={job} />
        <span>
          <Value field="samples_per_s" value={rate} text={integer(rate)} /> <span class="quiet">samples/s</span>
        </span>
        <span>
          {elapsed === null ? NOTHING : duration(elapsed)}{" "}
          <span class="quiet">{job.attempts > 1 ? `in attempt ${job.attempts}` : "elapsed"}</span>
        </span>
        {canStop(job.state) && <StopButton id={job.id} name={job.name} />}
      </div>
      {job.reason && <p class="reason-line">{job.reason}</p>}
      {job.failure && <Failure failure={job.failure} />}
      {job.result && <Result result={job.result} />}
    </header>
  );
}
