import { describe, expect, it } from "vitest";
import { jobLink, olderLink, parseRoute } from "../src/live/route";

describe("route", () => {
  it.each(["", "#", "#/", "#/jobs", "#/jobs/", "#/nowhere"])("%s is the list", (hash) =>
    expect(parseRoute(hash)).toEqual({ page: "jobs", cursor: null }),
  );

  it("brings a job's id and a cursor through unchanged", () => {
    expect(parseRoute(jobLink("job-1/ü"))).toEqual({ page: "job", id: "job-1/ü" });
    expect(parseRoute(olderLink("a+b=&"))).toEqual({ page: "jobs", cursor: "a+b=&" });
  });

  it("survives a stray percent sign", () => expect(parseRoute("#/jobs/50%")).toEqual({ page: "job", id: "50%" }));
});
