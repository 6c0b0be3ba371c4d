"""The watchdog tells a rank that hangs from one that moves, and from one that waits for others."""

import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from pipeline.executor import Running
from workers.training.watchdog import HungError, Watchdog, _waits_for_others


@dataclass
class Pipe:
    running: Running | None = None


class Told:
    def __init__(self) -> None:
        self.errors: list[tuple[HungError, str]] = []

    def __call__(self, error: HungError, where: str) -> None:
        self.errors.append((error, where))


@pytest.fixture
def told() -> Told:
    return Told()


@pytest.fixture
def dog(told: Told) -> Watchdog:
    """Watches this thread, and is looked through by hand."""
    dog = Watchdog(10.0, told)
    dog.follow(Pipe(), 40)
    dog.look(0.0)
    return dog


def test_a_rank_that_stands_still_too_long_is_told_with_its_stage(dog: Watchdog, told: Told) -> None:
    dog.follow(Pipe(Running("forward", 2)), 40)
    assert not dog.look(1.0)
    assert not dog.look(11.0)
    assert dog.look(11.5)
    ((error, where),) = told.errors
    assert str(error) == "no progress for 10 s"
    assert where == "stage forward of step 42"
    assert "test_a_rank_that_stands_still" in error.stack


@pytest.mark.parametrize(
    "move",
    [
        lambda dog, pipe: dog.beat(),
        lambda dog, pipe: dog.enter("evaluation"),
        lambda dog, pipe: setattr(pipe, "running", Running("forward", 2)),
    ],
    ids=["beat", "enter", "stage"],
)
def test_a_rank_that_moves_is_left_in_peace(told: Told, move: Callable[[Watchdog, Pipe], None]) -> None:
    pipe, dog = Pipe(), Watchdog(10.0, told)
    dog.follow(pipe, 0)
    dog.look(0.0)
    assert not dog.look(9.0)
    move(dog, pipe)
    assert not dog.look(18.0)
    assert not dog.look(27.0)
    assert dog.look(29.0)


def test_outside_of_any_stage_the_phase_is_named(dog: Watchdog, told: Told) -> None:
    dog.enter("evaluation")
    dog.look(1.0)
    assert dog.look(12.0)
    assert told.errors[0][1] == "evaluation"


def test_what_comes_before_the_training_may_take_long(told: Told) -> None:
    dog = Watchdog(10.0, told)
    assert not dog.look(0.0)
    assert not dog.look(1e6)
    dog.follow(Pipe(), 0)
    assert not dog.look(1e6 + 9)
    assert dog.look(1e6 + 11)


@pytest.mark.parametrize(
    "module", ["torch.distributed.distributed_c10d", "torch.futures", "pipeline.runtime.cpu", "ray._private.worker"]
)
def test_a_rank_that_waits_for_others_is_not_to_blame(module: str) -> None:
    scope: dict[str, object] = {"__name__": module}
    exec("import sys\ndef wait():\n    return sys._getframe()", scope)
    frame = scope["wait"]()  # type: ignore[operator]
    assert _waits_for_others(frame)
    scope["__name__"] = "somebody.model"
    assert not _waits_for_others(scope["wait"]())  # type: ignore[operator]


def test_whoever_waits_for_an_event_is_judged_and_not_the_event() -> None:
    frames = {}
    reached, over = threading.Event(), threading.Event()
    scope: dict[str, object] = {"reached": reached, "over": over}
    exec("def wait():\n    reached.set()\n    over.wait()", scope)
    for module in ("workers.training.checkpoint", "somebody.model"):
        scope["__name__"] = module
        reached.clear()
        over.clear()
        thread = threading.Thread(target=scope["wait"])  # type: ignore[arg-type]
        thread.start()
        reached.wait()
        assert thread.ident is not None
        frames[module] = _waits_for_others(sys._current_frames()[thread.ident])
        over.set()
        thread.join()
    assert frames == {"workers.training.checkpoint": True, "somebody.model": False}


def test_its_own_thread_looks_and_tells_once() -> None:
    heard = threading.Event()
    errors: list[HungError] = []

    def tell(error: HungError, where: str) -> None:
        errors.append(error)
        heard.set()

    with Watchdog(0.01, tell) as dog:
        dog.follow(Pipe(Running("backward", 0)), 0)
        assert heard.wait(60)
    assert len(errors) == 1
