"""Step samples for tests."""

from datetime import UTC, datetime
from typing import Any

from pipeline.report import CollectiveName, CollectiveReport, Partition
from workers.reports import SAMPLES, StepSample
from workers.telemetry.sender import SampleBatch


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


def batch(*steps: int, rank: int = 0, attempt: int = 0, recorded: int | None = None, clock: Any = None) -> SampleBatch:
    """The samples of these steps as a rank sends them; `recorded` is their number if not given."""
    samples = SAMPLES.dump_json([sample(step, rank, attempt=attempt) for step in steps])
    return SampleBatch(rank, attempt, samples, len(steps) if recorded is None else recorded, clock)
