"""What is kept of every change that a request makes: who did what to which job, and when."""

from dataclasses import dataclass
from enum import StrEnum

from service.models import Answer, JobState, Moment
from workers.job import JobSpec


class AuditAction(StrEnum):
    """What a request can do to a job."""

    SUBMIT = "submit"
    STOP = "stop"
    DELETE = "delete"


@dataclass(frozen=True)
class Deed:
    """Who does what, to be written down together with the change; `actor` is None where the service knows no tokens."""

    actor: str | None
    action: AuditAction


class JobFacts(Answer):
    """A job before or after a change. `spec` is given where the change has removed it from everywhere else."""

    name: str
    state: JobState
    spec: JobSpec | None = None


class AuditEntry(Answer):
    """One change. `actor` is the name of the token; null if the service asked for none at the time.

    `before` is null for a new job, `after` for a deleted one.
    """

    number: int
    time: Moment
    actor: str | None
    action: AuditAction
    job_id: str
    project: str
    before: JobFacts | None
    after: JobFacts | None


class AuditPage(Answer):
    """Changes, newest first. `next_cursor` asks for older ones; null on the last page."""

    items: list[AuditEntry]
    next_cursor: str | None
