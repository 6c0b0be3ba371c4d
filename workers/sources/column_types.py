"""Which types the columns of a Parquet file may have, and the one that each is read as, so that files may differ."""

import difflib
from collections.abc import Mapping, Sequence

import pyarrow as pa
from pyarrow import types

from workers.job import ColumnsSpec, InvalidJob

ColumnTypes = dict[str, pa.DataType]

_RULES = {
    "label": "a label is a number or a boolean",
    "dense": "a dense value is a number or a boolean",
    "ids": "an id is a whole number or a text",
    "sequences": "a sequence is a list of whole numbers or of texts",
}


def column_types(columns: ColumnsSpec, unhashed: Sequence[str], schema: pa.Schema, file: str) -> ColumnTypes:
    """What each column is read as; null for ids of which the file has none. `unhashed` columns have no texts.

    Raises `InvalidJob`, with all faults, for columns that are missing or cannot be what the job says.
    """
    roles = {"label": (columns.label,), "dense": columns.dense, "ids": columns.ids, "sequences": columns.sequences}
    found: ColumnTypes = {}
    problems = []
    for role, names in roles.items():
        for name in names:
            at = f"data.columns.{role}"
            if schema.names.count(name) != 1:
                problems.append(f"{at}: {file} has {_instead(name, schema.names)}")
                continue
            given = schema.field(name).type
            read_as = _read_as(role, given)
            if read_as is None:
                problems.append(f"{at}: column {name!r} of {file} is {given}; {_RULES[role]}, so convert it")
            elif name in unhashed and _is_text(read_as):
                problems.append(f"{at}: column {name!r} of {file} is {given}; texts need hashing, so set it to true")
            else:
                found[name] = read_as
    if problems:
        raise InvalidJob(problems)
    return found


def common_types(columns: ColumnsSpec, by_file: Mapping[str, ColumnTypes]) -> ColumnTypes:
    """What each column is read as in all files.

    Raises `InvalidJob` if files differ: the same id would look up one row as a number and another one as a text.
    """
    common: ColumnTypes = {}
    first: dict[str, str] = {}
    for file, found in by_file.items():
        for column, read_as in found.items():
            if types.is_null(read_as):
                continue
            if common.setdefault(column, read_as) != read_as:
                kinds = f"{_kind(common[column])} in {first[column]} and {_kind(read_as)} in {file}"
                raise InvalidJob([f"data.path: column {column!r} has {kinds}; write it alike in all files"])
            first.setdefault(column, file)
    empty = dict.fromkeys(columns.ids, pa.int64()) | dict.fromkeys(columns.sequences, pa.large_list(pa.int64()))
    return empty | common


def as_type(column: pa.ChunkedArray, read_as: pa.DataType) -> pa.ChunkedArray:
    """The column as another type; whole numbers above 63 bits wrap, and numbers above 32 bits become infinite."""
    if types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    return column.cast(read_as, safe=False)


def _read_as(role: str, given: pa.DataType) -> pa.DataType | None:
    """None where the type cannot have that role."""
    if role in ("label", "dense"):
        is_number = types.is_integer(given) or types.is_floating(given) or types.is_decimal(given)
        read_as = pa.float64() if role == "label" else pa.float32()
        return read_as if is_number or types.is_boolean(given) or types.is_null(given) else None
    if role == "ids":
        return _id_type(given.value_type if types.is_dictionary(given) else given)
    if types.is_null(given):
        return given
    if not (types.is_list(given) or types.is_large_list(given) or types.is_fixed_size_list(given)):
        return None
    element = _id_type(given.value_type)
    return element if element is None or types.is_null(element) else pa.large_list(element)


def _id_type(given: pa.DataType) -> pa.DataType | None:
    if types.is_null(given):
        return given
    if types.is_integer(given) or types.is_boolean(given):
        return pa.int64()
    is_text = types.is_string(given) or types.is_large_string(given)
    is_bytes = types.is_binary(given) or types.is_large_binary(given) or types.is_fixed_size_binary(given)
    return pa.large_binary() if is_text or is_bytes else None


def _is_text(read_as: pa.DataType) -> bool:
    element = read_as.value_type if types.is_large_list(read_as) else read_as
    return bool(types.is_large_binary(element))


def _kind(read_as: pa.DataType) -> str:
    return "texts" if _is_text(read_as) else "numbers"


def _instead(name: str, known: list[str]) -> str:
    if name in known:
        return f"more than one column {name!r}; rename the others"
    near = difflib.get_close_matches(name, known, n=1)
    return f"no column {name!r}; " + (f"did you mean {near[0]!r}?" if near else f"it has {', '.join(known) or 'none'}")
