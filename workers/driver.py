"""The driver of a job: connects to Ray, starts the monitor and the worker group, and tells how it went."""

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import ray
import structlog
from ray.train import CheckpointConfig, FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchConfig
from ray.train.v2.api.exceptions import TrainingFailedError
from rich.console import Console

from workers import terminal
from workers.capacity import find_shortage
from workers.failures import describe
from workers.following import Follower
from workers.job import Backend, WorkersSpec
from workers.rank import Outcome, collective_timeout, run_rank
from workers.reports import JobEnd, JobFailure, JobResult
from workers.run import ExitStatus, Run
from workers.stopping import StoppableTrainer, Stopping
from workers.telemetry.archive import ReportFolder
from workers.telemetry.keeper import MonitorKeeper
from workers.telemetry.monitor import NAMESPACE, Destination, start_monitor
from workers.telemetry.trouble import TellTrouble

log = structlog.get_logger(__name__)

# Ray's defaults are made for long jobs on large clusters; whoever sets one of these has the last word.
_ENVIRONMENT = {
    "RAY_TRAIN_ENABLE_PRINT_PATCH": "0",  # otherwise every line of a worker comes twice
    "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.2",  # the end of a run waits for the next check
    "RAY_CHDIR_TO_TRIAL_DIR": "0",  # a path in a job file means the same on every worker
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_COLOR_PREFIX": "1" if sys.stdout.isatty() else "0",
}
_LOOK_EVERY_S = 1.0
_ANSWER_WITHIN_S = 15.0
_START_WITHIN_S = 60.0
_DELIVERY_TIMEOUT_S = 20.0


class NoClusterError(Exception):
    """The Ray cluster that was named does not answer."""


def drive(run: Run) -> ExitStatus:
    """Run the job to its end and return the exit status. Ctrl-C, SIGINT and SIGTERM stop it.

    Once it trains it saves first, see `Stopping`.
    """
    out = terminal.console()
    set_defaults(run.job.workers.hang_timeout_s)
    if run.job.workers.is_elastic:
        # After the loss of a node Ray tries the old size first, so long, before it takes what is left.
        os.environ.setdefault("RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S", "8")
    try:
        _connect()
        signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
        return _drive(run, out)
    except NoClusterError as error:
        terminal.show_failure(out, JobFailure(message=str(error), traceback=""))
        return ExitStatus.FAILED
    except (KeyboardInterrupt, SystemExit):
        out.print("stopped")
        return ExitStatus.STOPPED


def set_defaults(hang_timeout_s: float) -> None:
    """Set up Ray Train for runs of this process, with what `_ENVIRONMENT` says. A worker that does not even answer Ray
    for `hang_timeout_s` is given up; a busy machine may take some seconds for an answer.
    """
    unanswered_s = f"{max(30.0, hang_timeout_s):g}"
    for name, value in {**_ENVIRONMENT, "RAY_TRAIN_WORKER_HEALTH_CHECK_TIMEOUT_S": unanswered_s}.items():
        os.environ.setdefault(name, value)


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
    if "/runtime_resources/working_dir_files/" in run.storage:
        log.warning(
            "Ray removes the checkpoints with the working directory of the job; set OVERLANE_STORAGE to keep them"
        )
    target = _target(run)
    # How many ranks an elastic group has, the plan of each attempt tells.
    count = run.job.workers.count
    keeper = MonitorKeeper(start_monitor(run.job_id, count if isinstance(count, int) else None, target))
    stopping = Stopping(out, keeper, run.job.checkpoint.stop_grace_s)
    report: JobEnd | None = None
    try:
        outcome = _train(run, keeper, stopping, out)
        if outcome.stop is not None:
            report = outcome.stop
            terminal.show_stop(out, outcome.stop)
            return ExitStatus.STOPPED
        if outcome.failure is not None:
            report = outcome.failure
            terminal.show_failure(out, outcome.failure)
            return ExitStatus.FAILED
        assert outcome.result is not None
        report = outcome.result
        terminal.show_result(out, run.job_id, outcome.result, keeper.summary())
        return ExitStatus.SUCCEEDED
    except (KeyboardInterrupt, SystemExit):
        # Ray Train has ended the worker group, and means to end this process.
        report = stopping.unsaved
        terminal.show_stop(out, stopping.unsaved)
        return ExitStatus.STOPPED
    finally:
        settled = keeper.conclude(report, _DELIVERY_TIMEOUT_S)
        if settled is None or not settled.delivered:
            log.error("not all reports were delivered", to=run.report_url or str(target))
        if isinstance(target, ReportFolder):
            terminal.show_reports(out, str(target), settled)


