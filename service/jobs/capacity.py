"""What a worker group takes from the cluster, and what is left of it.

Of an elastic group, the smallest that trains must fit, and only that is kept for it: what it takes beyond that is free
room which Ray reports as used.
"""

from collections.abc import Iterable

from service.cluster.gateway import RayResources
from service.jobs.room import Room
from service.models import Resources
from workers.capacity import find_shortage, group_resources
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
    """What is left of the cluster, given the jobs that were started."""
    return Room.of(cluster, [spec.workers for spec in held]).free
