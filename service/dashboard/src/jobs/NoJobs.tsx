import { access } from "../api/token";

/** What to do when nothing was submitted yet. */
export function NoJobs({ older }: { older: boolean }) {
  if (older) return <p>There are no older jobs.</p>;
  const { given } = access();
  const token = given ? "export OVERLANE_TOKEN=...\n" : "";
  return (
    <div class="empty" data-empty="jobs">
      <h1>No jobs yet</h1>
      <p>Submit one from the checkout, and it appears here:</p>
      <pre>
        <code>
          {`export OVERLANE_URL=${location.origin}\n${token}overlane submit examples/movielens.yaml --follow`}
        </code>
      </pre>
      <p class="quiet">
        Or over REST: <code>POST /v1/jobs</code> with the job file as JSON or YAML; the schema is at{" "}
        {given ? <code>/openapi.json</code> : <a href="openapi.json">openapi.json</a>}.
      </p>
    </div>
  );
}
