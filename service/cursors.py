"""Cursors of pages: opaque to clients, the number of the last item to the service."""

from typing import Annotated

from fastapi import Query

from service.problems import FieldError, Problem, ProblemType

# The pattern is only told, not checked by the framework: `number_of` has the better words.
Cursor = Annotated[str | None, Query(json_schema_extra={"pattern": "^[0-9]{1,18}$"})]
"""The query parameter of a page."""


def number_of(cursor: str | None) -> int | None:
    """Raises `Problem` for a cursor that no page has given."""
    if cursor is None:
        return None
    if not (cursor.isascii() and cursor.isdigit() and len(cursor) < 19):
        fault = FieldError(field="cursor", message=f"not the next_cursor of a page (got {cursor!r})")
        raise Problem(ProblemType.INVALID_REQUEST, f"{fault.field}: {fault.message}", [fault])
    return int(cursor)


def cursor_of(number: int | None) -> str | None:
    return None if number is None else str(number)
