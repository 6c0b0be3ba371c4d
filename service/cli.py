"""The command `overlane`. Exit status: 0 done, 1 the job or the service says no, 2 bad usage or invalid job file."""

import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, NoReturn

import typer
from pydantic import BaseModel, ValidationError
from rich.console import Group, RenderableType
from rich.live import Live

from service.addresses import DEFAULT_PORT
from service.client import Client, ServiceError, ServiceUnreachableError
from service.models import Job, JobState
from service.problems import ProblemType
from service.security.command import token
from service.terminal import console, job_table, jobs_table, overlap_table, plan_tables, runs_table, webhooks_table
from service.webhooks.shapes import Webhooks, WebhookTest
from workers.job import InvalidJob, load_job
from workers.plans import Outcome

SAID_NO = 1
BAD_USAGE = 2

app = typer.Typer(
    no_args_is_help=True, add_completion=False, help="Train TorchRec models on Ray, with the AllToAlls hidden."
)


def _job_id(text: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9][\w.-]*", text):
        raise typer.BadParameter(f"{text!r} is no id of a job; `overlane list` shows them")
    return text


JobId = Annotated[str, typer.Argument(metavar="JOB", help="the job's id", callback=_job_id)]
AsJson = Annotated[bool, typer.Option("--json", help="print what the API returns")]
Follow = Annotated[bool, typer.Option("--follow", help="print the log until the job has ended")]


app.command()(token)


@app.command()
def serve(
    host: Annotated[str | None, typer.Option(help="address to listen on")] = None,
    port: Annotated[int | None, typer.Option(help="port to listen on; 0 takes a free one")] = None,
    home: Annotated[Path | None, typer.Option(help="folder for the database, logs and checkpoints")] = None,
    ray_address: Annotated[
        str | None, typer.Option(help="http address of a Ray dashboard; else Ray is started")
    ] = None,
) -> None:
    """Start the control plane. Options win over the environment's OVERLANE_ variables."""
    # Most of the time that this command takes to start is for these, and no other command needs them.
    from service import log
    from service.server import START_ERRORS, control_plane, interruptible
    from service.settings import Settings, faults_of

    log.configure()
    given = {"host": host, "port": port, "home": home, "ray_address": ray_address}
    try:
        settings = Settings(**{name: value for name, value in given.items() if value is not None})  # type: ignore[arg-type]
        with interruptible(), control_plane(settings) as plane:
            _say(f"Overlane is up at {plane.url} (Ctrl-C stops it)")
            plane.wait()
    except KeyboardInterrupt:
        _say("stopped")
    except ValidationError as error:
        _fail(faults_of(error), BAD_USAGE)
    except START_ERRORS as error:
        _fail(str(error), SAID_NO)


@app.command()
def submit(file: Path, follow: Follow = False, as_json: AsJson = False) -> None:
    """Submit a job file."""
    if follow and as_json:
        _fail("--json prints one document, and --follow a log: choose one of them", BAD_USAGE)
    _load(file)
    with _client() as client:
        job = client.submit(file)
        if as_json:
            _print_json(job)
        else:
            _say(f"{job.id} {job.state.value}")
        if follow:
            _follow(client, job.id)


@app.command()
def plan(file: Path, as_json: AsJson = False) -> None:
    """Check a job without running it: do its data open, does its model build, do its tables fit, is there room."""
    _load(file)
    with _client() as client:
        found = client.plan(file)
    if as_json:
        _print_json(found)
    else:
        console().print(plan_tables(found))
    if found.outcome is Outcome.NO:
        raise typer.Exit(SAID_NO)


@app.command("list")
def list_jobs(
    state: Annotated[JobState | None, typer.Option(help="only jobs in this state")] = None,
    project: Annotated[str | None, typer.Option(help="only jobs of this project")] = None,
    limit: Annotated[int, typer.Option(min=1, max=200, help="how many, newest first")] = 50,
    as_json: AsJson = False,
) -> None:
    """List jobs, newest first."""
    with _client() as client:
        page = client.jobs(state, project, limit)
    if as_json:
        _print_json(page)
    else:
        console().print(jobs_table(page))


@app.command()
def runs(
    limit: Annotated[int, typer.Option(min=1, max=200, help="how many, newest first")] = 50, as_json: AsJson = False
) -> None:
    """List what others run on the cluster without this service, newest first."""
    with _client() as client:
        found = client.runs(limit)
    if as_json:
        _print_json(found)
    else:
        console().print(runs_table(found))


