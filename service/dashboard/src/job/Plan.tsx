import type { JobPlan } from "../api/shapes";
import { Sharding } from "./Sharding";

/** Which modules the schedule prioritizes, why the others are not, and where the tables lie. */
export function Plan({ plan }: { plan: JobPlan }) {
  return (
    <div class="plan">
      <Modules title="Prioritized modules" modules={plan.prioritized} />
      <Modules title="Not prioritized" modules={plan.not_prioritized} />
      <Sharding tables={plan.sharding} />
    </div>
  );
}

function Modules({ title, modules }: { title: string; modules: Record<string, string> }) {
  const entries = Object.entries(modules);
  return (
    <div>
      <h3>
        {title} <span class="quiet">({entries.length})</span>
      </h3>
      <dl>
        {entries.map(([name, text]) => (
          <div key={name}>
            <dt class="mono">{name || "the model"}</dt>
            <dd>{text}</dd>
          </div>
        ))}
      </dl>
    </div>
  );
}
