"""A pool of rank processes that lives through the test session, since importing TorchRec takes seconds.

A case is a module-level function `case(device, **arguments)` that runs on every rank of a fresh gloo process group.
"""

import multiprocessing
import tempfile
import traceback
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from types import TracebackType
from typing import Any, Self


class RankFailed(AssertionError):  # noqa: N818
    """A case raised on at least one rank; carries each rank's traceback."""


class RankPool:
    """Up to `size` rank processes; a case asks for as many as it needs."""

    def __init__(self, size: int) -> None:
        context = multiprocessing.get_context("spawn")
        self._connections: list[Connection] = []
        self._processes = []
        for rank in range(size):
            here, there = context.Pipe()
            process = context.Process(target=_serve, args=(rank, there), daemon=True)
            process.start()
            there.close()
            self._connections.append(here)
            self._processes.append(process)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the processes that this pool started."""
        for connection in self._connections:
            connection.close()
        for process in self._processes:
            process.join(timeout=10)
            if process.is_alive():
                process.kill()

    def run(
        self, world_size: int, case: Callable[..., Any], /, *, timeout_s: float = 120, **arguments: Any
    ) -> list[Any]:
        """Run a case on `world_size` ranks; returns their results by rank. Raises `RankFailed`, also when one hangs."""
        with tempfile.TemporaryDirectory() as folder:
            for rank in range(world_size):
                self._connections[rank].send((case, Path(folder) / "store", rank, world_size, timeout_s, arguments))
            answers = []
            for rank in range(world_size):
                if not self._connections[rank].poll(timeout_s + 30):
                    raise RankFailed(f"rank {rank} of {world_size} gave no answer to {case.__name__} ({arguments})")
                answers.append(self._connections[rank].recv())
        faults = [f"--- rank {rank}\n{fault}" for rank, (_, fault) in enumerate(answers) if fault]
        if faults:
            raise RankFailed(f"{case.__name__} with {arguments}\n" + "\n".join(faults))
        return [result for result, _ in answers]


def _serve(rank: int, connection: Connection) -> None:
    import torch

    torch.set_num_threads(1)
    while True:
        try:
            case, store, case_rank, world_size, timeout_s, arguments = connection.recv()
        except EOFError:
            return
        connection.send(_run(case, store, case_rank, world_size, timeout_s, arguments))


def _run(
    case: Callable[..., Any], store: Path, rank: int, world_size: int, timeout_s: float, arguments: dict[str, Any]
) -> tuple[Any, str | None]:
    import torch
    import torch.distributed as dist
    from torchrec.distributed import collective_utils

    # TorchRec agrees once per process; ranks that joined fewer cases would then wait for ranks that no longer ask.
    collective_utils._INITIALIZED = False
    dist.init_process_group(
        "gloo",
        init_method=f"file://{store}",
        rank=rank,
        world_size=world_size,
        timeout=timedelta(seconds=timeout_s),
    )
    try:
        return case(torch.device("cpu"), **arguments), None
    except BaseException:
        return None, traceback.format_exc()
    finally:
        dist.destroy_process_group()
