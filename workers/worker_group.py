"""The section `workers` of the job file: how many workers there are, and what each one takes from the cluster."""

from enum import StrEnum
from typing import Annotated, Self

from pydantic import Field, ValidationError, ValidatorFunctionWrapHandler, field_validator, model_validator

from workers.spec import MAX_SECONDS, Spec

# More than any cluster has; larger figures would not even multiply.
_MOST = 10**6


class Backend(StrEnum):
    """The collective library of the worker group; `auto` is NCCL with GPUs and gloo without."""

    AUTO = "auto"
    GLOO = "gloo"
    NCCL = "nccl"


class ElasticCount(Spec):
    """A worker group that takes the room there is: `min` workers at least, `max` at most.

    It is looked for room every `resize_every_s` seconds. A group of another size starts again at the last checkpoint.
    """

    min: int = Field(ge=1, le=_MOST)
    max: int = Field(ge=1, le=_MOST)
    resize_every_s: float = Field(default=60, ge=1, le=MAX_SECONDS)

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if self.max < self.min:
            raise ValueError(f"max must not be less than min ({self.min})")
        return self


class WorkersSpec(Spec):
    """The worker group: how many workers, and what each one takes from the cluster.

    `count` is a number, or a range for an elastic group. A job starts when the smallest group fits.

    A worker that does not move for `hang_timeout_s` is taken for hung, and the group starts again.
    """

    count: Annotated[int, Field(ge=1, le=_MOST)] | ElasticCount = 2
    cpus: float = Field(default=1, ge=0.0001, le=_MOST)
    gpus: float = Field(default=0, ge=0, le=_MOST)
    backend: Backend = Backend.AUTO
    hang_timeout_s: float = Field(default=300, ge=1, le=MAX_SECONDS)

    @property
    def is_elastic(self) -> bool:
        """Whether the group takes the room there is."""
        return isinstance(self.count, ElasticCount)

    @property
    def min_count(self) -> int:
        """The smallest group that trains."""
        return self.count.min if isinstance(self.count, ElasticCount) else self.count

    @property
    def max_count(self) -> int:
        """The largest group that trains."""
        return self.count.max if isinstance(self.count, ElasticCount) else self.count

    @field_validator("count", mode="wrap")
    @classmethod
    def _number_or_range(cls, value: object, check: ValidatorFunctionWrapHandler) -> int | ElasticCount:
        """Pydantic names the faults of a number and those of a range, whichever it is; name one fault of what it is."""
        is_range = isinstance(value, dict)
        try:
            checked: int | ElasticCount = ElasticCount.model_validate(value) if is_range else check(value)
        except ValidationError as error:
            fault = error.errors()[0]
            message = fault["msg"].removeprefix("Value error, ")
            if fault["type"] == "extra_forbidden":
                message = f"unknown field; known fields: {', '.join(ElasticCount.model_fields)}"
            at = ".".join(str(part) for part in fault["loc"]) if is_range else ""
            raise ValueError(f"{at}: {message}" if at else message) from None
        return checked

    @model_validator(mode="after")
    def _backend_fits(self) -> Self:
        if self.backend is Backend.NCCL and self.gpus == 0:
            raise ValueError("backend nccl needs gpus: 1 or more per worker; use backend: gloo on CPUs")
        return self
