"""Does it slow a job down that 200 clients follow its events? `make bench ARGS=events`.

Two ranks train MovieLens and report to a control plane, all on this machine. In turns, 200 clients follow the job and
nobody does. Clients, control plane and ranks share the cores, so what the clients themselves cost counts too.
"""

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from benchmarks.events.plane import JOB_FILE, JOB_ID, REPORT_TOKEN
from benchmarks.results import Figure, Ratio, Result
from benchmarks.telemetry import RANKS, WARM_UP, block, ranks
from workers.job import load_job
from workers.telemetry.monitor import Destination

CLIENTS = 200
# Samples are delivered about every two seconds, and blocks are long against that.
BLOCK, TURNS = 500, 60
LIMIT = 1.01

Process = subprocess.Popen[str]


def run() -> Result:
    """Take turns and compare. The target holds for the median turn, and for every client in every turn."""
    turns, whole, events = [], [], 0
    with ExitStack() as stack:
        port = int(_answer(stack.enter_context(_process("plane", stack.enter_context(_folder())))))
        clients = stack.enter_context(_process("followers", str(port), str(CLIENTS)))
        to = Destination(f"http://127.0.0.1:{port}", REPORT_TOKEN)
        group = stack.enter_context(ranks(load_job(JOB_FILE), to, JOB_ID))
        block(group, telemetry=True, steps=WARM_UP)
        before = block(group, telemetry=True, steps=BLOCK)
        for _ in range(TURNS):
            _tell(clients, "on")
            followed = block(group, telemetry=True, steps=BLOCK)
            saw_all, seen = map(int, _tell(clients, "off").split())
            after = block(group, telemetry=True, steps=BLOCK)
            # Each block is compared with both its neighbours, since a machine drifts by more than what is judged.
            turns.append((followed, (before + after) / 2))
            whole.append(saw_all)
            events += seen
            before = after
    ratio = Ratio.of(f"{CLIENTS} clients follow", "nobody follows", turns)
    return Result.now(
        "events",
        f"step time of {JOB_FILE.name} on {RANKS} ranks, mean of {BLOCK} steps a turn",
        f"at most {LIMIT}, and all clients see every event",
        reached=ratio.median <= LIMIT and min(whole) == CLIENTS and events > TURNS,
        ratios=[ratio],
        figures=[
            Figure(name="clients that saw every event, in the worst turn", value=min(whole)),
            Figure(name="events that each client saw, in all turns", value=events),
        ],
    )


@contextmanager
def _folder() -> Iterator[str]:
    with tempfile.TemporaryDirectory(prefix="ovl-") as folder:
        yield folder


@contextmanager
def _process(module: str, *arguments: str) -> Iterator[Process]:
    """A module of this folder in a process of its own, ended with the block."""
    command = [sys.executable, "-m", f"benchmarks.events.{module}", *arguments]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def _tell(process: Process, word: str) -> str:
    assert process.stdin is not None
    process.stdin.write(f"{word}\n")
    process.stdin.flush()
    return _answer(process)


def _answer(process: Process) -> str:
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise RuntimeError(f"{process.args!r} has ended; what it said stands above")
    return line.strip()
