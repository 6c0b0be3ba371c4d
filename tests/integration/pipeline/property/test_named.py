"""Every combination that the promise names, and that `docs/exactness.md` tells the truth about it."""

from typing import Any

import pytest

from tests.integration.pipeline.property.named import RECORDS, Record
from tests.integration.pipeline.property.outcome import Verdict
from tests.integration.pipeline.property.table import DOCUMENT, check, document, row
from tests.ranks import RankPool

REMEDY = "write it anew: python -m tests.integration.pipeline.property.table"


def _parameter(record: Record) -> Any:
    marks = [pytest.mark.xfail(strict=True, reason=record.bug)] if record.bug else []
    return pytest.param(record, id=f"{record.topic}: {record.name}", marks=marks)


@pytest.mark.parametrize("record", [_parameter(record) for record in RECORDS])
def test_it_is_exact_or_refused_as_documented(ranks: RankPool, record: Record) -> None:
    outcome = check(ranks, record)
    assert outcome.kept or outcome.verdict is Verdict.UNTRAINABLE, f"{outcome.verdict}\n{outcome.detail}"
    assert (outcome.verdict is Verdict.UNTRAINABLE) == bool(record.cannot), outcome
    assert row(record, outcome) in DOCUMENT.read_text(encoding="utf-8").splitlines(), f"stale; {REMEDY}"


def test_the_document_has_a_line_for_each() -> None:
    """Everything but the outcomes, which the tests above compare."""
    lines = DOCUMENT.read_text(encoding="utf-8").splitlines()
    written = {line.split(" | ")[0].removeprefix("| "): line for line in lines if line.startswith("| ")}
    rows = {record: written.get(record.name, f"no line for {record.name!r}") for record in RECORDS}
    assert document(rows).splitlines() == lines, f"stale; {REMEDY}"
