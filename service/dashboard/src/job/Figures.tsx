import type { LatestStep, Overlap } from "../api/shapes";
import { decimal, integer, ms, percent } from "../figures/format";
import { Figure } from "./Figure";

type TimeName = "step_ms" | "compute_ms" | "comm_ms" | "exposed_ms" | "hidden_ms";

interface Props {
  overlap: Overlap;
  latest: LatestStep | null;
}

/** The headline: means over all ranks and steps, with the newest step beneath each. */
export function Figures({ overlap, latest }: Props) {
  const time = (name: TimeName, last: number | null) => {
    const spread = overlap[name];
    return (
      <Figure name={name} value={spread?.mean} text={ms(spread?.mean)} unit="ms" last={ms(last)}>
        p50 {ms(spread?.p50)} · p95 {ms(spread?.p95)}
      </Figure>
    );
  };
  return (
    <section aria-label="Headline figures">
      <dl class="figures">
        {time("step_ms", latest && latest.step_ms)}
        {time("compute_ms", latest && latest.compute_ms)}
        {time("comm_ms", latest && latest.comm_ms)}
        {time("exposed_ms", latest && latest.exposed_ms)}
        {time("hidden_ms", latest && latest.comm_ms - latest.exposed_ms)}
        <Figure
          name="comm_overlap"
          value={overlap.comm_overlap}
          text={percent(overlap.comm_overlap)}
          last={percent(latest?.comm_overlap)}
        >
          hidden / comm
        </Figure>
        <Figure
          name="id_overlap"
          value={overlap.id_overlap}
          text={percent(overlap.id_overlap)}
          last={percent(latest?.id_overlap)}
        >
          ids used again
        </Figure>
        <Figure name="loss" value={latest?.loss} text={decimal(latest?.loss)} last={null}>
          {latest ? `at step ${integer(latest.step)}` : "no step yet"}
        </Figure>
      </dl>
      <p class="quiet foot">
        Means over {integer(overlap.steps)} steps and {integer(overlap.ranks.length)} ranks
        {overlap.warmup_steps > 0 && `, ${overlap.warmup_steps} warm-up steps left out`}; “last” is the
        newest step that every rank has reported.
      </p>
    </section>
  );
}
