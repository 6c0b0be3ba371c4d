import type uPlot from "uplot";
import { integer } from "../figures/format";

/** One line of a chart: its colour is the name of a CSS variable of the page. */
export interface Line {
  label: string;
  colour: string;
  filled: boolean;
  text: (value: number | null) => string;
}

const HEIGHT_PX = 200;

/** uPlot's options in the page's colours; `top` is read at every redraw. */
export function chartOptions(
  element: HTMLElement,
  lines: readonly Line[],
  top: { readonly current: number | null },
): uPlot.Options {
  const style = getComputedStyle(element);
  const colour = (name: string) => style.getPropertyValue(name).trim();
  const axis: uPlot.Axis = {
    stroke: colour("--quiet"),
    font: `11px ${style.fontFamily}`,
    grid: { stroke: colour("--line"), width: 1 },
    ticks: { stroke: colour("--line"), width: 1, size: 4 },
  };
  return {
    width: element.clientWidth,
    height: HEIGHT_PX,
    scales: {
      x: { time: false },
      y: { range: (_plot, low, high) => valueRange(low, high, top.current) },
    },
    axes: [
      {
        ...axis,
        size: 30,
        space: 60,
        incrs: STEP_INCREMENTS,
        values: (_plot, steps) => steps.map((step) => integer(step)),
      },
      { ...axis, size: 48 },
    ],
    cursor: { y: false, drag: { x: true, y: false } },
    series: [
      { label: "step", value: (plot, step, column, index) => integer(index === null ? newest(plot, column) : step) },
      ...lines.map((line): uPlot.Series => ({
        label: line.label,
        stroke: colour(line.colour),
        width: 1.25,
        points: { show: false },
        value: (plot, value, column, index) => line.text(index === null ? newest(plot, column) : value),
        ...(line.filled ? { fill: `color-mix(in srgb, ${colour(line.colour)} 30%, transparent)` } : {}),
      })),
    ],
  };
}

// Steps are whole numbers: no tick between two of them.
const STEP_INCREMENTS = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1e3, 2e3, 5e3, 1e4, 2e4, 5e4, 1e5, 2e5, 5e5, 1e6, 1e7];

/** What the legend shows while the cursor is elsewhere. */
function newest(plot: uPlot, column: number): number | null {
  return plot.data[column]?.at(-1) ?? null;
}

function valueRange(low: number | null, high: number | null, top: number | null): uPlot.Range.MinMax {
  if (top !== null) return [0, top];
  if (low === null || high === null) return [0, 1];
  const margin = (high - low) * 0.08 || Math.abs(high) * 0.1 || 1;
  return [low - margin, high + margin];
}
