"""Collectives survive being packed, and every name and partition has a code."""

from itertools import product

import pytest

from pipeline.report import CollectiveName, Partition
from service.store.packing import NAMES, PARTITIONS, pack, unpack, unpack_all
from tests.unit.service.fakes import collective, sample
from workers.reports import StepSample


def test_every_collective_has_a_code() -> None:
    assert set(NAMES) == {name.value for name in CollectiveName}
    assert set(PARTITIONS) == {None, *(partition.value for partition in Partition)}


def test_codes_are_those_of_existing_databases() -> None:
    assert NAMES[:5] == ("input_dist", "overlap_mask", "embedding", "gradient", "dense_allreduce")
    assert PARTITIONS == (None, "ol", "nol")


def test_nothing_is_lost() -> None:
    parts = [collective(name, part, 0.1, 1e-9, 2**40 + 1) for name, part in product(NAMES, PARTITIONS)]
    packed = pack(StepSample.model_validate(sample(0, 0, collectives=parts)))
    assert unpack(packed) == parts


@pytest.mark.parametrize("counts", [[], [0], [2, 0, 1]])
def test_many_samples(counts: list[int]) -> None:
    part = collective("gradient", "ol", 1.0, 0.5)
    packed = [pack(StepSample.model_validate(sample(0, 0, collectives=[part] * count))) for count in counts]
    records, lengths = unpack_all(packed)
    assert lengths.tolist() == counts
    assert records["ms"].tolist() == [1.0] * sum(counts)
