"""How a measurement is kept: the ratio of two sides that took turns, its spread, and what it ran on."""

import json
import os
import platform
import statistics
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Self

from pydantic import BaseModel

FOLDER = Path(__file__).parent / "results"
PACKAGES = ("torch", "torchrec", "ray")


class Ratio(BaseModel):
    """`one` against `other`, turn by turn: the median of the ratios, and their quartiles.

    Each turn gives the step time of one side and of the other, in milliseconds, measured right after each other.
    """

    one: str
    other: str
    median: float
    lower_quartile: float
    upper_quartile: float
    turns: int
    one_ms: float
    other_ms: float

    @classmethod
    def of(cls, one: str, other: str, turns: Sequence[tuple[float, float]]) -> "Ratio":
        """From pairs of step times (ms), one pair a turn. Needs at least two turns."""
        ratios = [mine / theirs for mine, theirs in turns]
        lower, median, upper = statistics.quantiles(ratios, n=4)
        return cls(
            one=one,
            other=other,
            median=median,
            lower_quartile=lower,
            upper_quartile=upper,
            turns=len(turns),
            one_ms=statistics.median(mine for mine, _ in turns),
            other_ms=statistics.median(theirs for _, theirs in turns),
        )

    def __str__(self) -> str:
        return (
            f"{self.one} / {self.other}: {self.median:.4f} (quartiles {self.lower_quartile:.4f} to "
            f"{self.upper_quartile:.4f}, {self.turns} turns; {self.one_ms:.2f} ms against {self.other_ms:.2f} ms)"
        )


class Figure(BaseModel):
    """A count or a share that takes no time to measure, and so has no other side."""

    name: str
    value: float

    def __str__(self) -> str:
        return f"{self.name}: {self.value:.3f}"


class Result(BaseModel):
    """One benchmark's outcome. `reached` is None where there is no target, only an answer."""

    name: str
    what: str
    target: str
    reached: bool | None
    ratios: list[Ratio]
    figures: list[Figure]
    taken_at: str
    cpus: int
    machine: str
    versions: dict[str, str]
    command: str

    @classmethod
    def now(
        cls,
        name: str,
        what: str,
        target: str,
        *,
        reached: bool | None,
        ratios: Sequence[Ratio] = (),
        figures: Sequence[Figure] = (),
        command: str | None = None,
    ) -> Self:
        """With the machine, the versions and the time filled in. `command` is what repeats it, if not `make bench`."""
        return cls(
            name=name,
            what=what,
            target=target,
            reached=reached,
            ratios=list(ratios),
            figures=list(figures),
            taken_at=datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z"),
            cpus=os.cpu_count() or 0,
            machine=f"{platform.system()} {platform.machine()}, Python {platform.python_version()}",
            versions={package: version(package) for package in PACKAGES},
            command=command or f"make bench ARGS={name}",
        )

    def write(self) -> Path:
        """Write it to `benchmarks/results/<name>.json`."""
        FOLDER.mkdir(exist_ok=True)
        path = FOLDER / f"{self.name}.json"
        path.write_text(json.dumps(self.model_dump(), indent=2) + "\n", encoding="utf-8")
        return path
