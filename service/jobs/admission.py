"""Who leaves the queue now, who waits and why, and who has to make room: a pure function of what is known.

The order: the highest priority first. Among equal priorities the project that holds the smallest share of the cluster
(dominant resource fairness: its largest share of any resource), counting what was let in just before. Among equal
shares, and within a project, the job that was submitted first.

A job starts only when its whole group fits on the nodes. The first job in the order that does not fit is the head of
the queue, and none behind it starts before it does: how long jobs will run is not known, and Ray puts a group where it
likes, so no job could pass the head with a promise not to delay it. Left out of the order, and never in the way of
others, are jobs that room would not help: their project holds what it may, the cluster has no nodes that could hold
them, or they have to wait a little before they start again.

The head may have running jobs of lower priorities stopped: those that lose least, and only if that makes enough room.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from heapq import heapify, heappop, heapreplace

from service.cluster.gateway import RayResources
from service.jobs.capacity import never_fits
from service.jobs.quotas import Quotas, Usage, held_by_project
from service.jobs.reasons import named_to
from service.jobs.room import Room
from service.models import JobState
from service.store.jobs import JobRecord
from workers.capacity import COUNTED_RESOURCES, group_name, group_resources, named, units
from workers.job import WorkersSpec


@dataclass(frozen=True)
class Start:
    """The job leaves the queue."""

    job: JobRecord


@dataclass(frozen=True)
class Wait:
    """The job stays in the queue; `aside` says that it takes no part in the order."""

    job: JobRecord
    reason: str
    aside: bool = False


@dataclass(frozen=True)
class Expire:
    """The job has waited for longer than it wants to."""

    job: JobRecord
    reason: str


@dataclass(frozen=True)
class Preempt:
    """The running job makes room for `by`, and goes back to the queue."""

    job: JobRecord
    by: JobRecord


Decision = Start | Wait | Expire | Preempt


def decide(
    jobs: Sequence[JobRecord], cluster: RayResources, quotas: Quotas, now: datetime, *, may_preempt: bool = True
) -> list[Decision]:
    """One decision for each queued job among `jobs`, and the preemptions.

    `jobs` are those that have left the queue, and of each project at least the first that wait.

    `may_preempt` is false while Ray's figures may still count what has just ended.
    """
    started = sorted((job for job in jobs if job.state is not JobState.QUEUED), key=_age)
    room = Room.of(cluster, [job.spec.workers for job in started])
    held = held_by_project((job.project, job.spec.workers) for job in started)
    aside = {job.id: _aside(job, cluster, quotas, now) for job in jobs if job.state is JobState.QUEUED}
    decisions = [decision for decision in aside.values() if decision is not None]
    contenders = [job for job in jobs if job.id in aside and aside[job.id] is None]
    head: JobRecord | None = None
    for job in _in_order(contenders, held, cluster.total):
        workers, holds = job.spec.workers, held.get(job.project, Usage())
        if (over := quotas.exceeded_by(job.project, workers, holds)) is not None:
            decisions.append(_wait(job, over))
        elif head is not None:
            decisions.append(_wait(job, f"{_lack(workers, room, cluster.total)}, behind {_named(head, job)}"))
        elif room.holds(workers):
            room, held[job.project] = room.beside(workers), holds.plus(workers)
            decisions.append(Start(job))
        else:
            head = job
            victims = _victims(job, started, room) if may_preempt else []
            decisions.extend(Preempt(victim, job) for victim in victims)
            decisions.append(_wait(job, _lack(workers, room, cluster.total) + _made_by(victims, job, started)))
    return decisions


def _aside(job: JobRecord, cluster: RayResources, quotas: Quotas, now: datetime) -> Decision | None:
    """What becomes of a job that takes no part in the order; None if it does."""
    if job.started_at is None and job.starts_by is not None and now > job.starts_by:
        return Expire(job, f"did not start within deadline_s={job.spec.queue.deadline_s:g}")
    why = quotas.never_allows(job.project, job.spec.workers) or never_fits(job.spec, cluster)
    if why is None and job.not_before is not None and now < job.not_before:
        why = f"starts again after {job.not_before:%H:%M:%S} UTC, when its old processes have ended"
    return None if why is None else _wait(job, why, aside=True)


def _in_order(
    contenders: Sequence[JobRecord], held: Mapping[str, Usage], total: Mapping[str, float]
) -> Iterator[JobRecord]:
    """The contenders in their order. What a project holds is looked up again after each of its jobs."""
    queues: dict[str, list[JobRecord]] = {}
    for job in sorted(contenders, key=lambda job: (job.priority, -job.number)):
        queues.setdefault(job.project, []).append(job)

    def first_of(project: str) -> tuple[int, float, int, str]:
        job = queues[project][-1]
        return -job.priority, held.get(project, Usage()).dominant_share(total), job.number, project

    heap = [first_of(project) for project in queues]
    heapify(heap)
    while heap:
        project = heap[0][-1]
        yield queues[project].pop()
        if queues[project]:
            heapreplace(heap, first_of(project))
        else:
            heappop(heap)


def _victims(head: JobRecord, started: Sequence[JobRecord], room: Room) -> list[JobRecord]:
    """Whom to stop so that `head` fits: of the lowest priority, started last, and no more of them than needed.

    A job that has done steps and writes no checkpoints would lose all of them, and is let be. Nobody is stopped while
    what is being stopped anyway will do, nor if it would not do.
    """
    needed, free = group_resources(head.spec.workers), room.free
    leaving = [job for job in started if job.state is JobState.STOPPING]
    candidates = [job for job in started if job.priority < head.priority and _may_be_stopped(job)]

    def suffices(victims: Sequence[JobRecord]) -> bool:
        groups = [group_resources(job.spec.workers) for job in (*leaving, *victims)]
        return all(
            units(free[kind]) + sum(units(group[kind]) for group in groups) >= units(needed[kind])
            for kind in COUNTED_RESOURCES
        )

    if (leaving and suffices([])) or not suffices(candidates):
        return []
    chosen: list[JobRecord] = []
    for job in sorted(candidates, key=lambda job: (-job.priority, *_age(job)), reverse=True):
        chosen.append(job)
        if suffices(chosen):
            break
    for job in list(reversed(chosen)):
        others = [other for other in chosen if other is not job]
        if others and suffices(others):
            chosen = others
    return chosen


def _may_be_stopped(job: JobRecord) -> bool:
    saves = job.spec.checkpoint.every_steps is not None
    return job.on_ray and job.state in (JobState.STARTING, JobState.RUNNING) and (saves or not job.has_steps)


def _age(job: JobRecord) -> tuple[datetime, int]:
    return job.started_at or job.submitted_at, job.number


def _wait(job: JobRecord, why: str, *, aside: bool = False) -> Wait:
    return Wait(job, why if job.requeued is None else f"{job.requeued}; {why}", aside)


def _lack(workers: WorkersSpec, room: Room, total: Mapping[str, float]) -> str:
    """For example `needs 8 GPUs, 4 of 16 free`: the resources that are short, or else the scarcest one."""
    needed, free = group_resources(workers), room.free
    short = [kind for kind in COUNTED_RESOURCES if units(needed[kind]) > units(free[kind])]
    if short or room.holds(workers):
        kinds = short or ["GPU" if needed["GPU"] else "CPU"]
        return "needs " + " and ".join(
            f"{named(needed[kind], kind)}, {free[kind]:g} of {total[kind]:g} free" for kind in kinds
        )
    each = " and ".join(
        named(amount, kind) for kind, amount in (("CPU", workers.cpus), ("GPU", workers.gpus)) if amount
    )
    return f"needs {group_name(workers)} with {each} each, the nodes have room for {room.places(workers)}"


def _made_by(victims: Sequence[JobRecord], head: JobRecord, started: Sequence[JobRecord]) -> str:
    """Who makes room for the head, in words."""
    stopping = [job for job in started if job.preempted_by == head.id]
    leaving = sorted({_named(job, head) for job in (*victims, *stopping)})
    return f"; {', '.join(leaving)} make{'s' if len(leaving) == 1 else ''} room" if leaving else ""


def _named(job: JobRecord, reader: JobRecord) -> str:
    return named_to(job.id, job.project, reader.project)
