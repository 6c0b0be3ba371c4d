import { afterEach, describe, expect, it, vi } from "vitest";
import { fetchJob, fetchJobs, Problem, Unreachable } from "../src/api/client";

afterEach(() => vi.unstubAllGlobals());

function answer(body: string, status: number): void {
  vi.stubGlobal("fetch", async () => new Response(body, { status }));
}

describe("client", () => {
  it("shows the title and the detail of a problem document", async () => {
    answer(JSON.stringify({ title: "No such job", detail: "no job has the id 'x'" }), 404);
    await expect(fetchJob("x")).rejects.toEqual(new Problem(404, "No such job: no job has the id 'x'"));
  });

  it("says what it can where the error is no problem document", async () => {
    answer("[]", 500);
    await expect(fetchJobs(null, 5)).rejects.toEqual(new Problem(500, "The service answered 500"));
  });

  it("takes a page without JSON for somebody else's", async () => {
    answer("<html>bad gateway</html>", 502);
    await expect(fetchJobs(null, 5)).rejects.toBeInstanceOf(Unreachable);
  });

  it("tells a service that is away from one that says no", async () => {
    vi.stubGlobal("fetch", () => Promise.reject(new TypeError("Failed to fetch")));
    await expect(fetchJobs(null, 5)).rejects.toBeInstanceOf(Unreachable);
  });
});
