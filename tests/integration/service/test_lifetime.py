"""Starting, failing to start, and ending: nothing stays behind."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from service.cluster.embedded import private_folder_of
from service.home import HomeLock
from tests.integration.service.processes import of_home

PATIENCE_S = 60.0
MAIN = "from service.cli import main; main()"
SIGNALLED_IN_A_CALLBACK = """
import os, signal, weakref
from service.cli import main
from service.cluster.embedded import EmbeddedRay

class Object:
    pass

def signalled(start):
    def started(ray):
        dying = Object()
        kept = weakref.ref(dying, lambda _: os.kill(os.getpid(), signal.SIGTERM))
        del dying
        start(ray)
    return started

EmbeddedRay.start = signalled(EmbeddedRay.start)
main()
"""


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start `overlane serve` with a home of its own; whatever a test leaves running is ended."""
    started: list[subprocess.Popen[str]] = []

    def start(port: int, home: Path = tmp_path / "home", main: str = MAIN) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", main, "serve"]
        command += ["--port", str(port), "--home", str(home)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        started.append(process)
        return process

    yield start
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate()
    clean(tmp_path / "home")


def clean(home: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "service.cluster", "clean", "--home", str(home)]
    return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S)


def until(happened: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not happened():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_taken_port(serve: Callable[..., subprocess.Popen[str]], tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        output, errors = (process := serve(port)).communicate(timeout=PATIENCE_S)
    assert process.returncode == 1
    assert output == ""
    assert errors == (
        f"overlane: port {port} on 127.0.0.1 cannot be used (Address already in use); "
        "stop what listens there or choose another --port\n"
    )
    assert not (tmp_path / "home").exists()
    assert not private_folder_of(tmp_path / "home").exists()


def test_a_home_in_use(serve: Callable[..., subprocess.Popen[str]], tmp_path: Path) -> None:
    home = tmp_path / "home"
    with HomeLock(home):
        _, errors = (process := serve(0)).communicate(timeout=PATIENCE_S)
        assert process.returncode == 1
        assert "in use by another control plane" in errors
        refused = clean(home)
        assert refused.returncode == 1
        assert "in use" in refused.stderr
    assert not private_folder_of(home).exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_while_ray_starts(
    serve: Callable[..., subprocess.Popen[str]], tmp_path: Path, number: signal.Signals
) -> None:
    home = tmp_path / "home"
    process = serve(0)
    until(lambda: of_home(home) != [], process)
    process.send_signal(number)
    output, _ = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0
    assert output == "stopped\n"
    assert of_home(home) == []
    assert not private_folder_of(home).exists()


def test_a_signal_that_comes_within_a_callback_of_the_garbage_collector_is_not_lost(
    serve: Callable[..., subprocess.Popen[str]], tmp_path: Path
) -> None:
    """Python drops an exception that is raised there."""
    process = serve(0, main=SIGNALLED_IN_A_CALLBACK)
    output, errors = process.communicate(timeout=PATIENCE_S)
    assert "Exception ignored in" in errors
    assert process.returncode == 0
    assert output == "stopped\n"
    assert of_home(tmp_path / "home") == []


def test_a_head_that_dies_ends_the_service(serve: Callable[..., subprocess.Popen[str]], tmp_path: Path) -> None:
    home = tmp_path / "home"
    process = serve(0)
    assert process.stdout is not None
    assert "Overlane is up" in process.stdout.readline()
    for pid in of_home(home):
        if "gcs_server" in " ".join(psutil.Process(pid).cmdline()):
            os.kill(pid, signal.SIGKILL)
    _, errors = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 1
    assert "overlane: the embedded Ray has ended with status" in errors
    assert of_home(home) == []


def test_what_a_killed_service_leaves_is_removed(serve: Callable[..., subprocess.Popen[str]], tmp_path: Path) -> None:
    home = tmp_path / "home"
    process = serve(0)
    assert process.stdout is not None
    assert "Overlane is up" in process.stdout.readline()
    process.kill()
    process.wait()
    assert of_home(home) != []
    done = clean(home)
    assert done.returncode == 0, done.stderr
    assert of_home(home) == []
    assert not home.exists()
    assert not private_folder_of(home).exists()
