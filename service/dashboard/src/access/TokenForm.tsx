import { useState } from "preact/hooks";
import { isToken, takeToken } from "../api/token";

const UNKNOWN = "The service does not know this token, or does not know it any more.";
const MISTYPED = "A token has only ASCII letters, digits and signs, and no spaces.";

/** Asks for a token. `refused`: the service has said no to the one before. */
export function TokenForm({ refused }: { refused: boolean }) {
  const [text, setText] = useState("");
  const [problem, setProblem] = useState(refused ? UNKNOWN : null);
  const submit = (event: Event) => {
    event.preventDefault();
    const token = text.trim();
    if (isToken(token)) takeToken(token);
    else setProblem(MISTYPED);
  };
  return (
    <form class="token" onSubmit={submit}>
      <h1>This service asks for a token</h1>
      <p class="quiet">
        An admin of the service makes one with <code>overlane token</code>. It stays in this tab, and is forgotten with it.
      </p>
      <div role="alert">{problem && <div class="notice">{problem}</div>}</div>
      <label for="token">Token</label>
      <input
        id="token"
        type="password"
        autocomplete="off"
        spellcheck={false}
        autofocus
        value={text}
        onInput={(event) => setText(event.currentTarget.value)}
      />
      <button type="submit">Use this token</button>
    </form>
  );
}
