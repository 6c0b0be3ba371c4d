"""A real testbed: its nodes reach each other, and nothing of it remains."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.testbed import Layout, Rate, Testbed, TestbedUnavailable
from benchmarks.testbed.namespaces import TOOLS, existing, leftovers, pids

MODULE = [sys.executable, "-m", "benchmarks.testbed"]


def _reason_against() -> str | None:
    if os.geteuid() != 0:
        return "network namespaces need root"
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    if missing:
        return f"{', '.join(missing)} not found"
    try:
        with Testbed(Layout(nodes=2, rate=Rate.parse("500mbit"))):
            return None
    except TestbedUnavailable as error:
        return str(error)


@pytest.fixture(scope="module", autouse=True)
def _possible_here() -> None:
    if (reason := _reason_against()) is not None:
        pytest.skip(reason)


@pytest.fixture
def own(tmp_path: Path) -> Iterator[Path]:
    before = set(leftovers())
    yield tmp_path
    assert set(leftovers()) - before == set(), "namespaces are left over"
    assert [name for name in existing() if f"-{os.getpid()}-" in name] == []


# Every rank listens, says hello to all others, and leaves the names of those who said hello to it.
HELLO = """
import os, pathlib, socket, sys, time
rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
listener = socket.create_server((f"10.77.0.{rank + 1}", 5000), backlog=8)
for peer in range(ranks):
    while peer != rank:
        try:
            socket.create_connection((f"10.77.0.{peer + 1}", 5000), timeout=5).sendall(bytes([rank]))
            break
        except ConnectionRefusedError:
            time.sleep(0.01)
heard = sorted(listener.accept()[0].recv(1)[0] for _ in range(ranks - 1))
pathlib.Path(sys.argv[1], str(rank)).write_text(repr(heard))
"""


@pytest.mark.parametrize(("nodes", "rate"), [(2, "unlimited"), (4, "100mbit")])
def test_nodes_reach_each_other(own: Path, nodes: int, rate: str) -> None:
    with Testbed(Layout(nodes, Rate.parse(rate))) as testbed:
        assert testbed.run([sys.executable, "-c", HELLO, str(own)]) == 0
    heard = [(own / str(rank)).read_text() for rank in range(nodes)]
    assert heard == [repr([peer for peer in range(nodes) if peer != rank]) for rank in range(nodes)]


def test_a_node_sees_nothing_but_its_link(own: Path) -> None:
    with Testbed(Layout()) as testbed:
        assert testbed.run(["sh", "-c", f"ls /sys/class/net > {own}/$RANK; ip -o link > {own}/link$RANK"]) == 0
    links = (own / "link0").read_text().splitlines()
    assert [line.split(": ")[1].partition("@")[0] for line in links] == ["lo", "eth0"]


def test_two_testbeds_at_once(own: Path) -> None:
    with Testbed(Layout()) as one, Testbed(Layout()) as other:
        assert not set(one.namespaces) & set(other.namespaces)
        assert one.run(["true"]) == other.run(["true"]) == 0


def test_a_failing_rank_ends_the_others(own: Path) -> None:
    script = 'if [ "$RANK" = 1 ]; then exit 7; fi; exec sleep 600'
    done = subprocess.run([*MODULE, "--nodes", "3", "--", "sh", "-c", script], timeout=60, check=False)
    assert done.returncode == 7


def test_a_killed_rank_is_a_failure(own: Path) -> None:
    with Testbed(Layout()) as testbed:
        assert testbed.run(["sh", "-c", "kill -KILL $$"]) == 128 + signal.SIGKILL


def test_a_fault_inside_the_with_removes_it(own: Path) -> None:
    with pytest.raises(ZeroDivisionError), Testbed(Layout()):
        raise ZeroDivisionError


def test_a_testbed_that_cannot_be_finished_is_removed(own: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    impossible = [["ip", "-n", "nowhere", "link"]]
    build = Layout.build_commands
    monkeypatch.setattr(Layout, "build_commands", lambda self, prefix: build(self, prefix) + impossible)
    with pytest.raises(TestbedUnavailable, match="nowhere"), Testbed(Layout()):
        raise AssertionError("entered")


def _start_waiting() -> "subprocess.Popen[str]":
    """A testbed whose ranks wait; returns once one of them says that it runs."""
    script = "echo up; exec sleep 600"
    owner = subprocess.Popen([*MODULE, "--", "sh", "-c", script], stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    assert owner.stdout.readline() == "up\n"
    return owner


def test_a_terminated_owner_removes_it(own: Path) -> None:
    owner = _start_waiting()
    owner.terminate()
    assert owner.wait(timeout=60) == 128 + signal.SIGTERM


def test_a_later_run_removes_what_a_killed_owner_left(own: Path) -> None:
    owner = _start_waiting()
    theirs = [name for name in existing() if f"-{owner.pid}-" in name]
    assert len(theirs) == 3
    owner.kill()
    owner.wait()
    assert set(theirs) <= set(leftovers())
    with Testbed(Layout()):
        assert not set(theirs) & set(existing())
    assert [pid for name in theirs for pid in pids(name)] == []


def test_the_living_keep_theirs(own: Path) -> None:
    with Testbed(Layout()) as testbed:
        done = subprocess.run([*MODULE, "--clean"], timeout=60, check=False)
        assert done.returncode == 0
        assert set(testbed.namespaces) <= set(existing())
