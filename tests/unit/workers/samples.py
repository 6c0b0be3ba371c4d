"""Step samples for tests."""

from datetime import UTC, datetime
from typing import Any

from pipeline.report import CollectiveName, CollectiveReport, Partition
from workers.reports import SAMPLES, StepSample


def sample(step: int = 0, rank: int = 0, **changes: Any) -> StepSample:
    """One step of one rank: 10 ms, 4 ms of communication, 1 ms of it exposed, 100 bytes sent."""
    figures: dict[str, Any] = {
        "step": step,
        "rank": rank,
        "samples": 8,
        "step_ms": 10.0,
        "compute_ms": 6.0,
        "comm_ms": 4.0,
        "exposed_ms": 1.0,
        "hidden_ms": 3.0,
        "comm_overlap": 0.75,
        "ids": 20,
        "overlapped_ids": 5,
        "id_overlap": 0.25,
        "collectives": (
            CollectiveReport(
                name=CollectiveName.EMBEDDING,
                partition=Partition.OL,
                bytes_sent=100,
                bytes_received=90,
                ms=4.0,
                exposed_ms=1.0,
            ),
        ),
        "time": datetime(2026, 1, 1, tzinfo=UTC),
        "loss": 0.5,
    }
    return StepSample(**{**figures, **changes})


def encoded(*steps: int) -> bytes:
    """The samples of these steps of rank 0, as a rank sends them."""
    return SAMPLES.dump_json([sample(step) for step in steps])
