"""What is free on each node of a cluster: whether a whole worker group fits, and what is left beside it."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from service.cluster.gateway import RayResources
from workers.capacity import COUNTED_RESOURCES, find_shortage, group_resources, places, units
from workers.job import WorkersSpec

Node = Mapping[str, float]


@dataclass(frozen=True)
class Room:
    """Free resources by node."""

    nodes: tuple[Node, ...]

    @classmethod
    def of(cls, cluster: RayResources, held: Iterable[WorkersSpec]) -> "Room":
        """What is left of the cluster beside `held`, the groups of the jobs that were started, the oldest first.

        Ray's own figure is a few seconds old and counts the work of others as well; groups that were just started are
        not in it yet. As much of the newest groups as Ray does not count is put where Ray would put it.
        """
        groups = list(held)
        room = cls(tuple(_unused(cluster)))
        unseen = {
            kind: sum(units(group_resources(group)[kind]) for group in groups) - units(cluster.used.get(kind, 0.0))
            for kind in COUNTED_RESOURCES
        }
        for group in reversed(groups):
            each = {"CPU": units(group.cpus), "GPU": units(group.gpus)}
            count = max(-(-max(0, unseen[kind]) // amount) for kind, amount in each.items() if amount)
            count = min(count, group.min_count)
            room = room.beside(group, count)
            unseen = {kind: unseen[kind] - count * amount for kind, amount in each.items()}
        return room

    @property
    def free(self) -> dict[str, float]:
        """What is free in all, by kind."""
        return {kind: sum(node.get(kind, 0.0) for node in self.nodes) for kind in COUNTED_RESOURCES}

    def holds(self, workers: WorkersSpec) -> bool:
        """Whether the whole group, of an elastic one the smallest, fits now."""
        return find_shortage(workers, self.nodes) is None

    def places(self, workers: WorkersSpec) -> int:
        """How many workers of the group fit."""
        return sum(places(workers, node) for node in self.nodes)

    def beside(self, workers: WorkersSpec, count: int | None = None) -> "Room":
        """What is left when the group is there, or `count` workers of it, on as few nodes as possible.

        Workers without a place count nowhere.
        """
        nodes, left = list(self.nodes), workers.min_count if count is None else count
        by_places = sorted(range(len(nodes)), key=lambda number: -places(workers, nodes[number]))
        for number in by_places:
            here = min(left, places(workers, nodes[number]))
            left -= here
            nodes[number] = _less(nodes[number], {"CPU": here * workers.cpus, "GPU": here * workers.gpus})
        return Room(tuple(nodes))


def _unused(cluster: RayResources) -> Iterable[Node]:
    """The nodes without what Ray says is in use on each; where it does not say so by node, the first ones are full."""
    used = dict(cluster.used)
    by_id = {node_id: dict(amounts) for node_id, amounts in cluster.used_at.items()}
    known = all(node.id in by_id for node in cluster.nodes)
    for node in cluster.nodes:
        taken = by_id[node.id] if known else used
        here = {kind: min(amount, taken.get(kind, 0.0)) for kind, amount in node.resources.items()}
        for kind, amount in here.items():
            taken[kind] = taken.get(kind, 0.0) - amount
        yield _less(node.resources, here)


def _less(node: Node, amounts: Node) -> Node:
    return {kind: max(0.0, amount - amounts.get(kind, 0.0)) for kind, amount in node.items()}
