"""What the monitor of a job and its driver tell each other."""

from dataclasses import dataclass

from workers.reports import JobPlan
from workers.telemetry.outbox import Account
from workers.telemetry.tally import Progress, Tally


@dataclass(frozen=True)
class Trouble:
    """What ended an attempt, in one line. `number` counts such ends from 1."""

    number: int
    attempt: int
    message: str


@dataclass(frozen=True)
class Memory:
    """What the monitor knows, in the driver's keeping: one that Ray starts again gets it back with the next question.

    `incarnation` names the start of the monitor that it comes from. `accounts` are by attempt and rank.
    """

    incarnation: str
    last_attempt: int
    plan: JobPlan | None
    tally: Tally
    accounts: dict[tuple[int, int], Account]
    given_up: int
    trouble: Trouble | None


@dataclass(frozen=True)
class Status:
    """How far the run is.

    `attempt` is the last one that started, -1 before the first, and `first_step` the step that it began with, as far as
    its samples tell. `plan` is None before it is made, `progress` before the first step is complete.
    """

    attempt: int
    first_step: int | None
    plan: JobPlan | None
    progress: Progress | None
    dropped: int
    trouble: Trouble | None
    memory: Memory


@dataclass(frozen=True)
class Settled:
    """How the reports of a run ended: whether all that were kept are delivered, and how many samples were not kept."""

    delivered: bool
    dropped: int
