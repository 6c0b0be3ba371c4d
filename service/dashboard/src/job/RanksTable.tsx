import type { RankOverlap } from "../api/shapes";
import { ms, percent } from "../figures/format";
import { Value } from "../parts/Value";
import { RankBar } from "./RankBar";

/** The ranks side by side: a slow one shows up as exposed time on all the others. */
export function RanksTable({ ranks }: { ranks: readonly RankOverlap[] }) {
  const longest = Math.max(...ranks.map((rank) => rank.step_ms.mean), 0);
  return (
    <section class="card" aria-labelledby="ranks-title">
      <h2 id="ranks-title">Ranks</h2>
      <div class="scroll" role="region" aria-label="Ranks" tabIndex={0}>
        <table class="ranks">
          <caption class="unseen">Step time and exposed communication of each rank</caption>
          <thead>
            <tr>
              <th scope="col">Rank</th>
              <th scope="col">Exposed part of the step</th>
              <th scope="col" class="number">
                Step ms
              </th>
              <th scope="col" class="number wide-only">
                p95
              </th>
              <th scope="col" class="number">
                Exposed
              </th>
              <th scope="col" class="number wide-only">
                p95
              </th>
              <th scope="col" class="number">
                Comm overlap
              </th>
            </tr>
          </thead>
          <tbody>
            {ranks.map((rank) => (
              <tr key={rank.rank} data-rank={rank.rank}>
                <th scope="row">{rank.rank}</th>
                <td class="bar-cell">
                  <RankBar rank={rank} longest_ms={longest} />
                </td>
                <td class="number">
                  <Value field="step_ms" value={rank.step_ms.mean} text={ms(rank.step_ms.mean)} />
                </td>
                <td class="number quiet wide-only">{ms(rank.step_ms.p95)}</td>
                <td class="number strong">
                  <Value field="exposed_ms" value={rank.exposed_ms.mean} text={ms(rank.exposed_ms.mean)} />
                </td>
                <td class="number quiet wide-only">{ms(rank.exposed_ms.p95)}</td>
                <td class="number">
                  <Value field="comm_overlap" value={rank.comm_overlap} text={percent(rank.comm_overlap)} />
                </td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
    </section>
  );
}
