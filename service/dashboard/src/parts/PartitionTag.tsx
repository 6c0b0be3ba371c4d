import type { Partition } from "../api/shapes";

/** OL filled, NOL outlined, everywhere on the page. */
export function PartitionTag({ partition }: { partition: Partition }) {
  if (partition === null) return null;
  return <span class={`partition partition-${partition}`}>{partition.toUpperCase()}</span>;
}
