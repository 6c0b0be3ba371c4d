"""Reads files by which an operator says whom to trust: nobody else may be able to change them."""

import os
import stat
from pathlib import Path

MAX_BYTES = 1024**2

_OTHERS_MAY_WRITE = stat.S_IWGRP | stat.S_IWOTH


class UntrustedFileError(ValueError):
    """The file cannot be used; the message says why and what to do, without its name and content."""


def read_trusted(path: Path, *, secret: bool = False) -> str:
    """The text of a file that belongs to root or to the user of the service, and that nobody else may change.

    One that holds a `secret` may not be open to everybody either. Raises `UntrustedFileError`.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as file:
            found = os.fstat(descriptor)
            if (fault := _unsafe(path, found)) is not None:
                raise UntrustedFileError(fault)
            if secret and found.st_mode & stat.S_IROTH:
                mode = stat.S_IMODE(found.st_mode)
                raise UntrustedFileError(f"holds a secret and everybody may read it (mode {mode:04o}); chmod o-r")
            content = file.read(MAX_BYTES + 1)
        if len(content) > MAX_BYTES:
            raise UntrustedFileError(f"larger than {MAX_BYTES} bytes")
        return content.decode()
    except OSError as error:
        raise UntrustedFileError(f"cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise UntrustedFileError("not UTF-8") from None


def _unsafe(path: Path, found: os.stat_result) -> str | None:
    """Why somebody else than the service's user and root could change what it says."""
    owners = (0, os.geteuid())
    if not stat.S_ISREG(found.st_mode):
        return "not a file"
    if found.st_uid not in owners:
        return "belongs to another user; its owner must be root or the user that the service runs as"
    if found.st_mode & _OTHERS_MAY_WRITE:
        return f"others may write it (mode {stat.S_IMODE(found.st_mode):04o}); chmod go-w"
    for folder in {path.absolute().parent, path.resolve().parent}:
        status = folder.stat()
        if status.st_uid not in owners or (status.st_mode & _OTHERS_MAY_WRITE and not status.st_mode & stat.S_ISVTX):
            return f"others may replace it, since they may write the folder {folder}; chmod go-w, or choose another"
    return None
