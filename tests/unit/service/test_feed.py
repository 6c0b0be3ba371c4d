"""The feed alone, under any interleaving of news, followers, breaks and returns."""

import asyncio
from dataclasses import dataclass, field
from datetime import UTC, datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.models import JobState, LatestStep, StateChange
from service.telemetry.feed import Feed, TooSlowError
from tests.unit.service.streams import events_in, numbers

KEPT = 3


def change(number: int) -> StateChange:
    return StateChange(number=number, time=datetime(2026, 1, 2, tzinfo=UTC), state=JobState.RUNNING, reason="a\n\nb")


def latest(step: int) -> LatestStep:
    return LatestStep(
        step=step, steps=None, rank_count=1, samples_per_s=None, step_ms=1.0, compute_ms=1.0, comm_ms=0.0,
        exposed_ms=0.0, comm_overlap=None, id_overlap=None, loss=None,
    )  # fmt: skip


@dataclass
class Client:
    """Remembers what a browser remembers: the last id."""

    seen: list[int] = field(default_factory=list)
    position: int | None = None

    async def read(self, feed: Feed) -> None:
        """Connect if need be, and take what is there."""
        if self.position is None:
            text, self.position = await feed.begin(self.seen[-1] if self.seen else 0)
        elif self.position < feed.count:
            try:
                text, self.position = await feed.next(self.position)
            except TooSlowError:
                self.position = None
                return
        else:
            return
        self.seen += numbers(events_in(text.decode()))


OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("change"), st.integers(1, 5)),
        st.tuples(st.just("step"), st.integers(0, 2)),
        st.tuples(st.just("beat"), st.just(0)),
        st.tuples(st.just("read"), st.integers(0, 2)),
        st.tuples(st.just("break"), st.integers(0, 2)),
    ),
    max_size=60,
)


@given(OPERATIONS)
@settings(deadline=None)
def test_nobody_misses_a_change_or_sees_it_twice(operations: list[tuple[str, int]]) -> None:
    async def run() -> None:
        feed = Feed(kept=KEPT)
        feed.open()
        written: list[int] = []
        clients = [Client() for _ in range(3)]
        for name, value in operations:
            if name == "change":
                written.append(feed.last_number + value)
                feed.change(change(written[-1]))
            elif name == "step":
                feed.step(latest(value))
            elif name == "beat":
                feed.beat()
            elif name == "read":
                await clients[value].read(feed)
            else:
                clients[value].position = None
            for client in clients:
                assert client.seen == written[: len(client.seen)]
        feed.end("succeeded")
        for client in clients:
            for _ in range(3):
                await client.read(feed)
            assert client.seen == written
            assert client.position == feed.count
            assert await feed.next(feed.count) == (b"", feed.count)

    asyncio.run(run())


@given(st.lists(st.integers(1, 9), min_size=1, max_size=12), st.data())
@settings(deadline=None)
def test_resuming_at_any_number(gaps: list[int], data: st.DataObject) -> None:
    written = [sum(gaps[: index + 1]) for index in range(len(gaps))]
    last = data.draw(st.integers(0, written[-1] + 1))
    live = data.draw(st.integers(0, len(written)))

    async def run() -> None:
        feed = Feed()
        for number in written[:live]:
            feed.change(change(number))
        feed.open()
        first, position = await feed.begin(last)
        seen = numbers(events_in(first.decode()))
        for number in written[live:]:
            feed.change(change(number))
            more, position = await feed.next(position)
            seen += numbers(events_in(more.decode()))
        # Numbers that were not yet given when the client began are new to it, whatever it says it has seen.
        assert seen == [number for number in written[:live] if number > last] + written[live:]

    asyncio.run(run())


def test_memory_does_not_grow_with_what_is_sent() -> None:
    async def run() -> None:
        feed = Feed(kept=KEPT)
        feed.open()
        _, position = await feed.begin(0)
        for step in range(1000):
            feed.step(latest(step))
        with pytest.raises(TooSlowError):
            await feed.next(position)
        assert len(feed._recent) == KEPT
        begun, _ = await feed.begin(0)
        assert len(events_in(begun.decode())) == 1, "of the steps only the newest is told to who begins"

    asyncio.run(run())


def test_nobody_begins_before_the_record_was_read() -> None:
    async def run() -> None:
        feed = Feed()
        waiting = asyncio.create_task(feed.begin(0))
        await asyncio.sleep(0)
        assert not waiting.done()
        feed.change(change(1))
        feed.open()
        first, position = await waiting
        assert numbers(events_in(first.decode())) == [1]
        assert position == feed.count

    asyncio.run(run())
