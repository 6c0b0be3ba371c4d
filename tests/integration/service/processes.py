"""The processes of a control plane's cluster."""

from contextlib import suppress
from pathlib import Path

import psutil

from service.cluster.embedded import MARK, private_folder_of


def of_home(home: Path) -> list[int]:
    """Ids of the processes that carry the mark of this home's cluster."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            alive = process.status() != psutil.STATUS_ZOMBIE
            if alive and process.environ().get(MARK) == str(private_folder_of(home)):
                found.append(process.pid)
    return found
