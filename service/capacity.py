"""Does a worker group fit: ever, and now."""

from collections.abc import Iterable

from service.gateway import COUNTED_RESOURCES, RayResources
from service.models import Resources
from workers.job import JobSpec


def resources_of(spec: JobSpec) -> Resources:
    """What the whole worker group takes."""
    workers = spec.workers
    return Resources(workers=workers.count, cpus=workers.count * workers.cpus, gpus=workers.count * workers.gpus)


def never_fits(spec: JobSpec, cluster: RayResources) -> str | None:
    """Why the cluster, even when idle, cannot hold the worker group; None if it can."""
    needed, total = _by_kind(resources_of(spec)), cluster.total
    short = [kind for kind in COUNTED_RESOURCES if needed[kind] > total[kind]]
    if short:
        needs = " and ".join(f"{_amount(needed[kind])} {_plural(kind, needed[kind])}" for kind in short)
        has = " and ".join(_amount(total[kind]) for kind in short)
        return f"needs {needs} for {_workers(spec)}, the cluster has {has}"
    each = {"CPU": spec.workers.cpus, "GPU": spec.workers.gpus}
    places = sum(_places(each, node.resources) for node in cluster.nodes)
    if places < spec.workers.count:
        wish = " and ".join(f"{_amount(each[kind])} {_plural(kind, each[kind])}" for kind in each if each[kind] > 0)
        return f"needs {_workers(spec)} with {wish} each, the cluster's nodes can hold {places}"
    return None


def free_resources(cluster: RayResources, held: Iterable[JobSpec]) -> dict[str, float]:
    """What is left of the cluster, given the jobs that were started.

    Ray's own figure is a few seconds old and also counts the work of others; the jobs that were just started are not
    in it yet. So the larger of the two is taken as used.
    """
    groups = [_by_kind(resources_of(spec)) for spec in held]
    free = {}
    for kind, total in cluster.total.items():
        reserved = sum(group[kind] for group in groups)
        free[kind] = max(0.0, total - max(reserved, cluster.used.get(kind, 0.0)))
    return free


def waits_for(spec: JobSpec, free: dict[str, float], cluster: RayResources) -> str | None:
    """What a queued job waits for; None if its whole group fits now."""
    needed = _by_kind(resources_of(spec))
    for kind in COUNTED_RESOURCES:
        if needed[kind] > free[kind]:
            wish = f"{_amount(needed[kind])} {_plural(kind, needed[kind])}"
            return f"waits for {wish}: {_amount(free[kind])} of {_amount(cluster.total[kind])} free"
    return None


def _by_kind(group: Resources) -> dict[str, float]:
    return {"CPU": group.cpus, "GPU": group.gpus}


def _places(each: dict[str, float], node: dict[str, float]) -> int:
    return int(min(node.get(kind, 0.0) // amount for kind, amount in each.items() if amount > 0))


def _workers(spec: JobSpec) -> str:
    return f"{spec.workers.count} worker{'s' if spec.workers.count != 1 else ''}"


def _plural(kind: str, amount: float) -> str:
    return kind if amount == 1 else f"{kind}s"


def _amount(value: float) -> str:
    return f"{value:g}"
