import type { StepSample } from "../api/shapes";

/** One point of a chart: the mean over `samples` rank-steps whose steps start at `step`. */
interface Bucket {
  step: number;
  samples: number;
  step_ms: number;
  exposed_ms: number;
  losses: number;
  loss: number;
}

/** Columns for the charts; `loss` is null where no rank had a finite loss. */
export interface Columns {
  steps: number[];
  step_ms: number[];
  exposed_ms: number[];
  loss: (number | null)[];
}

/**
 * Step figures of a run of any length in bounded memory.
 *
 * Samples are averaged over the ranks and over `stride` consecutive steps. The stride starts at 1 and doubles whenever
 * there would be more than `capacity` points, so a point always stands for the same number of steps as its neighbours.
 */
export class StepSeries {
  private buckets: Bucket[] = [];
  private width = 1;

  constructor(private readonly capacity: number) {}

  /** How many steps one point stands for. */
  get stride(): number {
    return this.width;
  }

  /** Adds samples in the order of their steps; ranks of one step may come in any order. */
  add(samples: readonly StepSample[]): void {
    for (const sample of samples) {
      const start = Math.floor(sample.step / this.width) * this.width;
      const last = this.buckets[this.buckets.length - 1];
      const bucket = last?.step === start ? last : this.open(start);
      bucket.samples += 1;
      bucket.step_ms += sample.step_ms;
      bucket.exposed_ms += sample.exposed_ms;
      if (sample.loss !== null) {
        bucket.losses += 1;
        bucket.loss += sample.loss;
      }
      if (this.buckets.length > this.capacity) this.halve();
    }
  }

  columns(): Columns {
    return {
      steps: this.buckets.map((bucket) => bucket.step),
      step_ms: this.buckets.map((bucket) => bucket.step_ms / bucket.samples),
      exposed_ms: this.buckets.map((bucket) => bucket.exposed_ms / bucket.samples),
      loss: this.buckets.map((bucket) => (bucket.losses === 0 ? null : bucket.loss / bucket.losses)),
    };
  }

  private open(step: number): Bucket {
    const bucket = { step, samples: 0, step_ms: 0, exposed_ms: 0, losses: 0, loss: 0 };
    this.buckets.push(bucket);
    return bucket;
  }

  private halve(): void {
    this.width *= 2;
    const wide: Bucket[] = [];
    for (const bucket of this.buckets) {
      const start = Math.floor(bucket.step / this.width) * this.width;
      const last = wide[wide.length - 1];
      if (last?.step === start) merge(last, bucket);
      else wide.push({ ...bucket, step: start });
    }
    this.buckets = wide;
  }
}

function merge(into: Bucket, from: Bucket): void {
  into.samples += from.samples;
  into.step_ms += from.step_ms;
  into.exposed_ms += from.exposed_ms;
  into.losses += from.losses;
  into.loss += from.loss;
}

/**
 * Where the time axis ends: a little above the 98th percentile, so that the slow first steps do not flatten the rest,
 * and never above the largest value by more than a margin. 1 for no values.
 */
export function axisEnd(values: readonly number[]): number {
  if (values.length === 0) return 1;
  const sorted = [...values].sort((a, b) => a - b);
  const high = sorted[Math.floor((sorted.length - 1) * 0.98)] ?? 0;
  const top = sorted[sorted.length - 1] ?? 0;
  return Math.min(top * 1.05, high * 1.3) || 1;
}
