import { describe, expect, it } from "vitest";
import type { StepSample } from "../src/api/shapes";
import { axisEnd, StepSeries } from "../src/figures/series";

function sample(step: number, rank: number, step_ms: number, loss: number | null = 1): StepSample {
  return { step, rank, step_ms, exposed_ms: step_ms / 10, loss };
}

describe("StepSeries", () => {
  it("averages the ranks of a step", () => {
    const series = new StepSeries(10);
    series.add([sample(0, 0, 100, 0.5), sample(0, 1, 200, 0.7)]);
    series.add([sample(1, 0, 90), sample(1, 1, 110)]);
    const { steps, step_ms, exposed_ms, loss } = series.columns();
    expect(steps).toEqual([0, 1]);
    expect(step_ms).toEqual([150, 100]);
    expect(exposed_ms).toEqual([15, 10]);
    expect(loss[0]).toBeCloseTo(0.6);
  });

  it("leaves losses that are not finite out of the mean, and a gap where there is none", () => {
    const series = new StepSeries(10);
    series.add([sample(0, 0, 1, null), sample(0, 1, 1, 0.4), sample(1, 0, 1, null)]);
    expect(series.columns().loss).toEqual([0.4, null]);
  });

  it("stays bounded, keeps the mean, and gives all points the same stride", () => {
    const series = new StepSeries(8);
    for (let step = 0; step < 1000; step += 1) series.add([sample(step, 0, step), sample(step, 1, step)]);
    const { steps, step_ms } = series.columns();
    expect(series.stride).toBe(128);
    expect(steps).toEqual([0, 128, 256, 384, 512, 640, 768, 896]);
    expect(step_ms.slice(0, 2)).toEqual([63.5, 191.5]);
    expect(step_ms[7]).toBe((896 + 999) / 2);
  });

  it("goes on after a gap and from a step in the middle", () => {
    const series = new StepSeries(4);
    series.add([5, 6, 7, 8, 20].map((step) => sample(step, 0, step)));
    expect(series.stride).toBe(2);
    expect(series.columns().steps).toEqual([4, 6, 8, 20]);
    expect(series.columns().step_ms).toEqual([5, 6.5, 8, 20]);
  });
});

describe("axisEnd", () => {
  it("is not ruled by a few slow first steps", () => {
    const values = [5000, 900, ...Array.from({ length: 300 }, () => 100)];
    expect(axisEnd(values)).toBe(130);
  });

  it("leaves a small margin above even values, and never is zero", () => {
    expect(axisEnd([100, 100])).toBe(105);
    expect(axisEnd([])).toBe(1);
    expect(axisEnd([0, 0])).toBe(1);
  });
});
