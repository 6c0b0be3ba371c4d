import type { ComponentChildren } from "preact";
import { useMemo } from "preact/hooks";
import type uPlot from "uplot";
import { decimal, integer, ms } from "../figures/format";
import { axisEnd, type Columns } from "../figures/series";
import { Chart, type Line } from "./Chart";

interface Props {
  columns: Columns;
  stride: number;
  /** The rank that is shown; null for the mean over all ranks. */
  rank: number | null;
}

const TIME_LINES: readonly Line[] = [
  { label: "step ms", colour: "--ink", filled: false, text: ms },
  { label: "exposed ms", colour: "--exposed", filled: true, text: ms },
];
const LOSS_LINES: readonly Line[] = [{ label: "loss", colour: "--loss", filled: false, text: decimal }];

/** Step time with its exposed part, and the loss, over the steps. */
export function Charts({ columns, stride, rank }: Props) {
  const time = useMemo<uPlot.AlignedData>(() => [columns.steps, columns.step_ms, columns.exposed_ms], [columns]);
  const loss = useMemo<uPlot.AlignedData>(() => [columns.steps, columns.loss], [columns]);
  const whose = rank === null ? "mean of all ranks" : `rank ${rank}`;
  const grain = stride > 1 ? `, ${stride} steps a point` : "";
  return (
    <div class="charts">
      <figure class="card">
        <figcaption>
          <h2>Step time</h2> <span class="quiet">ms, {whose + grain}</span>
        </figcaption>
        <Drawn columns={columns}>
          <Chart
            data={time}
            lines={TIME_LINES}
            top={axisEnd(columns.step_ms)}
            summary={summary(columns, "step_ms", ms)}
          />
        </Drawn>
      </figure>
      <figure class="card">
        <figcaption>
          <h2>Training loss</h2> <span class="quiet">{whose + grain}</span>
        </figcaption>
        <Drawn columns={columns}>
          <Chart data={loss} lines={LOSS_LINES} top={null} summary={summary(columns, "loss", decimal)} />
        </Drawn>
      </figure>
    </div>
  );
}

function Drawn({ columns, children }: { columns: Columns; children: ComponentChildren }) {
  return columns.steps.length === 0 ? <p class="quiet">No step has been reported yet.</p> : <>{children}</>;
}

/** The chart in one sentence, for those who cannot see it. */
function summary(columns: Columns, name: "step_ms" | "loss", text: (value: number | null) => string): string {
  const last = columns.steps.length - 1;
  const [from, to] = [columns[name][0] ?? null, columns[name][last] ?? null];
  const at = (index: number) => `at step ${integer(columns.steps[index])}`;
  return `From ${text(from)} ${at(0)} to ${text(to)} ${at(last)}.`;
}
