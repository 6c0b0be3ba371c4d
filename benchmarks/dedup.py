"""What index dedup leaves of the bytes of embeddings and gradients. Counted on the ids of a job, without training.

Row-wise, a table is cut into one block of rows per rank. For each id that a rank asks for and another rank owns, a row
travels one way and a gradient the other. Plain TorchRec asks for every occurrence of an id, with dedup a rank asks for
each distinct id of a table once. `tests/integration/workers/test_dedup.py` compares the counts with what training does.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.results import Figure, Result
from workers.job import DataSpec, load_job
from workers.sources import open_source
from workers.sources.schema import Ints, Samples, Schema, Source, Table

JOB = Path(__file__).parent.parent / "examples" / "movielens.yaml"
RANKS, FLOAT_BYTES, LARGE_BATCH = 2, 4, 2048
LIMIT = 0.15


@dataclass(frozen=True)
class Count:
    """Over all steps and ranks: ids asked for, those whose row any rank used in the step before, and those that another
    rank owns.
    """

    asked: int = 0
    overlapped: int = 0
    crossing: int = 0

    def __add__(self, other: "Count") -> "Count":
        return Count(self.asked + other.asked, self.overlapped + other.overlapped, self.crossing + other.crossing)


def run() -> Result:
    """The example's job, the same with a large batch and without its sequence, and synthetic ids."""
    job = load_job(JOB)
    dim = job.model.params["embedding_dim"]
    figures: list[Figure] = []
    reached = True
    sizes = (job.training.batch_size, LARGE_BATCH)
    for batch_size in sizes:
        source = open_source(job.data)
        shares = _figures(f"MovieLens-100K, batch {batch_size}", source, batch_size, dim, source.schema)
        reached = reached and shares[0].value <= LIMIT
        figures += shares
    for batch_size in sizes:
        source = open_source(job.data)
        single = Schema(source.schema.tables, tuple(each for each in source.schema.features if each.max_length == 1))
        figures += _figures(f"MovieLens-100K without history, batch {batch_size}", source, batch_size, dim, single)
    for zipf in (1.05, 0.0):
        for batch_size in sizes:
            source = open_source(DataSpec(source="synthetic", params={"zipf": zipf, "samples": 65_536}))
            name = f"synthetic, Zipf {zipf:.2f}, batch {batch_size}"
            figures += _figures(name, source, batch_size, dim, source.schema)
    return Result.now(
        "dedup",
        "bytes of embeddings and gradients with index dedup against TorchRec row-wise without; counted over one "
        f"epoch, {RANKS} ranks, dim {dim}",
        f"at most {LIMIT} for {JOB.name} with batch {sizes[0]} and {sizes[1]}",
        reached=reached,
        figures=figures,
    )


def _figures(name: str, source: Source, batch_size: int, dim: int, schema: Schema) -> list[Figure]:
    steps = source.steps(RANKS, batch_size, 1)
    without, with_dedup = (count(source, batch_size, schema, dedup=dedup) for dedup in (False, True))
    kilobytes = 2 * dim * FLOAT_BYTES / (RANKS * steps) / 1e3
    return [
        Figure(name=f"{name}: bytes with dedup / without", value=with_dedup.crossing / without.crossing),
        Figure(name=f"{name}: kB per rank and step without", value=without.crossing * kilobytes),
        Figure(name=f"{name}: kB per rank and step with dedup", value=with_dedup.crossing * kilobytes),
        Figure(name=f"{name}: id overlap of occurrences", value=without.overlapped / without.asked),
        Figure(name=f"{name}: id overlap of distinct ids", value=with_dedup.overlapped / with_dedup.asked),
    ]


def count(source: Source, batch_size: int, schema: Schema, *, dedup: bool) -> Count:
    """One epoch with the features of `schema`."""
    total = Count()
    before = {table.name: np.empty(0, dtype=np.int64) for table in schema.tables}
    ranks = [source.train_batches(rank, RANKS, batch_size, 1, 0) for rank in range(RANKS)]
    for step in zip(*ranks, strict=True):
        for table in schema.tables:
            asked = [_asked_for(samples, schema, table, dedup=dedup) for samples in step]
            block = -(-table.rows // RANKS)
            for rank, ids in enumerate(asked):
                overlapped = np.isin(ids, before[table.name])
                total += Count(len(ids), int(overlapped.sum()), int((ids // block != rank).sum()))
            before[table.name] = np.concatenate(asked)
    return total


def _asked_for(samples: Samples, schema: Schema, table: Table, *, dedup: bool) -> Ints:
    """The ids of one table for which a rank asks, `[num_ids]`."""
    ids = np.concatenate([samples.ids[name].values for name in schema.features_of(table.name)])
    return np.unique(ids) if dedup else ids
