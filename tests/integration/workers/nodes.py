"""A Ray cluster whose nodes have network namespaces of their own, so that each can be lost, drained and cut off."""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from benchmarks.testbed import Layout, Testbed
from benchmarks.testbed.layout import INTERFACE, rank_command
from benchmarks.testbed.namespaces import call, pids

ROOT = Path(__file__).parents[3]
_PORT = 6379
_UP_S = 60

# What Ray takes minutes for by default: to notice that a node is gone, and to go on without it.
_IMPATIENT = {
    "RAY_health_check_initial_delay_ms": "1000",
    "RAY_health_check_period_ms": "1000",
    "RAY_health_check_timeout_ms": "1000",
    "RAY_health_check_failure_threshold": "3",
    "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": "8",
}


@dataclass
class Nodes:
    """Node 0 is the head, on which no worker runs; each other one that is started holds one worker."""

    testbed: Testbed
    folder: Path
    processes: dict[int, "subprocess.Popen[bytes]"] = field(default_factory=dict)

    @property
    def address(self) -> str:
        """What the head is reached at from any node."""
        return f"{self.testbed.layout.address(0)}:{_PORT}"

    def start(self, *numbers: int) -> Self:
        """Start Ray on these nodes, and wait until the head knows them."""
        for number in numbers:
            self.processes[number] = subprocess.Popen(
                self._command(number, self._ray_start(number)),
                env=self.environment,
                stdout=(self.folder / f"node-{number}.log").open("ab"),
                stderr=subprocess.STDOUT,
            )
            if number == 0:
                self._await("import ray; ray.init(configure_logging=False)")
        expected = len([number for number in self.processes if number])
        self._await(
            "import ray, time; ray.init(configure_logging=False)\n"
            f"while ray.cluster_resources().get('CPU', 0) < {expected}: time.sleep(0.1)"
        )
        return self

    def lose(self, number: int) -> None:
        """Kill everything that runs on a node, at once."""
        remove_processes(self.testbed.namespaces[number])
        self.processes.pop(number).wait()

    def drain(self, node_id: str, deadline_s: int) -> None:
        """Tell Ray that the node will be taken away, as a cloud does ahead of a preemption."""
        reason = ["--reason", "DRAIN_NODE_REASON_PREEMPTION", "--reason-message", "test"]
        command = ["drain-node", "--address", self.address, "--node-id", node_id, *reason]
        self.call([_ray(), *command, "--deadline-remaining-seconds", f"{deadline_s}"])

    def cut(self, one: int, other: int) -> None:
        """Let nothing through between two nodes; both still reach all others."""
        for here, there in ((one, other), (other, one)):
            call(["ip", "-n", self.testbed.namespaces[here], "route", "add", "blackhole", self._host(there)])

    def heal(self, one: int, other: int) -> None:
        """Undo `cut`."""
        for here, there in ((one, other), (other, one)):
            call(["ip", "-n", self.testbed.namespaces[here], "route", "delete", "blackhole", self._host(there)])

    def submit(self, job: dict[str, Any], job_id: str) -> "Submitted":
        """Start a job from the head."""
        environment = {
            **self.environment,
            "OVERLANE_JOB": json.dumps(job),
            "OVERLANE_JOB_ID": job_id,
            "OVERLANE_STORAGE": str(self.storage),
        }
        command = self._command(0, [sys.executable, "-m", "workers.train", "--job", "env:OVERLANE_JOB"])
        return Submitted(
            subprocess.Popen(
                command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
            )
        )

    def call(self, command: list[str]) -> None:
        """Run a command on the head to its end."""
        done = subprocess.run(
            self._command(0, command), env=self.environment, cwd=ROOT, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr

    @property
    def storage(self) -> Path:
        """Storage that all nodes share."""
        return self.folder / "storage"

    @property
    def environment(self) -> dict[str, str]:
        """Of every process on the nodes."""
        return {
            **os.environ,
            **_IMPATIENT,
            "RAY_ADDRESS": self.address,
            "RAY_AUTH_MODE": "disabled",
            "RAY_USAGE_STATS_ENABLED": "0",
            "GLOO_SOCKET_IFNAME": INTERFACE,
            "PYTHONPATH": str(ROOT),
        }

    def _host(self, number: int) -> str:
        return f"{self.testbed.layout.address(number)}/32"

    def _ray_start(self, number: int) -> list[str]:
        own = self.testbed.layout.address(number)
        head = [f"--head --port={_PORT} --include-dashboard=false".split(), [f"--address={self.address}"]][number > 0]
        return [
            *(_ray(), "start", "--block", *head, f"--node-ip-address={own}", f"--num-cpus={1 if number else 0}"),
            *("--object-store-memory=100000000", f"--temp-dir={self.folder / str(number)}"),
        ]

    def _command(self, number: int, command: list[str]) -> list[str]:
        prefix = self.testbed.namespaces[0].removesuffix("-node0")
        return rank_command(prefix, number, None, command)

    def _await(self, program: str) -> None:
        command = self._command(0, [sys.executable, "-c", program])
        subprocess.run(command, env=self.environment, check=True, timeout=_UP_S, capture_output=True)


class Submitted:
    """A job that runs, and what it has printed so far."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process
        self._lines: list[str] = []
        self._news = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def output(self) -> str:
        return "".join(self._lines)

    def await_line(self, part: str, timeout_s: float = 90) -> str:
        """Wait for a line with `part` in it, and return it."""
        with self._news:
            found = self._news.wait_for(lambda: self._with(part) or self._process.poll() is not None, timeout_s)
        assert found, f"nothing with {part!r} after {timeout_s} s in\n{self.output}"
        line = self._with(part)
        assert line is not None, f"ended without {part!r}:\n{self.output}"
        return line

    def end(self, timeout_s: float = 180) -> int:
        """Wait for its end; the exit status."""
        try:
            return self._process.wait(timeout_s)
        finally:
            self._process.kill()
            self._reader.join(10)

    def _with(self, part: str) -> str | None:
        return next((line for line in self._lines if part in line), None)

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            with self._news:
                self._lines.append(line)
                self._news.notify_all()
        with self._news:
            self._news.notify_all()


def remove_processes(namespace: str) -> None:
    """Kill all that runs in a namespace, until nothing does."""
    while found := pids(namespace):
        for pid in found:
            subprocess.run(["kill", "-9", str(pid)], check=False, capture_output=True)


def _ray() -> str:
    return str(Path(sys.executable).with_name("ray"))


def nodes(folder: Path, count: int) -> Iterator[Nodes]:
    """`count` namespaces without Ray. Raises `TestbedUnavailable` where there can be none."""
    with Testbed(Layout(nodes=count)) as testbed:
        made = Nodes(testbed, folder)
        try:
            yield made
        finally:
            for namespace in testbed.namespaces[:-1]:
                remove_processes(namespace)
            for process in made.processes.values():
                process.wait()
