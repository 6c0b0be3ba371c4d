import type { CollectiveOverlap, Partition } from "../api/shapes";

// The order of a step: ids out, masks, rows in, gradients back, dense weights.
const ORDER = ["input_dist", "overlap_mask", "embedding", "gradient", "dense_allreduce"];
const PARTITIONS: readonly Partition[] = ["ol", "nol", null];

/** One stacked bar: mean hidden and exposed ms per step, and both as shares (0..1) of the longest bar. */
export interface Bar {
  collective: CollectiveOverlap;
  hidden_ms: number;
  exposed_ms: number;
  hidden_share: number;
  exposed_share: number;
}

/** Bars in the order of a step, OL above NOL, all on one scale. Collectives of unknown names come last. */
export function stackBars(collectives: readonly CollectiveOverlap[]): Bar[] {
  const longest = Math.max(...collectives.map((collective) => collective.ms.mean), 0);
  const share = (part_ms: number) => (longest > 0 ? part_ms / longest : 0);
  return [...collectives].sort(byStepOrder).map((collective) => {
    // Rounding can put the exposed mean a hair above the whole.
    const exposed_ms = Math.min(collective.exposed_ms.mean, collective.ms.mean);
    const hidden_ms = collective.ms.mean - exposed_ms;
    return {
      collective,
      hidden_ms,
      exposed_ms,
      hidden_share: share(hidden_ms),
      exposed_share: share(exposed_ms),
    };
  });
}

function byStepOrder(a: CollectiveOverlap, b: CollectiveOverlap): number {
  const place = (name: string) => (ORDER.includes(name) ? ORDER.indexOf(name) : ORDER.length);
  return (
    place(a.name) - place(b.name) ||
    a.name.localeCompare(b.name) ||
    PARTITIONS.indexOf(a.partition) - PARTITIONS.indexOf(b.partition)
  );
}
