"""Bad rows: what is counted, what is shown, and when there are too many."""

import pytest
from structlog.testing import capture_logs

from workers.sources.bad_rows import BadRow, BadRowLog, TooManyBadRows


def rows(*numbers: int) -> list[BadRow]:
    return [BadRow(number, f"a.parquet, row {number}", "label is 2, not 0 or 1") for number in numbers]


def test_a_row_that_is_read_again_counts_once() -> None:
    bad = BadRowLog(2)
    bad.add(rows(4, 9))
    with capture_logs() as logs:
        bad.add(rows(9, 4))
    assert bad.count == 2
    assert logs == []


def test_too_many_are_named_with_the_last_of_them() -> None:
    bad = BadRowLog(3)
    bad.add(rows(1, 2, 3))
    with pytest.raises(TooManyBadRows) as caught:
        bad.add(rows(7))
    assert str(caught.value) == (
        "4 bad rows, and data.max_bad_rows allows 3 on each worker; mend them, or allow more. The last ones: "
        "a.parquet, row 2: label is 2, not 0 or 1; a.parquet, row 3: label is 2, not 0 or 1; "
        "a.parquet, row 7: label is 2, not 0 or 1"
    )


def test_none_are_allowed_by_default() -> None:
    with pytest.raises(TooManyBadRows, match=r"1 bad rows, and data.max_bad_rows allows 0"):
        BadRowLog(0).add(rows(7))


def test_the_first_ones_are_shown_in_the_log() -> None:
    bad = BadRowLog(100)
    with capture_logs() as logs:
        bad.add(rows(*range(10)))
    assert [log["where"] for log in logs] == [f"a.parquet, row {number}" for number in range(5)]
    assert {log["log_level"] for log in logs} == {"warning"}
    assert logs[0]["reason"] == "label is 2, not 0 or 1"
    assert [log.get("note") for log in logs] == [None] * 4 + ["further bad rows are only counted"]
