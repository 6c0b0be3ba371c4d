"""Jobs in the queue and on the cluster, and what is decided about them."""

from collections.abc import Sequence
from datetime import timedelta

from service.cluster.gateway import RayNode, RayResources
from service.jobs.admission import Decision, Expire, Preempt, Start, Wait, decide
from service.jobs.quotas import Quotas
from service.models import JobState
from service.store.jobs import JobRecord
from tests.unit.service.fakes import START
from workers.job import parse_job


def job(number: int, count: int = 1, **changes: object) -> JobRecord:
    """Job number `number`, which was submitted then; started ones were started in the order of their numbers too."""
    cpus, gpus = changes.pop("cpus", 1), changes.pop("gpus", 0)
    priority, project = changes.pop("priority", 0), changes.pop("project", "default")
    deadline_s, submitted_at = changes.pop("deadline_s", None), START + timedelta(seconds=number)
    queue = {"priority": priority, "project": project, "deadline_s": deadline_s}
    spec = parse_job(
        {
            "name": "tiny",
            "workers": {"count": count, "cpus": cpus, "gpus": gpus},
            "checkpoint": {"every_steps": changes.pop("every_steps", 10)},
            "queue": queue,
        }
    )
    fields = {
        "number": number, "id": f"job-{number}", "name": "tiny", "project": project, "priority": priority,
        "state": JobState.QUEUED, "reason": None, "stop_requested": False, "on_ray": False, "has_steps": False,
        "submitted_at": submitted_at, "started_at": None, "ended_at": None, "attempts": 0,
        "dropped_samples": 0, "token_hash": None, "spec": spec, "plan": None, "result": None,
        "failure": None,
    }  # fmt: skip
    if isinstance(deadline_s, int | float):
        fields["starts_by"] = submitted_at + timedelta(seconds=deadline_s)
    return JobRecord.model_validate(fields | changes)


def running(number: int, count: int = 1, **changes: object) -> JobRecord:
    at = START + timedelta(seconds=number)
    known: dict[str, object] = {"state": JobState.RUNNING, "started_at": at, "on_ray": True, "has_steps": True}
    return job(number, count, **(known | changes))


def cluster(*nodes: dict[str, float], used: dict[str, float] | None = None) -> RayResources:
    named = [RayNode(f"n{number}", f"10.0.0.{number}", number == 0, node) for number, node in enumerate(nodes)]
    return RayResources(tuple(named), used or {})


def decided(
    jobs: Sequence[JobRecord], on: RayResources, quotas: Quotas | None = None, *, after_s: float = 100
) -> list[Decision]:
    return decide(jobs, on, quotas or Quotas(), START + timedelta(seconds=after_s))


def started(decisions: Sequence[Decision]) -> list[str]:
    return [decision.job.id for decision in decisions if isinstance(decision, Start)]


def reasons(decisions: Sequence[Decision]) -> dict[str, str]:
    return {decision.job.id: decision.reason for decision in decisions if isinstance(decision, Wait | Expire)}


def preempted(decisions: Sequence[Decision]) -> list[tuple[str, str]]:
    return [(decision.job.id, decision.by.id) for decision in decisions if isinstance(decision, Preempt)]
