"""How much of the communication is hidden: figures over all rank-steps of a job."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Row

from service.models import CollectiveOverlap, Overlap, RankOverlap, Spread
from service.store.packing import NAMES, PARTITIONS, unpack_all
from service.store.steps import FIGURES
from workers.reports import WARMUP_NEEDS_MORE_THAN, WARMUP_STEPS

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True)
class RankSteps:
    """Columns over rank-steps, each of shape (rank-steps,); `figures` is one column for each of `FIGURES`."""

    step: Ints
    rank: Ints
    attempt: Ints
    figures: dict[str, Floats]
    ids: Ints
    overlapped_ids: Floats  # NaN where the schedule does not look for overlap

    def where(self, mask: NDArray[np.bool_]) -> "RankSteps":
        figures = {name: column[mask] for name, column in self.figures.items()}
        return RankSteps(
            self.step[mask], self.rank[mask], self.attempt[mask], figures, self.ids[mask], self.overlapped_ids[mask]
        )


@dataclass(frozen=True)
class Collectives:
    """The collectives of all rank-steps: packed records and the rank of each, both of shape (collectives,)."""

    records: NDArray[np.void]
    rank: Ints


def overlap_of(rows: Sequence[Row[Any]]) -> Overlap:
    """Aggregate the rows of `StepStore.figures`."""
    everything = _rank_steps(rows)
    counted = _after_warmup(everything)
    steps = everything.where(counted)
    chosen = [row.collectives for row, keep in zip(rows, counted.tolist(), strict=True) if keep]
    collectives = _collectives(chosen, steps.rank)
    known = ~np.isnan(steps.overlapped_ids)
    return Overlap(
        steps=len(np.unique(steps.step)),
        warmup_steps=len(np.unique(everything.step)) - len(np.unique(steps.step)),
        **{name: _spread(steps.figures[name]) for name in FIGURES},
        comm_overlap=_hidden_share(steps.figures["exposed_ms"], steps.figures["comm_ms"]),
        id_overlap=_share(float(steps.overlapped_ids[known].sum()), float(steps.ids[known].sum())),
        collectives=_by_kind(collectives.records),
        ranks=[_of_rank(int(rank), steps, collectives) for rank in np.unique(steps.rank)],
    )


def _rank_steps(rows: Sequence[Row[Any]]) -> RankSteps:
    def ints(name: str) -> Ints:
        return np.array([getattr(row, name) for row in rows], dtype=np.int64)

    def floats(name: str) -> Floats:
        return np.array([getattr(row, name) for row in rows], dtype=np.float64)

    figures = {name: floats(name) for name in FIGURES}
    return RankSteps(ints("step"), ints("rank"), ints("attempt"), figures, ints("ids"), floats("overlapped_ids"))


def _after_warmup(steps: RankSteps) -> NDArray[np.bool_]:
    """Which rank-steps are not among the first of their attempt; all of them while there are few."""
    counted = np.ones(len(steps.step), dtype=np.bool_)
    if len(np.unique(steps.step)) > WARMUP_NEEDS_MORE_THAN:
        for attempt in np.unique(steps.attempt):
            own = steps.attempt == attempt
            counted &= ~own | (steps.step >= steps.step[own].min() + WARMUP_STEPS)
    return counted


def _collectives(packed: list[bytes], ranks: Ints) -> Collectives:
    records, counts = unpack_all(packed)
    return Collectives(records, np.repeat(ranks, counts))


def _by_kind(records: NDArray[np.void]) -> list[CollectiveOverlap]:
    """One entry for each name and partition that occurs, in the order of their codes."""
    kind = records["name"].astype(np.int64) * len(PARTITIONS) + records["partition"]
    found = []
    for number in np.flatnonzero(np.bincount(kind)).tolist():
        name, partition = divmod(number, len(PARTITIONS))
        own = records[kind == number]
        ms, exposed_ms = _spread(own["ms"]), _spread(own["exposed_ms"])
        assert ms is not None
        assert exposed_ms is not None
        found.append(
            CollectiveOverlap(
                name=NAMES[name],
                partition=PARTITIONS[partition],
                ms=ms,
                exposed_ms=exposed_ms,
                comm_overlap=_hidden_share(own["exposed_ms"], own["ms"]),
                bytes_sent=int(own["bytes_sent"].sum()),
                bytes_received=int(own["bytes_received"].sum()),
            )
        )
    return found


def _of_rank(rank: int, steps: RankSteps, collectives: Collectives) -> RankOverlap:
    own = steps.where(steps.rank == rank)
    step_ms, exposed_ms = _spread(own.figures["step_ms"]), _spread(own.figures["exposed_ms"])
    assert step_ms is not None
    assert exposed_ms is not None
    return RankOverlap(
        rank=rank,
        step_ms=step_ms,
        exposed_ms=exposed_ms,
        comm_overlap=_hidden_share(own.figures["exposed_ms"], own.figures["comm_ms"]),
        collectives=_by_kind(collectives.records[collectives.rank == rank]),
    )


def _spread(values: Floats) -> Spread | None:
    if len(values) == 0:
        return None
    p50, p95, p99 = np.percentile(values, (50, 95, 99))
    return Spread(mean=float(values.mean()), p50=float(p50), p95=float(p95), p99=float(p99))


def _hidden_share(exposed_ms: Floats, comm_ms: Floats) -> float | None:
    exposed_share = _share(float(exposed_ms.sum()), float(comm_ms.sum()))
    return None if exposed_share is None else 1.0 - exposed_share


def _share(part: float, whole: float) -> float | None:
    return part / whole if whole > 0 else None
