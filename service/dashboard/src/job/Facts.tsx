import type { Job } from "../api/shapes";
import { instant, integer } from "../figures/format";
import { workers } from "../figures/workers";
import { Plan } from "./Plan";

/** What was asked for, and what the run decided before its first step. */
export function Facts({ job }: { job: Job }) {
  const { spec } = job;
  const { training } = spec;
  const facts: [string, string][] = [
    ["schedule", training.schedule],
    ["workers", workers(job)],
    ["model", spec.model.factory],
    ["data", spec.data.path ? `${spec.data.source}: ${spec.data.path}` : spec.data.source],
    ["batch size", `${integer(training.batch_size)} per worker`],
    ["length", training.max_steps === null ? `${training.epochs} epochs` : `at most ${training.max_steps} steps`],
    ["fused optimizer", `${training.sparse_optimizer.name}, lr ${training.sparse_optimizer.lr}`],
    ["dense lr", String(training.dense_lr)],
    ["project", job.project],
    ["submitted", instant(job.submitted_at)],
    ["started", instant(job.started_at)],
    ["ended", instant(job.ended_at)],
    ["telemetry dropped", `${integer(job.dropped_samples)} samples`],
  ];
  return (
    <section class="card" aria-labelledby="facts-title">
      <h2 id="facts-title">Job</h2>
      <dl class="pairs">
        {facts.map(([name, text]) => (
          <div key={name}>
            <dt>{name}</dt>
            <dd>{text}</dd>
          </div>
        ))}
      </dl>
      {job.plan && <Plan plan={job.plan} />}
    </section>
  );
}
