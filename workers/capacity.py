"""Does a worker group fit into an idle cluster? Asked before Ray is: Ray would wait for ever, and say nothing."""

from collections.abc import Mapping, Sequence

from workers.job import WorkersSpec

COUNTED_RESOURCES = ("CPU", "GPU")
"""What a worker group takes from a cluster, in Ray's words."""

_UNITS = 10_000


def units(amount: float) -> int:
    """An amount of CPUs or GPUs in ten-thousandths. Ray counts in them too; sums of fractions are not exact."""
    return round(amount * _UNITS)


def group_resources(workers: WorkersSpec) -> dict[str, float]:
    """What the whole group takes, by kind; of an elastic group, the smallest that trains."""
    return {"CPU": workers.min_count * workers.cpus, "GPU": workers.min_count * workers.gpus}


def find_shortage(workers: WorkersSpec, nodes: Sequence[Mapping[str, float]]) -> str | None:
    """Why the cluster, even when idle, cannot hold the group, in words for the user; None if it can.

    `nodes` are the resources of each node.
    """
    needed = group_resources(workers)
    total = {kind: sum(node.get(kind, 0.0) for node in nodes) for kind in COUNTED_RESOURCES}
    short = [kind for kind in COUNTED_RESOURCES if units(needed[kind]) > units(total[kind])]
    if short:
        needs = " and ".join(named(needed[kind], kind) for kind in short)
        has = " and ".join(f"{total[kind]:g}" for kind in short)
        return f"needs {needs} for {_least(workers)}, the cluster has {has}"
    room = sum(places(workers, node) for node in nodes)
    if room < workers.min_count:
        each = named(workers.cpus, "CPU") + (f" and {named(workers.gpus, 'GPU')}" if workers.gpus else "")
        return f"needs {_least(workers)} with {each} each, the cluster's nodes can hold {room}"
    return None


def group_name(workers: WorkersSpec) -> str:
    """For example `1 worker`, `2 workers`, `1-4 workers`."""
    least, most = workers.min_count, workers.max_count
    return f"{least}-{most} workers" if workers.is_elastic else _workers(least)


def named(amount: float, kind: str) -> str:
    """For example `1 CPU`, `2 GPUs`."""
    return f"{amount:g} {kind}" + ("" if amount == 1 else "s")


def places(workers: WorkersSpec, node: Mapping[str, float]) -> int:
    """How many workers of the group fit on a node with these resources."""
    each = {"CPU": units(workers.cpus), "GPU": units(workers.gpus)}
    return min(units(node.get(kind, 0.0)) // amount for kind, amount in each.items() if amount)


def _least(workers: WorkersSpec) -> str:
    count = _workers(workers.min_count)
    return f"at least {count}" if workers.is_elastic else count


def _workers(count: int) -> str:
    return f"{count} worker" + ("" if count == 1 else "s")
