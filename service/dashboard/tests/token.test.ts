import { afterEach, beforeEach, describe, expect, it, vi } from "vitest";

type Kept = Map<string, string>;

let kept: Kept;
let asked: { path: string; authorization: string | null }[];
let status: number;

/** The modules as a page finds them that is loaded now. */
async function load() {
  vi.resetModules();
  return { ...(await import("../src/api/client")), ...(await import("../src/api/token")) };
}

beforeEach(() => {
  kept = new Map();
  asked = [];
  status = 200;
  vi.stubGlobal("sessionStorage", {
    getItem: (key: string) => kept.get(key) ?? null,
    setItem: (key: string, value: string) => kept.set(key, value),
    removeItem: (key: string) => kept.delete(key),
  });
  vi.stubGlobal("fetch", async (path: string, options: RequestInit) => {
    asked.push({ path, authorization: new Headers(options.headers).get("Authorization") });
    return new Response("{}", { status });
  });
});
afterEach(() => vi.unstubAllGlobals());

describe("token", () => {
  it("is not asked for by a service that knows none", async () => {
    const page = await load();
    await page.fetchJobs(null, 5);
    expect(asked).toEqual([{ path: "v1/jobs?limit=5", authorization: null }]);
    expect(page.access()).toEqual({ needed: false, refused: false, given: false });
  });

  it("is asked for after a 401, and then sent in the header alone", async () => {
    const page = await load();
    const changed = vi.fn();
    page.onAccess(changed);
    status = 401;
    await expect(page.fetchJobs(null, 5)).rejects.toBeInstanceOf(page.Problem);
    expect(page.access()).toEqual({ needed: true, refused: false, given: false });
    page.takeToken("overlane_x");
    status = 200;
    await page.fetchJobs(null, 5);
    expect(asked[1]).toEqual({ path: "v1/jobs?limit=5", authorization: "Bearer overlane_x" });
    expect(page.access()).toEqual({ needed: false, refused: false, given: true });
    expect(changed).toHaveBeenCalledTimes(2);
  });

  it("is forgotten when it is refused", async () => {
    const page = await load();
    page.takeToken("overlane_x");
    status = 401;
    await expect(page.stopJob("job-1")).rejects.toBeInstanceOf(page.Problem);
    expect(page.access()).toEqual({ needed: true, refused: true, given: false });
    expect(kept.size).toBe(0);
  });

  it("is kept when it is only not allowed something", async () => {
    const page = await load();
    page.takeToken("overlane_x");
    status = 403;
    await expect(page.stopJob("job-1")).rejects.toBeInstanceOf(page.Problem);
    expect(page.access()).toEqual({ needed: false, refused: false, given: true });
  });

  it("is not given up for an answer to the one before", async () => {
    const page = await load();
    page.takeToken("overlane_old");
    status = 401;
    const late = page.fetchJobs(null, 5);
    page.takeToken("overlane_new");
    await expect(late).rejects.toBeInstanceOf(page.Problem);
    expect(page.currentToken()).toBe("overlane_new");
    expect(page.access().needed).toBe(false);
  });

  it("outlives a reload of the tab until it is forgotten", async () => {
    (await load()).takeToken("overlane_x");
    const again = await load();
    expect(again.currentToken()).toBe("overlane_x");
    again.forgetToken();
    expect(again.access()).toEqual({ needed: true, refused: false, given: false });
    expect((await load()).currentToken()).toBeNull();
  });

  it("works in a browser that stores nothing", async () => {
    const refuse = () => {
      throw new DOMException("no storage", "SecurityError");
    };
    vi.stubGlobal("sessionStorage", { getItem: refuse, setItem: refuse, removeItem: refuse });
    const page = await load();
    page.takeToken("overlane_x");
    expect(page.currentToken()).toBe("overlane_x");
  });

  it("has no characters that a header cannot carry", async () => {
    const { isToken } = await load();
    expect(isToken("overlane_Az09-_")).toBe(true);
    for (const text of ["", "a b", "a\n", "ä", "a\u200b"]) expect(isToken(text)).toBe(false);
  });
});
