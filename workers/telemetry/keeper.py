"""The driver's end of the monitor: asks it, and gives it back what it knew when Ray had to start it again."""

import time
from typing import Any

import ray
import structlog

from workers.reports import JobEnd
from workers.telemetry.status import Memory, Settled, Status
from workers.telemetry.tally import Summary

log = structlog.get_logger(__name__)

_PATIENCE_S = 20.0
_RETRY_S = 0.2


class MonitorKeeper:
    """Keeps the last memory of the monitor whose actor handle it is given, and passes it on with every question.

    A monitor that does not answer changes nothing about the outcome of the run: that is logged, and None returned.
    """

    def __init__(self, monitor: Any) -> None:
        self._monitor = monitor
        self._memory: Memory | None = None

    def status(self, timeout_s: float) -> Status | None:
        """How far the run is. None if the monitor does not answer just now; nothing is logged then."""
        try:
            status: Status = ray.get(self._monitor.status.remote(self._memory), timeout=timeout_s)
        except ray.exceptions.RayError:
            return None
        self._memory = status.memory
        return status

    def stop(self, timeout_s: float) -> bool | None:
        """Tell the ranks to save and to end. Says whether there may be steps to save; None if nobody heard it.

        A monitor that Ray starts again has not heard it.
        """
        memory = self._memory
        try:
            planned: bool = ray.get(self._monitor.stop.remote(), timeout=timeout_s)
        except ray.exceptions.RayError:
            return None
        return planned or (memory is not None and memory.plan is not None)

    def summary(self) -> Summary | None:
        """What all ranks measured."""
        summary: Summary | None = self._insist("summary", self._memory, timeout_s=_PATIENCE_S)
        return summary

    def conclude(self, report: JobEnd | None, timeout_s: float) -> Settled | None:
        """Hand the last report over, and wait until everything is delivered, `timeout_s` at most.

        Both is one call: a monitor that dies in the middle of it is asked for both again, since it has lost the report.
        """
        settled: Settled | None = self._insist(
            "conclude", self._memory, report, timeout_s, timeout_s=timeout_s + _PATIENCE_S
        )
        return settled

    def _insist(self, method: str, *arguments: Any, timeout_s: float) -> Any:
        """Ask again while the monitor is being started again."""
        end_s = time.monotonic() + timeout_s
        while True:
            left_s = end_s - time.monotonic()
            try:
                return ray.get(getattr(self._monitor, method).remote(*arguments), timeout=max(0.0, left_s))
            except ray.exceptions.RayActorError as error:
                if left_s < _RETRY_S:
                    log.error("no answer from the monitor", asked_for=method, error=str(error))
                    return None
                time.sleep(_RETRY_S)
            except ray.exceptions.RayError as error:
                log.error("no answer from the monitor", asked_for=method, error=str(error))
                return None
