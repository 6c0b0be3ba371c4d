import { useState } from "preact/hooks";
import type { Job } from "../api/shapes";
import { JobFeed, type Measured, type Snapshot } from "../live/jobFeed";
import { usePolling } from "../live/polling";
import { TroubleNotice } from "../parts/TroubleNotice";
import { Charts } from "./Charts";
import { Collectives } from "./Collectives";
import { Facts } from "./Facts";
import { Figures } from "./Figures";
import { Glossary } from "./Glossary";
import { JobHeader } from "./JobHeader";
import { RankPicker } from "./RankPicker";
import { RanksTable } from "./RanksTable";

const INTERVAL_MS = 1000;

/** One job, live until it ends. Mounted anew for each id. */
export function JobPage({ id }: { id: string }) {
  const [rank, setRank] = useState<number | null>(null);
  const [snapshot, setSnapshot] = useState<Snapshot | null>(null);
  const [feed, setFeed] = useState(() => new JobFeed(id, null));
  const trouble = usePolling(`rank ${rank}`, INTERVAL_MS, async (live) => {
    const next = await feed.turn();
    if (live()) setSnapshot(next);
    return next.complete ? "done" : "again";
  });
  const pick = (chosen: number | null) => {
    setFeed(new JobFeed(id, chosen));
    setRank(chosen);
  };
  document.title = snapshot ? `${snapshot.job.name}: ${snapshot.job.state}` : "Overlane";
  return (
    <>
      <nav aria-label="Breadcrumb">
        <a href="#/">Jobs</a> <span class="quiet">/ {id}</span>
      </nav>
      <TroubleNotice trouble={trouble} stale={snapshot !== null} />
      {snapshot === null && trouble === null && <p class="quiet">Loading the job…</p>}
      {snapshot && <Body snapshot={snapshot} rank={rank} pick={pick} />}
    </>
  );
}

interface BodyProps {
  snapshot: Snapshot;
  rank: number | null;
  pick: (rank: number | null) => void;
}

function Body({ snapshot, rank, pick }: BodyProps) {
  const { job, measured } = snapshot;
  return (
    <div data-job={job.id} data-complete={snapshot.complete}>
      <JobHeader job={job} />
      {"archived" in measured ? (
        <p class="notice" data-archived="steps">
          {measured.archived}
        </p>
      ) : (
        <Steps job={job} measured={measured} rank={rank} pick={pick} />
      )}
      <Facts job={job} />
      <Glossary />
    </div>
  );
}

interface StepsProps {
  job: Job;
  measured: Measured;
  rank: number | null;
  pick: (rank: number | null) => void;
}

function Steps({ job, measured, rank, pick }: StepsProps) {
  const { overlap, columns, stride } = measured;
  const chosen = overlap.ranks.find((entry) => entry.rank === rank);
  const ranks = overlap.ranks.map((entry) => entry.rank);
  return (
    <>
      <Figures overlap={overlap} latest={job.latest} />
      <RankPicker ranks={ranks} rank={rank} pick={pick} />
      <Collectives collectives={chosen?.collectives ?? overlap.collectives} rank={chosen?.rank ?? null} />
      <Charts columns={columns} stride={stride} rank={rank} />
      {overlap.ranks.length > 1 && <RanksTable ranks={overlap.ranks} />}
    </>
  );
}
