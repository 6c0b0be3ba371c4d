"""The job file: what to train, on what data, with how many workers.

Read from YAML or JSON. Unknown fields are errors that name the field and the nearest known one. This module is light on
purpose: the control plane imports it, and it must not pull in torch.
"""

import difflib
import json
import math
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator
from pydantic_core import ErrorDetails

# A job travels to its process in one environment variable, and Linux takes 128 KiB in one.
MAX_JOB_BYTES = 64 * 1024

_MAX_VALUES = 10_000
# SQLite and torch keep whole numbers in 64 bits, and JavaScript is exact up to 53.
_MAX_INTEGER = 2**53 - 1


class InvalidJob(ValueError):  # noqa: N818 - reads as a sentence where it is raised
    """The job file is not valid. `problems` holds one line for each fault, `field: message`."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("; ".join(problems))
        self.problems = problems


class ScheduleName(StrEnum):
    """The schedules of `pipeline.schedules` that a job can ask for."""

    SYNC = "sync"
    SPARSE_DIST = "sparse_dist"
    PRIORITIZED = "prioritized"


class Backend(StrEnum):
    """The collective library of the worker group; `auto` is NCCL with GPUs and gloo without."""

    AUTO = "auto"
    GLOO = "gloo"
    NCCL = "nccl"


class Spec(BaseModel):
    """A section of the job file: immutable, and closed to unknown fields."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class ModelSpec(Spec):
    """Which model: `factory` is the import path `package.module:callable` of a callable that returns an nn.Module."""

    factory: str = Field(default="workers.models:sequence_ranker", pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$")
    params: dict[str, Any] = Field(default_factory=dict)


class DataSpec(Spec):
    """Which data. `source` is a built-in name or the import path `package.module:callable` of a user's source."""

    source: str = "movielens-100k"
    order: Literal["time", "shuffled"] = "time"
    path: str | None = None
    params: dict[str, Any] = Field(default_factory=dict)
    columns: dict[str, Any] = Field(default_factory=dict)
    max_bad_rows: int = Field(default=0, ge=0)


class SparseOptimizerSpec(Spec):
    """The fused optimizer of the embedding tables."""

    name: Literal["sgd", "rowwise_adagrad"] = "rowwise_adagrad"
    lr: float = Field(default=0.05, gt=0)


class TrainingSpec(Spec):
    """How to train. `batch_size` counts samples per worker; `max_steps` ends earlier than `epochs` would.

    With `dedup` a worker asks for each distinct id of a table once per batch, and sums the gradients of its places
    before they travel. The result is that of synchronous training with `dedup`; without it, it differs by rounding.
    """

    batch_size: int = Field(default=1024, ge=1)
    epochs: int = Field(default=1, ge=1)
    max_steps: int | None = Field(default=None, ge=1)
    schedule: ScheduleName = ScheduleName.PRIORITIZED
    seed: int = Field(default=0, ge=0, le=_MAX_INTEGER)
    dense_lr: float = Field(default=0.01, gt=0)
    sparse_optimizer: SparseOptimizerSpec = SparseOptimizerSpec()
    dedup: bool = False


class WorkersSpec(Spec):
    """The worker group: how many workers, and what each one takes from the cluster."""

    count: Annotated[int, Field(ge=1)] = 2
    cpus: float = Field(default=1, ge=0.0001)
    gpus: float = Field(default=0, ge=0)
    backend: Backend = Backend.AUTO

    @field_validator("count", mode="before")
    @classmethod
    def _no_elastic_yet(cls, value: object) -> object:
        if isinstance(value, dict):
            raise ValueError("elastic worker groups ({min, max}) are not supported yet; give a number")
        return value

    @model_validator(mode="after")
    def _backend_fits(self) -> Self:
        if self.backend is Backend.NCCL and self.gpus == 0:
            raise ValueError("backend nccl needs gpus: 1 or more per worker; use backend: gloo on CPUs")
        return self


class CheckpointSpec(Spec):
    """When to write a checkpoint (also at the end of every run) and how many to keep."""

    every_steps: int | None = Field(default=None, ge=1)
    keep: int = Field(default=2, ge=1)


class RetriesSpec(Spec):
    """How often the worker group is restarted after a failure before the job has failed."""

    max: int = Field(default=3, ge=0)


class QueueSpec(Spec):
    """The job's place in the queue."""

    priority: int = Field(default=0, ge=-_MAX_INTEGER, le=_MAX_INTEGER)
    project: str = Field(default="default", pattern=r"^[a-z0-9][a-z0-9-]{0,62}$")
    deadline_s: float | None = Field(default=None, gt=0)


class JobSpec(Spec):
    """A whole job file."""

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9-]{0,62}$")
    model: ModelSpec = ModelSpec()
    data: DataSpec = DataSpec()
    training: TrainingSpec = TrainingSpec()
    workers: WorkersSpec = WorkersSpec()
    checkpoint: CheckpointSpec = CheckpointSpec()
    retries: RetriesSpec = RetriesSpec()
    queue: QueueSpec = QueueSpec()


