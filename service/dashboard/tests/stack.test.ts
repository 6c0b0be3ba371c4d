import { describe, expect, it } from "vitest";
import type { CollectiveOverlap, Partition } from "../src/api/shapes";
import { stackBars } from "../src/figures/stack";

function collective(name: string, partition: Partition, ms: number, exposed: number): CollectiveOverlap {
  const spread = (mean: number) => ({ mean, p50: mean, p95: mean, p99: mean });
  return {
    name,
    partition,
    ms: spread(ms),
    exposed_ms: spread(exposed),
    comm_overlap: ms > 0 ? 1 - exposed / ms : null,
    bytes_sent: 0,
    bytes_received: 0,
  };
}

describe("stackBars", () => {
  it("splits each collective into exposed and hidden on the scale of the longest", () => {
    const [ol, nol] = stackBars([collective("embedding", "nol", 20, 1), collective("embedding", "ol", 10, 8)]);
    expect(ol).toMatchObject({ hidden_ms: 2, exposed_ms: 8, hidden_share: 0.1, exposed_share: 0.4 });
    expect(nol).toMatchObject({ hidden_ms: 19, exposed_ms: 1, hidden_share: 0.95, exposed_share: 0.05 });
  });

  it("keeps the order of a step, OL above NOL, unknown names last", () => {
    const bars = stackBars([
      collective("checkpoint", null, 1, 1),
      collective("dense_allreduce", null, 1, 1),
      collective("gradient", "nol", 1, 1),
      collective("gradient", "ol", 1, 1),
      collective("embedding", "nol", 1, 1),
      collective("input_dist", null, 1, 1),
    ]);
    expect(bars.map(({ collective: { name, partition } }) => `${name} ${partition}`)).toEqual([
      "input_dist null",
      "embedding nol",
      "gradient ol",
      "gradient nol",
      "dense_allreduce null",
      "checkpoint null",
    ]);
  });

  it("draws nothing, and divides by nothing, where nothing was sent", () => {
    expect(stackBars([])).toEqual([]);
    expect(stackBars([collective("embedding", "ol", 0, 0)])[0]).toMatchObject({ hidden_share: 0, exposed_share: 0 });
  });

  it("never draws a negative hidden part", () => {
    expect(stackBars([collective("gradient", "ol", 5, 5.000001)])[0]).toMatchObject({ hidden_ms: 0, exposed_share: 1 });
  });
});
