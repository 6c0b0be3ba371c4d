import { useEffect, useState } from "preact/hooks";
import { Problem, Unreachable } from "../api/client";

/** Whether polling goes on after an answer. */
export type Next = "again" | "done";

/** What keeps a poll from an answer: since when (epoch ms) and why; `fatal` when trying again will not help. */
export interface Trouble {
  since_ms: number;
  message: string;
  fatal: boolean;
}

/**
 * Runs `poll` now and `interval_ms` after each answer, until it says "done" or fails for good. A service that is away
 * or ill is tried again for ever. `key` names what is polled: a new key starts the then current `poll` afresh. A poll
 * must drop its answer when `live()` is false: its subject has changed meanwhile.
 */
export function usePolling(
  key: string,
  interval_ms: number,
  poll: (live: () => boolean) => Promise<Next>,
): Trouble | null {
  const [trouble, setTrouble] = useState<Trouble | null>(null);
  useEffect(() => {
    let live = true;
    let timer = 0;
    const turn = async () => {
      try {
        const next = await poll(() => live);
        if (!live) return;
        setTrouble(null);
        if (next === "again") timer = window.setTimeout(turn, interval_ms);
      } catch (error) {
        if (!live) return;
        const fatal = !passes(error);
        const message = error instanceof Error ? error.message : String(error);
        setTrouble((before) => ({ since_ms: before?.since_ms ?? Date.now(), message, fatal }));
        if (!fatal) timer = window.setTimeout(turn, interval_ms);
      }
    };
    void turn();
    return () => {
      live = false;
      clearTimeout(timer);
      setTrouble(null);
    };
  }, [key, interval_ms]);
  return trouble;
}

function passes(error: unknown): boolean {
  return error instanceof Unreachable || (error instanceof Problem && error.status >= 500);
}
