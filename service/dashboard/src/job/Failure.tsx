import type { JobFailure } from "../api/shapes";

export function Failure({ failure }: { failure: JobFailure }) {
  return (
    <div class="notice" data-field="failure.message" data-value={failure.message}>
      <strong>Failed.</strong> {failure.message}
      {failure.traceback && (
        <details>
          <summary>Traceback</summary>
          <pre class="traceback" tabIndex={0}>
            {failure.traceback}
          </pre>
        </details>
      )}
    </div>
  );
}
