// Numbers as people read them. Unrounded values stay in the DOM as data-value; null is always shown as a dash.

export const NOTHING = "–";
/** A space at which no line breaks. */
const TIED = "\u00a0";

/** Milliseconds with three significant digits or so: 0.42, 4.2, 42, 4,200. */
export function ms(value: number | null | undefined): string {
  if (value == null) return NOTHING;
  if (value === 0) return "0";
  if (value < 0.01) return "<0.01";
  if (value < 1) return value.toFixed(2);
  if (value < 100) return value.toFixed(1);
  return integer(value);
}

/** A share of 0..1 as a percentage; never shows 100 % or 0 % for what is only close to it. */
export function percent(share: number | null | undefined): string {
  if (share == null) return NOTHING;
  const rounded = (share * 100).toFixed(1);
  if (rounded === "100.0" && share < 1) return `>99.9${TIED}%`;
  if (rounded === "0.0" && share > 0) return `<0.1${TIED}%`;
  return `${rounded}${TIED}%`;
}

export function integer(value: number | null | undefined): string {
  return value == null ? NOTHING : Math.round(value).toLocaleString("en-US");
}

/** Four significant digits, for losses and metrics. */
export function decimal(value: number | null | undefined): string {
  if (value == null) return NOTHING;
  if (value !== 0 && Math.abs(value) < 0.001) return value.toExponential(2);
  return Number(value.toPrecision(4)).toString();
}

const BYTE_UNITS = ["B", "kB", "MB", "GB", "TB"] as const;

export function bytes(count: number | null | undefined): string {
  if (count == null) return NOTHING;
  let value = count;
  let unit = 0;
  while (value >= 1000 && unit < BYTE_UNITS.length - 1) {
    value /= 1000;
    unit += 1;
  }
  return `${unit === 0 || value >= 100 ? Math.round(value) : value.toFixed(1)}${TIED}${BYTE_UNITS[unit]}`;
}

/** A span of time in its two largest units: 4.2 s, 3 min 20 s, 2 h 5 min. */
export function duration(seconds: number): string {
  if (seconds < 60) return `${seconds < 10 ? seconds.toFixed(1) : Math.floor(seconds)} s`;
  const whole = Math.floor(seconds);
  if (whole < 3600) return `${Math.floor(whole / 60)} min ${whole % 60} s`;
  if (whole < 86_400) return `${Math.floor(whole / 3600)} h ${Math.floor((whole % 3600) / 60)} min`;
  return `${Math.floor(whole / 86_400)} d ${Math.floor((whole % 86_400) / 3600)} h`;
}

/** Local date and time of an ISO 8601 instant. */
export function instant(iso: string | null): string {
  if (iso === null) return NOTHING;
  const at = new Date(iso);
  const two = (part: number) => String(part).padStart(2, "0");
  const day = `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())}`;
  return `${day} ${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())}`;
}
