import { useEffect, useRef, useState } from "preact/hooks";
import uPlot from "uplot";
import { chartOptions, type Line } from "./chartOptions";

export type { Line } from "./chartOptions";

interface Props {
  data: uPlot.AlignedData;
  /** One for each column after the first; the same array as long as the chart lives. */
  lines: readonly Line[];
  /** Where the value axis ends, from 0; null fits the axis to the values. */
  top: number | null;
  summary: string;
}

/** A line chart over steps. uPlot draws on a canvas, so colours are read anew when the page turns dark or light. */
export function Chart({ data, lines, top, summary }: Props) {
  const place = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot | null>(null);
  const end = useRef(top);
  const latest = useRef(data);
  end.current = top;
  latest.current = data;
  const dark = useDark();

  useEffect(() => {
    const element = place.current;
    if (element === null) return undefined;
    const drawn = new uPlot(chartOptions(element, lines, end), latest.current, element);
    plot.current = drawn;
    const resize = new ResizeObserver(() => drawn.setSize({ width: element.clientWidth, height: drawn.height }));
    resize.observe(element);
    return () => {
      resize.disconnect();
      drawn.destroy();
      plot.current = null;
    };
  }, [lines, dark]);

  useEffect(() => plot.current?.setData(data), [data]);

  return (
    <>
      <div class="chart" ref={place} aria-hidden="true" data-points={data[0].length} />
      <p class="unseen">{summary}</p>
    </>
  );
}

function useDark(): boolean {
  const [dark, setDark] = useState(() => matchMedia("(prefers-color-scheme: dark)").matches);
  useEffect(() => {
    const query = matchMedia("(prefers-color-scheme: dark)");
    const follow = () => setDark(query.matches);
    query.addEventListener("change", follow);
    return () => query.removeEventListener("change", follow);
  }, []);
  return dark;
}
