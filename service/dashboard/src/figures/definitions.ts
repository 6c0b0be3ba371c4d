// One line for each figure, shown on hover and in the glossary at the foot of the page.
export const DEFINITIONS = {
  step_ms: { label: "Step", text: "Wall time of one training step on one rank." },
  compute_ms: { label: "Compute", text: "Part of the step in which the rank's compute lane works." },
  comm_ms: { label: "Communication", text: "Part of the step in which at least one collective is in flight." },
  exposed_ms: {
    label: "Exposed",
    text: "Part of the communication in which compute waits for it: what communication really costs.",
  },
  hidden_ms: { label: "Hidden", text: "Communication that runs behind compute: communication minus exposed." },
  comm_overlap: {
    label: "Comm overlap",
    text:
      "Hidden / communication over all ranks and steps. Waiting for a slow peer inflates both sides, " +
      "so read it beside exposed ms and step ms.",
  },
  id_overlap: {
    label: "Id overlap",
    text: "Share of the ids in a batch whose row the previous batch used too. Only these rows are urgent.",
  },
  loss: { label: "Loss", text: "Training loss of the newest step, mean over the ranks." },
  ol: {
    label: "OL",
    text: "Overlapped rows: two consecutive batches use them, so they are on the critical path and go first.",
  },
  nol: {
    label: "NOL",
    text: "Non-overlapped rows: one batch early on the way out, one batch late on the way back, behind compute.",
  },
} as const;
