"""Whether a worker group fits into an idle cluster; an elastic one, whether its smallest does."""

from typing import Any

import pytest

from workers.capacity import find_shortage, group_name, group_resources
from workers.job import WorkersSpec


def spec(count: Any, **each: Any) -> WorkersSpec:
    return WorkersSpec.model_validate({"count": count, **each})


@pytest.mark.parametrize(
    ("workers", "nodes", "shortage"),
    [
        (spec(2), [{"CPU": 2.0}], None),
        (spec(3), [{"CPU": 2.0}], "needs 3 CPUs for 3 workers, the cluster has 2"),
        (spec({"min": 1, "max": 4}), [{"CPU": 2.0}], None),
        (spec({"min": 2, "max": 4}), [{"CPU": 1.0}], "needs 2 CPUs for at least 2 workers, the cluster has 1"),
        (spec({"min": 1, "max": 4}, cpus=2), [], "needs 2 CPUs for at least 1 worker, the cluster has 0"),
        (
            spec({"min": 2, "max": 3}, cpus=2),
            [{"CPU": 3.0}, {"CPU": 1.0}],
            "needs at least 2 workers with 2 CPUs each, the cluster's nodes can hold 1",
        ),
    ],
)
def test_shortage(workers: WorkersSpec, nodes: list[dict[str, float]], shortage: str | None) -> None:
    assert find_shortage(workers, nodes) == shortage


def test_an_elastic_group_counts_as_its_smallest() -> None:
    assert group_resources(spec({"min": 2, "max": 4}, cpus=1.5)) == {"CPU": 3.0, "GPU": 0.0}


@pytest.mark.parametrize(
    ("count", "name"),
    [(1, "1 worker"), (2, "2 workers"), ({"min": 1, "max": 4}, "1-4 workers"), ({"min": 2, "max": 2}, "2-2 workers")],
)
def test_names(count: Any, name: str) -> None:
    assert group_name(spec(count)) == name
