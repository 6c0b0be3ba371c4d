import { bytes, ms, percent } from "../figures/format";
import type { Bar } from "../figures/stack";
import { PartitionTag } from "../parts/PartitionTag";
import { Value } from "../parts/Value";
import { StackedBar } from "./StackedBar";

export function CollectiveRow({ bar }: { bar: Bar }) {
  const { collective } = bar;
  return (
    <tr data-collective={collective.name} data-partition={collective.partition ?? "none"}>
      <th scope="row" class="nowrap">
        <span class="mono">{collective.name}</span> <PartitionTag partition={collective.partition} />
      </th>
      <td class="bar-cell">
        <StackedBar hidden_share={bar.hidden_share} exposed_share={bar.exposed_share} />
      </td>
      <td class="number">
        <Value field="ms" value={collective.ms.mean} text={ms(collective.ms.mean)} />
      </td>
      <td class="number strong">
        <Value field="exposed_ms" value={collective.exposed_ms.mean} text={ms(collective.exposed_ms.mean)} />
      </td>
      <td class="number wide-only">
        <Value field="hidden_ms" value={bar.hidden_ms} text={ms(bar.hidden_ms)} />
      </td>
      <td class="number">
        <Value field="comm_overlap" value={collective.comm_overlap} text={percent(collective.comm_overlap)} />
      </td>
      <td class="number nowrap">
        <Value field="bytes_sent" value={collective.bytes_sent} text={bytes(collective.bytes_sent)} />
      </td>
      <td class="number nowrap">
        <Value field="bytes_received" value={collective.bytes_received} text={bytes(collective.bytes_received)} />
      </td>
    </tr>
  );
}
