"""Samples that are read ahead: the same ones in the same order, no more of them than are asked for, and their end."""

from collections.abc import Iterator
from threading import Event
from threading import enumerate as threads

import numpy as np
import pytest

from workers.sources.schema import Samples
from workers.training.read_ahead import ReadAhead


def samples(count: int, read: list[int], reached: Event | None = None, at: int = 0) -> Iterator[Samples]:
    for index in range(count):
        read.append(index)
        if reached is not None and index == at:
            reached.set()
        yield Samples(np.full(1, index, dtype=np.float32), {})


def test_they_come_in_order_and_end() -> None:
    with ReadAhead(samples(5, [])) as ahead:
        assert [float(each.labels[0]) for each in ahead] == [0, 1, 2, 3, 4]
        with pytest.raises(StopIteration):
            next(ahead)


def test_it_reads_while_nobody_asks_and_stops_when_there_is_no_room() -> None:
    read: list[int] = []
    reached = Event()
    with ReadAhead(samples(9, read, reached, at=1), depth=2) as ahead:
        assert reached.wait(10)
        assert read == [0, 1]
        next(ahead)
    assert len(read) <= 3


def test_what_the_source_raises_comes_in_its_place() -> None:
    def failing() -> Iterator[Samples]:
        yield from samples(1, [])
        raise OSError("disk gone")

    with ReadAhead(failing()) as ahead:
        next(ahead)
        for _ in range(2):
            with pytest.raises(OSError, match="disk gone"):
                next(ahead)


def test_no_thread_is_left_behind() -> None:
    with pytest.raises(RuntimeError, match="training failed"), ReadAhead(samples(9, [])):
        raise RuntimeError("training failed")
    assert all(each.name != "read-ahead" for each in threads())
