"""The embedded Ray: a head node of our own for machines that have no cluster.

It runs as a `ray start --head --block` child in its own session, so that a Ctrl-C in the terminal does not reach it.
Every process of the cluster inherits the variable OVERLANE_CLUSTER; that is how what is left of one is found and ended,
also after a crash. Ray listens on every interface of the machine, hence the token.
"""

import hashlib
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
from contextlib import ExitStack, suppress
from pathlib import Path

import httpx
import psutil
import structlog

MARK = "OVERLANE_CLUSTER"
OBJECT_STORE_BYTES = 256 * 1024**2

_START_TIMEOUT_S = 60.0
_POLL_S = 0.1
_KILL_ROUNDS = 50

log = structlog.get_logger(__name__)


class ClusterError(Exception):
    """The embedded Ray did not start, or ended by itself."""


class EmbeddedRay:
    """A Ray head of our own. `start` and `stop` may be called from any state; `stop` always leaves no process."""

    def __init__(self, home: Path, cpus: int) -> None:
        self._home = home
        self._cpus = cpus
        self._head: subprocess.Popen[bytes] | None = None
        self._dashboard_port = 0
        self._folder = private_folder_of(home)
        self.token = ""

    @property
    def address(self) -> str:
        """The HTTP address of the dashboard, which also serves the Jobs API."""
        return f"http://127.0.0.1:{self._dashboard_port}"

    @property
    def log_file(self) -> Path:
        return self._home / "ray" / "head.log"

    @property
    def token_file(self) -> Path:
        return self._home / "ray" / "token"

    def start(self) -> None:
        """Start the head and wait until its Jobs API answers. Raises `ClusterError`."""
        remove_cluster(self._folder)
        _make_private(self._folder)
        _make_private(self.token_file.parent)
        self.token = secrets.token_urlsafe(32)
        self.token_file.touch(mode=0o600)
        self.token_file.write_text(self.token)
        with self.log_file.open("wb") as output:
            self._head = subprocess.Popen(
                self._command(), env=self._environment(), stdin=subprocess.DEVNULL, stdout=output, stderr=output,
                start_new_session=True,
            )  # fmt: skip
        log.info("ray_starting", address=self.address, cpus=self._cpus)
        self._wait_until_up()

    def check(self) -> None:
        """Raise `ClusterError` if the head that was started has ended: its jobs are gone with it."""
        if self._head is not None and self._head.poll() is not None:
            raise ClusterError(f"the embedded Ray has ended with status {self._head.returncode} (see {self.log_file})")

    def stop(self) -> None:
        """End every process of the cluster at once; Ray takes half a minute to end by itself."""
        if self._head is not None:
            with suppress(ProcessLookupError):
                os.killpg(self._head.pid, signal.SIGKILL)
            self._head.wait()
            self._head = None
        remove_cluster(self._folder)

    def _command(self) -> list[str]:
        gcs, self._dashboard_port, agent_http, agent_grpc, runtime_env, client, metrics = _free_ports(7)
        return [
            sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block", "--disable-usage-stats",
            "--node-ip-address=127.0.0.1", f"--port={gcs}", f"--num-cpus={self._cpus}",
            f"--object-store-memory={OBJECT_STORE_BYTES}", f"--temp-dir={self._folder / 'ray'}",
            "--dashboard-host=127.0.0.1", f"--dashboard-port={self._dashboard_port}",
            f"--dashboard-agent-listen-port={agent_http}", f"--dashboard-agent-grpc-port={agent_grpc}",
            f"--runtime-env-agent-port={runtime_env}", f"--ray-client-server-port={client}",
            f"--metrics-export-port={metrics}", "--min-worker-port=0", "--max-worker-port=0",
        ]  # fmt: skip

    def _environment(self) -> dict[str, str]:
        # The cluster of another program must not be joined by mistake, nor its token be used. What the service is told
        # about itself, such as the address of its database or the key of its collector, is nothing for jobs.
        foreign = ("RAY_", "OVERLANE_", "OTEL_", "TRACEPARENT", "PGPASS")
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
        return inherited | {
            MARK: str(self._folder),
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN_PATH": str(self.token_file),
            "RAY_USAGE_STATS_ENABLED": "0",
            # How often the head refreshes what is in use, in seconds.
            "AUTOSCALER_UPDATE_INTERVAL_S": "1",
        }

    def _wait_until_up(self) -> None:
        assert self._head is not None
        deadline = time.monotonic() + _START_TIMEOUT_S
        headers = {"Authorization": f"Bearer {self.token}"}
        with httpx.Client(base_url=self.address, headers=headers, timeout=1.0, trust_env=False) as http:
            while not _answers(http):
                if self._head.poll() is not None:
                    raise ClusterError(f"Ray ended with status {self._head.returncode}: {self._last_words()}")
                if time.monotonic() > deadline:
                    raise ClusterError(f"Ray did not answer within {_START_TIMEOUT_S:.0f} s: {self._last_words()}")
                time.sleep(_POLL_S)

    def _last_words(self) -> str:
        lines = self.log_file.read_text(errors="replace").strip().splitlines()
        return f"{' | '.join(lines[-3:])} (see {self.log_file})"


def private_folder_of(home: Path) -> Path:
    """Where the cluster of a home keeps its session: a short path, since those of Unix sockets end at 107 bytes.

    Only its owner may enter it, as Ray makes its own folders writable for everybody.
    """
    digest = hashlib.sha256(str(home.resolve()).encode()).hexdigest()[:10]
    return Path("/tmp") / f"overlane-{digest}"


def remove_cluster(folder: Path) -> int:
    """Kill every process of the cluster of this folder and delete the folder; how many were killed."""
    killed = 0
    for _ in range(_KILL_ROUNDS):
        members = _members(folder)
        if not members:
            shutil.rmtree(folder, ignore_errors=True)
            return killed
        killed += len(members)
        for process in members:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(members, timeout=1.0)
    raise ClusterError(f"processes of the old cluster do not end: {[process.pid for process in _members(folder)]}")


def _members(folder: Path) -> list[psutil.Process]:
    members = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.pid == os.getpid():
                continue
            if process.status() != psutil.STATUS_ZOMBIE and process.environ().get(MARK) == str(folder):
                members.append(process)
    return members


def _answers(http: httpx.Client) -> bool:
    try:
        return http.get("/api/version").is_success and bool(http.get("/api/v0/nodes").json()["data"]["result"]["total"])
    except (httpx.HTTPError, ValueError, KeyError, TypeError):
        return False


def _free_ports(count: int) -> list[int]:
    """Ports that are free now, all different: each is held until the last one is found."""
    with ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(count)]
        for listener in sockets:
            listener.bind(("127.0.0.1", 0))
        return [listener.getsockname()[1] for listener in sockets]


def _make_private(folder: Path) -> None:
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if folder.stat().st_uid != os.getuid():
        raise ClusterError(f"{folder} belongs to another user; remove it")
    folder.chmod(0o700)
