"""Writes `docs/exactness.md` from a run of every named combination.

`python -m tests.integration.pipeline.property.table`
"""

import re
from itertools import groupby
from pathlib import Path

from tests.integration.pipeline.property.named import RECORDS, Record
from tests.integration.pipeline.property.outcome import Outcome, Verdict, judge
from tests.ranks import RankPool

DOCUMENT = Path(__file__).parents[4] / "docs" / "exactness.md"
CANNOT = "TorchRec cannot on CPU"
INTRODUCTION = """# What is exact, and what is refused

Overlane promises that a schedule never changes a bit of the result. For each combination below, a small model is
trained twice on CPU and gloo: by plain synchronous TorchRec, and by the pipeline under the schedule `prioritized`,
unless the line names another. Losses, outputs, weights, state and iteration counts of the fused optimizers, and state
of the dense optimizer are then compared with `torch.equal`.

- **exact, prioritized**: equal, and the pipeline hid what could be hidden.
- **exact**: equal; a module, for the reason given, keeps TorchRec's own forward inside the pipeline and hides nothing.
- **refused**: `UnsupportedModel` was raised before the first step, with the remark as its message.
- **{cannot}**: plain TorchRec itself fails, for the reason given, so there is nothing to compare with.

The lines come from a test run, and a test fails when one is no longer true. Write them anew with
`python -m tests.integration.pipeline.property.table`. Beside them, every run of the tests compares 200 random models,
plans, data streams and training loops in the same way.
"""


def row(record: Record, outcome: Outcome) -> str:
    """One line of the document."""
    match outcome.verdict:
        case Verdict.UNTRAINABLE:
            told, remark = CANNOT, record.cannot
        case Verdict.REFUSED:
            told, remark = "refused", _short(outcome.detail)
        case Verdict.EXACT if not outcome.not_prioritized:
            told, remark = "exact, prioritized" if outcome.prioritized else "exact", ""
        case Verdict.EXACT:
            told, remark = "exact", "; ".join(sorted(set(outcome.not_prioritized.values())))
        case _:
            told, remark = f"**{outcome.verdict}**", ""
    return f"| {record.name} | {told} | {remark} |"


def _short(message: str) -> str:
    """A message without what differs between runs, fit for a cell."""
    return re.sub(r"\s+", " ", message).replace("|", "\\|")


def check(pool: RankPool, record: Record) -> Outcome:
    """Train a record's case both ways."""
    if record.case is None:
        return Outcome(Verdict.UNTRAINABLE)
    return judge(pool, record.case)


def document(rows: dict[Record, str]) -> str:
    """The whole page."""
    parts = [INTRODUCTION.format(cannot=CANNOT)]
    for topic, records in groupby(RECORDS, key=lambda record: record.topic):
        lines = [f"## {topic}", "| combination | outcome | remarks |", "|---|---|---|"]
        parts.append("\n".join([*lines, *(rows[record] for record in records)]) + "\n")
    return "\n".join(parts)


def main() -> None:
    with RankPool(4) as pool:
        rows = {record: row(record, check(pool, record)) for record in RECORDS}
    DOCUMENT.write_text(document(rows), encoding="utf-8")


if __name__ == "__main__":
    main()
