"""Does a worker group fit into a cluster?"""

from collections.abc import Mapping, Sequence

from workers.job import WorkersSpec


def find_shortage(workers: WorkersSpec, nodes: Sequence[Mapping[str, float]]) -> str | None:
    """Why the cluster can never hold the worker group, in words for the user; None if it can.

    `nodes` are the resources of each node. Ray itself would wait for ever, and say nothing.
    """
    slots = sum(_slots(workers, node) for node in nodes)
    if slots >= workers.count:
        return None
    cpus, gpus = (sum(node.get(kind, 0) for node in nodes) for kind in ("CPU", "GPU"))
    each = f"{workers.cpus:g} CPUs" + (f" and {workers.gpus:g} GPUs" if workers.gpus else "")
    return (
        f"workers.count: {workers.count} workers with {each} each do not fit: the cluster has {cpus:g} CPUs"
        f" and {gpus:g} GPUs on {len(nodes)} nodes, which hold {slots} of them; ask for fewer or smaller workers"
    )


def _slots(workers: WorkersSpec, node: Mapping[str, float]) -> int:
    by_cpu = node.get("CPU", 0) // workers.cpus
    return int(min(by_cpu, node.get("GPU", 0) // workers.gpus) if workers.gpus else by_cpu)
