import { useEffect, useState } from "preact/hooks";
import { type Access, access, onAccess } from "../api/token";

/** Renders anew whenever the service asks for a token, or has been given one. */
export function useAccess(): Access {
  const [current, setCurrent] = useState(access);
  useEffect(() => onAccess(() => setCurrent(access())), []);
  return current;
}
