"""The job file: what to train, on what data, with how many workers.

Read from YAML or JSON. Unknown fields are errors that name the field and the nearest known one. This module is light on
purpose: the control plane imports it, and it must not pull in torch.
"""

import difflib
import json
from enum import StrEnum
from pathlib import Path
from typing import Any, Literal, Self, TypeVar, get_args

from pydantic import BaseModel, Field, ValidationError, field_validator, model_validator
from pydantic_core import ErrorDetails

from workers.job_text import InvalidJob as InvalidJob
from workers.job_text import decode, fault_in, load_json, load_yaml
from workers.spec import MAX_SECONDS
from workers.spec import Spec as Spec
from workers.worker_group import Backend as Backend
from workers.worker_group import WorkersSpec as WorkersSpec

# A job travels to its process in one environment variable, and Linux takes 128 KiB in one.
MAX_JOB_BYTES = 64 * 1024

# SQLite and torch keep whole numbers in 64 bits, and JavaScript is exact up to 53.
_MAX_INTEGER = 2**53 - 1
# What fits into four bytes, which databases keep it in.
_MAX_PRIORITY = 2**31 - 1


class ScheduleName(StrEnum):
    """The schedules of `pipeline.schedules` that a job can ask for."""

    SYNC = "sync"
    SPARSE_DIST = "sparse_dist"
    PRIORITIZED = "prioritized"


class Sharding(StrEnum):
    """How a table is cut, in TorchRec's words."""

    ROW_WISE = "row_wise"
    TABLE_WISE = "table_wise"
    COLUMN_WISE = "column_wise"


class ModelSpec(Spec):
    """Which model: `factory` is the import path `package.module:callable` of a callable that returns an nn.Module.

    `sharding` says how tables are cut, by name; the others are cut as the planner finds best, sequence tables by rows.
    """

    factory: str = Field(default="workers.models:sequence_ranker", pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$")
    params: dict[str, Any] = Field(default_factory=dict)
    sharding: dict[str, Sharding] = Field(default_factory=dict)


class ColumnsSpec(Spec):
    """Which columns of a file are what: the `label` 0 or 1, `dense` numbers, `ids` with one id in each row, and
    `sequences`, lists of ids. A column can be one of them.
    """

    label: str
    dense: tuple[str, ...] = ()
    ids: tuple[str, ...] = ()
    sequences: tuple[str, ...] = ()

    @property
    def features(self) -> tuple[str, ...]:
        """The columns that look up tables."""
        return self.ids + self.sequences

    @model_validator(mode="after")
    def _each_once(self) -> Self:
        names = (self.label, *self.dense, *self.features)
        if repeated := next((name for name in names if names.count(name) > 1), None):
            raise ValueError(f"column {repeated!r} stands there twice; name it once")
        if not self.features:
            raise ValueError("no column has ids to look up; name at least one in ids or sequences")
        return self


def _or_empty(schema: dict[str, Any]) -> None:
    schema["anyOf"].append({"type": "object", "maxProperties": 0})


class DataSpec(Spec):
    """Which data. `source` is a built-in name or the import path `package.module:callable` of a user's source.

    `max_bad_rows` is how many rows that cannot be trained each worker leaves out before the job fails.
    """

    source: str = "movielens-100k"
    order: Literal["time", "shuffled"] = "time"
    path: str | None = None
    params: dict[str, Any] = Field(default_factory=dict)
    columns: ColumnsSpec | None = Field(default=None, json_schema_extra=_or_empty)
    max_bad_rows: int = Field(default=0, ge=0)

    @field_validator("columns", mode="before")
    @classmethod
    def _none_named(cls, value: object) -> object:
        return None if value == {} else value


class SparseOptimizerSpec(Spec):
    """The fused optimizer of the embedding tables."""

    name: Literal["sgd", "rowwise_adagrad"] = "rowwise_adagrad"
    lr: float = Field(default=0.05, gt=0)


class TrainingSpec(Spec):
    """How to train. `batch_size` counts samples per worker; `max_steps` ends earlier than `epochs` would.

    With `dedup` a worker asks for each distinct id of a table once per batch, and sums the gradients of its places
    before they travel. The result is that of synchronous training with `dedup`; without it, it differs by rounding.

    A step whose loss is not finite ends the job, and its batch is kept. Up to `max_skipped_steps` such steps are left
    out instead: training starts again at the last checkpoint and passes over them.
    """

    batch_size: int = Field(default=1024, ge=1)
    epochs: int = Field(default=1, ge=1)
    max_steps: int | None = Field(default=None, ge=1)
    schedule: ScheduleName = ScheduleName.PRIORITIZED
    seed: int = Field(default=0, ge=0, le=_MAX_INTEGER)
    dense_lr: float = Field(default=0.01, gt=0)
    sparse_optimizer: SparseOptimizerSpec = SparseOptimizerSpec()
    dedup: bool = False
    max_skipped_steps: int = Field(default=0, ge=0)


class CheckpointSpec(Spec):
    """When to write a checkpoint (also at the end of every run) and how many to keep.

    One that a worker has not written after `timeout_s` counts as a failure of that worker. A job that is told to stop
    has `stop_grace_s` to write one first; with 0 it ends at once.
    """

    every_steps: int | None = Field(default=None, ge=1)
    keep: int = Field(default=2, ge=1)
    timeout_s: float = Field(default=3600, ge=1, le=MAX_SECONDS)
    stop_grace_s: float = Field(default=60, ge=0, le=MAX_SECONDS)


class EarlyStoppingSpec(Spec):
    """End when `metric` has not become better by more than `min_delta` in `patience` evaluations, one after the other.

    `auc` is better when it is higher, normalized entropy (`ne`) when it is lower.
    """

    metric: Literal["auc", "ne"] = "auc"
    patience: int = Field(default=3, ge=1)
    min_delta: float = Field(default=0.0, ge=0)


class EvaluationSpec(Spec):
    """How often the model is evaluated on the held-out samples while it trains; at the end it always is."""

    every_steps: int | None = Field(default=None, ge=1)
    early_stopping: EarlyStoppingSpec | None = None

    @model_validator(mode="after")
    def _evaluates(self) -> Self:
        if self.early_stopping is not None and self.every_steps is None:
            raise ValueError("early_stopping needs evaluations to go by; set every_steps as well")
        return self


class RetriesSpec(Spec):
    """How often the worker group is restarted after a failure before the job has failed."""

    max: int = Field(default=3, ge=0)


class QueueSpec(Spec):
    """The job's place in the queue."""

    priority: int = Field(default=0, ge=-_MAX_PRIORITY, le=_MAX_PRIORITY)
    project: str = Field(default="default", pattern=r"^[a-z0-9][a-z0-9-]{0,62}$")
    deadline_s: float | None = Field(default=None, gt=0, le=MAX_SECONDS)


class JobSpec(Spec):
    """A whole job file."""

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9-]{0,62}$")
    model: ModelSpec = ModelSpec()
    data: DataSpec = DataSpec()
    training: TrainingSpec = TrainingSpec()
    workers: WorkersSpec = WorkersSpec()
    evaluation: EvaluationSpec = EvaluationSpec()
    checkpoint: CheckpointSpec = CheckpointSpec()
    retries: RetriesSpec = RetriesSpec()
    queue: QueueSpec = QueueSpec()


