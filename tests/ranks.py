"""A pool of rank processes that lives through the test session, since importing TorchRec takes seconds.

A case is a module-level function `case(device, **arguments)` that runs on every rank of a fresh gloo process group.
"""

import gc
import logging
import multiprocessing
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import TracebackType
from typing import Any, Self

IMPORTS_S = 120
# A hang inside a collective ends by the collective's own timeout, which names it; this is for all others.
GRACE_S = 15.0


class RankFailed(AssertionError):  # noqa: N818
    """A case raised on at least one rank; carries each rank's traceback."""


@dataclass
class _Rank:
    """One rank process and the pool's end of the pipe to it."""

    process: BaseProcess
    connection: Connection
    imported: bool = False

    @classmethod
    def start(cls, rank: int) -> Self:
        context = multiprocessing.get_context("spawn")
        here, there = context.Pipe()
        process = context.Process(target=_serve, args=(rank, there), daemon=True)
        process.start()
        there.close()
        return cls(process, here)

    def await_imports(self) -> None:
        """Wait until TorchRec is imported, which takes seconds that no case's timeout should count."""
        if not self.imported:
            assert self.connection.poll(IMPORTS_S), f"a rank process has not imported TorchRec in {IMPORTS_S} s"
            self.connection.recv()
            self.imported = True

    def close(self, *, wait_s: float) -> None:
        self.connection.close()
        self.process.join(timeout=wait_s)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()


class RankPool:
    """Up to `size` rank processes; a case asks for as many as it needs. Ranks that hang or die are replaced."""

    def __init__(self, size: int) -> None:
        self._ranks = [_Rank.start(rank) for rank in range(size)]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the processes that this pool started."""
        for rank in self._ranks:
            rank.close(wait_s=10)

    def run(
        self, world_size: int, case: Callable[..., Any], /, *, timeout_s: float = 120, **arguments: Any
    ) -> list[Any]:
        """Run a case on `world_size` ranks; returns their results by rank. Raises `RankFailed`, also when one hangs."""
        ranks = self._ranks[:world_size]
        with tempfile.TemporaryDirectory() as folder:
            for rank, each in enumerate(ranks):
                each.await_imports()
                each.connection.send((case, Path(folder) / "store", rank, world_size, timeout_s, arguments))
            deadline = time.monotonic() + timeout_s + GRACE_S
            answers = [_answer(each, deadline) for each in ranks]
        silent = [rank for rank, answer in enumerate(answers) if answer is None]
        if silent:
            for rank in range(world_size):
                self._ranks[rank].close(wait_s=0)
                self._ranks[rank] = _Rank.start(rank)
        faults = [
            f"--- rank {rank}\n{'hung or died' if answer is None else answer[1]}"
            for rank, answer in enumerate(answers)
            if answer is None or answer[1]
        ]
        if faults:
            raise RankFailed(f"{case.__name__} with {arguments}\n" + "\n".join(faults))
        return [answer[0] for answer in answers if answer is not None]


def _answer(rank: _Rank, deadline: float) -> tuple[Any, str | None] | None:
    """A rank's result and fault; None if it gives none in time, or has died."""
    try:
        if not rank.connection.poll(max(0.0, deadline - time.monotonic())):
            return None
        answer: tuple[Any, str | None] = rank.connection.recv()
    except (EOFError, ConnectionResetError):
        return None
    return answer


def _serve(rank: int, connection: Connection) -> None:
    import torch
    import torchrec.distributed  # noqa: F401 - so that cases find it imported

    torch.set_num_threads(1)
    logging.getLogger("torchrec").setLevel(logging.ERROR)
    # What was imported stays; looking through it would make the collection after each case slow.
    gc.collect()
    gc.freeze()
    connection.send(None)
    while True:
        try:
            case, store, case_rank, world_size, timeout_s, arguments = connection.recv()
        except (EOFError, ConnectionResetError):
            return
        connection.send(_run(case, store, case_rank, world_size, timeout_s, arguments))


def _run(
    case: Callable[..., Any], store: Path, rank: int, world_size: int, timeout_s: float, arguments: dict[str, Any]
) -> tuple[Any, str | None]:
    import torch.distributed as dist
    from torchrec.distributed import collective_utils, comm

    # TorchRec agrees once per process; ranks that joined fewer cases would then wait for ranks that no longer ask.
    collective_utils._INITIALIZED = False
    comm._INTRA_PG = comm._CROSS_PG = None
    dist.init_process_group(
        "gloo",
        init_method=f"file://{store}",
        rank=rank,
        world_size=world_size,
        timeout=timedelta(seconds=timeout_s),
    )
    answer = _attempt(case, arguments)
    # gloo closes its connections, and ends their threads, when the last model that refers to a group is gone. If the
    # case failed, the other ranks wait for this one until then; and the threads of a hundred cases fill a core.
    gc.collect()
    dist.destroy_process_group()
    return answer


def _attempt(case: Callable[..., Any], arguments: dict[str, Any]) -> tuple[Any, str | None]:
    import torch

    try:
        return case(torch.device("cpu"), **arguments), None
    except BaseException:
        return None, traceback.format_exc()
