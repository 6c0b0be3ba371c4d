import type { JobResult } from "../api/shapes";
import { decimal, duration, integer } from "../figures/format";
import { Value } from "../parts/Value";

/** What the finished run reached on the held-out data. */
export function Result({ result }: { result: JobResult }) {
  return (
    <dl class="pairs result">
      {Object.entries(result.metrics).map(([name, value]) => (
        <div key={name}>
          <dt>held-out {name}</dt>
          <dd class="strong">
            <Value field={`metrics.${name}`} value={value} text={decimal(value)} />
          </dd>
        </div>
      ))}
      <div>
        <dt>final loss</dt>
        <dd>
          <Value field="result.loss" value={result.loss} text={decimal(result.loss)} />
        </dd>
      </div>
      <div>
        <dt>trained</dt>
        <dd>
          {integer(result.samples)} samples in {duration(result.seconds)}
        </dd>
      </div>
      {result.bad_rows !== null && (
        <div>
          <dt>bad rows left out</dt>
          <dd>
            <Value field="result.bad_rows" value={result.bad_rows} text={integer(result.bad_rows)} />
          </dd>
        </div>
      )}
      {result.checkpoint && (
        <div>
          <dt>checkpoint</dt>
          <dd class="mono">{result.checkpoint}</dd>
        </div>
      )}
    </dl>
  );
}
