"""Exit status and output of the command line."""

import json
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
from typer.testing import CliRunner

from service import cli
from service.client import Client
from service.problems import ProblemType
from service.telemetry.chrome import Trace
from service.telemetry.trace import trace_of
from tests.unit.service.fakes import sample
from workers.reports import StepSample

Answer = Callable[[httpx.Request], httpx.Response]

SPEC = {"name": "tiny"}
JOB = {
    "id": "job-1", "name": "tiny", "project": "default", "state": "queued", "reason": None,
    "submitted_at": "2026-01-02T03:04:05.000Z", "started_at": None, "ended_at": None, "attempts": 0, "spec": SPEC,
    "resources": {"workers": 2, "cpus": 2.0, "gpus": 0.0}, "plan": None, "result": None, "failure": None,
    "dropped_samples": 0, "latest": None,
}  # fmt: skip
NO_OVERLAP = {
    "steps": 0, "warmup_steps": 0, "step_ms": None, "compute_ms": None, "comm_ms": None, "exposed_ms": None,
    "hidden_ms": None, "comm_overlap": None, "id_overlap": None, "collectives": [], "ranks": [],
}  # fmt: skip


@pytest.fixture
def job_file(tmp_path: Path) -> Path:
    file = tmp_path / "job.yaml"
    file.write_text("name: tiny\n")
    return file


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch) -> Callable[[Answer], None]:
    """Put a function in the place of the service."""

    def become(answer: Answer) -> None:
        monkeypatch.setattr(cli, "Client", lambda url, token: Client(url, token, httpx.MockTransport(answer)))

    return become


def run(*arguments: str) -> tuple[int, str]:
    """Exit status, and what was printed on both streams."""
    result = CliRunner().invoke(cli.app, list(arguments))
    return result.exit_code, result.output


def no(kind: ProblemType, detail: str) -> httpx.Response:
    body = {"type": kind.urn, "title": kind.title, "status": kind.status, "detail": detail, "instance": "/"}
    return httpx.Response(kind.status, json=body)


def _unreachable(request: httpx.Request) -> httpx.Response:
    raise httpx.ConnectError("refused", request=request)


def test_submit(job_file: Path, service: Callable[[Answer], None]) -> None:
    service(lambda _: httpx.Response(202, json=JOB))
    assert run("submit", str(job_file)) == (0, "job-1 queued\n")


def test_runs_of_others(service: Callable[[Answer], None]) -> None:
    run_of_others = {
        "id": "by-hand", "state": "running", "reason": None, "entrypoint": "python -m workers.train --job [x].yaml",
        "started_at": "2026-01-02T03:04:05.000Z", "ended_at": None,
    }  # fmt: skip
    asked: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(request.url.path)
        return httpx.Response(200, json={"items": [run_of_others]})

    service(answer)
    status, output = run("runs")
    assert status == 0
    assert asked == ["/v1/runs"]
    assert output.splitlines()[1].split()[:2] == ["by-hand", "running"]
    assert "2026-01-02 03:04:05Z  python -m workers.train --job [x].yaml" in output
    assert json.loads(run("runs", "--json")[1]) == {"items": [run_of_others]}


def test_an_invalid_file_needs_no_service(job_file: Path, service: Callable[[Answer], None]) -> None:
    service(_unreachable)
    job_file.write_text("name: tiny\ntraining: {batchsize: 3}\n")
    status, output = run("submit", str(job_file))
    assert status == 2
    assert "training.batchsize: unknown field; did you mean 'batch_size'?" in output
    assert run("submit", "/nowhere/job.yaml")[0] == 2


@pytest.mark.parametrize(
    ("kind", "status"), [(ProblemType.INVALID_JOB, 2), (ProblemType.INFEASIBLE, 1), (ProblemType.RAY_UNAVAILABLE, 1)]
)
def test_the_service_says_no(job_file: Path, service: Callable[[Answer], None], kind: ProblemType, status: int) -> None:
    service(lambda _: no(kind, "the reason"))
    code, output = run("submit", str(job_file))
    assert code == status
    assert "the reason" in output


def test_no_service(service: Callable[[Answer], None]) -> None:
    service(_unreachable)
    status, output = run("list")
    assert status == 1
    assert "overlane serve" in output


@pytest.mark.parametrize(("state", "status"), [("succeeded", 0), ("failed", 1), ("stopped", 1), ("lost", 1)])
def test_follow_ends_as_the_job_does(
    job_file: Path, service: Callable[[Answer], None], state: str, status: int
) -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        if request.url.path.endswith("/logs"):
            return httpx.Response(200, text="the log\n", headers={"Overlane-Next-Offset": "8"})
        return httpx.Response(200, json=JOB | {"state": state})

    service(answer)
    code, output = run("submit", str(job_file), "--follow")
    assert code == status
    assert "the log\n" in output
    code, output = run("logs", "job-1", "--follow")
    assert code == status


def test_json_is_what_the_api_returns(service: Callable[[Answer], None]) -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        if request.url.path.endswith("/overlap"):
            return httpx.Response(200, json=NO_OVERLAP)
        return httpx.Response(200, json=JOB)

    service(answer)
    status, output = run("show", "job-1", "--json")
    shown = json.loads(output)
    assert status == 0
    assert shown["submitted_at"] == JOB["submitted_at"]
    assert shown["spec"]["name"] == "tiny"
    status, output = run("show", "job-1")
    assert status == 0
    assert "2 workers, 2 CPUs" in output


