"""What catches a mutant. Each says what is wrong with the pipeline as it stands; an empty list means: nothing."""

from collections.abc import Callable
from dataclasses import replace
from enum import Enum

import torch

from pipeline import TrainPipeline, schedules
from pipeline.checks import check
from pipeline.executor import UndeclaredNeed
from tests.integration.pipeline.mutants import scenario
from tests.integration.pipeline.mutants.code_mutations import Mutation
from tests.integration.pipeline.reference import Batch, batches, build
from tests.ranks import RankPool
from tests.unit.pipeline import test_exchange
from tests.unit.pipeline.fences import cpu_faults, cuda_faults, lane_streams

Mutate = Callable[[], Mutation]


class Catcher(Enum):
    """The kinds of tests, each with the sentence that the document gives to it."""

    CHECKS = "the checks that run before every training (`pipeline/checks.py`, `tests/unit/pipeline/test_schedule.py`)"
    DECLARED_NEEDS = "a stage may read only what it declares: the first step fails (`test_no_need_can_be_dropped`)"
    CUDA_FENCES = "the schedule on clocked CUDA streams (`tests/unit/pipeline/test_fences.py`)"
    CUDA_STREAMS = "each lane has a stream of its own (`tests/unit/pipeline/test_fences.py`)"
    CPU_WAITS = "the schedule on transfers that wait to be waited for (`tests/unit/pipeline/test_fences.py`)"
    BOTH_ENDS = "both ends of a parted transfer agree (`tests/unit/pipeline/test_exchange.py`)"
    TWO_RANKS = "bit-identity with plain training on two ranks (`mutants/scenario.py`)"
    THREE_RANKS = "bit-identity with plain training on three ranks (`mutants/scenario.py`)"

    def faults(self, ranks: RankPool, mutate: Mutate, schedule: str) -> list[str]:
        """What this catcher finds under a mutation of a schedule."""
        match self:
            case Catcher.TWO_RANKS | Catcher.THREE_RANKS:
                world_size = 2 if self is Catcher.TWO_RANKS else 3
                found = ranks.run(world_size, scenario.wrong_numbers, timeout_s=20, schedule=schedule, mutate=mutate)
                return [fault for rank in found for fault in rank]
            case Catcher.DECLARED_NEEDS:
                [fault] = ranks.run(1, undeclared_need, schedule=schedule, mutate=mutate)
                return fault
        with mutate():
            return _faults_here(self, schedule)


def _faults_here(catcher: Catcher, schedule: str) -> list[str]:
    table = schedules.ALL[schedule]
    match catcher:
        case Catcher.CHECKS:
            return [str(violation) for violation in check(table)]
        case Catcher.CUDA_FENCES:
            return _or_error(lambda: cuda_faults(table))
        case Catcher.CUDA_STREAMS:
            streams = lane_streams(table)
            distinct = {stream for own in streams.values() for stream in own}
            return [] if len(distinct) == len(streams) else [f"{len(streams)} lanes on {len(distinct)} streams"]
        case Catcher.CPU_WAITS:
            return cpu_faults(table)
        case Catcher.BOTH_ENDS:
            return _or_error(lambda: test_exchange.test_both_ends_of_a_parted_transfer_agree() or [])
        case _:
            raise AssertionError(f"{catcher} needs ranks")


def _or_error(find: Callable[[], list[str]]) -> list[str]:
    try:
        return find()
    except (AssertionError, RuntimeError, ExceptionGroup) as error:
        return [f"{type(error).__name__}: {error}"]


def undeclared_need(device: torch.device, schedule: str, mutate: Mutate) -> list[str]:
    """Train three batches; the need that a stage reads without declaring it."""
    case = replace(scenario.CASE, steps=3)
    with mutate():
        model, optimizer = build(case, device)
        pipe: TrainPipeline[Batch, torch.Tensor] = TrainPipeline(model, optimizer, device, schedule=schedule)
        source = batches(case, 0)
        try:
            for _ in range(case.steps):
                pipe.progress(source)
            pipe.flush()
        except UndeclaredNeed as error:
            return [str(error)]
    return []
