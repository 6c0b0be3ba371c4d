"""On a real Ray: no token in the arguments of any process, nor where others than the owner may read."""

import json
import os
import shlex
import stat
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest

from service.client import Client, ServiceError
from service.cluster.embedded import private_folder_of
from service.models import JobState
from service.security.roles import Role
from service.security.tokens_file import new_entry
from service.server import control_plane
from service.settings import Settings
from tests.integration.service.processes import of_home
from workers.run import REPORT_TOKEN_METADATA

ENTRYPOINT = Path(__file__).parent / "entrypoint.py"
PATIENCE_S = 60.0


@dataclass
class Arguments:
    """Collects the arguments of all processes of the machine while its block runs."""

    seen: set[bytes] = field(default_factory=set)
    _done: threading.Event = field(default_factory=threading.Event)

    def __enter__(self) -> "Arguments":
        self._thread = threading.Thread(target=self._collect)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    def _collect(self) -> None:
        while not self._done.wait(0.01):
            for process in Path("/proc").glob("[0-9]*/cmdline"):
                try:
                    self.seen.add(process.read_bytes())
                except OSError:
                    continue


def report_token(home: Path) -> str:
    """The token with which the running job reports, out of the environment of its process."""
    for process in of_home(home):
        try:
            config = psutil.Process(process).environ().get("RAY_JOB_CONFIG_JSON_ENV_VAR")
        except psutil.Error:
            continue
        if config is not None:
            token = json.loads(config)["metadata"][REPORT_TOKEN_METADATA]
            assert isinstance(token, str)
            return token
    raise AssertionError("no process of the cluster has a report token")


@pytest.fixture
def tokens(tmp_path: Path) -> dict[str, str]:
    made = {name: new_entry(name, role, "ranking") for name, role in (("ci", Role.SUBMITTER), ("me", Role.VIEWER))}
    path = tmp_path / "tokens.yaml"
    path.write_text("".join(f"{entry.line}\n" for _, entry in made.values()))
    path.chmod(0o600)
    return {name: token for name, (token, _) in made.items()}


@pytest.mark.skipif(
    not Path("/proc/self/cmdline").exists(), reason="the arguments of processes stand in /proc on Linux"
)
def test_no_token_in_the_arguments_of_a_process(tmp_path: Path, tokens: dict[str, str]) -> None:
    command = f"{shlex.quote(sys.executable)} {shlex.quote(str(ENTRYPOINT))}"
    home = tmp_path / "home"
    settings = Settings(
        host="127.0.0.1", port=0, home=home, cluster_cpus=2, entrypoint=command, ray_address=None,
        tokens_file=tmp_path / "tokens.yaml",
    )  # fmt: skip
    logs: dict[Path, bytes] = {}
    job_file = tmp_path / "job.json"
    spec = {"name": "tiny", "data": {"source": "synthetic"}, "workers": {"count": 1}, "queue": {"project": "ranking"}}
    job_file.write_text(json.dumps(spec | {"model": {"params": {"hang": True, "steps": 1, "ray": True}}}))
    with Arguments() as arguments, control_plane(settings) as running, Client(running.url, tokens["ci"]) as client:
        with Client(running.url) as stranger, pytest.raises(ServiceError, match="no token was sent"):
            stranger.jobs()
        with Client(running.url, tokens["me"]) as viewer, pytest.raises(ServiceError, match="needs the role submitter"):
            viewer.submit(job_file)
        job = client.submit(job_file)
        deadline = time.monotonic() + PATIENCE_S
        while client.job(job.id).state is not JobState.RUNNING:
            assert time.monotonic() < deadline, client.job(job.id)
            time.sleep(0.1)
        secrets = {
            "report token": report_token(home),
            "token of Ray": (home / "ray" / "token").read_text(),
        } | tokens
        others_may_read = [
            path
            for path in (home / "ray" / "token", home / "report.key", private_folder_of(home))
            if path.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO)
        ]
        assert others_may_read == []
        for log in (home / "ray" / "head.log", *private_folder_of(home).glob("ray/session_*/logs/**/*")):
            if log.is_file():
                logs[log] = log.read_bytes()
        client.stop(job.id)
    ran = b"\n".join(arguments.seen)
    assert os.fsencode(ENTRYPOINT) in ran, "the arguments of the job's process were collected"
    assert logs
    for whose, secret in secrets.items():
        assert secret.encode() not in ran, whose
        assert [log.name for log, content in logs.items() if secret.encode() in content] == [], whose
