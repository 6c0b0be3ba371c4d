// The REST answers that the page reads. Names are those of the API; times are ISO 8601 with Z.

export type JobState =
  | "queued"
  | "starting"
  | "running"
  | "stopping"
  | "succeeded"
  | "failed"
  | "stopped"
  | "lost";

export type Partition = "ol" | "nol" | null;

/** The mean over the ranks of the newest step that every rank reported; `steps` is the planned total. */
export interface LatestStep {
  step: number;
  steps: number | null;
  rank_count: number;
  samples_per_s: number | null;
  step_ms: number;
  compute_ms: number;
  comm_ms: number;
  exposed_ms: number;
  comm_overlap: number | null;
  id_overlap: number | null;
  loss: number | null;
}

export interface ShardedTable {
  name: string;
  module: string;
  rows: number;
  dim: number;
  sharding: string;
  ranks: number[];
}

export interface JobPlan {
  steps: number | null;
  world_size: number;
  prioritized: Record<string, string>;
  not_prioritized: Record<string, string>;
  sharding: ShardedTable[];
}

export interface JobResult {
  steps: number;
  samples: number;
  seconds: number;
  loss: number | null;
  metrics: Record<string, number | null>;
  bad_rows: number | null;
  checkpoint: string | null;
}

export interface JobFailure {
  message: string;
  traceback: string;
}

/** The part of the job file that the page shows. */
export interface JobSpec {
  model: { factory: string };
  data: { source: string; path: string | null };
  training: {
    schedule: string;
    batch_size: number;
    epochs: number;
    max_steps: number | null;
    dense_lr: number;
    sparse_optimizer: { name: string; lr: number };
  };
}

export interface Job {
  id: string;
  name: string;
  project: string;
  state: JobState;
  reason: string | null;
  submitted_at: string;
  started_at: string | null;
  ended_at: string | null;
  attempts: number;
  spec: JobSpec;
  /** `max_workers` of an elastic group; the other figures are those of the smallest group that trains. */
  resources: { workers: number; cpus: number; gpus: number; max_workers: number | null };
  plan: JobPlan | null;
  result: JobResult | null;
  failure: JobFailure | null;
  dropped_samples: number;
  latest: LatestStep | null;
}

export interface JobPage {
  items: Job[];
  next_cursor: string | null;
}

/** The fields of a step sample that the charts use. */
export interface StepSample {
  step: number;
  rank: number;
  step_ms: number;
  exposed_ms: number;
  loss: number | null;
}

export interface StepPage {
  items: StepSample[];
  next_after: number | null;
}

/** How a figure spreads over the rank-steps of a run. */
export interface Spread {
  mean: number;
  p50: number;
  p95: number;
  p99: number;
}

export interface CollectiveOverlap {
  name: string;
  partition: Partition;
  ms: Spread;
  exposed_ms: Spread;
  comm_overlap: number | null;
  bytes_sent: number;
  bytes_received: number;
}

export interface RankOverlap {
  rank: number;
  step_ms: Spread;
  exposed_ms: Spread;
  comm_overlap: number | null;
  collectives: CollectiveOverlap[];
}

/** `steps` counts the steps behind the figures, `warmup_steps` those that are left out: the first of each attempt. */
export interface Overlap {
  steps: number;
  warmup_steps: number;
  step_ms: Spread | null;
  compute_ms: Spread | null;
  comm_ms: Spread | null;
  exposed_ms: Spread | null;
  hidden_ms: Spread | null;
  comm_overlap: number | null;
  id_overlap: number | null;
  collectives: CollectiveOverlap[];
  ranks: RankOverlap[];
}

/** A run that somebody submitted to Ray without this service. */
export interface WatchedRun {
  id: string;
  state: JobState;
  reason: string | null;
  entrypoint: string;
  started_at: string | null;
  ended_at: string | null;
}

export interface WatchedRuns {
  items: WatchedRun[];
}
