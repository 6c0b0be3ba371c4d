"""How much of the machine other programs took: where it is not quiet, a step time says little by itself."""

import os
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Self

TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class OthersTime:
    """A moment, and what all programs but the ranks have used of the machine's cores until then, in seconds."""

    wall_s: float
    used_s: float

    @classmethod
    def now(cls) -> Self:
        """Ranks are the processes with the same parent as this one."""
        return cls(time.perf_counter(), used_s(_stats(), without_parent=os.getppid()))

    def share(self, since: "OthersTime") -> float:
        """The part of all cores' time since then, 0..1 up to the clock's coarseness."""
        cores = os.cpu_count() or 1
        return max(0.0, (self.used_s - since.used_s) / (self.wall_s - since.wall_s) / cores)


def used_s(stats: Iterable[str], *, without_parent: int) -> float:
    """Processor time of processes, in seconds, from the texts of their `/proc/PID/stat`.

    A process counts with its ended children, so that the sum does not fall when one ends.
    """
    ticks = 0
    for stat in stats:
        # The name of the program stands in parentheses and may contain blanks.
        fields = stat.rpartition(")")[2].split()
        if int(fields[1]) != without_parent:
            ticks += sum(int(field) for field in fields[11:15])
    return ticks / TICKS_PER_S


def _stats() -> Iterable[str]:
    for file in Path("/proc").glob("[0-9]*/stat"):
        try:
            yield file.read_text(encoding="utf-8")
        except OSError:
            # It has ended since the folder was listed.
            continue
