import { DEFINITIONS } from "../figures/definitions";

/** The hover texts once more, for touch and for screen readers. */
export function Glossary() {
  return (
    <details class="glossary">
      <summary>What the figures mean</summary>
      <dl>
        {Object.entries(DEFINITIONS).map(([name, { label, text }]) => (
          <div key={name}>
            <dt>{label}</dt>
            <dd>{text}</dd>
          </div>
        ))}
      </dl>
    </details>
  );
}