def parse_job(raw: object) -> JobSpec:
    """Validate a decoded job file. Raises `InvalidJob` with one problem per fault."""
    if (fault := fault_in(raw)) is not None:
        raise InvalidJob([fault])
    return parse_section(JobSpec, raw, at="")


Section = TypeVar("Section", bound=Spec)


def parse_section(section: type[Section], raw: object, *, at: str) -> Section:
    """Validate one section, e.g. a source's `params`, that stands in the job file under the field `at`.

    Raises `InvalidJob` with one problem per fault.
    """
    if not isinstance(raw, dict):
        raise InvalidJob([f"{at or 'job file'}: expected a mapping of fields, got {type(raw).__name__}"])
    try:
        return section.model_validate(raw)
    except ValidationError as error:
        raise InvalidJob([_problem(section, at, detail) for detail in error.errors()]) from None


def read_json(text: str) -> JobSpec:
    """Parse JSON text. Raises `InvalidJob`."""
    return parse_job(decode(text, load_json, "JSON"))


def read_job(text: str) -> JobSpec:
    """Parse YAML or JSON text. Raises `InvalidJob`."""
    try:
        # YAML readers take most JSON for YAML, but not tabs and not every character.
        raw = load_json(text)
    except (ValueError, RecursionError):
        raw = decode(text, load_yaml, "YAML or JSON")
    return parse_job(raw)


def load_job(path: Path) -> JobSpec:
    """Read a job file. Raises `InvalidJob`, also for a file that cannot be read or is larger than `MAX_JOB_BYTES`."""
    try:
        with path.open("rb") as file:
            content = file.read(MAX_JOB_BYTES + 1)
        if len(content) > MAX_JOB_BYTES:
            raise InvalidJob([f"job file: {path} is larger than {MAX_JOB_BYTES} bytes"])
        return read_job(content.decode())
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidJob([f"job file: cannot read {path}: {error}"]) from None


def _problem(section: type[BaseModel], at: str, detail: ErrorDetails) -> str:
    field = ".".join(str(part) for part in ((at,) if at else ()) + detail["loc"]) or "job file"
    if detail["type"] == "extra_forbidden":
        known = _known_fields(section, detail["loc"][:-1])
        near = difflib.get_close_matches(str(detail["loc"][-1]), known, n=1, cutoff=0.5)
        hint = f"did you mean {near[0]!r}?" if near else f"known fields: {', '.join(known) or 'none'}"
        return f"{field}: unknown field; {hint}"
    given = "" if detail["type"] == "missing" else f" (got {json.dumps(detail['input'], default=str)[:80]})"
    return f"{field}: {detail['msg'].removeprefix('Value error, ')}{given}"


def _known_fields(section: type[BaseModel], location: tuple[int | str, ...]) -> list[str]:
    for part in location:
        annotation = section.model_fields[str(part)].annotation
        # A section that may be left out is a union with None.
        ways = (annotation, *get_args(annotation))
        section = next(each for each in ways if isinstance(each, type) and issubclass(each, BaseModel))
    return list(section.model_fields)
