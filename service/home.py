"""The folder of one control plane, which no second one may use at the same time."""

import fcntl
import os
from pathlib import Path
from types import TracebackType
from typing import Self


class HomeInUseError(Exception):
    """Another control plane works in the folder."""


class HomeLock:
    """Holds `home` for this process. Entering raises `HomeInUseError`; the system lets go when the process ends."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self._descriptor = -1

    def __enter__(self) -> Self:
        self._home.mkdir(parents=True, exist_ok=True)
        path = self._home / "lock"
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.read(descriptor, 32).decode().strip()
            os.close(descriptor)
            raise HomeInUseError(
                f"home {self._home}: in use by another control plane (process {holder}); stop it or choose another home"
            ) from None
        os.truncate(descriptor, 0)
        os.write(descriptor, str(os.getpid()).encode())
        self._descriptor = descriptor
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._descriptor)
