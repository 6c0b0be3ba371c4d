import { useState } from "preact/hooks";
import { fetchJobs } from "../api/client";
import type { JobPage } from "../api/shapes";
import { usePolling } from "../live/polling";
import { olderLink } from "../live/route";
import { TroubleNotice } from "../parts/TroubleNotice";
import { JobsTable } from "./JobsTable";
import { NoJobs } from "./NoJobs";
import { Runs } from "./Runs";

const INTERVAL_MS = 2000;
const LIMIT = 50;

interface Answer {
  cursor: string | null;
  page: JobPage;
}

/** The list of jobs, newest first; `cursor` names an older page. */
export function JobsPage({ cursor }: { cursor: string | null }) {
  const [answer, setAnswer] = useState<Answer | null>(null);
  const trouble = usePolling(`jobs ${cursor}`, INTERVAL_MS, async (live) => {
    const page = await fetchJobs(cursor, LIMIT);
    if (live()) setAnswer({ cursor, page });
    return "again";
  });
  document.title = "Overlane: jobs";
  const page = answer?.cursor === cursor ? answer.page : null;
  return (
    <section aria-label="Jobs">
      <TroubleNotice trouble={trouble} stale={page !== null} />
      {page === null && trouble === null && <p class="quiet">Loading the jobs…</p>}
      {page?.items.length === 0 && <NoJobs older={cursor !== null} />}
      {page && page.items.length > 0 && <JobsTable jobs={page.items} />}
      <nav class="pages" aria-label="Pages of jobs">
        {cursor !== null && <a href="#/">Newest jobs</a>}
        {page?.next_cursor && <a href={olderLink(page.next_cursor)}>Older jobs</a>}
      </nav>
      {cursor === null && <Runs />}
    </section>
  );
}
