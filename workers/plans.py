"""What a dry run of a job tells: the outcome of each check, and the plan. Light: the control plane imports it."""

from collections.abc import Iterator
from enum import StrEnum

from pydantic import BaseModel, ConfigDict, ValidationError

from workers.reports import ShardedTable

DRY_RUN_TIME_LIMIT_S = 120
"""After so many seconds a dry run ends itself."""
DRY_RUN_MEMORY_LIMIT_BYTES = 8 * 1024**3
"""So much memory a dry run may take."""

_MARK = "overlane-dry-run "


class CheckName(StrEnum):
    """What is checked of a job: its file, the data, the model, the place of the tables, the room for the workers."""

    SCHEMA = "schema"
    DATA = "data"
    MODEL = "model"
    TABLES = "tables"
    CLUSTER = "cluster"


class Outcome(StrEnum):
    """How a check ended; `not_checked` is neither good nor bad."""

    OK = "ok"
    NO = "no"
    NOT_CHECKED = "not_checked"


class Check(BaseModel):
    """The outcome of one check. `detail` says what was found; of a no, what to do; of what was not checked, why."""

    model_config = ConfigDict(frozen=True)

    name: CheckName
    outcome: Outcome
    detail: str


class PlannedTraining(BaseModel):
    """What the job would train: `steps` in all, with `world_size` ranks, the smallest group of an elastic job."""

    model_config = ConfigDict(frozen=True)

    steps: int
    world_size: int
    sharding: tuple[ShardedTable, ...]


class Finding(BaseModel):
    """One line of a dry run. `plan` comes with the check of the tables."""

    model_config = ConfigDict(frozen=True)

    check: Check
    plan: PlannedTraining | None = None

    def line(self) -> str:
        return f"{_MARK}{self.model_dump_json()}\n"


def findings_in(log: str) -> Iterator[Finding]:
    """The findings in what a dry run has written, among what the libraries and the user's own code may have."""
    for line in log.splitlines():
        _, mark, rest = line.partition(_MARK)
        if mark:
            try:
                yield Finding.model_validate_json(rest)
            except ValidationError:
                # Something of the user's was written into the same line; the check then has no outcome.
                continue
