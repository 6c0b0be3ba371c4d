"""Tells the monitor at once what has ended an attempt: Ray Train tells the driver only when it starts no other one."""

from typing import Any

import structlog
from ray.train import UserCallback
from ray.train.v2.api.exceptions import WorkerGroupError

from workers.failures import describe
from workers.telemetry.monitor import MonitorLink

log = structlog.get_logger(__name__)


class TellTrouble(UserCallback):  # type: ignore[misc]  # Ray has no types
    """Runs in the controller of a Ray Train run."""

    def __init__(self, job_id: str) -> None:
        self._job_id = job_id

    def after_exception(self, run_context: Any, worker_exceptions: dict[int, Exception]) -> None:
        """See `UserCallback`."""
        failure = describe(WorkerGroupError("", worker_exceptions))
        try:
            MonitorLink(self._job_id).tell_trouble(failure.message)
        except Exception as error:
            # What is raised here would end the run instead of starting the workers again.
            log.warning("the monitor does not know what ended this attempt", what=failure.message, error=str(error))
