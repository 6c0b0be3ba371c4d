"""Which embedding tables the features of a file look up: one for each by default, shared ones where the job says so."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import Field

from workers.job import InvalidJob, Spec, parse_section
from workers.sources.schema import Table

# Single words that PyTorch's ModuleDict, in which a model keeps its tables, has for itself.
_TAKEN = frozenset(
    (  # noqa: SIM905 - twenty-seven lines shorter
        "apply bfloat16 buffers children clear compile cpu cuda double eval float forward half ipu items keys modules "
        "mtia parameters pop to train training type update values xpu"
    ).split()
)

# The lowest number of rows that leaves one for missing ids and one for all others.
LEAST_ROWS = 2


class TableSpec(Spec):
    """One of `data.params.tables`. `features` look it up, by default the one of the same name.

    `rows` and `hashing` are by default those of `data.params`.
    """

    rows: int | None = Field(default=None, ge=LEAST_ROWS)
    features: tuple[str, ...] | None = None
    hashing: bool | None = None


@dataclass(frozen=True)
class Lookup:
    """How a feature looks up its table: with `hashing` any id has a row, without it only 0 to `table.rows` - 1."""

    table: Table
    hashing: bool


def lookups(
    features: tuple[str, ...], tables: Mapping[str, Mapping[str, Any]], *, rows: int, hashing: bool
) -> dict[str, Lookup]:
    """The lookup of each feature, in their order. `rows` and `hashing` hold where a table does not say otherwise.

    Raises `InvalidJob` for a feature that is unknown or in two tables, and for names that no table can have.
    """
    found: dict[str, Lookup] = {}
    for name, raw in tables.items():
        at = f"data.params.tables.{name}"
        spec = parse_section(TableSpec, raw, at=at)
        lookup = Lookup(Table(_checked(name, at), spec.rows or rows), hashing if spec.hashing is None else spec.hashing)
        for feature in (name,) if spec.features is None else spec.features:
            if feature not in features:
                raise InvalidJob([f"{at}: no feature {feature!r}; data.columns has {', '.join(features)}"])
            if feature in found:
                raise InvalidJob([f"{at}: {feature!r} looks up table {found[feature].table.name!r}; name it once"])
            found[feature] = lookup
    for feature in features:
        if feature not in found:
            if feature in tables:
                raise InvalidJob([f"data.params.tables.{feature}: add {feature!r} to its features, or rename it"])
            found[feature] = Lookup(Table(_checked(feature, "data.columns"), rows), hashing)
    return {feature: found[feature] for feature in features}


def tables_of(found: Mapping[str, Lookup]) -> tuple[Table, ...]:
    """Every table once, in the order of the features."""
    return tuple(dict.fromkeys(lookup.table for lookup in found.values()))


def _checked(name: str, at: str) -> str:
    if not name or "." in name or name in _TAKEN:
        another = f"{name.replace('.', '_')}_table: {{features: [{name}]}}"
        raise InvalidJob([f"{at}: PyTorch lets no table be called {name!r}; add {another} to data.params.tables"])
    return name
