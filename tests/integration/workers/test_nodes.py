"""What happens to nodes: one is lost, one is about to be taken away, two lose sight of each other."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from benchmarks.faults.injection import Fault, Kind
from benchmarks.faults.struck import DATA, MODEL, end_state, job
from benchmarks.testbed import TestbedUnavailable
from tests.integration.workers.loops import assert_same_state, train_case
from tests.integration.workers.nodes import Nodes, Submitted, nodes
from tests.ranks import RankPool
from workers.run import ExitStatus
from workers.training.state import tensors_in

WAIT_S = 90


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    """A head, and three nodes for a worker each. A test may lose one, if it starts it again."""
    # Ray puts sockets into the folder, and their paths must stay short.
    folder = Path("/tmp") / f"ovl-{time.time_ns():x}"
    folder.mkdir()
    try:
        for made in nodes(folder, 4):
            yield made.start(0, 1, 2, 3)
    except TestbedUnavailable as error:
        pytest.skip(str(error))


def struck_node(cluster: Nodes, fault: Fault, submitted: Submitted) -> tuple[int, str]:
    """Wait until the fault strikes; the number of its node, and Ray's id of it."""
    deadline = time.monotonic() + WAIT_S
    while not fault.marker.exists() or not (text := fault.marker.read_text()).endswith("\n"):
        assert time.monotonic() < deadline, submitted.output
        time.sleep(0.05)
    _, node_id, address = text.split()
    return [cluster.testbed.layout.address(number) for number in range(4)].index(address), node_id


def await_checkpoint(run_folder: Path, step: int) -> None:
    """Wait until the checkpoint of this step counts: it is written in the background."""
    counting = run_folder / "checkpoint_manager_snapshot.json"
    deadline = time.monotonic() + WAIT_S
    while not counting.exists() or f"step-{step:08d}-" not in counting.read_text():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_node_that_is_lost_costs_no_bit(cluster: Nodes, unstruck: dict[str, torch.Tensor], tmp_path: Path) -> None:
    fault = Fault(kind=Kind.HANG, place="ol_gradient_a2a", rank=1, count=12, marker=tmp_path / "struck")
    submitted = cluster.submit(job([fault], retries={"max": 1}), "node-lost")
    number, _ = struck_node(cluster, fault, submitted)
    cluster.lose(number)
    assert submitted.end() == ExitStatus.SUCCEEDED, submitted.output
    assert_same_state(end_state(cluster.storage / "node-lost"), unstruck)
    cluster.start(number)


def test_ahead_of_a_preemption_the_training_is_saved_and_goes_on_elsewhere(
    cluster: Nodes, unstruck: dict[str, torch.Tensor], tmp_path: Path
) -> None:
    """Without any other checkpoint, and without a retry. At the deadline Ray Train moves the group."""
    told = Fault(kind=Kind.WAIT_FOR_NOTICE, place="backward", rank=1, count=12, marker=tmp_path / "told")
    # Counted in the stretch of steps that begins after the checkpoint. The deadline ends it.
    stays = Fault(kind=Kind.HANG, place="backward", rank=1, count=3, marker=tmp_path / "stays", after=told.marker)
    submitted = cluster.submit(job([told, stays], checkpoint={"every_steps": 100}), "preempted")
    number, node_id = struck_node(cluster, told, submitted)
    cluster.drain(node_id, deadline_s=10)
    struck_node(cluster, stays, submitted)
    assert submitted.end() == ExitStatus.SUCCEEDED, submitted.output
    assert "saved ahead of a preemption" in submitted.output
    saved = sorted(path.name for path in (cluster.storage / "preempted").glob("step-*"))
    assert len(saved) == 2
    assert "step-00000012" < saved[0] < "step-00000017"
    assert_same_state(end_state(cluster.storage / "preempted"), unstruck)
    cluster.lose(number)
    cluster.start(number)


def test_two_nodes_that_lose_sight_of_each_other_go_on_when_they_meet_again(
    cluster: Nodes, unstruck: dict[str, torch.Tensor], tmp_path: Path
) -> None:
    """All nodes reach the head, so that only the collectives notice."""
    waits = [
        Fault(kind=Kind.WAIT, place="backward", rank=rank, count=12, marker=tmp_path / f"waits-{rank}")
        for rank in (0, 1)
    ]
    workers = {"count": 2, "hang_timeout_s": 4}
    submitted = cluster.submit(job(waits, workers=workers, retries={"max": 3}), "cut")
    one, other = (struck_node(cluster, fault, submitted)[0] for fault in waits)
    cluster.cut(one, other)
    for fault in waits:
        fault.marker.with_suffix(".go").touch()
    submitted.await_line("rank ")
    cluster.heal(one, other)
    assert submitted.end() == ExitStatus.SUCCEEDED, submitted.output
    assert_same_state(end_state(cluster.storage / "cut"), unstruck)


def test_a_worker_group_shrinks_when_a_node_goes_and_grows_when_one_comes(
    cluster: Nodes, ranks: RankPool, tmp_path: Path
) -> None:
    """With the weights of the same steps on as many ranks without Ray, and every sample trained once."""
    cluster.lose(3)
    loses = Fault(kind=Kind.HANG, place="backward", rank=1, count=12, marker=tmp_path / "loses")
    # In the attempt with one worker; it ends when the group grows.
    grows = Fault(kind=Kind.HANG, place="backward", rank=0, count=7, marker=tmp_path / "grows", after=loses.marker)
    workers = {"count": {"min": 1, "max": 2, "resize_every_s": 2}}
    submitted = cluster.submit(job([loses, grows], workers=workers, retries={"max": 1}), "elastic")
    number, _ = struck_node(cluster, loses, submitted)
    await_checkpoint(cluster.storage / "elastic", 10)
    cluster.lose(number)
    struck_node(cluster, grows, submitted)
    await_checkpoint(cluster.storage / "elastic", 15)
    cluster.start(3)
    assert submitted.end() == ExitStatus.SUCCEEDED, submitted.output
    cluster.start(number)
    # Ten steps of 64 samples, five of 32, and what is left in steps of 64.
    data = {"source": "synthetic", "params": DATA}
    for world_size, resume_from, until in ((2, None, 10), (1, 10, 15), (2, 15, None)):
        training = {"batch_size": 32, "epochs": 1, "max_steps": until}
        arguments = {"training": training, "model": {"params": MODEL}, "data": data, "resume_from": resume_from}
        ranks.run(world_size, train_case, folder=tmp_path, **arguments)
    assert_same_state(end_state(cluster.storage / "elastic", 33), tensors_in(tmp_path / "step-33"))
