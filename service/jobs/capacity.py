"""Does a worker group fit now, beside the jobs that were started.

Of an elastic group, the smallest that trains must fit, and only that is kept for it: what it takes beyond that is free
room which Ray reports as used.
"""

from collections.abc import Iterable

from service.cluster.gateway import RayResources
from service.models import Resources
from workers.capacity import COUNTED_RESOURCES, find_shortage, group_resources, named, units
from workers.job import JobSpec


def resources_of(spec: JobSpec) -> Resources:
    """What the whole worker group takes."""
    group = group_resources(spec.workers)
    return Resources(
        workers=spec.workers.min_count,
        cpus=group["CPU"],
        gpus=group["GPU"],
        max_workers=spec.workers.max_count if spec.workers.is_elastic else None,
    )


def never_fits(spec: JobSpec, cluster: RayResources) -> str | None:
    """Why the cluster, even when idle, cannot hold the worker group; None if it can."""
    return find_shortage(spec.workers, [node.resources for node in cluster.nodes])


def free_resources(cluster: RayResources, held: Iterable[JobSpec]) -> dict[str, float]:
    """What is left of the cluster, given the jobs that were started.

    Ray's own figure is a few seconds old and also counts the work of others; the jobs that were just started are not
    in it yet. So the larger of the two is taken as used.
    """
    groups = [group_resources(spec.workers) for spec in held]
    free = {}
    for kind, total in cluster.total.items():
        reserved = sum(group[kind] for group in groups)
        free[kind] = max(0.0, total - max(reserved, cluster.used.get(kind, 0.0)))
    return free


def waits_for(spec: JobSpec, free: dict[str, float], cluster: RayResources) -> str | None:
    """What a queued job waits for; None if its whole group fits now."""
    needed = group_resources(spec.workers)
    for kind in COUNTED_RESOURCES:
        if units(needed[kind]) > units(free[kind]):
            return f"waits for {named(needed[kind], kind)}: {free[kind]:g} of {cluster.total[kind]:g} free"
    return None
