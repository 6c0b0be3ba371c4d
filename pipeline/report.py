"""What one rank measured in one step: the figures that travel to the telemetry, the REST API and the page."""

from enum import StrEnum

from pydantic import BaseModel, ConfigDict, Field


class CollectiveName(StrEnum):
    """The collectives of a step, under the names that metrics, REST and page use."""

    INPUT_DIST = "input_dist"
    OVERLAP_MASK = "overlap_mask"
    EMBEDDING = "embedding"
    GRADIENT = "gradient"
    DENSE_ALLREDUCE = "dense_allreduce"


class Partition(StrEnum):
    """Rows that two consecutive batches share (OL) and rows that only one of them uses (NOL)."""

    OL = "ol"
    NOL = "nol"


class CollectiveReport(BaseModel):
    """One kind of collective within one step of one rank.

    `ms` is the time in which at least one collective of this kind was in flight during the step; `exposed_ms` the part
    of it in which the compute lane waited for it. Bytes are those issued in the step, own rank's share excluded.
    """

    model_config = ConfigDict(frozen=True)

    name: CollectiveName
    partition: Partition | None = None
    bytes_sent: int = Field(ge=0)
    bytes_received: int = Field(ge=0)
    ms: float = Field(ge=0)
    exposed_ms: float = Field(ge=0)


class StepReport(BaseModel):
    """One finished step of one rank.

    `comm_ms` is the union of the intervals in which any collective is in flight during the step, `exposed_ms` the part
    in which the compute lane waits for one, `hidden_ms = comm_ms - exposed_ms` and
    `comm_overlap = hidden_ms / comm_ms` (null if nothing was sent). `ids` counts the ids of the batch for which
    this rank asks: every occurrence, or with index dedup every distinct id of a table once. `overlapped_ids` are those
    of them whose row the previous batch used too, on any rank, and `id_overlap` their share; null under schedules that
    do not look for overlap.
    """

    model_config = ConfigDict(frozen=True)

    step: int = Field(ge=0)
    rank: int = Field(ge=0)
    samples: int = Field(ge=0)
    step_ms: float = Field(ge=0)
    compute_ms: float = Field(ge=0)
    comm_ms: float = Field(ge=0)
    exposed_ms: float = Field(ge=0)
    hidden_ms: float = Field(ge=0)
    comm_overlap: float | None = Field(ge=0, le=1)
    ids: int = Field(ge=0)
    overlapped_ids: int | None = Field(ge=0)
    id_overlap: float | None = Field(ge=0, le=1)
    collectives: tuple[CollectiveReport, ...]
