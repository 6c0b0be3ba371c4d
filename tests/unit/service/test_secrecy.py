"""No token in a log, a problem document, or the arguments of a process."""

import inspect
import io
import logging
from pathlib import Path

import pytest
import structlog
from structlog.testing import capture_logs
from typer.testing import CliRunner

from service import cli, log
from service.problems import MEDIA_TYPE
from service.security.roles import NEEDS, Role
from service.security.tokens_file import TokenEntry, TokensFile
from service.settings import Settings
from tests.unit.service.callers import Callers
from tests.unit.service.conftest import JOB, Plane


@pytest.fixture
def callers(tmp_path: Path) -> Callers:
    return Callers(tmp_path / "tokens.yaml")


@pytest.fixture
def settings(settings: Settings, callers: Callers) -> Settings:
    return settings.model_copy(update={"tokens_file": callers.file})


def secrets_of(plane: Plane, callers: Callers) -> dict[str, str]:
    """Everything that only its owner may know, by what it is."""
    reports = {f"report token of {job_id}": plane.ray.token(job_id) for job_id in plane.ray.submissions}
    hashes = {f"hash of {name}": entry.hash.partition(":")[2] for name, entry in callers.entries.items()}
    return callers.tokens | reports | hashes


@pytest.mark.anyio
async def test_no_token_in_logs_and_problems(
    plane: Plane, callers: Callers, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Every kind of answer there is, with everything logged that can be, as it stands on a terminal and elsewhere."""
    caplog.set_level(logging.DEBUG)
    before = structlog.get_config()
    written, answers = io.StringIO(), []
    log.configure(written, logging.DEBUG)
    try:
        headers = callers.headers("ci")
        spec = JOB | {"queue": {"project": "ranking"}}
        job_id = (await plane.http.post("/v1/jobs", json=spec, headers=headers)).json()["id"]
        await plane.rounds(2)
        report = {"Authorization": f"Bearer {plane.ray.token(job_id)}"}
        reports = f"/internal/v1/jobs/{job_id}/reports"
        answers += [await plane.http.post(reports, content=body, headers=report) for body in ("{}", "{", '{"x": NaN}')]
        answers.append(await plane.http.post(reports, content="{}", headers=headers))
        for name in callers.tokens:
            for route in NEEDS:
                method, path = route.split(" ")
                path = path.replace("{job_id}", job_id)
                if "events" not in path:
                    answers.append(await plane.http.request(method, path, headers=callers.headers(name)))
        wrong = {"Authorization": f"Basic {callers.tokens['root']}"}
        answers.append(await plane.http.get("/v1/jobs", headers=wrong))

        async def broken(*arguments: object) -> None:
            token = callers.tokens["root"]
            raise RuntimeError(len(token), len(arguments))

        monkeypatch.setattr(plane.services.jobs, "get", broken)
        answers.append(await plane.http.get(f"/v1/jobs/{job_id}", headers=headers))
        monkeypatch.undo()
        callers.file.write_text(f"- {{name: x, hash: {callers.tokens['root']}}}")
        answers.append(await plane.http.get("/v1/jobs", headers=headers))
    finally:
        structlog.configure(**before)
    assert {answer.status_code for answer in answers} >= {200, 204, 401, 403, 404, 409, 422, 500, 503}
    everything = written.getvalue() + caplog.text
    everything += "".join(f"{answer.headers}{answer.text}" for answer in answers)
    assert "request_failed" in everything
    assert "tokens_file_invalid" in everything
    assert any(answer.headers.get("content-type") == MEDIA_TYPE for answer in answers)
    for whose, secret in secrets_of(plane, callers).items():
        assert secret not in everything, whose


def test_the_command_makes_a_token_that_the_line_makes_known(tmp_path: Path) -> None:
    made = CliRunner().invoke(cli.app, ["token", "ci", "--role", "submitter", "--project", "ranking"])
    assert made.exit_code == 0, made.output
    token, line = made.stdout.strip(), made.stderr.splitlines()[-1]
    path = tmp_path / "tokens.yaml"
    path.write_text(f"# who may use the service\n{line}\n")
    path.chmod(0o600)
    caller = TokensFile(path).caller(token)
    assert caller is not None
    assert (caller.name, caller.role, caller.project) == ("ci", Role.SUBMITTER, "ranking")
    assert token not in made.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["CI!", "--role", "viewer", "--project", "a"], "name: String should match"),
        (["ci", "--role", "admin", "--project", "a"], "project: an admin acts in every project; write '*'"),
        (["ci", "--role", "viewer", "--project", "A"], "project: String should match"),
        (["ci", "--role", "root", "--project", "a"], "submitter"),
        (["ci", "--role", "viewer"], "--project"),
    ],
)
def test_the_command_refuses_what_the_file_would(arguments: list[str], words: str) -> None:
    made = CliRunner().invoke(cli.app, ["token", *arguments])
    assert made.exit_code == 2
    assert made.stdout == ""
    assert words in made.stderr


def test_every_entry_writes_a_line_that_is_read_back(callers: Callers) -> None:
    for entry in callers.entries.values():
        assert TokenEntry.model_validate(entry.model_dump()).line == entry.line


def test_no_command_takes_a_token_as_an_argument() -> None:
    """The arguments of a process are for everybody to see."""
    commands = [command.callback for command in cli.app.registered_commands if command.callback is not None]
    names = {name for command in commands for name in inspect.signature(command).parameters}
    assert {"job_id", "host"} < names
    assert {name for name in names if "token" in name or "secret" in name or "key" in name} == set()


def test_an_object_that_holds_a_token_does_not_show_it(callers: Callers) -> None:
    with capture_logs():
        file = TokensFile(callers.file)
        file.check()
        shown = repr(file) + repr(file.caller(callers.tokens["root"])) + str(vars(file))
    assert not any(token in shown for token in callers.tokens.values())
