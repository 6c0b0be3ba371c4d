import type { ComponentChildren } from "preact";
import { DEFINITIONS } from "../figures/definitions";
import { Value } from "../parts/Value";

interface Props {
  name: keyof typeof DEFINITIONS;
  value: number | null | undefined;
  text: string;
  unit?: string;
  /** The newest step's figure as text; null where the figure itself is the newest. */
  last: string | null;
  children: ComponentChildren;
}

/** One headline figure: label, value, and two small lines beneath. */
export function Figure({ name, value, text, unit, last, children }: Props) {
  const { label, text: definition } = DEFINITIONS[name];
  return (
    <div class={`figure figure-${name}`} title={definition}>
      <dt>{label}</dt>
      <dd class="big">
        <Value field={name} value={value} text={text} />
        {unit && value != null && <span class="unit"> {unit}</span>}
      </dd>
      <dd class="quiet small">{children}</dd>
      {last !== null && <dd class="quiet small">last {last}</dd>}
    </div>
  );
}
