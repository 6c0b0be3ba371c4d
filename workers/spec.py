"""What every section of the job file has in common."""

from functools import cache
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel, ConfigDict, ValidationInfo, field_validator

MAX_SECONDS = 10**9
"""Thirty years: what is longer than any job, and still a time that can be reckoned with."""

_NUMBERS = {int: "integer", float: "number"}


class Spec(BaseModel):
    """A section of the job file: immutable, and closed to unknown fields."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    @field_validator("*", mode="before")
    @classmethod
    def _of_its_kind(cls, value: object, info: ValidationInfo) -> object:
        """Pydantic would take `true` and `"1"` for the number 1, and `1` and `"yes"` for true."""
        assert info.field_name is not None
        kinds = _kinds_of(cls)[info.field_name]
        if bool in kinds:
            if isinstance(value, int | float | str) and not isinstance(value, bool):
                raise ValueError("Input should be true or false")
        elif isinstance(value, bool | str) and str not in kinds:
            for kind, name in _NUMBERS.items():
                if kind in kinds:
                    raise ValueError(f"Input should be a valid {name}")
        return value


@cache
def _kinds_of(section: type[BaseModel]) -> dict[str, list[Any]]:
    return {name: _kinds(field.annotation) for name, field in section.model_fields.items()}


def _kinds(annotation: Any) -> list[Any]:
    """The types of which a value may be one; what is in a list or a mapping is left alone."""
    if get_origin(annotation) is Annotated:
        return _kinds(get_args(annotation)[0])
    if get_origin(annotation) in (Union, UnionType):
        return [kind for part in get_args(annotation) for kind in _kinds(part)]
    return [annotation]
