"""Can it pay to prioritize pooled tables? Counted on synthetic data, without training.

A pooled AllToAll moves one vector per bag, the sum of the bag's rows. A bag without any OL row could leave early,
and exactly.
A bag that mixes both must stay on the critical path as a whole: as two partial sums it would cost twice the bytes, and
sum in another order, which floats do not forgive.
"""

from itertools import pairwise

import numpy as np
import torch

from benchmarks.results import Figure, Result
from workers.job import DataSpec
from workers.sources import open_source

BATCH, DIM, BATCHES = 1024, 64, 6
OVERLAPS, BAGS = (0.05, 0.12, 0.30), (1, 4, 8, 32)


def run() -> Result:
    """For each id overlap and bag size: who could leave early, what the rest would cost, and whether it stays exact."""
    figures = [figure for overlap in OVERLAPS for bag in BAGS for figure in _count(overlap, bag)]
    return Result.now(
        "pooled",
        f"bags of pooled tables that an OL/NOL split could send early; batch {BATCH}, dim {DIM}",
        "none: the question is whether prioritizing pooled tables can pay",
        reached=None,
        figures=figures,
    )


def _count(overlap: float, bag: int) -> list[Figure]:
    params = {"samples": BATCH * BATCHES, "features": 1, "ids_per_sample": bag, "rows": 100_000, "id_overlap": overlap}
    source = open_source(DataSpec(source="synthetic", params=params))
    batches = [samples.ids["f0"].values for samples in source.train_batches(0, 1, BATCH, 1, 0)]
    early = mixed = changed = bags = 0
    weights = torch.randn(100_000, DIM, generator=torch.Generator().manual_seed(0))
    for before, ids in pairwise(batches):
        shared = np.isin(ids, before).reshape(-1, bag)
        both = shared.any(1) & ~shared.all(1)
        early += int((~shared.any(1)).sum())
        mixed += int(both.sum())
        bags += len(shared)
        changed += _changed(weights[torch.from_numpy(ids.reshape(-1, bag)[both])], torch.from_numpy(shared[both]))
    name = f"id overlap {overlap:.2f}, {bag} ids a bag"
    return [
        Figure(name=f"{name}: bags that could leave early", value=early / bags),
        Figure(name=f"{name}: bytes against today's", value=1 + mixed / bags),
        Figure(name=f"{name}: mixed bags whose sum changes in some bit", value=changed / max(1, mixed)),
    ]


def _changed(rows: torch.Tensor, shared: torch.Tensor) -> int:
    """`rows` `[bags, bag, dim]`; how many bags have another sum when their OL and NOL rows are summed apart."""
    whole = torch.zeros(rows.shape[0], rows.shape[2])
    parts = [torch.zeros_like(whole), torch.zeros_like(whole)]
    for place in range(rows.shape[1]):
        whole += rows[:, place]
        for part, member in zip(parts, (shared[:, place], ~shared[:, place]), strict=True):
            part[member] += rows[member, place]
    return int((whole != parts[0] + parts[1]).any(1).sum())
