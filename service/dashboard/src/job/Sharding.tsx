import type { ShardedTable } from "../api/shapes";
import { bytes, integer } from "../figures/format";

const FLOAT_BYTES = 4;

/** The sharding plan: which ranks hold the rows of which table. */
export function Sharding({ tables }: { tables: readonly ShardedTable[] }) {
  if (tables.length === 0) return null;
  return (
    <div class="sharding">
      <h3>
        Sharding plan <span class="quiet">({tables.length})</span>
      </h3>
      <div class="scroll" role="region" aria-label="Sharding plan" tabIndex={0}>
        <table>
          <caption class="unseen">How each embedding table is sharded, and over which ranks</caption>
          <thead>
            <tr>
              <th scope="col">Table</th>
              <th scope="col" class="wide-only">
                Module
              </th>
              <th scope="col">Sharding</th>
              <th scope="col" class="number">
                Ranks
              </th>
              <th scope="col" class="number">
                Rows
              </th>
              <th scope="col" class="number">
                Dim
              </th>
              <th scope="col" class="number">
                Weights
              </th>
            </tr>
          </thead>
          <tbody>
            {tables.map((table) => (
              <tr key={`${table.module}/${table.name}`} data-table={table.name}>
                <th scope="row" class="mono">
                  {table.name}
                </th>
                <td class="mono wide-only">{table.module}</td>
                <td>{table.sharding}</td>
                <td class="number">{table.ranks.length}</td>
                <td class="number">{integer(table.rows)}</td>
                <td class="number">{integer(table.dim)}</td>
                <td class="number">{bytes(table.rows * table.dim * FLOAT_BYTES)}</td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
    </div>
  );
}
