interface Props {
  ranks: readonly number[];
  rank: number | null;
  pick: (rank: number | null) => void;
}

/** Which rank the collectives and the charts show; nothing to pick with one rank. */
export function RankPicker({ ranks, rank, pick }: Props) {
  if (ranks.length < 2) return null;
  return (
    <label class="rank-picker">
      Collectives and charts of{" "}
      <select
        value={rank === null ? "all" : String(rank)}
        onChange={(event) => pick(event.currentTarget.value === "all" ? null : Number(event.currentTarget.value))}
      >
        <option value="all">all {ranks.length} ranks (mean)</option>
        {ranks.map((each) => (
          <option key={each} value={String(each)}>
            rank {each}
          </option>
        ))}
      </select>
    </label>
  );
}
