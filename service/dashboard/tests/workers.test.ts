import { expect, it } from "vitest";
import type { Job } from "../src/api/shapes";
import { workers } from "../src/figures/workers";

const plan = { world_size: 3 } as Job["plan"];
const fixed = { workers: 2, cpus: 2, gpus: 0, max_workers: null };
const elastic = { workers: 1, cpus: 1, gpus: 0, max_workers: 4 };

it("a fixed group has one size", () => {
  expect(workers({ resources: fixed, plan, ended_at: null })).toBe("2 with 2 CPU, 0 GPU in all");
});

it("an elastic group says how large it may be and how large it is", () => {
  const smallest = "the smallest group takes 1 CPU, 0 GPU";
  expect(workers({ resources: elastic, plan: null, ended_at: null })).toBe(`1-4; ${smallest}`);
  expect(workers({ resources: elastic, plan, ended_at: null })).toBe(`1-4, now 3; ${smallest}`);
  expect(workers({ resources: elastic, plan, ended_at: "2026-01-02T03:04:05Z" })).toBe(`1-4, at last 3; ${smallest}`);
});
