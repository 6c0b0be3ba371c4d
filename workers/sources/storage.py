"""Finds the files of a source, on a disk or in an object store."""

import os
import re
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from workers.job import DataSpec, InvalidJob

_HINT = "relative paths start at the working directory of the job"


@dataclass(frozen=True)
class Files:
    """Files in the order in which they are read. `filesystem` is pyarrow's, and `paths` are paths in it."""

    filesystem: Any
    paths: tuple[str, ...]
    scheme: str = ""

    def name(self, file: int) -> str:
        """File number `file` for people."""
        return f"{self.scheme}{self.paths[file]}"


def check_path(data: DataSpec, *, on_disk: bool = True) -> str:
    """The path of the job. Nothing is asked over a network.

    Raises `InvalidJob` if there is none, with `on_disk` if a local one does not exist, and if there are credentials in
    it: job files are kept and shown.
    """
    if not data.path:
        raise InvalidJob([f"data.path: {data.source!r} reads files; name a file, a folder or s3://bucket/prefix"])
    if "://" in data.path:
        if "@" in urlsplit(data.path).netloc:
            raise InvalidJob(["data.path: leave credentials out of it; workers take them from their environment"])
    elif on_disk and not os.path.exists(data.path):
        raise InvalidJob([f"data.path: no such file or folder: {data.path}; {_HINT}"])
    return data.path


def find_files(path: str, suffix: str = "") -> Files:
    """The file, or all files below the folder whose names end with `suffix`, sorted by path, numbers in it by value.

    Below a folder, names that begin with `.` or `_` are left out: they belong to whoever writes the files. Raises
    `InvalidJob` if there are no files, or the storage cannot be reached.
    """
    from pyarrow import fs

    shown = path.partition("?")[0]
    try:
        filesystem, inner = fs.FileSystem.from_uri(path) if "://" in path else (fs.LocalFileSystem(), path)
        info = filesystem.get_file_info(inner)
        if info.type is fs.FileType.NotFound:
            raise InvalidJob([f"data.path: no such file or folder: {shown}; {_HINT}"])
        below = [info]
        if info.type is fs.FileType.Directory:
            below = filesystem.get_file_info(fs.FileSelector(inner, recursive=True))
    except (OSError, ValueError, NotImplementedError) as error:
        if isinstance(error, InvalidJob):
            raise
        raise InvalidJob([f"data.path: cannot read {shown}: {' '.join(str(error).split())}"]) from error
    chosen = [inner]
    if info.type is fs.FileType.Directory:
        names = [each.path for each in below if each.is_file and each.path.endswith(suffix)]
        chosen = [name for name in names if not re.search(r"/[._]", name[len(inner.rstrip("/")) :])]
    if not chosen:
        raise InvalidJob([f"data.path: no *{suffix} files below {shown}; name a folder that has some"])
    scheme = f"{path.partition('://')[0]}://" if "://" in path else ""
    return Files(filesystem, tuple(sorted(chosen, key=_by_number)), scheme)


def _by_number(path: str) -> list[tuple[int, str]]:
    """Sorts day_2 before day_10."""
    parts = re.split(r"(\d+)", path)
    return [(int(part), "") if index % 2 else (-1, part) for index, part in enumerate(parts)]
