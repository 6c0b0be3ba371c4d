"""AllToAll on gloo as point-to-point transfers, with every receive posted before the first send.

gloo's own AllToAll takes its peers in turn, and once the ranks enter it with a little skew, one direction waits for the
other: on a limited link it takes twice as long. Receives that are already posted let both directions flow at once.
"""

import time
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field
from queue import SimpleQueue
from threading import Thread, current_thread
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

# A transfer flows without them; they only note when it is there. A step of `prioritized` has five.
_THREADS = 8
_TAGS = 1 << 20
_FAREWELL_S = 1.0


@dataclass(eq=False)
class Transfer:
    """An AllToAll under way, with the two calls that the runtime makes of a `torch.distributed.Work`.

    `tensors` are kept alive until it is done.
    """

    works: Sequence[dist.Work]
    tensors: tuple[Tensor, Tensor]
    _arrived: "torch.futures.Future[Any]" = field(default_factory=torch.futures.Future)

    def wait(self) -> None:
        """Wait for the rows of all peers. Raises what a transfer with one of them raised."""
        self._arrived.wait()

    def get_future(self) -> "torch.futures.Future[Any]":
        """Done when the rows of all peers are there and all own rows have left."""
        return self._arrived

    def watch(self) -> None:
        """Wait for every part, on a thread of its own."""
        try:
            for work in self.works:
                work.wait()
        except Exception as error:
            self._arrived.set_exception(error)
        else:
            self._arrived.set_result(None)


class FullDuplex:
    """Starts transfers. All ranks start the same ones in the same order on each group."""

    def __init__(self) -> None:
        self._started: dict[dist.ProcessGroup, int] = {}
        self._watched: SimpleQueue[Transfer | None] = SimpleQueue()
        # They end with the process: a transfer whose peer is gone must not hold up its end.
        threads = [Thread(target=_watch, args=(self._watched,), name="transfer", daemon=True) for _ in range(_THREADS)]
        for thread in threads:
            thread.start()
        weakref.finalize(self, _dismiss, self._watched, threads)

    def start(
        self,
        group: dist.ProcessGroup,
        received: Tensor,
        send: Tensor,
        receive_splits: Sequence[int],
        send_splits: Sequence[int],
    ) -> Transfer:
        """Fill `received`, `[sum(receive_splits), ...]`, from the peers' `send`, `[sum(send_splits), ...]`."""
        own, ranks = group.rank(), group.size()
        # A tag of its own keeps the rows of one transfer out of the next.
        tag = self._started.get(group, 0)
        self._started[group] = (tag + 1) % _TAGS
        arriving, leaving = torch.split(received, list(receive_splits)), torch.split(send, list(send_splits))
        # Rank r begins with r+1, so that not all send to the same peer at first.
        peers = [(own + distance) % ranks for distance in range(1, ranks)]
        works = [group.recv([arriving[peer]], peer, tag) for peer in peers if arriving[peer].numel()]
        works += [group.send([leaving[peer]], peer, tag) for peer in peers if leaving[peer].numel()]
        arriving[own].copy_(leaving[own])
        transfer = Transfer(works, (received, send))
        self._watched.put(transfer)
        return transfer


def _watch(transfers: "SimpleQueue[Transfer | None]") -> None:
    while (transfer := transfers.get()) is not None:
        transfer.watch()


def _dismiss(transfers: "SimpleQueue[Transfer | None]", threads: Sequence[Thread]) -> None:
    for _ in threads:
        transfers.put(None)
    # A thread that is still on its way out of C++ when the interpreter ends would abort the process.
    deadline_s = time.monotonic() + _FAREWELL_S
    for thread in threads:
        if thread is not current_thread():
            thread.join(max(0.0, deadline_s - time.monotonic()))
