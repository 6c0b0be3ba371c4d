import type { Job } from "../api/shapes";
import { JobRow } from "./JobRow";

export function JobsTable({ jobs }: { jobs: readonly Job[] }) {
  return (
    <div class="scroll" role="region" aria-label="Jobs, newest first" tabIndex={0}>
      <table class="jobs">
        <caption>Jobs, newest first. Figures are the newest step that every rank has reported.</caption>
        <thead>
          <tr>
            <th scope="col">Job</th>
            <th scope="col">State</th>
            <th scope="col">Steps</th>
            <th scope="col" class="number wide-only" title="Samples trained per second, all ranks together">
              Samples/s
            </th>
            <th scope="col" class="number" title="Time of one step, mean over the ranks">
              Step ms
            </th>
            <th scope="col" class="number" title="Part of the step in which compute waits for communication">
              Exposed ms
            </th>
            <th scope="col" class="number" title="Hidden communication / all communication">
              Comm overlap
            </th>
            <th scope="col">Submitted</th>
          </tr>
        </thead>
        <tbody>
          {jobs.map((job) => (
            <JobRow key={job.id} job={job} />
          ))}
        </tbody>
      </table>
    </div>
  );
}
