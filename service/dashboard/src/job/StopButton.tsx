import { useRef, useState } from "preact/hooks";
import { stopJob } from "../api/client";

/** Asks once, then stops the job; the next poll shows the new state. */
export function StopButton({ id, name }: { id: string; name: string }) {
  const dialog = useRef<HTMLDialogElement>(null);
  const [busy, setBusy] = useState(false);
  const [problem, setProblem] = useState<string | null>(null);
  const stop = async () => {
    setBusy(true);
    setProblem(null);
    try {
      await stopJob(id);
      dialog.current?.close();
    } catch (error) {
      setProblem(error instanceof Error ? error.message : String(error));
    } finally {
      setBusy(false);
    }
  };
  return (
    <>
      <button type="button" class="stop" onClick={() => dialog.current?.showModal()}>
        Stop job
      </button>
      <dialog ref={dialog} aria-labelledby="stop-question">
        <p id="stop-question">
          Stop <strong>{name}</strong>? Its workers end after the running step. A stopped job does not go on later.
        </p>
        {problem && <p role="alert">{problem}</p>}
        <div class="buttons">
          <button type="button" autofocus onClick={() => dialog.current?.close()}>
            Keep it running
          </button>
          <button type="button" class="danger" disabled={busy} onClick={stop}>
            Stop it
          </button>
        </div>
      </dialog>
    </>
  );
}
