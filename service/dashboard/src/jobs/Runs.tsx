import { useState } from "preact/hooks";
import { fetchRuns } from "../api/client";
import type { WatchedRun } from "../api/shapes";
import { access } from "../api/token";
import { instant } from "../figures/format";
import { usePolling } from "../live/polling";
import { StateBadge } from "../parts/StateBadge";

const INTERVAL_MS = 10_000;
const LIMIT = 20;

/** Runs of the Ray cluster that were started without this service. Not every token may see them, so one is asked first. */
export function Runs() {
  const [wanted, setWanted] = useState(!access().given);
  if (wanted) return <RunsTable />;
  return (
    <button type="button" class="show-runs" onClick={() => setWanted(true)}>
      Show runs started with ray job submit
    </button>
  );
}

function RunsTable() {
  const [runs, setRuns] = useState<readonly WatchedRun[]>([]);
  const trouble = usePolling("runs", INTERVAL_MS, async (live) => {
    const { items } = await fetchRuns(LIMIT);
    if (live()) setRuns(items);
    return "again";
  });
  if (trouble) return <p class="quiet runs-refused">No runs started with ray job submit can be shown. {trouble.message}</p>;
  if (runs.length === 0) return null;
  return (
    <div class="scroll" role="region" aria-label="Runs started with ray job submit" tabIndex={0}>
      <table class="jobs runs">
        <caption>Runs started with ray job submit, newest first. Overlane only watches them.</caption>
        <thead>
          <tr>
            <th scope="col">Run</th>
            <th scope="col">State</th>
            <th scope="col">Command</th>
            <th scope="col">Started</th>
          </tr>
        </thead>
        <tbody>
          {runs.map((run) => (
            <RunRow key={run.id} run={run} />
          ))}
        </tbody>
      </table>
    </div>
  );
}

function RunRow({ run }: { run: WatchedRun }) {
  return (
    <tr data-run={run.id}>
      <th scope="row" class="mono">
        {run.id}
      </th>
      <td>
        <StateBadge state={run.state} />
        {run.reason && (
          <div class="quiet reason" title={run.reason}>
            {run.reason}
          </div>
        )}
      </td>
      <td class="mono command">{run.entrypoint}</td>
      <td class="nowrap">{run.started_at && <time dateTime={run.started_at}>{instant(run.started_at)}</time>}</td>
    </tr>
  );
}
