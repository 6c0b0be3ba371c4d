import type { RankOverlap } from "../api/shapes";

/** A step of this rank: the exposed part, then the rest, on the scale of the slowest rank. */
export function RankBar({ rank, longest_ms }: { rank: RankOverlap; longest_ms: number }) {
  const scale = longest_ms > 0 ? 100 / longest_ms : 0;
  const exposed = Math.min(rank.exposed_ms.mean, rank.step_ms.mean);
  return (
    <div class="bar" aria-hidden="true">
      <div class="bar-exposed" style={{ width: `${exposed * scale}%` }} />
      <div class="bar-rest" style={{ width: `${(rank.step_ms.mean - exposed) * scale}%` }} />
    </div>
  );
}
