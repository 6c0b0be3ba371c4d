"""Three checks of a schedule. Each catches what the others miss, so all three run.

1. static:         every need is issued before its consumer.
2. replay:         integer versions of table rows over random batches; no lookup may see a row that lacks an update.
3. happens-before: needs must order every pair of conflicting accesses to a table row.

The first reads only `needs`, the second only the order of issue with `reads` and `writes`; the third relates the two:
it finds an order that holds by luck of issue, or only because two stages happen to share a lane. A stage can therefore
move to another lane without a new race.
"""

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from pipeline.schedule import RowIds, Schedule, Stage


@dataclass(frozen=True)
class Violation:
    """One fault: which check found it, at which stage, for which batch of the example, and why it is one."""

    check: str
    stage: str
    batch: int | None
    reason: str

    def __str__(self) -> str:
        where = self.stage if self.batch is None else f"{self.stage} of batch {self.batch}"
        return f"{self.check}: {where}: {self.reason}"


@dataclass(frozen=True)
class Event:
    """A stage working on one batch, at its place in the order of issue."""

    stage: Stage
    batch: int

    def __str__(self) -> str:
        return f"{self.stage.name}({self.batch})"


def check(schedule: Schedule) -> list[Violation]:
    """Run all three checks, with every stage in its place, and with those moved that may be. An empty list means that
    none found a fault.
    """
    return [
        violation
        for each in dict.fromkeys(schedule.variants)
        for violation in [*check_static(each), *check_replay(each), *check_happens_before(each)]
    ]


def events(schedule: Schedule, batches: int) -> Iterator[Event]:
    """Every stage of every batch in the order of issue, fill and drain included."""
    for step in range(-schedule.lead, batches + schedule.lag):
        for stage in schedule.stages:
            if 0 <= step - stage.skew < batches:
                yield Event(stage, step - stage.skew)


def check_static(schedule: Schedule) -> list[Violation]:
    """A need must be issued in an earlier step, or in the same step above its consumer."""
    found = []
    for consumer in schedule.stages:
        for need in consumer.needs:
            producer = schedule[need.stage]
            lead = need.delta + producer.skew - consumer.skew
            above = schedule.position(producer.name) < schedule.position(consumer.name)
            if lead > 0:
                found.append(Violation("static", consumer.name, None, f"{need} is issued {lead} step(s) too late"))
            elif lead == 0 and not above:
                found.append(Violation("static", consumer.name, None, f"{need} is issued below it in the same step"))
    return found


def check_replay(schedule: Schedule, batches: int = 12, trials: int = 20, seed: int = 0) -> list[Violation]:
    """Replay random batches. A lookup of batch b must see, in each of its rows, every update by batches before b."""
    generator = random.Random(seed)
    for _ in range(trials):
        table = range(generator.choice((2, 5, 12)))
        rows = [frozenset(row for row in table if generator.random() < 0.5) for _ in range(batches)]
        found = _replay(schedule, _within(rows), batches)
        if found:
            return found
    return []


def _replay(schedule: Schedule, rows_of: Callable[[int], RowIds], batches: int) -> list[Violation]:
    applied: dict[int, set[int]] = {}
    for event in events(schedule, batches):
        if event.stage.reads is not None:
            for row in sorted(event.stage.reads.select(rows_of, event.batch)):
                expected = {batch for batch in range(event.batch) if row in rows_of(batch)}
                seen = applied.get(row, set())
                if seen != expected:
                    fault = (
                        f"misses {sorted(expected - seen)}" if expected - seen else f"sees {sorted(seen - expected)}"
                    )
                    reason = f"row {row} is read in the wrong version: it {fault}"
                    return [Violation("replay", event.stage.name, event.batch, reason)]
        if event.stage.writes is not None:
            for row in event.stage.writes.select(rows_of, event.batch):
                applied.setdefault(row, set()).add(event.batch)
    return _replay_result(schedule, rows_of, batches, applied)


def _replay_result(
    schedule: Schedule, rows_of: Callable[[int], RowIds], batches: int, applied: dict[int, set[int]]
) -> list[Violation]:
    """After the drain every update of every batch must have been applied."""
    for batch in range(batches):
        for row in sorted(rows_of(batch)):
            if batch not in applied.get(row, set()):
                writer = next((stage.name for stage in schedule.stages if stage.writes is not None), schedule.name)
                return [Violation("replay", writer, batch, f"row {row} never gets the update of batch {batch}")]
    return []


def check_happens_before(schedule: Schedule, batches: int = 8, seed: int = 0) -> list[Violation]:
    """Every two accesses to a row, one of them a write, must be ordered by needs.

    A need orders producer before consumer, and a stage takes its batches in order. The order of two different stages
    within a lane does not count. Batches here share some rows with each neighbour and with batches further away, so
    that every kind of conflict occurs.
    """
    generator = random.Random(seed)
    rows = [frozenset(row for row in range(24) if generator.random() < 0.5) for _ in range(batches)]
    rows_of = _within(rows)
    order = list(events(schedule, batches))
    before = _ancestors(order)
    found = []
    for later, event in enumerate(order):
        for earlier in range(later):
            conflict = _conflict(order[earlier], event, rows_of)
            if conflict and earlier not in before[later]:
                reason = f"nothing orders it after {order[earlier]}, which also touches row {min(conflict)}"
                found.append(Violation("happens-before", event.stage.name, event.batch, reason))
    unique = {(violation.stage, violation.reason.split("(")[0]): violation for violation in reversed(found)}
    return list(reversed(unique.values()))


def _ancestors(order: list[Event]) -> list[set[int]]:
    """For each event the events that are certain to have finished when it starts."""
    place = {(event.stage.name, event.batch): index for index, event in enumerate(order)}
    before: list[set[int]] = []
    for index, event in enumerate(order):
        direct = {place.get((need.stage, event.batch + need.delta)) for need in event.stage.needs}
        direct.add(place.get((event.stage.name, event.batch - 1)))
        reached: set[int] = set()
        for parent in direct:
            # A producer that is issued later is the static check's business; it orders nothing here.
            if parent is not None and parent < index:
                reached |= before[parent] | {parent}
        before.append(reached)
    return before


def _conflict(one: Event, other: Event, rows_of: Callable[[int], RowIds]) -> RowIds:
    def touched(event: Event, *, writes: bool) -> RowIds:
        rows = event.stage.writes if writes else event.stage.reads
        return rows.select(rows_of, event.batch) if rows is not None else frozenset()

    written_by_one, written_by_other = touched(one, writes=True), touched(other, writes=True)
    return (
        (written_by_one & written_by_other)
        | (written_by_one & touched(other, writes=False))
        | (touched(one, writes=False) & written_by_other)
    )


def _within(rows: list[RowIds]) -> Callable[[int], RowIds]:
    return lambda batch: rows[batch] if 0 <= batch < len(rows) else frozenset()
