interface Props {
  /** Shares (0..1) of the full width. */
  hidden_share: number;
  exposed_share: number;
}

/** Exposed first, so that what communication costs can be compared along one edge. The figures stand beside it. */
export function StackedBar({ hidden_share, exposed_share }: Props) {
  return (
    <div class="bar" aria-hidden="true">
      <div class="bar-exposed" style={{ width: `${exposed_share * 100}%` }} />
      <div class="bar-hidden" style={{ width: `${hidden_share * 100}%` }} />
    </div>
  );
}