@app.command()
def webhooks(
    ping: Annotated[str | None, typer.Option(metavar="NAME", help="send a test message to this endpoint")] = None,
    as_json: AsJson = False,
) -> None:
    """List who is told of changes of state, or test one of them."""
    with _client() as client:
        found = client.webhooks() if ping is None else client.test_webhook(ping)
    if as_json:
        _print_json(found)
    elif isinstance(found, Webhooks):
        console().print(webhooks_table(found))
    if isinstance(found, WebhookTest):
        if found.error is not None:
            _fail(f"{found.name}: {found.error}", SAID_NO)
        if not as_json:
            _say(f"{found.name} took {found.message_id}: HTTP {found.status}")


@app.command()
def show(job_id: JobId, as_json: AsJson = False) -> None:
    """Show a job: where it stands, and why."""
    with _client() as client:
        job = client.job(job_id)
        overlap = client.overlap(job_id)
    if as_json:
        _print_json(job)
        return
    screen = console()
    screen.print(job_table(job))
    if overlap.steps:
        screen.print(overlap_table(overlap, f"{overlap.steps} steps"))
    if job.failure is not None:
        screen.print(job.failure.traceback, highlight=False)


@app.command()
def logs(job_id: JobId, follow: Follow = False) -> None:
    """Print a job's log."""
    with _client() as client:
        if follow:
            _follow(client, job_id)
        else:
            sys.stdout.write(client.logs(job_id)[0])


@app.command()
def watch(job_id: JobId) -> None:
    """Watch the overlap of a job's collectives until it has ended."""
    with _client() as client:
        with Live(console=console(), auto_refresh=False) as live:
            for _ in client.follow_events(job_id):
                live.update(_watched(client, client.job(job_id)), refresh=True)
        job = client.job(job_id)
    _exit_with(job)


@app.command()
def trace(
    job_id: JobId,
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FILE", help="where to write the trace")],
    steps: Annotated[str | None, typer.Option(help="a step or a range, such as 120-160; else the newest ones")] = None,
) -> None:
    """Write steps of a job as a trace that ui.perfetto.dev opens."""
    with _client() as client:
        found = client.trace(job_id, steps)
    notes = found.otherData
    if notes.first_step is None:
        _fail(f"{job_id} has no such steps; `overlane show {job_id}` tells how far it is", SAID_NO)
    try:
        output.write_text(found.model_dump_json(), encoding="utf-8")
    except OSError as error:
        _fail(f"{output} cannot be written: {error.strerror}", SAID_NO)
    _say(f"{output}: steps {notes.first_step} to {notes.last_step} of {notes.ranks} ranks; open it at ui.perfetto.dev")


@app.command()
def stop(job_id: JobId, as_json: AsJson = False) -> None:
    """Ask a job to stop."""
    with _client() as client:
        job = client.stop(job_id)
    if as_json:
        _print_json(job)
    else:
        _say(f"{job.id} {job.state.value}")


@app.command()
def delete(job_id: JobId) -> None:
    """Delete an ended job with its steps and its log."""
    with _client() as client:
        client.delete(job_id)
    _say(f"{job_id} deleted")


@contextmanager
def _client() -> Iterator[Client]:
    """The service that OVERLANE_URL and OVERLANE_TOKEN name; what it says no to ends the command."""
    url = os.environ.get("OVERLANE_URL", f"http://127.0.0.1:{DEFAULT_PORT}")
    try:
        with Client(url, os.environ.get("OVERLANE_TOKEN")) as client:
            yield client
    except ServiceError as error:
        invalid = error.problem.type == ProblemType.INVALID_JOB.urn
        _fail(str(error), BAD_USAGE if invalid else SAID_NO)
    except ServiceUnreachableError as error:
        _fail(f"{error}\nStart one with `overlane serve`, or name it in OVERLANE_URL", SAID_NO)
    except KeyboardInterrupt:
        raise typer.Exit(130) from None


def _load(file: Path) -> None:
    """End the command if the job file is not valid."""
    try:
        load_job(file)
    except InvalidJob as error:
        _fail("\n".join(error.problems), BAD_USAGE)


def _follow(client: Client, job_id: str) -> None:
    for text in client.follow_logs(job_id):
        sys.stdout.write(text)
        sys.stdout.flush()
    _exit_with(client.job(job_id))


def _watched(client: Client, job: Job) -> RenderableType:
    overlap = client.overlap(job.id)
    return Group(job_table(job), overlap_table(overlap, f"{overlap.steps} steps, mean per rank and step"))


def _exit_with(job: Job) -> None:
    if job.state is not JobState.SUCCEEDED:
        _fail(f"{job.id} {job.state.value}" + (f": {job.reason}" if job.reason else ""), SAID_NO)


def _print_json(answer: BaseModel) -> None:
    sys.stdout.write(answer.model_dump_json(indent=2) + "\n")


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def _fail(message: str, status: int) -> NoReturn:
    sys.stderr.write(f"overlane: {message}\n")
    raise typer.Exit(status)


def main() -> None:
    """The entry point of the console script."""
    app()
