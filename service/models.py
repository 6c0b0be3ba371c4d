"""The shapes of the REST answers, shared by the routes, the client and the command line."""

from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated

from pydantic import BaseModel, ConfigDict, PlainSerializer

from workers.job import JobSpec
from workers.plans import Check, Outcome, PlannedTraining
from workers.reports import JobFailure, JobPlan, JobResult, StepSample


class JobState(StrEnum):
    """Where a job stands. An ended job never changes its state again."""

    QUEUED = "queued"
    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    STOPPED = "stopped"
    LOST = "lost"

    @property
    def ended(self) -> bool:
        return self in ENDED_STATES


NEXT_OFFSET_HEADER = "Overlane-Next-Offset"

ENDED_STATES = frozenset({JobState.SUCCEEDED, JobState.FAILED, JobState.STOPPED, JobState.LOST})


def _iso_z(moment: datetime) -> str:
    return moment.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


Moment = Annotated[datetime, PlainSerializer(_iso_z, return_type=str, when_used="json")]
"""An aware time, written as ISO 8601 with Z."""


class Answer(BaseModel):
    """A part of an answer of the API."""

    model_config = ConfigDict(frozen=True)


class Resources(Answer):
    """What the whole worker group of a job takes from the cluster.

    An elastic group may grow to `max_workers` (null for other groups). The figures are those of the smallest one that
    trains, which is what must be free for the job to start, and what is kept free for it.
    """

    workers: int
    cpus: float
    gpus: float
    max_workers: int | None = None


class LatestStep(Answer):
    """The mean over the ranks of the newest step that every rank reported; `steps` is the planned total.

    `samples_per_s` adds the ranks up; the two overlaps are ratios of sums.
    """

    step: int
    steps: int | None
    rank_count: int
    samples_per_s: float | None
    step_ms: float
    compute_ms: float
    comm_ms: float
    exposed_ms: float
    comm_overlap: float | None
    id_overlap: float | None
    loss: float | None


class StateChange(Answer):
    """A state that a job has entered, and why, where there is more to say. Later changes have larger numbers."""

    number: int
    time: Moment
    state: JobState
    reason: str | None


class Job(Answer):
    """A job as the API shows it. `reason` says in words why it is in its state, where there is more to say."""

    id: str
    name: str
    project: str
    state: JobState
    reason: str | None
    submitted_at: Moment
    started_at: Moment | None
    ended_at: Moment | None
    attempts: int
    spec: JobSpec
    resources: Resources
    plan: JobPlan | None
    result: JobResult | None
    failure: JobFailure | None
    dropped_samples: int
    latest: LatestStep | None


class Plan(Answer):
    """What was found out about a job without running it.

    `outcome` is `no` if one of the checks says no, and `ok` if all of them are. `waits_for` says what the job would
    wait for if it were submitted now; null if for nothing, or if that is not known. `training` is null without a plan.
    """

    outcome: Outcome
    checks: list[Check]
    resources: Resources | None
    waits_for: str | None
    training: PlannedTraining | None


class JobPage(Answer):
    """Jobs, newest first. `next_cursor` asks for older ones; null on the last page."""

    items: list[Job]
    next_cursor: str | None


class StoredStep(StepSample):
    """A step sample as the API shows it."""

    time: Moment


class StepPage(Answer):
    """Step samples in the order (step, rank); whole steps only. `next_after` is the last step of the page."""

    items: list[StoredStep]
    next_after: int | None


class Spread(Answer):
    """How a figure is spread over the rank-steps, in ms."""

    mean: float
    p50: float
    p95: float
    p99: float


class CollectiveOverlap(Answer):
    """One kind of collective over all counted rank-steps; bytes are totals."""

    name: str
    partition: str | None
    ms: Spread
    exposed_ms: Spread
    comm_overlap: float | None
    bytes_sent: int
    bytes_received: int


class RankOverlap(Answer):
    """The figures of one rank."""

    rank: int
    step_ms: Spread
    exposed_ms: Spread
    comm_overlap: float | None
    collectives: list[CollectiveOverlap]


class Overlap(Answer):
    """How much of the communication of a job is hidden.

    Counted are `steps` steps. The first `warmup_steps` steps, the first three of every attempt once a job has more
    than ten, are left out. `comm_overlap = 1 - sum(exposed) / sum(comm)` over all rank-steps, null without any
    communication; spreads are null before the first step.
    """

    steps: int
    warmup_steps: int
    step_ms: Spread | None
    compute_ms: Spread | None
    comm_ms: Spread | None
    exposed_ms: Spread | None
    hidden_ms: Spread | None
    comm_overlap: float | None
    id_overlap: float | None
    collectives: list[CollectiveOverlap]
    ranks: list[RankOverlap]


class WatchedRun(Answer):
    """A run that somebody submitted to Ray directly. Everything about it comes from Ray, which keeps it for a while.

    `entrypoint` is the command that was submitted.
    """

    id: str
    state: JobState
    reason: str | None
    entrypoint: str
    started_at: Moment | None
    ended_at: Moment | None


class WatchedRuns(Answer):
    """The runs of others, newest first."""

    items: list[WatchedRun]


class NodeInfo(Answer):
    """A living node of the Ray cluster and what it has in all, e.g. `{"CPU": 2}`."""

    id: str
    address: str
    head: bool
    resources: dict[str, float]


class ClusterResources(Answer):
    """CPUs and GPUs of the cluster. `available` leaves out what jobs of this service hold or will take."""

    total: dict[str, float]
    available: dict[str, float]


class Cluster(Answer):
    """The Ray cluster, and how many jobs are in each state."""

    resources: ClusterResources
    nodes: list[NodeInfo]
    ray_address: str
    jobs: dict[JobState, int]


class Health(Answer):
    """The answer of a probe that found nothing wrong."""

    status: str = "ok"
