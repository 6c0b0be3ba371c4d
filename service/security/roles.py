"""Who may do what: one table for the whole API. A route that is not in it is for admins only."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

EVERY_PROJECT = "*"


class Role(Enum):
    """What a token is good for; each role may do what the ones before it may."""

    VIEWER = "viewer"
    SUBMITTER = "submitter"
    ADMIN = "admin"

    def includes(self, other: "Role") -> bool:
        order = list(Role)
        return order.index(self) >= order.index(other)


@dataclass(frozen=True)
class Caller:
    """Who makes a request, and in which project (`*` for all). `name` is None where the service knows no tokens."""

    name: str | None
    role: Role
    project: str

    @property
    def sees_all(self) -> bool:
        return self.project == EVERY_PROJECT

    def sees(self, project: str) -> bool:
        """Whether jobs of the project exist for this caller."""
        return self.project in (EVERY_PROJECT, project)


NO_TOKENS = Caller(name=None, role=Role.ADMIN, project=EVERY_PROJECT)
"""Whoever reaches a service without a tokens file, which listens on loopback only."""


@dataclass(frozen=True)
class Need:
    """What a route asks of its caller: `role` None lets in whoever comes."""

    role: Role | None
    every_project: bool = False


_OPEN = Need(None)
_VIEWER = Need(Role.VIEWER)
_SUBMITTER = Need(Role.SUBMITTER)
_ADMIN = Need(Role.ADMIN, every_project=True)

# A route with {job_id} is moreover closed to callers of other projects, for whom there is no such job.
NEEDS: Mapping[str, Need] = {
    "GET /livez": _OPEN,
    "GET /readyz": _OPEN,
    # Asks for the token of the job itself.
    "POST /internal/v1/jobs/{job_id}/reports": _OPEN,
    "GET /openapi.json": _VIEWER,
    # Shows figures of all jobs.
    "GET /metrics": Need(Role.VIEWER, every_project=True),
    "GET /v1/cluster": _VIEWER,
    "GET /v1/jobs": _VIEWER,
    "GET /v1/jobs/{job_id}": _VIEWER,
    "GET /v1/jobs/{job_id}/events": _VIEWER,
    "GET /v1/jobs/{job_id}/logs": _VIEWER,
    "GET /v1/jobs/{job_id}/overlap": _VIEWER,
    "GET /v1/jobs/{job_id}/steps": _VIEWER,
    "GET /v1/jobs/{job_id}/trace": _VIEWER,
    "GET /v1/audit": _ADMIN,
    # Shows the commands of everybody who uses the cluster.
    "GET /v1/runs": _ADMIN,
    # Shows addresses of others, and sends something there.
    "GET /v1/webhooks": _ADMIN,
    "POST /v1/webhooks/{name}/ping": _ADMIN,
    "POST /v1/jobs": _SUBMITTER,
    # Runs the code that the job names.
    "POST /v1/plans": _SUBMITTER,
    "POST /v1/jobs/{job_id}/stop": _SUBMITTER,
    "DELETE /v1/jobs/{job_id}": _SUBMITTER,
}


def need_of(method: str, path: str) -> Need:
    """What the route with this template of a path asks for."""
    return NEEDS.get(f"{method} {path}", _ADMIN)
