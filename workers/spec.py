"""What every section of the job file has in common."""

from pydantic import BaseModel, ConfigDict


class Spec(BaseModel):
    """A section of the job file: immutable, and closed to unknown fields."""

    model_config = ConfigDict(frozen=True, extra="forbid")
