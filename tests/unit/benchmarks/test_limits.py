"""The limits that pipelines are set against: nothing moves, nothing is waited for, nothing is computed."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from benchmarks.pipelines.limits import (
    REPEATED,
    UNDER_WAY,
    TransfersAlone,
    keep_transfers_local,
    same_shape,
    wait_for_nothing,
)
from pipeline.report import CollectiveName
from pipeline.runtime import CpuRuntime
from pipeline.runtime.base import Pending
from pipeline.timeline import Flight


@pytest.mark.parametrize(("sent", "rows"), [(3, 3), (2, 5), (5, 2), (0, 3), (3, 0)])
def test_a_local_transfer_has_the_shape_of_the_real_one(sent: int, rows: int) -> None:
    send = torch.arange(1.0, 1.0 + 2 * sent).view(sent, 2)
    received = same_shape(send, rows)
    assert received.shape == (rows, 2)
    for row in range(rows):
        assert torch.equal(received[row], send[row % sent] if sent else torch.zeros(2))


class Alone:
    """A process group in which nothing may move."""

    def rank(self) -> int:
        return 0

    def size(self) -> int:
        return 2


def test_rows_and_gradients_stay_and_ids_travel(monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = CpuRuntime(0)
    travelled: list[Tensor] = []
    monkeypatch.setattr(runtime, "all_to_all", lambda name, partition, group, send, *_: travelled.append(send))
    keep_transfers_local(runtime)
    rows, masks = torch.ones(4, 2), torch.ones(4)
    for name in (CollectiveName.EMBEDDING, CollectiveName.GRADIENT):
        assert runtime.all_to_all(name, None, Alone(), rows, [2, 2], [1, 2]).shape == (3, 2)  # type: ignore[arg-type]
    runtime.all_to_all(CollectiveName.OVERLAP_MASK, None, Alone(), masks, [2, 2], [2, 2])  # type: ignore[arg-type]
    assert travelled == [masks]
    pending = runtime.all_reduce_beside(CollectiveName.DENSE_ALLREDUCE, Alone(), rows)  # type: ignore[arg-type]
    assert pending.flight.end is not None
    assert pending.work.get_future().value()[0] is rows


class Unfinished:
    """A transfer whose end nobody should wait for at once."""

    def __init__(self) -> None:
        self.waited_for = False

    def wait(self) -> None:
        self.waited_for = True


def test_rows_and_gradients_travel_and_are_waited_for_much_later(monkeypatch: pytest.MonkeyPatch) -> None:
    runtime, sent = CpuRuntime(0), list[Unfinished]()

    def all_to_all(name: CollectiveName, *_: object) -> Tensor:
        sent.append(Unfinished())
        runtime._started.append(Pending(Flight(name, None, 0, 0, 0.0), sent[-1]))  # type: ignore[arg-type]
        return torch.zeros(3, 2)

    monkeypatch.setattr(runtime, "all_to_all", all_to_all)
    wait_for_nothing(runtime)
    rows = torch.ones(4, 2)
    for _ in range(UNDER_WAY + 2):
        received = runtime.all_to_all(CollectiveName.GRADIENT, None, Alone(), rows, [2, 2], [1, 2])  # type: ignore[arg-type]
        assert torch.equal(received, rows[:3])
    assert [each.waited_for for each in sent] == [True] * 2 + [False] * UNDER_WAY
    assert runtime._started == []
    runtime.all_to_all(CollectiveName.OVERLAP_MASK, None, Alone(), rows, [2, 2], [1, 2])  # type: ignore[arg-type]
    assert [each.work for each in runtime._started] == sent[-1:]


class Training:
    """A pipeline whose step moves ids, rows, and dense gradients; how many rows, the batch says."""

    def __init__(self) -> None:
        self._runtime = CpuRuntime(0)

    def progress(self, batches: Iterator[int]) -> None:
        rows = torch.ones(next(batches), 2)
        runtime: Any = self._runtime
        runtime.all_to_all(CollectiveName.OVERLAP_MASK, None, Alone(), rows, [2, 2], [1, 2])
        runtime.all_to_all(CollectiveName.EMBEDDING, None, Alone(), rows, [2, 2], [1, 2])
        runtime.all_reduce_beside(CollectiveName.DENSE_ALLREDUCE, Alone(), rows)


def test_the_transfers_of_one_step_are_repeated_without_its_compute(monkeypatch: pytest.MonkeyPatch) -> None:
    moved: list[tuple[Unfinished, int]] = []

    def start(sent: Tensor) -> Unfinished:
        moved.append((Unfinished(), len(sent)))
        return moved[-1][0]

    pipeline = Training()
    runtime: Any = pipeline._runtime
    monkeypatch.setattr(runtime, "all_to_all", lambda *_: None)
    monkeypatch.setattr(runtime, "all_reduce_beside", lambda *_: None)
    monkeypatch.setattr(runtime, "_transfer", lambda group, received, send, *_: start(send))
    monkeypatch.setattr(dist, "all_reduce", lambda tensor, **_: start(tensor))
    alone, batches = TransfersAlone(pipeline), iter(range(1, 100))
    for _ in range(REPEATED):
        alone.progress(batches)
    assert moved == [], "while it trains, the pipeline moves by itself"
    for _ in range(UNDER_WAY):
        alone.progress(batches)
    assert next(batches) == REPEATED + 1, "no batch is trained any more"
    assert [rows for _, rows in moved] == [REPEATED] * 2 * UNDER_WAY, "rows and dense gradients of the last step"
    assert [each.waited_for for each, _ in moved] == [True] * UNDER_WAY + [False] * UNDER_WAY