def _target(run: Run) -> Destination | ReportFolder:
    """Who keeps the reports of the run: the control plane that has started it, or else its own storage."""
    if run.report_url is not None and run.report_token is not None:
        return Destination(run.report_url, run.report_token)
    return ReportFolder(run.storage, run.job_id)


def _train(run: Run, keeper: MonitorKeeper, stopping: Stopping, out: Console) -> Outcome:
    shortage = find_shortage(run.job.workers, [node["Resources"] for node in ray.nodes() if node["Alive"]])
    if shortage is not None:
        message = f"workers: {shortage}; ask for fewer or smaller workers"
        return Outcome(failure=JobFailure(message=message, traceback=""))
    try:
        with _following(keeper, Follower(out, run.job)), stopping:
            result = _trainer(run, stopping).fit()
    except TrainingFailedError as error:
        return Outcome(failure=describe(error))
    outcome: Outcome = result.return_value
    if outcome.result is None:
        return outcome
    checkpoint = result.checkpoint.path if result.checkpoint else None
    return Outcome(result=JobResult(**{**dict(outcome.result), "checkpoint": checkpoint}))


def _trainer(run: Run, stopping: Stopping) -> StoppableTrainer:
    workers = run.job.workers
    backend = workers.backend
    if backend is Backend.AUTO:
        backend = Backend.NCCL if workers.gpus else Backend.GLOO
    return StoppableTrainer(
        stopping,
        train_loop_per_worker=run_rank,
        train_loop_config={"job": run.job.model_dump_json(), "job_id": run.job_id},
        torch_config=TorchConfig(backend=backend.value, timeout_s=round(collective_timeout(run.job).total_seconds())),
        scaling_config=_scaling(workers),
        run_config=RunConfig(
            name=run.job_id,
            storage_path=run.storage,
            failure_config=FailureConfig(max_failures=run.job.retries.max),
            checkpoint_config=CheckpointConfig(num_to_keep=run.job.checkpoint.keep),
            callbacks=[TellTrouble(run.job_id)],
        ),
    )


def _scaling(workers: WorkersSpec) -> ScalingConfig:
    resources = {"CPU": workers.cpus} | ({"GPU": workers.gpus} if workers.gpus else {})
    use_gpu, count = workers.gpus > 0, workers.count
    if isinstance(count, int):
        return ScalingConfig(num_workers=count, use_gpu=use_gpu, resources_per_worker=resources)
    return ScalingConfig(
        num_workers=(count.min, count.max),
        use_gpu=use_gpu,
        resources_per_worker=resources,
        elastic_resize_monitor_interval_s=count.resize_every_s,
    )


@contextmanager
def _following(keeper: MonitorKeeper, follower: Follower) -> Iterator[None]:
    """Show how the run goes on, from a thread of its own, since `fit` blocks this one."""
    done = threading.Event()

    def look() -> None:
        timeout_s = _START_WITHIN_S
        while not done.wait(_LOOK_EVERY_S):
            follower.see(keeper.status(timeout_s))
            timeout_s = _ANSWER_WITHIN_S

    thread = threading.Thread(target=look, name="following", daemon=True)
    with follower:
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()
            # What happened since the last look belongs to the story, too.
            follower.see(keeper.status(_ANSWER_WITHIN_S))
