"""The driver of a job: connects to Ray, starts the monitor and the worker group, and tells how it went."""

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import ray
import structlog
from ray.train import CheckpointConfig, FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchConfig, TorchTrainer
from ray.train.v2.api.exceptions import TrainingFailedError
from rich.console import Console

from workers import terminal
from workers.capacity import find_shortage
from workers.failures import describe
from workers.job import Backend
from workers.rank import Outcome, run_rank
from workers.reports import JobFailure, JobResult
from workers.run import ExitStatus, Run
from workers.telemetry.monitor import NAMESPACE, Destination, start_monitor
from workers.telemetry.tally import Status

log = structlog.get_logger(__name__)

# Ray's defaults are made for long jobs on large clusters; whoever sets one of these has the last word.
_ENVIRONMENT = {
    "RAY_TRAIN_ENABLE_PRINT_PATCH": "0",  # otherwise every line of a worker comes twice
    "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.2",  # the end of a run waits for the next check
    "RAY_CHDIR_TO_TRIAL_DIR": "0",  # a path in a job file means the same on every worker
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_COLOR_PREFIX": "1" if sys.stdout.isatty() else "0",
}
_PROGRESS_EVERY_S = 3.0
_DELIVERY_TIMEOUT_S = 20.0


class NoClusterError(Exception):
    """The Ray cluster that was named does not answer."""


def drive(run: Run) -> ExitStatus:
    """Run the job to its end and return the exit status. Ctrl-C, SIGINT and SIGTERM stop it."""
    out = terminal.console()
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    try:
        _connect()
        signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
        return _drive(run, out)
    except NoClusterError as error:
        terminal.show_failure(out, JobFailure(message=str(error), traceback=""))
        return ExitStatus.FAILED
    except (KeyboardInterrupt, SystemExit):
        # Ray Train answers a SIGINT by ending the worker group, and then this process.
        out.print("stopped")
        return ExitStatus.STOPPED


def _connect() -> None:
    """Join the cluster that RAY_ADDRESS names (Ray sets it under `ray job submit`); without it, start one here.

    Raises `NoClusterError` if that cluster does not answer.
    """
    address = None
    if not os.environ.get("RAY_ADDRESS"):
        # Not None: Ray would join whatever cluster somebody has started last on this machine.
        address = "local"
        # A cluster of its own would write a token file, which other clusters on this machine then pick up.
        os.environ.setdefault("RAY_AUTH_MODE", "disabled")
    try:
        ray.init(address, namespace=NAMESPACE, log_to_driver=True, configure_logging=False)
    except ConnectionError as error:
        raise NoClusterError(
            f"no Ray cluster answers at RAY_ADDRESS={os.environ.get('RAY_ADDRESS')}: {error}"
        ) from error


def _drive(run: Run, out: Console) -> ExitStatus:
    destination = None
    if run.report_url is not None and run.report_token is not None:
        destination = Destination(run.report_url, run.report_token)
    if "/runtime_resources/working_dir_files/" in run.storage:
        log.warning(
            "Ray removes the checkpoints with the working directory of the job; set OVERLANE_STORAGE to keep them"
        )
    monitor = start_monitor(run.job_id, run.job.workers.count, destination)
    try:
        outcome = _train(run, monitor, out)
        if outcome.failure is not None:
            _ask(monitor.announce, outcome.failure)
            terminal.show_failure(out, outcome.failure)
            return ExitStatus.FAILED
        assert outcome.result is not None
        _ask(monitor.announce, outcome.result)
        terminal.show_result(out, run.job_id, outcome.result, _ask(monitor.summary))
        return ExitStatus.SUCCEEDED
    finally:
        if not _ask(monitor.finish, _DELIVERY_TIMEOUT_S):
            log.error("not all reports reached the control plane", url=run.report_url)


def _ask(method: Any, *arguments: Any) -> Any:
    """Call the monitor. A monitor that died changes nothing about the outcome of the run: log it and return None."""
    try:
        return ray.get(method.remote(*arguments), timeout=2 * _DELIVERY_TIMEOUT_S)
    except ray.exceptions.RayError as error:
        log.error("no answer from the monitor", error=str(error))
        return None


def _train(run: Run, monitor: Any, out: Console) -> Outcome:
    shortage = find_shortage(run.job.workers, [node["Resources"] for node in ray.nodes() if node["Alive"]])
    if shortage is not None:
        message = f"workers: {shortage}; ask for fewer or smaller workers"
        return Outcome(failure=JobFailure(message=message, traceback=""))
    try:
        with _progress(monitor, out):
            result = _trainer(run).fit()
    except TrainingFailedError as error:
        return Outcome(failure=describe(error))
    outcome: Outcome = result.return_value
    if outcome.result is None:
        return outcome
    checkpoint = result.checkpoint.path if result.checkpoint else None
    return Outcome(result=JobResult(**{**dict(outcome.result), "checkpoint": checkpoint}))


def _trainer(run: Run) -> TorchTrainer:
    workers = run.job.workers
    resources = {"CPU": workers.cpus} | ({"GPU": workers.gpus} if workers.gpus else {})
    backend = workers.backend
    if backend is Backend.AUTO:
        backend = Backend.NCCL if workers.gpus else Backend.GLOO
    return TorchTrainer(
        run_rank,
        train_loop_config={"job": run.job.model_dump_json(), "job_id": run.job_id},
        torch_config=TorchConfig(backend=backend.value),
        scaling_config=ScalingConfig(
            num_workers=workers.count, use_gpu=workers.gpus > 0, resources_per_worker=resources
        ),
        run_config=RunConfig(
            name=run.job_id,
            storage_path=run.storage,
            failure_config=FailureConfig(max_failures=run.job.retries.max),
            checkpoint_config=CheckpointConfig(num_to_keep=run.job.checkpoint.keep),
        ),
    )


@contextmanager
def _progress(monitor: Any, out: Console) -> Iterator[None]:
    """Print how far the run is, every few seconds and from a thread of its own, since `fit` blocks this one."""
    done = threading.Event()

    def show() -> None:
        planned, last = False, None
        while not done.wait(_PROGRESS_EVERY_S):
            status: Status | None = _ask(monitor.status)
            if status is None:
                continue
            if status.plan is not None and not planned:
                terminal.show_plan(out, status.plan)
                planned = True
            line = terminal.progress_line(status)
            if line is not None and line != last:
                out.print(line, markup=False)
                last = line

    thread = threading.Thread(target=show, name="progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
