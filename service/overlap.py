"""How much of the communication is hidden: figures over all rank-steps of a job."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Row

from service.models import CollectiveOverlap, Overlap, RankOverlap, Spread
from service.store.steps import FIGURES

WARMUP_STEPS = 3
WARMUP_NEEDS_MORE_THAN = 10

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
    """Columns over the collectives of all rank-steps; `kind` indexes `kinds`, the pairs of name and partition."""

    kinds: list[tuple[str, str | None]]
    kind: Ints
    rank: Ints
    bytes_sent: Ints
    bytes_received: Ints
    ms: Floats
    exposed_ms: Floats


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
        collectives=_by_kind(collectives, np.ones(len(collectives.kind), dtype=np.bool_)),
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


def _collectives(texts: list[str], ranks: Ints) -> Collectives:
    # One document for all rows: json reads it far faster than a hundred thousand small ones.
    lists = json.loads(f"[{','.join(texts)}]")
    parts = list(chain.from_iterable(lists))
    pairs = [(part["name"], part["partition"]) for part in parts]
    kinds = list(dict.fromkeys(pairs))
    index = {pair: number for number, pair in enumerate(kinds)}
    return Collectives(
        kinds=kinds,
        kind=np.array([index[pair] for pair in pairs], dtype=np.int64),
        rank=np.repeat(ranks, [len(one) for one in lists]),
        bytes_sent=np.array([part["bytes_sent"] for part in parts], dtype=np.int64),
        bytes_received=np.array([part["bytes_received"] for part in parts], dtype=np.int64),
        ms=np.array([part["ms"] for part in parts], dtype=np.float64),
        exposed_ms=np.array([part["exposed_ms"] for part in parts], dtype=np.float64),
    )


def _by_kind(collectives: Collectives, chosen: NDArray[np.bool_]) -> list[CollectiveOverlap]:
    found = []
    for number, (name, partition) in enumerate(collectives.kinds):
        own = chosen & (collectives.kind == number)
        ms, exposed_ms = collectives.ms[own], collectives.exposed_ms[own]
        spread, exposed = _spread(ms), _spread(exposed_ms)
        if spread is None or exposed is None:
            continue
        found.append(
            CollectiveOverlap(
                name=name,
                partition=partition,
                ms=spread,
                exposed_ms=exposed,
                comm_overlap=_hidden_share(exposed_ms, ms),
                bytes_sent=int(collectives.bytes_sent[own].sum()),
                bytes_received=int(collectives.bytes_received[own].sum()),
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
        collectives=_by_kind(collectives, collectives.rank == rank),
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
