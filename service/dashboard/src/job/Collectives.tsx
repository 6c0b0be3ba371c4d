import type { CollectiveOverlap } from "../api/shapes";
import { DEFINITIONS } from "../figures/definitions";
import { stackBars } from "../figures/stack";
import { CollectiveRow } from "./CollectiveRow";
import { Legend } from "./Legend";

interface Props {
  collectives: readonly CollectiveOverlap[];
  /** The rank whose figures these are; null for the mean over all. */
  rank: number | null;
}

/** The main thing: how much of every collective is hidden, OL and NOL apart. */
export function Collectives({ collectives, rank }: Props) {
  const whose = rank === null ? "all ranks" : `rank ${rank}`;
  return (
    <section class="card" aria-labelledby="collectives-title">
      <div class="card-head">
        <h2 id="collectives-title">Collectives</h2>
        <Legend />
      </div>
      {collectives.length === 0 ? (
        <p class="quiet">No collective has been reported yet.</p>
      ) : (
        <div class="scroll" role="region" aria-label="Collectives" tabIndex={0}>
          <table class="collectives" data-rank={rank ?? "all"}>
            <caption class="unseen">Hidden and exposed time of each collective, mean per step of {whose}</caption>
            <thead>
              <tr>
                <th scope="col">Collective</th>
                <th scope="col">Mean ms per step</th>
                <th scope="col" class="number" title="Mean time in flight per step">
                  ms
                </th>
                <th scope="col" class="number" title={DEFINITIONS.exposed_ms.text}>
                  Exposed
                </th>
                <th scope="col" class="number wide-only" title={DEFINITIONS.hidden_ms.text}>
                  Hidden
                </th>
                <th scope="col" class="number" title={DEFINITIONS.comm_overlap.text}>
                  Comm overlap
                </th>
                <th scope="col" class="number" title="Over all counted steps, what a rank sends itself excluded">
                  Sent
                </th>
                <th scope="col" class="number" title="Over all counted steps, what a rank sends itself excluded">
                  Received
                </th>
              </tr>
            </thead>
            <tbody>
              {stackBars(collectives).map((bar) => (
                <CollectiveRow key={`${bar.collective.name} ${bar.collective.partition}`} bar={bar} />
              ))}
            </tbody>
          </table>
        </div>
      )}
    </section>
  );
}
