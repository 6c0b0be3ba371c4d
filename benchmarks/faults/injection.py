"""Faults that strike a rank in the middle of a training, each once.

A job names `ranker` of this module as its model. Where that model is built, the faults among its parameters are armed.
"""

import gc
import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any

import ray
import ray.util
import torch.distributed as dist
from pydantic import BaseModel, ConfigDict
from ray.train.v2._internal.execution.context import get_train_context
from torch import nn

from pipeline.executor import Executor, Running
from workers.models import sequence_ranker
from workers.sources.schema import Schema
from workers.telemetry.monitor import NAMESPACE, actor_name
from workers.telemetry.sender import Telemetry
from workers.training import checkpoint, state

WRITE, UPLOAD = "checkpoint write", "checkpoint upload"
"""Places beside the stages of the schedule: before a rank writes its part, and between writing and uploading it."""


class Kind(StrEnum):
    """What happens to the rank, or to whom the rank does it."""

    KILL = "kill"
    RAISE = "raise"
    HANG = "hang"
    FREEZE = "freeze"
    WAIT = "wait"
    WAIT_FOR_NOTICE = "wait for notice"
    WAIT_FOR_STOP = "wait for stop"
    KILL_MONITOR = "kill monitor"
    KILL_DRIVER = "kill driver"


class Fault(BaseModel):
    """One fault: at `place` (a stage, or one of the two above) of `rank`, for its batch or checkpoint number `count`.

    Both are counted from 0 in the attempt. The file `marker` says that it has struck, when (seconds since the epoch)
    and on which node of Ray (its id and its address). The file `driver` holds the process id of the driver. WAIT ends
    when there is a file `marker` with the suffix `.go`, and WAIT_FOR_NOTICE when Ray has told the rank of a preemption,
    WAIT_FOR_STOP when it is told to stop.
    It strikes only once there is the file `after`.
    """

    model_config = ConfigDict(frozen=True)

    kind: Kind
    place: str
    rank: int
    count: int
    marker: Path
    driver: Path | None = None
    job_id: str = ""
    after: Path | None = None

    def strike(self) -> None:
        """Strike, unless it has struck before."""
        if self.after is not None and not self.after.exists():
            return
        try:
            with self.marker.open("x", encoding="utf-8") as file:
                node = ray.get_runtime_context().get_node_id()
                file.write(f"{time.time()} {node} {ray.util.get_node_ip_address()}\n")
        except FileExistsError:
            return
        match self.kind:
            case Kind.KILL:
                os.kill(os.getpid(), signal.SIGKILL)
            case Kind.FREEZE:
                os.kill(os.getpid(), signal.SIGSTOP)
            case Kind.RAISE:
                raise ArithmeticError("injected")
            case Kind.HANG:
                threading.Event().wait()
            case Kind.WAIT:
                _wait_until(self.marker.with_suffix(".go").exists)
            case Kind.WAIT_FOR_NOTICE:
                _wait_until(lambda: get_train_context().preemption_context.preemption_info is not None)
            case Kind.WAIT_FOR_STOP:
                told = [each for each in gc.get_objects() if isinstance(each, Telemetry)]
                _wait_until(lambda: any(each.told_to_stop for each in told))
            case Kind.KILL_MONITOR:
                _kill_monitor(self.job_id)
            case Kind.KILL_DRIVER:
                assert self.driver is not None
                os.kill(int(self.driver.read_text(encoding="utf-8")), signal.SIGKILL)


def ranker(schema: Schema, faults: Sequence[dict[str, Any]], **params: Any) -> nn.Module:
    """The built-in ranker with `params`. This process is struck by its share of `faults`."""
    _arm([fault for each in faults if (fault := Fault.model_validate(each)).rank == dist.get_rank()])
    return sequence_ranker(schema, **params)


def _arm(faults: Sequence[Fault]) -> None:
    def strike(place: str, count: int) -> None:
        for fault in faults:
            if (fault.place, fault.count) == (place, count):
                fault.strike()
            if place == "forward" and fault.marker.exists():
                # The first step after the fault, for whoever measures how long it took.
                with fault.marker.with_suffix(".resumed").open("a", encoding="utf-8") as file:
                    file.write(f"{time.time()}\n")

    run = Executor._run

    def struck_run(self: Executor, stage: Any, batch: int) -> None:
        # As if it were the stage itself.
        outer, self.running = self.running, Running(stage.name, batch)
        strike(stage.name, batch)
        self.running = outer
        run(self, stage, batch)

    Executor._run = struck_run  # type: ignore[method-assign]
    checkpoint.write = _struck_write(state.write, strike)  # type: ignore[attr-defined]


def _struck_write(write: Callable[..., None], strike: Callable[[str, int], None]) -> Callable[..., None]:
    written = 0

    def struck(*arguments: Any) -> None:
        nonlocal written
        strike(WRITE, written)
        write(*arguments)
        strike(UPLOAD, written)
        written += 1

    return struck


def _wait_until(condition: Callable[[], bool]) -> None:
    pause = threading.Event()
    while not condition():
        pause.wait(0.05)


def _kill_monitor(job_id: str) -> None:
    ray.kill(ray.get_actor(actor_name(job_id), namespace=NAMESPACE), no_restart=False)
