import { useEffect, useState } from "preact/hooks";

export type Route = { page: "jobs"; cursor: string | null } | { page: "job"; id: string };

/** `#/jobs/<id>` is one job, everything else the list, `#/?cursor=…` its older pages. */
export function parseRoute(hash: string): Route {
  const [path = "", query = ""] = hash.replace(/^#\/?/, "").split("?", 2);
  const [room, id] = path.split("/");
  if (room === "jobs" && id) return { page: "job", id: decode(id) };
  return { page: "jobs", cursor: new URLSearchParams(query).get("cursor") };
}

export function jobLink(id: string): string {
  return `#/jobs/${encodeURIComponent(id)}`;
}

export function olderLink(cursor: string): string {
  return `#/?${new URLSearchParams({ cursor })}`;
}

export function useRoute(): Route {
  const [route, setRoute] = useState(() => parseRoute(location.hash));
  useEffect(() => {
    const follow = () => setRoute(parseRoute(location.hash));
    addEventListener("hashchange", follow);
    return () => removeEventListener("hashchange", follow);
  }, []);
  return route;
}

function decode(part: string): string {
  try {
    return decodeURIComponent(part);
  } catch {
    return part; // a stray % in a typed address: the API then says that there is no such job
  }
}
