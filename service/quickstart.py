"""`python -m service.quickstart --home DIR --job FILE [--exit]`: what `make run` runs.

Starts a control plane with an embedded Ray, trains one job, shows what it reached and how much of its communication was
hidden, and stays up until Ctrl-C; with `--exit` it stops after the table. Exit status 0 only if the job succeeded.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import structlog
import typer
from pydantic import ValidationError
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from service import log
from service.addresses import DEFAULT_PORT
from service.client import Client, ServiceError, ServiceUnreachableError
from service.models import Job, JobState
from service.server import START_ERRORS, ControlPlane, control_plane, free_port, interruptible
from service.settings import Settings, faults_of
from service.terminal import console, number, overlap_table, share
from workers.job import InvalidJob, load_job

FAILED = 1
INVALID = 2
INTERRUPTED = 130

_POLL_S = 0.5
_LOG_LINES = 30


def main(
    home: Annotated[Path, typer.Option(help="folder for everything that the control plane keeps")],
    job: Annotated[Path, typer.Option(help="the job file to train")],
    leave: Annotated[bool, typer.Option("--exit", help="stop everything after the table")] = False,
) -> None:
    """Train one job through a control plane of its own."""
    screen = console()
    try:
        load_job(job)
    except InvalidJob as error:
        screen.print("\n".join(error.problems), style="red")
        raise typer.Exit(INVALID) from None
    succeeded = False
    try:
        with interruptible(), _service_log(home), _control_plane(home, screen) as plane, Client(plane.url) as client:
            succeeded = _train(plane, client, job, screen)
            screen.print(f"Dashboard: {plane.url}/", soft_wrap=True)
            if not leave:
                screen.print("The service stays up; Ctrl-C stops it and its Ray.")
                plane.wait()
    except KeyboardInterrupt:
        screen.print("Stopped.")
        raise typer.Exit(0 if succeeded else INTERRUPTED) from None
    except ValidationError as error:
        screen.print(faults_of(error), style="red")
        raise typer.Exit(INVALID) from None
    except (*START_ERRORS, ServiceError, ServiceUnreachableError) as error:
        screen.print(str(error), style="red")
        raise typer.Exit(FAILED) from None
    raise typer.Exit(0 if succeeded else FAILED)


@contextmanager
def _service_log(home: Path) -> Iterator[None]:
    """The service's own log goes into a file, so that the progress stays readable."""
    home.mkdir(parents=True, exist_ok=True)
    with (home / "service.log").open("a", encoding="utf-8") as stream:
        before = structlog.get_config()
        log.configure(stream)
        try:
            yield
        finally:
            structlog.configure(**before)


@contextmanager
def _control_plane(home: Path, screen: Console) -> Iterator[ControlPlane]:
    screen.print("Starting the control plane and its Ray head")
    port = free_port("127.0.0.1", DEFAULT_PORT)
    with control_plane(Settings(home=home, host="127.0.0.1", port=port, ray_address=None, tokens_file=None)) as plane:
        screen.print(f"Control plane: {plane.url}/", soft_wrap=True)
        yield plane


def _train(plane: ControlPlane, client: Client, job_file: Path, screen: Console) -> bool:
    """Submit, wait, show; whether the job succeeded."""
    job = client.submit(job_file)
    screen.print(f"Submitted {job_file} as {job.id}", soft_wrap=True)
    job = _wait(plane, client, job, screen)
    _show_result(client, job, screen)
    return job.state is JobState.SUCCEEDED


def _wait(plane: ControlPlane, client: Client, job: Job, screen: Console) -> Job:
    """Show progress until the job has ended. On a terminal that cannot redraw, one line for each change of state."""
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TextColumn("{task.fields[figures]}", markup=False),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=screen, transient=True) as progress:
        task = progress.add_task(job.state.value, total=None, figures="")
        shown: JobState | None = None
        while not job.state.ended:
            if job.state is not shown and not screen.is_terminal:
                screen.print(f"{job.id} {job.state.value}")
            shown = job.state
            latest = job.latest
            progress.update(task, description=job.reason or job.state.value)
            if latest is not None:
                figures = f"step {latest.step + 1}, {latest.step_ms:.0f} ms, comm overlap {share(latest.comm_overlap)}"
                progress.update(task, total=latest.steps, completed=latest.step + 1, figures=figures)
            time.sleep(_POLL_S)
            plane.check()
            job = client.job(job.id)
    screen.print(f"{job.id} {job.state.value}" + (f": {job.reason}" if job.reason else ""))
    return job


def _show_result(client: Client, job: Job, screen: Console) -> None:
    overlap = client.overlap(job.id)
    table = Table(title=f"{job.name}: {job.spec.training.schedule} schedule", title_justify="left", show_header=False)
    first = client.steps(job.id, limit=job.resources.max_workers or job.resources.workers)
    if first.items and job.latest is not None:
        losses = [sample.loss for sample in first.items if sample.loss is not None]
        table.add_row("loss, first step", number(sum(losses) / len(losses) if losses else None))
        table.add_row("loss, last step", number(job.latest.loss))
    if job.result is not None:
        for name, value in job.result.metrics.items():
            table.add_row(f"held-out {name}", number(value))
        table.add_row("steps, samples", f"{job.result.steps}, {job.result.samples}")
        table.add_row("training time", f"{job.result.seconds:.1f} s")
    if overlap.step_ms is not None:
        table.add_row("step time", f"{overlap.step_ms.mean:.2f} ms mean, {overlap.step_ms.p50:.2f} ms median")
        table.add_row("comm overlap", share(overlap.comm_overlap))
        table.add_row("id overlap", share(overlap.id_overlap))
    screen.print(table)
    if overlap.steps:
        counted = f"{overlap.steps} steps, {overlap.warmup_steps} warm-up steps left out"
        screen.print(overlap_table(overlap, f"Communication, mean per rank and step ({counted})"))
    if job.state is not JobState.SUCCEEDED:
        if job.failure is not None:
            screen.print(job.failure.traceback, highlight=False)
        tail = client.logs(job.id)[0].splitlines()[-_LOG_LINES:]
        screen.print("\n".join(tail), highlight=False)


if __name__ == "__main__":
    typer.run(main)
