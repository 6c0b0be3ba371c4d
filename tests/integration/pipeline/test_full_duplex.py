"""AllToAlls made of point-to-point transfers deliver what gloo's own would, several at once and on several groups."""

import gc
import threading
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

from pipeline import TrainPipeline
from pipeline.runtime.full_duplex import FullDuplex
from tests.integration.pipeline.reference import Batch, Case, batches, build
from tests.ranks import RankPool

ROUNDS = 40
CASE = Case(steps=4)


def exchange_at_random(device: torch.device) -> int:
    """Every round starts one transfer on each of two groups; it is waited for one round later. Counts wrong rows."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    groups = [dist.new_group(list(range(ranks)), timeout=timedelta(seconds=30)) for _ in range(2)]
    transfers = FullDuplex()
    under_way, wrong = [], 0
    for each in range(ROUNDS):
        started = []
        for which, group in enumerate(groups):
            generator = torch.Generator().manual_seed(10 * each + which)
            counts = torch.randint(0, 9, (ranks, ranks), generator=generator)
            counts[torch.rand(ranks, ranks, generator=generator) < 0.3] = 0

            def rows(
                sender: int, receiver: int, counts: torch.Tensor = counts, mark: int = 2 * each + which
            ) -> torch.Tensor:
                return torch.full((int(counts[sender, receiver]), 3), float(100 * mark + 10 * sender + receiver))

            send = torch.cat([rows(rank, peer) for peer in range(ranks)])
            expected = torch.cat([rows(peer, rank) for peer in range(ranks)])
            received = torch.full_like(expected, -1.0)
            work = transfers.start(group, received, send, counts[:, rank].tolist(), counts[rank].tolist())
            started.append((work, received, expected))
        for work, received, expected in under_way:
            work.wait()
            wrong += not torch.equal(received, expected)
        under_way = started
    for work, _, _ in under_way:
        work.wait()
    return wrong


def meet_nobody(device: torch.device) -> str:
    """Rank 0 starts a transfer that the others never join."""
    group = dist.new_group(list(range(dist.get_world_size())), timeout=timedelta(seconds=1))
    message = ""
    if dist.get_rank() == 0:
        sent = torch.ones(2, 3)
        work = FullDuplex().start(group, torch.empty(2, 3), sent, [1, 1], [1, 1])
        try:
            work.wait()
        except RuntimeError as error:
            message = str(error)
    dist.barrier()
    return message


def _train(device: torch.device) -> list[threading.Thread]:
    """Train a few steps; the threads that watched the transfers."""
    before = set(threading.enumerate())
    model, optimizer = build(CASE, device)
    pipe: TrainPipeline[Batch, torch.Tensor] = TrainPipeline(model, optimizer, device)
    source = batches(CASE, dist.get_rank())
    for _ in range(CASE.steps - 1):
        pipe.progress(source)
    pipe.flush()
    return [thread for thread in threading.enumerate() if thread.name == "transfer" and thread not in before]


def train_and_forget(device: torch.device) -> int:
    """How many of the threads of a pipeline are left when it and its model are gone."""
    threads = _train(device)
    assert threads
    # The autograd graph of the last step keeps the rest alive until it is gone itself.
    for _ in range(3):
        gc.collect()
    for thread in threads:
        thread.join(10)
    return sum(thread.is_alive() for thread in threads)


def test_a_pipeline_that_is_gone_leaves_no_thread(ranks: RankPool) -> None:
    assert ranks.run(2, train_and_forget) == [0, 0]


@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_every_row_arrives_where_it_belongs(ranks: RankPool, world_size: int) -> None:
    assert ranks.run(world_size, exchange_at_random) == [0] * world_size


def test_a_peer_that_never_comes_raises_after_the_timeout_of_the_group(ranks: RankPool) -> None:
    first, second = ranks.run(2, meet_nobody)
    assert "imed out" in first
    assert not second
