"""Rows that cannot be trained: they are left out, counted and shown with their place. Too many of them end the job."""

from collections.abc import Iterable
from dataclasses import dataclass
from threading import Lock
from typing import Protocol, runtime_checkable

import structlog

log = structlog.get_logger(__name__)

# Warnings per rank and attempt, and rows that an error names.
_WARNED, _NAMED = 5, 3


class UnusableRows(Exception):  # noqa: N818 - reads as a sentence where it is raised
    """The rows are such that to read them again would only come to the same end."""


class TooManyBadRows(UnusableRows):
    """A rank has read more bad rows than `data.max_bad_rows` allows."""


class NoGoodRows(UnusableRows):
    """Every row of a batch is bad, so there is nothing to train in it."""


@runtime_checkable
class BadRows(Protocol):
    """A source that can leave out rows."""

    @property
    def bad_rows(self) -> int:
        """Bad rows that this rank has read since it opened the source; one that is read again counts once."""
        ...


@dataclass(frozen=True)
class BadRow:
    """Row number `row` of the whole data is bad. `where` names it for people, as file and place in it."""

    row: int
    where: str
    reason: str

    def __str__(self) -> str:
        return f"{self.where}: {self.reason}"


class BadRowLog:
    """What one rank has found. Training and evaluation read at the same time, so it takes rows from any thread."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._rows: set[int] = set()
        self._last: list[BadRow] = []
        self._lock = Lock()

    @property
    def count(self) -> int:
        """Bad rows so far; a row that is found again in a later epoch or evaluation counts once."""
        return len(self._rows)

    def add(self, rows: Iterable[BadRow]) -> None:
        """Count and show bad rows. Raises `TooManyBadRows`."""
        with self._lock:
            for row in rows:
                self._add(row)
            if self.count > self._limit:
                raise TooManyBadRows(
                    f"{self.count} bad rows, and data.max_bad_rows allows {self._limit} on each worker; mend them, or "
                    f"allow more. {self.named()}"
                )

    def named(self) -> str:
        """The last bad rows, for an error."""
        return "The last ones: " + "; ".join(str(row) for row in self._last)

    def _add(self, row: BadRow) -> None:
        if row.row in self._rows:
            return
        self._rows.add(row.row)
        self._last = [*self._last, row][-_NAMED:]
        if self.count <= _WARNED:
            note = "further bad rows are only counted" if self.count == _WARNED else None
            log.warning("bad row left out", where=row.where, reason=row.reason, **({"note": note} if note else {}))
