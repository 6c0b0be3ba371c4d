"""What a running job tells the outside: step samples, its result, its failure. Light: the control plane imports it."""

from datetime import datetime

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from pipeline.report import StepReport

WARMUP_STEPS = 3
"""So many steps at the start of every attempt are left out of means and percentiles, ..."""
WARMUP_NEEDS_MORE_THAN = 10
"""... once a job has more steps than this."""


class StepSample(StepReport):
    """A step report with what the training loop knows beside it.

    `time` is when the step ended. `loss` is this rank's training loss, null where it is not finite (JSON is strict).
    `data_wait_ms` is how long the loop waited for the next batch. `attempt` counts restarts of the worker group.

    A rank takes `time` from its own clock, and its monitor adds `clock_offset_ms`, so that the samples of all ranks
    stand on one clock: the monitor's. The truth lies within `clock_uncertainty_ms`, half the round trip of the exchange
    in which the offset was found. Both are null, and `time` is the rank's own, until the first exchange.
    """

    time: datetime
    loss: float | None = None
    data_wait_ms: float = Field(default=0.0, ge=0)
    attempt: int = Field(default=0, ge=0)
    clock_offset_ms: float | None = None
    clock_uncertainty_ms: float | None = Field(default=None, ge=0)


SAMPLES = TypeAdapter(list[StepSample])
"""Encodes the samples that a rank sends its monitor: as JSON, since to pickle many small models costs far more."""


class ShardedTable(BaseModel):
    """Where an embedding table lies: `sharding` is TorchRec's name for how it is cut, `ranks` hold its shards.

    `bytes` are those of its weights over all ranks, as 32-bit floats, without what the optimizer keeps.
    """

    model_config = ConfigDict(frozen=True)

    name: str
    module: str
    rows: int
    dim: int
    sharding: str
    ranks: tuple[int, ...]

    @property
    def bytes(self) -> int:
        return self.rows * self.dim * 4


class JobPlan(BaseModel):
    """What an attempt decided before its first step: which modules are prioritized, which not and why, how the tables
    are sharded, total steps. The plan of a later attempt replaces it, and may be for another number of ranks.
    """

    model_config = ConfigDict(frozen=True)

    steps: int | None
    world_size: int
    prioritized: dict[str, str]
    not_prioritized: dict[str, str]
    sharding: tuple[ShardedTable, ...] = ()
    attempt: int = Field(default=0, ge=0)


class JobResult(BaseModel):
    """What a finished run reached. `metrics` are the held-out metrics by name, e.g. `auc`.

    `bad_rows` were left out in the last attempt, counted once by each rank that has read them; null where the source
    does not count them.
    """

    model_config = ConfigDict(frozen=True)

    steps: int
    samples: int
    seconds: float
    loss: float | None
    metrics: dict[str, float | None]
    checkpoint: str | None
    bad_rows: int | None = None


class JobFailure(BaseModel):
    """Why a run failed: one message for the user, and the remote traceback once."""

    model_config = ConfigDict(frozen=True)

    message: str
    traceback: str


class JobStop(BaseModel):
    """How a run ended that was told to stop: at which step it saved, or why it did not.

    Both are null where there was no step to save yet.
    """

    model_config = ConfigDict(frozen=True)

    saved_at_step: int | None = Field(default=None, ge=0)
    problem: str | None = None

    def in_words(self) -> str | None:
        """For example `saved at step 120`; None if there is nothing to say."""
        if self.saved_at_step is not None:
            return f"saved at step {self.saved_at_step}"
        return None if self.problem is None else f"not saved: {self.problem}"


JobEnd = JobResult | JobFailure | JobStop
"""What a run tells last."""


class ReportBatch(BaseModel):
    """One delivery from the monitor actor to the control plane; delivering it twice changes nothing.

    `dropped` is the number of samples that were given up so far because telemetry was slower than training.
    """

    model_config = ConfigDict(frozen=True)

    samples: list[StepSample] = Field(default_factory=list)
    dropped: int = Field(default=0, ge=0)
    plan: JobPlan | None = None
    result: JobResult | None = None
    failure: JobFailure | None = None
    stop: JobStop | None = None


class RunRecord(BaseModel):
    """What `_run.json` says of a run whose reports no control plane keeps.

    `dropped` counts the samples that stand in no Parquet part.
    """

    model_config = ConfigDict(frozen=True)

    job_id: str
    plan: JobPlan | None = None
    result: JobResult | None = None
    failure: JobFailure | None = None
    stop: JobStop | None = None
    dropped: int = 0

    def after(self, batch: ReportBatch) -> "RunRecord":
        """The record with what a batch tells beside its samples."""
        parts = ("plan", "result", "failure", "stop")
        told = {name: getattr(batch, name) for name in parts if getattr(batch, name) is not None}
        return self.model_copy(update={**told, "dropped": batch.dropped})
