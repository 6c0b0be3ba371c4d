"""A testbed as a context manager: it exists inside the `with`, and nothing of it afterwards."""

import itertools
import os
import subprocess
import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Self

from benchmarks.testbed.layout import Layout, cores, node_name, rank_command, switch_name
from benchmarks.testbed.namespaces import (
    TestbedUnavailable,
    call,
    leftovers,
    prefix_of_this_process,
    refuse_if_unavailable,
    remove,
)

__all__ = ["Testbed", "TestbedUnavailable"]

_POLL_S = 0.05
_GRACE_S = 5.0
_numbers = itertools.count()


class Testbed:
    """Nodes with limited links between them. Entering it also removes what dead owners have left behind."""

    # Its name begins like that of a test case.
    __test__ = False

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self._prefix = ""

    def __enter__(self) -> Self:
        """Raises `TestbedUnavailable` without root or tools, or if the kernel lacks something."""
        refuse_if_unavailable()
        remove(leftovers())
        self._prefix = prefix_of_this_process(next(_numbers))
        try:
            for command in self.layout.build_commands(self._prefix):
                call(command)
        except BaseException:
            remove(self.namespaces)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        remove(self.namespaces)

    @property
    def namespaces(self) -> list[str]:
        """The nodes' namespaces in order, then the switch's."""
        return [*(node_name(self._prefix, node) for node in range(self.layout.nodes)), switch_name(self._prefix)]

    def run(self, command: Sequence[str], environment: Mapping[str, str] | None = None) -> int:
        """Run a command once on each node, and wait.

        `environment` is added to this process's own. Returns 0 if all ranks did, else the exit status of the first one
        that failed (128 and the signal's number for one that was killed); the others are ended then, since they would
        wait for it.
        """
        pinned = cores(self.layout.nodes, sorted(os.sched_getaffinity(0)))
        ranks: list[subprocess.Popen[bytes]] = []
        try:
            for node, core in enumerate(pinned):
                ranks.append(
                    subprocess.Popen(
                        rank_command(self._prefix, node, core, command),
                        env={**os.environ, **(environment or {}), **self.layout.environment(node)},
                        stdin=subprocess.DEVNULL,
                    )
                )
            return _first_failure(ranks)
        finally:
            _end(ranks)


def _first_failure(ranks: Sequence["subprocess.Popen[bytes]"]) -> int:
    while True:
        statuses = [rank.poll() for rank in ranks]
        failed = next((status for status in statuses if status), None)
        if failed is not None:
            return failed if failed > 0 else 128 - failed
        if None not in statuses:
            return 0
        time.sleep(_POLL_S)


def _end(ranks: Sequence["subprocess.Popen[bytes]"]) -> None:
    """Ask first, then kill."""
    for rank in ranks:
        rank.terminate()
    deadline = time.monotonic() + _GRACE_S
    for rank in ranks:
        try:
            rank.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            rank.kill()
            rank.wait()
