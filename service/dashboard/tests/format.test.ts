import { describe, expect, it } from "vitest";
import { bytes, decimal, duration, instant, integer, ms, NOTHING, percent } from "../src/figures/format";

describe("format", () => {
  it.each([
    [null, NOTHING],
    [0, "0"],
    [0.004, "<0.01"],
    [0.42, "0.42"],
    [4.2, "4.2"],
    [99.94, "99.9"],
    [1234.5, "1,235"],
  ])("milliseconds %s", (value, text) => expect(ms(value)).toBe(text));

  it.each([
    [null, NOTHING],
    [0, "0.0\u00a0%"],
    [0.0001, "<0.1\u00a0%"],
    [0.7088, "70.9\u00a0%"],
    [0.9999, ">99.9\u00a0%"],
    [1, "100.0\u00a0%"],
  ])("a share of %s never looks complete when it is not", (value, text) => expect(percent(value)).toBe(text));

  it.each([
    [null, NOTHING],
    [0, "0\u00a0B"],
    [999, "999\u00a0B"],
    [1536, "1.5\u00a0kB"],
    [300e6, "300\u00a0MB"],
    [5e15, "5000\u00a0TB"],
  ])("bytes %s", (value, text) => expect(bytes(value)).toBe(text));

  it.each([
    [null, NOTHING],
    [0, "0"],
    [0.00012345, "1.23e-4"],
    [0.58213, "0.5821"],
    [12, "12"],
  ])("decimal %s", (value, text) => expect(decimal(value)).toBe(text));

  it.each([
    [4.25, "4.3 s"],
    [59.9, "59 s"],
    [200, "3 min 20 s"],
    [7500, "2 h 5 min"],
    [90_000, "1 d 1 h"],
  ])("duration of %s s", (value, text) => expect(duration(value)).toBe(text));

  it("integers and instants", () => {
    expect(integer(undefined)).toBe(NOTHING);
    expect(integer(1234567)).toBe("1,234,567");
    expect(instant(null)).toBe(NOTHING);
    expect(instant(new Date(2026, 0, 2, 3, 4, 5).toISOString())).toBe("2026-01-02 03:04:05");
  });
});
