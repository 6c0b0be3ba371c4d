"""Data sources: the built-in ones by name, and a user's own by import path.

Light on purpose: the control plane calls `check` before it accepts a job, and nothing here imports torch or Ray.
"""

import importlib
import re
from types import ModuleType

from workers.job import DataSpec, InvalidJob
from workers.sources.schema import Source

_BUILT_IN = {
    "movielens-100k": "workers.sources.movielens",
    "parquet": "workers.sources.parquet",
    "criteo-tsv": "workers.sources.criteo",
    "synthetic": "workers.sources.synthetic",
}
_WITH_COLUMNS = ("parquet",)
_WITH_BAD_ROWS = ("parquet", "criteo-tsv")
_IMPORT_PATH = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")


def check(data: DataSpec, *, on_disk: bool = True) -> None:
    """Find faults in the `data` section that can be seen before the job starts.

    Raises `InvalidJob` for an unknown source, for parameters that the source does not know, and for a missing file;
    `on_disk` False leaves files alone, where jobs have another disk. Nothing is asked over a network. A user's own
    source is not imported, so only the form of its import path is checked.
    """
    if data.source not in _BUILT_IN:
        if not _IMPORT_PATH.fullmatch(data.source):
            raise InvalidJob([f"data.source: unknown source {data.source!r}; use one of {_names()}"])
        return
    for field, given, sources in (
        ("columns", data.columns is not None, _WITH_COLUMNS),
        ("max_bad_rows", data.max_bad_rows > 0, _WITH_BAD_ROWS),
    ):
        if given and data.source not in sources:
            raise InvalidJob([f"data.{field}: source {data.source!r} has none; leave it out"])
    _module(data.source).check(data, on_disk=on_disk)


def open_source(data: DataSpec) -> Source:
    """Open the source that the job names. Raises `InvalidJob` as `check` does, and if an import path leads nowhere."""
    check(data)
    if data.source in _BUILT_IN:
        source: Source = _module(data.source).open_source(data)
        return source
    module, _, name = data.source.partition(":")
    try:
        factory = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise InvalidJob([f"data.source: cannot import {data.source!r}: {error}"]) from error
    made: Source = factory(data)
    return made


def _module(source: str) -> ModuleType:
    return importlib.import_module(_BUILT_IN[source])


def _names() -> str:
    return ", ".join([*_BUILT_IN, "or the import path package.module:callable of your own"])
