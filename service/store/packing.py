"""The collectives of a step as bytes: a hundred thousand steps are aggregated at once, and JSON would take seconds.

The codes are part of the database's format: append to them, never reorder.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from workers.reports import StepSample

NAMES = ("input_dist", "overlap_mask", "embedding", "gradient", "dense_allreduce")
PARTITIONS = (None, "ol", "nol")

_RECORD = np.dtype(
    [
        ("name", "u1"),
        ("partition", "u1"),
        ("bytes_sent", "<i8"),
        ("bytes_received", "<i8"),
        ("ms", "<f8"),
        ("exposed_ms", "<f8"),
    ]
)


def pack(sample: StepSample) -> bytes:
    """The sample's collectives, one record each."""
    records = [
        (
            NAMES.index(part.name.value),
            PARTITIONS.index(part.partition.value if part.partition else None),
            part.bytes_sent,
            part.bytes_received,
            part.ms,
            part.exposed_ms,
        )
        for part in sample.collectives
    ]
    return np.array(records, dtype=_RECORD).tobytes()


def unpack(packed: bytes) -> list[dict[str, Any]]:
    """The collectives of one sample, as fields of `CollectiveReport`."""
    return [
        {
            "name": NAMES[name],
            "partition": PARTITIONS[partition],
            "bytes_sent": sent,
            "bytes_received": received,
            "ms": ms,
            "exposed_ms": exposed_ms,
        }
        for name, partition, sent, received, ms, exposed_ms in np.frombuffer(packed, dtype=_RECORD).tolist()
    ]


def unpack_all(packed: Sequence[bytes]) -> tuple[NDArray[np.void], NDArray[np.int64]]:
    """The records of many samples in a row, of shape (all records,), and how many each sample has."""
    counts = np.array([len(one) // _RECORD.itemsize for one in packed], dtype=np.int64)
    return np.frombuffer(b"".join(packed), dtype=_RECORD), counts