def parse_job(raw: object) -> JobSpec:
    """Validate a decoded job file. Raises `InvalidJob` with one problem per fault."""
    if (fault := _not_json(raw)) is not None:
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
    return parse_job(_decode(text, _load_json, "JSON"))


def read_job(text: str) -> JobSpec:
    """Parse YAML or JSON text. Raises `InvalidJob`."""
    try:
        # YAML readers take most JSON for YAML, but not tabs and not every character.
        raw = _load_json(text)
    except (ValueError, RecursionError):
        raw = _decode(text, _load_yaml, "YAML or JSON")
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


def _decode(text: str, load: Callable[[str], object], language: str) -> object:
    try:
        return load(text)
    except RecursionError:
        raise InvalidJob([f"job file: not valid {language}: nested too deep"]) from None
    except (ValueError, yaml.YAMLError) as error:
        # ValueError also stands for YAML dates and whole numbers that Python refuses to build.
        raise InvalidJob([f"job file: not valid {language}: {' '.join(str(error).split())}"]) from None


def _load_json(text: str) -> object:
    return json.loads(text, object_pairs_hook=_once)


def _load_yaml(text: str) -> object:
    return yaml.load(text, Loader=_Yaml)


def _once(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """A mapping in which no field stands twice; readers would keep the last one and say nothing."""
    found = dict(pairs)
    if len(found) < len(pairs):
        fields = [field for field, _ in pairs]
        raise ValueError(f"field {next(field for field in fields if fields.count(field) > 1)!r} stands there twice")
    return found


class _Yaml(yaml.SafeLoader):
    """Safe YAML in which no field may stand twice in a mapping."""

    def compose_mapping_node(self, anchor: dict[Any, yaml.Node]) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)
        assert isinstance(node, yaml.MappingNode)
        fields = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
        if repeated := next((field for field in fields if fields.count(field) > 1), None):
            raise yaml.MarkedYAMLError(None, None, f"field {repeated!r} stands there twice", node.start_mark)
        return node


def _not_json(raw: object) -> str | None:
    """What YAML can say and JSON cannot: a job travels as JSON. Aliases may stand for any number of values, or loop."""
    rest: list[tuple[str, object]] = [("", raw)]
    for _ in range(_MAX_VALUES):
        if not rest:
            return None
        field, value = rest.pop()
        if isinstance(value, dict):
            for key in value:
                if not isinstance(key, str):
                    return f"{field or 'job file'}: the field name {key!r} has no place in JSON; quote it"
            rest += [(f"{field}.{key}" if field else key, part) for key, part in value.items()]
        elif isinstance(value, list):
            rest += [(f"{field}.{index}", part) for index, part in enumerate(value)]
        elif isinstance(value, float) and not math.isfinite(value):
            return f"{field}: must be a finite number (got {value})"
        elif value is not None and not isinstance(value, str | int | float):
            return f"{field}: a {type(value).__name__} has no place in JSON; quote it to make it a string"
    return f"job file: more than {_MAX_VALUES} values; write out YAML aliases"


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
        assert isinstance(annotation, type)
        assert issubclass(annotation, BaseModel)
        section = annotation
    return list(section.model_fields)
