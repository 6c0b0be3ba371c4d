import type { JobState } from "../api/shapes";

// Colour, shape and word say the same, so that none of them is needed alone.
const SIGNS: Record<JobState, string> = {
  queued: "○",
  starting: "◔",
  running: "▶",
  stopping: "◑",
  succeeded: "✓",
  failed: "✕",
  stopped: "■",
  lost: "?",
};

export function StateBadge({ state }: { state: JobState }) {
  return (
    <span class={`state state-${state}`} data-field="state" data-value={state}>
      <span aria-hidden="true">{SIGNS[state]}</span> {state}
    </span>
  );
}
