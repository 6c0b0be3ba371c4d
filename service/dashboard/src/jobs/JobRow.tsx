import type { Job } from "../api/shapes";
import { instant, integer, ms, percent } from "../figures/format";
import { jobLink } from "../live/route";
import { ProgressBar } from "../parts/ProgressBar";
import { StateBadge } from "../parts/StateBadge";
import { Value } from "../parts/Value";

export function JobRow({ job }: { job: Job }) {
  const { latest } = job;
  return (
    <tr data-job={job.id}>
      <th scope="row">
        <a href={jobLink(job.id)}>{job.name}</a>
        <div class="quiet mono">{job.id}</div>
      </th>
      <td>
        <StateBadge state={job.state} />
        {job.reason && (
          <div class="quiet reason" title={job.reason}>
            {job.reason}
          </div>
        )}
      </td>
      <td>
        <ProgressBar job={job} />
      </td>
      <td class="number wide-only">
        <Value field="samples_per_s" value={latest?.samples_per_s} text={integer(latest?.samples_per_s)} />
      </td>
      <td class="number">
        <Value field="step_ms" value={latest?.step_ms} text={ms(latest?.step_ms)} />
      </td>
      <td class="number">
        <Value field="exposed_ms" value={latest?.exposed_ms} text={ms(latest?.exposed_ms)} />
      </td>
      <td class="number">
        <Value field="comm_overlap" value={latest?.comm_overlap} text={percent(latest?.comm_overlap)} />
      </td>
      <td class="nowrap">
        <time dateTime={job.submitted_at}>{instant(job.submitted_at)}</time>
      </td>
    </tr>
  );
}
