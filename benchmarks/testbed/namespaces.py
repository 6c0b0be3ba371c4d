"""Namespaces by their owner: a process that dies leaves its namespaces behind, and a later one removes them."""

import os
import re
import shutil
import signal
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

TOOLS = ("ip", "tc", "taskset", "setpriv")
_NAME = re.compile(r"overlane-(?P<pid>\d+)-(?P<start>\d+)-\d+-(?:switch|node\d)")


class TestbedUnavailable(RuntimeError):  # noqa: N818 - reads as a sentence where it is raised
    """There can be no testbed on this machine or for this user; says what to do."""

    # Its name begins like that of a test case.
    __test__ = False


def refuse_if_unavailable() -> None:
    """Raises `TestbedUnavailable` without root, or without the tools."""
    if os.geteuid() != 0:
        raise TestbedUnavailable("network namespaces need root; run the same command as root, for example with sudo")
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    if missing:
        raise TestbedUnavailable(f"{', '.join(missing)} not found; install the packages iproute2 and util-linux")


def call(command: Sequence[str]) -> str:
    """Run an administrative command and return its output. Raises `TestbedUnavailable` with what it said."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        said = done.stderr.strip() or f"exit status {done.returncode}"
        raise TestbedUnavailable(f"{' '.join(command)}: {said}; root needs the capabilities of network administration")
    return done.stdout


def prefix_of_this_process(count: int) -> str:
    """What the namespaces of this process's testbed number `count` begin with.

    The time at which the process began stands beside its id, since ids are used again.
    """
    return f"overlane-{os.getpid()}-{_start_ticks(os.getpid())}-{count}"


def existing() -> list[str]:
    """The namespaces of all testbeds on this machine."""
    return [name for line in call(["ip", "netns", "list"]).splitlines() if _NAME.fullmatch(name := line.split(" ")[0])]


def leftovers() -> list[str]:
    """The namespaces whose owner is dead."""
    return [name for name in existing() if not _owner_lives(name)]


def remove(names: Sequence[str]) -> None:
    """Kill what still runs in these namespaces, and delete them. A name that is already gone is no fault."""
    for name in names:
        for pid in pids(name):
            # It may have ended by itself in the meantime.
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        done = subprocess.run(["ip", "netns", "delete", name], capture_output=True, text=True, check=False)
        if done.returncode != 0 and name in existing():
            raise TestbedUnavailable(f"namespace {name} cannot be deleted: {done.stderr.strip()}")


def pids(name: str) -> list[int]:
    """The processes in a namespace; none if it does not exist."""
    done = subprocess.run(["ip", "netns", "pids", name], capture_output=True, text=True, check=False)
    return [int(pid) for pid in done.stdout.split()]


def _owner_lives(name: str) -> bool:
    match = _NAME.fullmatch(name)
    assert match is not None
    return _start_ticks(int(match["pid"])) == int(match["start"])


def _start_ticks(pid: int) -> int | None:
    """When a process began, in clock ticks since the machine did; None if there is no such process."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    except OSError:
        return None
    # The name of the program stands in parentheses and may contain blanks; the start is the 20th field after it.
    return int(stat.rpartition(")")[2].split()[19])
