import { fetchJob, fetchOverlap, fetchSteps, Problem } from "../api/client";
import type { Job, Overlap } from "../api/shapes";
import { hasEnded } from "../figures/progress";
import { type Columns, StepSeries } from "../figures/series";

const POINTS = 1200;
const PAGE = 1000;
const PAGES_PER_TURN = 20;
const GONE = 410;
/** How far back the charts of a long run begin, in steps. */
export const WINDOW_STEPS = 5000;

/** Everything that the page of one job shows at one moment. */
export interface Snapshot {
  job: Job;
  /** Where the steps of the job are, if they have been archived. */
  measured: Measured | { archived: string };
  complete: boolean;
}

/** What the steps of the job say. */
export interface Measured {
  overlap: Overlap;
  columns: Columns;
  stride: number;
}

/** Follows one job: each turn reads the job, its overlap, and the steps that are new since the turn before. */
export class JobFeed {
  private series = new StepSeries(POINTS);
  private after: number | null = null;
  private attempts: number | null = null;

  /** `rank` null: the charts show the mean over all ranks. */
  constructor(
    private readonly id: string,
    private readonly rank: number | null,
  ) {}

  async turn(): Promise<Snapshot> {
    const job = await fetchJob(this.id);
    this.restartIfNew(job);
    try {
      // The job first: if it has ended by now, the steps and the overlap read after it are the last ones.
      const [overlap, drained] = await Promise.all([fetchOverlap(this.id), this.readSteps()]);
      const measured = { overlap, columns: this.series.columns(), stride: this.series.stride };
      return { job, measured, complete: drained && hasEnded(job.state) };
    } catch (error) {
      if (!(error instanceof Problem) || error.status !== GONE) throw error;
      return { job, measured: { archived: error.message }, complete: true };
    }
  }

  /** A restarted attempt repeats steps since its checkpoint, so the charts begin again with it. */
  private restartIfNew(job: Job): void {
    if (this.after !== null && this.attempts === job.attempts) return;
    this.attempts = job.attempts;
    this.series = new StepSeries(POINTS);
    this.after = Math.max(-1, (job.latest?.step ?? -1) - WINDOW_STEPS);
  }

  private async readSteps(): Promise<boolean> {
    for (let page = 0; page < PAGES_PER_TURN; page += 1) {
      const { items, next_after } = await fetchSteps(this.id, this.after ?? -1, this.rank, PAGE);
      if (next_after === null) return true;
      this.series.add(items);
      this.after = next_after;
    }
    return false;
  }
}
