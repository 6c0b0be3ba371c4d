"""`python -m tests.integration.pipeline.mutants.document` writes docs/mutants.md from the table of mutants."""

from itertools import groupby
from pathlib import Path

from tests.integration.pipeline.mutants.catchers import Catcher
from tests.integration.pipeline.mutants.table import MUTANTS, Mutant, Part

PATH = Path(__file__).parents[4] / "docs" / "mutants.md"
LETTERS = dict(zip(Catcher, "ABCDEFGH", strict=True))

HEAD = """\
# Mutants

Each mutant is the pipeline with one single fault put in. A test puts every one of them in and asserts that the check
named beside it finds it: `python -m pytest tests/integration/pipeline/mutants`. The same test asserts that none of the
checks complains without a mutant. This page is written from the same table by
`python -m tests.integration.pipeline.mutants.document`.

Not in the table, since the result stays the same and only time is lost: two lanes exchanged, priority and background
traffic exchanged, rows taken for shared that are not, a fence more than needed.
"""


def document() -> str:
    lines = [HEAD, f"{len(MUTANTS)} mutants. What catches them:\n"]
    lines.append("| | check | mutants |\n|---|---|---|")
    for catcher in Catcher:
        caught = sum(mutant.caught_by is catcher for mutant in MUTANTS)
        lines.append(f"| {LETTERS[catcher]} | {catcher.value} | {caught} |")
    for part in Part:
        mutants = [mutant for mutant in MUTANTS if mutant.part is part]
        lines.append(f"\n## {part.value} ({len(mutants)})\n")
        lines.append("| schedule | what | change and the check that catches it |\n|---|---|---|")
        lines.extend(_row(list(same)) for _, same in groupby(mutants, lambda each: (each.schedule, each.subject)))
    return "\n".join(lines) + "\n"


def _row(mutants: list[Mutant]) -> str:
    first = mutants[0]
    changes = ", ".join(f"{mutant.change} **{LETTERS[mutant.caught_by]}**" for mutant in mutants)
    return f"| {first.schedule} | {first.subject} | {changes} |"


if __name__ == "__main__":
    PATH.write_text(document())
