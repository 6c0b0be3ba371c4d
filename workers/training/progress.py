"""What the loop and the pipeline know about each step, put together and told to the telemetry."""

import math
from collections import deque
from dataclasses import dataclass
from datetime import UTC, datetime

import torch
from torchrec.datasets.utils import Batch

from pipeline import StepReport, TrainPipeline
from workers.models import LossLogitsLabels
from workers.reports import StepSample
from workers.telemetry.beat import Beat
from workers.telemetry.sender import Telemetry

# Several times for each time that the sender empties its queue, so that no single step is held up for long.
TELL_EVERY_S = 0.5

Pipeline = TrainPipeline[Batch, LossLogitsLabels]


class Progress:
    """Puts together what the loop and the pipeline know about each step, and hands it to the telemetry.

    Reports are worked out many at a time and on all ranks in the same step, which costs the run far less than one after
    each step. On CUDA a step is reported when the device has done it: so the loss is copied without waiting, and read
    when the report is there. `diverged_at` is the first step whose loss is not finite.
    """

    def __init__(self, pipe: Pipeline, telemetry: Telemetry, attempt: int) -> None:
        self._pipe, self._telemetry, self._attempt = pipe, telemetry, attempt
        self._unreported: deque[_Issued] = deque()
        self._beat = Beat(TELL_EVERY_S)
        self.samples, self.loss = 0, math.nan
        self.diverged_at: int | None = None

    def add(self, step: int, loss: torch.Tensor, data_wait_ms: float) -> None:
        """The host has issued this step of the job. Hands on what is due to be told."""
        loss = loss.detach().to("cpu", non_blocking=True)
        self._unreported.append(_Issued(step, loss, data_wait_ms, datetime.now(UTC)))
        if self._beat.passed():
            self.tell()

    def tell(self, *, wait: bool = False) -> None:
        """Hand on every step that was reported since the last call; with `wait`, every step so far."""
        for report in self._pipe.reports(wait=wait):
            issued = self._unreported.popleft()
            self.loss = float(issued.loss)
            if self.diverged_at is None and not math.isfinite(self.loss):
                self.diverged_at = issued.step
            self.samples += report.samples
            self._telemetry.record(self._sample(report, issued))

    def _sample(self, report: StepReport, issued: "_Issued") -> StepSample:
        """Steps count from the start of the job, while the pipeline counts those that it has trained."""
        # `vars` and one dict: going through the report's fields one by one takes five times as long.
        return StepSample.model_validate(
            {
                **vars(report),
                "step": issued.step,
                "time": issued.at,
                "loss": finite(self.loss),
                "data_wait_ms": issued.data_wait_ms,
                "attempt": self._attempt,
            }
        )


@dataclass(frozen=True)
class _Issued:
    """What the loop knows of a step before the pipeline has reported it."""

    step: int
    loss: torch.Tensor
    data_wait_ms: float
    at: datetime


def finite(value: float) -> float | None:
    """None for what JSON cannot say."""
    return value if math.isfinite(value) else None