@pytest.mark.parametrize("job_id", ["", "..", "../../metrics", "a/b", "x?y"])
@pytest.mark.parametrize("command", ["show", "logs", "watch", "trace", "stop", "delete"])
def test_what_cannot_be_the_id_of_a_job_is_bad_usage(
    service: Callable[[Answer], None], command: str, job_id: str
) -> None:
    service(_unreachable)
    assert run(command, job_id, *(["-o", "/dev/null"] if command == "trace" else []))[0] == 2


def test_json_and_a_log_do_not_mix(job_file: Path, service: Callable[[Answer], None]) -> None:
    service(_unreachable)
    status, output = run("submit", str(job_file), "--json", "--follow")
    assert status == 2
    assert "choose one" in output


@pytest.mark.parametrize("url", ["http://a:b", "http://[::1", "nowhere", ""])
def test_an_address_that_is_none(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    monkeypatch.setenv("OVERLANE_URL", url)
    status, output = run("list")
    assert status == 1
    assert "OVERLANE_URL" in output


def test_a_reason_is_never_read_as_markup(service: Callable[[Answer], None]) -> None:
    reason = "[/tmp/x] :smile: [bold]no[/bold]"

    def answer(request: httpx.Request) -> httpx.Response:
        shown = JOB | {"state": "failed", "reason": reason}
        return httpx.Response(200, json=NO_OVERLAP if request.url.path.endswith("/overlap") else shown)

    service(answer)
    status, output = run("show", "job-1")
    assert status == 0
    assert reason in output


@pytest.mark.parametrize("url", ["http://127.0.0.1:8420", "http://localhost:8420", "http://[::1]:8420"])
def test_no_proxy_stands_before_loopback(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    monkeypatch.setenv("http_proxy", "http://proxy.test:3128")
    assert Client(url)._http._mounts == {}
    assert Client("http://overlane.test")._http._mounts != {}


@pytest.mark.parametrize("arguments", [["serve", "--host", "0.0.0.0"], ["serve", "--port", "70000"], ["frobnicate"]])
def test_bad_usage(arguments: list[str]) -> None:
    assert run(*arguments)[0] == 2


def test_another_host_is_refused_with_a_reason() -> None:
    assert "loopback only" in run("serve", "--host", "0.0.0.0")[1]


def test_watch_shows_the_overlap_of_each_collective(service: Callable[[Answer], None]) -> None:
    spread = {"mean": 4.0, "p50": 4.0, "p95": 4.0, "p99": 4.0}
    part = {"ms": spread, "exposed_ms": spread, "comm_overlap": 0.25, "bytes_sent": 1500, "bytes_received": 0}
    overlap = NO_OVERLAP | {"steps": 1, "collectives": [part | {"name": "gradient", "partition": "ol"}]}

    def answer(request: httpx.Request) -> httpx.Response:
        if request.url.path.endswith("/events"):
            return httpx.Response(200, text="event: end\ndata: succeeded\n\n")
        return httpx.Response(
            200, json=overlap if request.url.path.endswith("/overlap") else JOB | {"state": "succeeded"}
        )

    service(answer)
    status, output = run("watch", "job-1")
    assert status == 0
    [line] = [line for line in output.splitlines() if "gradient OL" in line]
    assert [cell.strip() for cell in line.strip("│").split("│")][1:] == [
        "4.00",
        "4.00",
        "4.00",
        "25.0 %",
        "1.5 kB",
        "0 B",
    ]


def test_a_trace_is_written_to_a_file(service: Callable[[Answer], None], tmp_path: Path) -> None:
    samples = [StepSample.model_validate(sample(step, rank)) for step in (7, 8) for rank in range(2)]
    found = trace_of("job-1", samples)
    service(lambda _: httpx.Response(200, text=found.model_dump_json()))
    file = tmp_path / "trace.json"
    status, output = run("trace", "job-1", "-o", str(file), "--steps", "7-8")
    assert status == 0, output
    assert "steps 7 to 8 of 2 ranks" in output
    assert Trace.model_validate_json(file.read_text()) == found
    status, output = run("trace", "job-1", "-o", str(tmp_path / "none" / "trace.json"))
    assert status == 1
    assert "cannot be written" in output
    assert run("trace", "job-1")[0] == 2, "it must say where to write"
    service(lambda _: httpx.Response(200, text=trace_of("job-1", []).model_dump_json()))
    status, output = run("trace", "job-1", "-o", str(tmp_path / "empty.json"))
    assert status == 1
    assert "overlane show job-1" in output
    assert not (tmp_path / "empty.json").exists()


@pytest.mark.parametrize(
    ("state", "plan", "shown"),
    [
        ("queued", None, "1-4 workers, 1 CPUs"),
        ("running", {"world_size": 3}, "1-4 workers, now 3, 1 CPUs"),
        ("succeeded", {"world_size": 3}, "1-4 workers, 1 CPUs"),
    ],
)
def test_an_elastic_group_says_how_large_it_is(
    service: Callable[[Answer], None], state: str, plan: dict[str, int] | None, shown: str
) -> None:
    resources = {"workers": 1, "cpus": 1.0, "gpus": 0.0, "max_workers": 4}
    whole = None if plan is None else {"steps": 9, "prioritized": {}, "not_prioritized": {}, **plan}
    job = JOB | {"state": state, "resources": resources, "plan": whole}
    service(lambda request: httpx.Response(200, json=NO_OVERLAP if request.url.path.endswith("/overlap") else job))
    status, output = run("show", "job-1")
    assert status == 0, output
    assert shown in output
