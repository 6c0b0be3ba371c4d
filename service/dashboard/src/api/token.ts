const KEY = "overlane-token";

/** What the page knows about its token: whether the service asks for one, and whether it has refused one. */
export interface Access {
  needed: boolean;
  refused: boolean;
  given: boolean;
}

const listeners = new Set<() => void>();
let token = stored();
let needed = false;
let refused = false;

/** The token that requests carry, or null. It lives in this tab and ends with it. */
export function currentToken(): string | null {
  return token;
}

/** Whether the text can be a token: no header can carry anything but printable ASCII. */
export function isToken(text: string): boolean {
  return /^[\x21-\x7e]+$/.test(text);
}

export function takeToken(text: string): void {
  keep(text, false, false);
}

export function forgetToken(): void {
  keep(null, true, false);
}

/** The service has answered 401 to a request that carried `sent`. An answer to an earlier token means nothing. */
export function tokenRefused(sent: string | null): void {
  if (sent === token) keep(null, true, sent !== null);
}

export function access(): Access {
  return { needed, refused, given: token !== null };
}

/** Calls `listener` when `access()` changes, until the returned function is called. */
export function onAccess(listener: () => void): () => void {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

function keep(next: string | null, isNeeded: boolean, wasRefused: boolean): void {
  token = next;
  needed = isNeeded;
  refused = wasRefused;
  try {
    if (next === null) sessionStorage.removeItem(KEY);
    else sessionStorage.setItem(KEY, next);
  } catch {
    // Without storage the token lasts until the page is loaded again.
  }
  for (const listener of listeners) listener();
}

function stored(): string | null {
  try {
    return sessionStorage.getItem(KEY);
  } catch {
    return null;
  }
}
