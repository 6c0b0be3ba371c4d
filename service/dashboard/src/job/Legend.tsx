import { DEFINITIONS } from "../figures/definitions";
import { PartitionTag } from "../parts/PartitionTag";

/** What colours and tags mean on this page. */
export function Legend() {
  return (
    <ul class="legend">
      <li title={DEFINITIONS.exposed_ms.text}>
        <span class="swatch bar-exposed" aria-hidden="true" /> exposed: compute waits
      </li>
      <li title={DEFINITIONS.hidden_ms.text}>
        <span class="swatch bar-hidden" aria-hidden="true" /> hidden behind compute
      </li>
      <li title={DEFINITIONS.ol.text}>
        <PartitionTag partition="ol" /> rows two batches share, urgent
      </li>
      <li title={DEFINITIONS.nol.text}>
        <PartitionTag partition="nol" /> the other rows, sent early or late
      </li>
    </ul>
  );
}
