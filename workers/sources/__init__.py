"""Data sources: the built-in ones by name, and a user's own by import path.

Light on purpose: the control plane calls `check` before it accepts a job, and nothing here imports torch or Ray.
"""

import importlib
import re
from types import ModuleType

from workers.job import DataSpec, InvalidJob
from workers.sources.schema import Source

_BUILT_IN = {"movielens-100k": "workers.sources.movielens", "synthetic": "workers.sources.synthetic"}
_NOT_YET = ("parquet", "criteo-tsv")
_IMPORT_PATH = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")


def check(data: DataSpec) -> None:
    """Find faults in the `data` section that can be seen before the job starts.

    Raises `InvalidJob` for an unknown source, for parameters that the source does not know, and for a missing file. A
    user's own source is not imported, so only the form of its import path is checked.
    """
    if data.source in _NOT_YET:
        raise InvalidJob([f"data.source: {data.source!r} is not supported yet; use one of {_names()}"])
    if data.columns or data.max_bad_rows:
        field = "columns" if data.columns else "max_bad_rows"
        raise InvalidJob([f"data.{field}: only source 'parquet' has it, and that is not supported yet; leave it out"])
    if data.source in _BUILT_IN:
        _module(data.source).check(data)
    elif not _IMPORT_PATH.fullmatch(data.source):
        raise InvalidJob([f"data.source: unknown source {data.source!r}; use one of {_names()}"])


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
