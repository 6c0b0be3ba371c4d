"""A failure names the rank and the reason, and a cluster that is too small is told apart before it is waited for."""

import pickle
from typing import Any

import pytest
from ray.train.v2.api.exceptions import ControllerError, WorkerGroupError

from workers.capacity import find_shortage
from workers.failures import RankError, describe
from workers.job import WorkersSpec
from workers.training.ending import DataFailedError, EndedByPeerError

TRACEBACK = '[Rank 1 Error Snippet]:\nTraceback (most recent call last):\n  File "model.py", line 3'


def test_a_failure_names_rank_type_and_reason_and_carries_the_remote_traceback_once() -> None:
    failure = describe(WorkerGroupError(TRACEBACK, {1: KeyError("history")}))
    assert failure.message == "rank 1: KeyError: 'history'"
    assert failure.traceback.count("model.py") == 1


def test_the_rank_that_ended_first_is_named_and_not_those_that_lost_it() -> None:
    lost = RuntimeError("[gloo/transport/tcp/pair.cc:533] Connection closed by peer")
    failure = describe(WorkerGroupError(TRACEBACK, {0: lost, 2: ValueError("no\nsecond line"), 3: lost}))
    assert failure.message == "rank 2: ValueError: no (also failed: rank 0, 3)"


def test_a_rank_that_another_one_ended_is_not_named_first() -> None:
    failure = describe(WorkerGroupError(TRACEBACK, {0: EndedByPeerError("x"), 1: DataFailedError("disk gone")}))
    assert failure.message == "rank 1: DataFailedError: disk gone (also failed: rank 0)"


DEATH = """A worker health check failed.
Worker info: Worker(
  actor=Actor(RayTrainWorker, 0a),
  metadata=ActorMetadata(
    hostname='one',
    node_id='0b',
    node_ip='10.0.0.7',
    pid=7,
  ),
)
The actor died unexpectedly before finishing this task.
\tclass_name: RayTrainWorker
\tpid: 7
\tip: 10.0.0.7
The actor is dead because its worker process has died. Worker exit type: SYSTEM_ERROR Worker exit detail: ..."""


def test_a_rank_whose_process_died_is_named_with_its_node() -> None:
    failure = describe(WorkerGroupError(TRACEBACK, {1: OSError(DEATH)}))
    assert failure.message == "rank 1 on node 10.0.0.7: OSError: The actor is dead because its worker process has died."
    failure = describe(
        WorkerGroupError(TRACEBACK, {1: OSError(DEATH.rpartition("The actor is")[0].replace("node_ip", ""))})
    )
    assert failure.message == "rank 1 on node 10.0.0.7: OSError: A worker health check failed."


def rank_error(rank: int, error: Exception) -> RankError:
    """As a rank raises it and Ray carries it to the driver."""
    try:
        raise error
    except Exception as caught:
        made: RankError = pickle.loads(pickle.dumps(RankError.of(caught, rank, "10.0.0.7", "stage forward of step 3")))
        return made


def test_a_rank_names_its_node_and_what_it_was_at_and_brings_its_own_traceback() -> None:
    lost = rank_error(0, RuntimeError("[gloo/transport/tcp/pair.cc:533] Connection closed by peer"))
    failure = describe(WorkerGroupError(TRACEBACK, {0: lost, 2: rank_error(2, KeyError("history"))}))
    assert failure.message == (
        "rank 2 on node 10.0.0.7, at stage forward of step 3: KeyError: 'history' (also failed: rank 0)"
    )
    assert failure.traceback.count("KeyError: 'history'") == 1
    assert "gloo" not in failure.traceback
    assert "in rank_error" in failure.traceback


def test_at_what_a_rank_was_killed_is_told_by_one_that_waited_for_it() -> None:
    lost = rank_error(0, RuntimeError("[gloo/transport/tcp/pair.cc:533] Connection closed by peer"))
    failure = describe(WorkerGroupError(TRACEBACK, {0: lost, 1: OSError(DEATH), 2: lost}))
    assert failure.message == (
        "rank 1 on node 10.0.0.7: OSError: The actor is dead because its worker process has died. "
        "(also failed: rank 0, 2); rank 0 was at stage forward of step 3 then"
    )


def test_a_failure_of_the_controller_is_described_too() -> None:
    failure = describe(ControllerError(OSError("storage is full")))
    assert failure.message == "OSError: storage is full"
    assert "storage is full" in failure.traceback


@pytest.mark.parametrize(
    ("workers", "nodes"),
    [
        ({"count": 2}, [{"CPU": 2}]),
        ({"count": 2}, [{"CPU": 1}, {"CPU": 1}]),
        ({"count": 4, "cpus": 0.5}, [{"CPU": 2}]),
        ({"count": 10, "cpus": 0.1}, [{"CPU": 1}]),
        ({"count": 3, "cpus": 0.1}, [{"CPU": 0.3}]),
        ({"count": 2, "gpus": 1}, [{"CPU": 8, "GPU": 1}, {"CPU": 8, "GPU": 1}]),
    ],
)
def test_a_worker_group_that_fits_has_no_shortage(workers: dict[str, Any], nodes: list[dict[str, float]]) -> None:
    assert find_shortage(WorkersSpec(**workers), nodes) is None


@pytest.mark.parametrize(
    ("workers", "nodes", "shortage"),
    [
        ({"count": 3}, [{"CPU": 2}], "needs 3 CPUs for 3 workers, the cluster has 2"),
        (
            {"count": 2, "cpus": 2},
            [{"CPU": 3}, {"CPU": 1}],
            "needs 2 workers with 2 CPUs each, the cluster's nodes can hold 1",
        ),
        (
            {"count": 2, "gpus": 1},
            [{"CPU": 64}, {"CPU": 1, "GPU": 1}],
            "needs 2 GPUs for 2 workers, the cluster has 1",
        ),
        (
            {"count": 2, "cpus": 1, "gpus": 1},
            [{"CPU": 1, "GPU": 2}, {"CPU": 8}],
            "needs 2 workers with 1 CPU and 1 GPU each, the cluster's nodes can hold 1",
        ),
        ({"count": 1}, [], "needs 1 CPU for 1 worker, the cluster has 0"),
    ],
)
def test_a_shortage_names_request_and_cluster(
    workers: dict[str, Any], nodes: list[dict[str, float]], shortage: str
) -> None:
    assert find_shortage(WorkersSpec(**workers), nodes) == shortage
