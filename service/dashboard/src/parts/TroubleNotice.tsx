import { instant } from "../figures/format";
import type { Trouble } from "../live/polling";

interface Props {
  trouble: Trouble | null;
  /** Whether figures from before the trouble stand on the page. */
  stale: boolean;
}

/** Says why no answer comes, and what the page does about it. */
export function TroubleNotice({ trouble, stale }: Props) {
  return (
    <div role="alert">
      {trouble && (
        <div class="notice" data-trouble={trouble.fatal ? "problem" : "unreachable"}>
          <strong>{trouble.fatal ? "The service says no." : "The service does not answer."}</strong> {trouble.message}
          {!trouble.fatal && (
            <div class="quiet">
              Since {instant(new Date(trouble.since_ms).toISOString())}; the page keeps trying.
              {stale && " The figures below are the last that came."} If you stopped it, start it again with{" "}
              <code>overlane serve</code> or <code>make run</code>.
            </div>
          )}
        </div>
      )}
    </div>
  );
}
