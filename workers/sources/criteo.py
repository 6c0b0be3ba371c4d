"""Click logs in the format of Criteo: a label, 13 whole numbers and 26 categories in hexadecimal, parted by tabs.

Light: pyarrow is imported where files are opened, which the control plane never does.
"""

from pydantic import Field, field_validator

from workers.job import DataSpec, InvalidJob, Spec, parse_section
from workers.sources.bad_rows import BadRowLog
from workers.sources.schema import Source
from workers.sources.storage import check_path, find_files
from workers.sources.tables import LEAST_ROWS

NUMBERS, CATEGORIES = 13, 26
FEATURES = tuple(f"C{index}" for index in range(1, CATEGORIES + 1))
ROWS = 100_000


class Params(Spec):
    """`data.params`.

    `rows` of the tables: a number for all, a list of 26, or a mapping such as `{C1: 1000000}`, with 100,000 for the
    rest. `holdout` is the share of lines held out. With `order: shuffled`, about `shuffle_lines` lines are in memory
    at a time and are mixed.
    """

    rows: tuple[int, ...] = (ROWS,) * CATEGORIES
    holdout: float = Field(default=0.1, ge=0, lt=1)
    shuffle_lines: int = Field(default=262_144, ge=1)

    @field_validator("rows", mode="before")
    @classmethod
    def _for_each(cls, value: object) -> object:
        if isinstance(value, int):
            return (value,) * CATEGORIES
        if isinstance(value, dict):
            if unknown := next((name for name in value if name not in FEATURES), None):
                raise ValueError(f"no feature {unknown!r}; they are {FEATURES[0]} to {FEATURES[-1]}")
            return tuple(value.get(name, ROWS) for name in FEATURES)
        return value

    @field_validator("rows")
    @classmethod
    def _enough(cls, value: tuple[int, ...]) -> tuple[int, ...]:
        if len(value) != CATEGORIES:
            raise ValueError(f"a list has a number for each of the {CATEGORIES} features, this one has {len(value)}")
        if min(value) < LEAST_ROWS:
            raise ValueError(f"a table has at least {LEAST_ROWS} rows: one for missing values, and one for all others")
        return value


def check(data: DataSpec, *, on_disk: bool = True) -> None:
    """Raises `InvalidJob` for parameters that do not fit, and for a local path that does not exist."""
    if check_path(data, on_disk=on_disk).endswith(".gz"):
        raise InvalidJob([f"data.path: reading cannot begin within {data.path}; unpack it with gunzip"])
    parse_section(Params, data.params, at="data.params")


def open_source(data: DataSpec) -> Source:
    """Find the lines of all files, in one pass over them. Raises `InvalidJob`."""
    from workers.sources.criteo_lines import CriteoLines
    from workers.sources.lines import LINES, LineFiles
    from workers.sources.row_source import RowSource

    params = parse_section(Params, data.params, at="data.params")
    return RowSource(
        LineFiles(find_files(check_path(data))),
        CriteoLines(params.rows),
        holdout=params.holdout,
        window=-(-params.shuffle_lines // LINES),
        shuffled=data.order == "shuffled",
        bad_rows=BadRowLog(data.max_bad_rows),
    )
