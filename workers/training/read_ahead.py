"""Reads the next samples while the present ones are trained."""

from collections.abc import Iterator
from queue import SimpleQueue
from threading import Semaphore, Thread
from types import TracebackType
from typing import Self

from workers.sources.schema import Samples

# Batches that wait. More would only take memory: a source that is too slow for two is too slow for ten.
DEPTH = 2


class ReadAhead(Iterator[Samples]):
    """The same samples in the same order, read by a thread that keeps `DEPTH` batches ready.

    What the source raises is raised where its batch would have come. Leaving the context ends the thread.
    """

    def __init__(self, samples: Iterator[Samples], depth: int = DEPTH) -> None:
        self._samples = samples
        self._ready: SimpleQueue[Samples | BaseException] = SimpleQueue()
        self._room = Semaphore(depth)
        self._closed = False
        self._ended: BaseException | None = None
        self._thread = Thread(target=self._read, name="read-ahead", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closed = True
        self._room.release()
        self._thread.join()

    def __next__(self) -> Samples:
        if self._ended is None:
            found = self._ready.get()
            if not isinstance(found, BaseException):
                self._room.release()
                return found
            self._ended = found
        raise self._ended

    def _read(self) -> None:
        while True:
            self._room.acquire()
            if self._closed:
                return
            try:
                self._ready.put(next(self._samples))
            except BaseException as end:  # StopIteration as well: it belongs to the thread that asks
                self._ready.put(end)
                return
