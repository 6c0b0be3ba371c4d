"""One rank: builds every contestant, lets them take turns, and writes down what it measured.

Started on each node by the testbed: `python -m benchmarks.pipelines.rank PLAN FOLDER`.
"""

import gc
import logging
import sys
import time
import warnings
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from benchmarks.pipelines.equality import unequal
from benchmarks.pipelines.link import await_idle
from benchmarks.pipelines.neighbours import OthersTime
from benchmarks.pipelines.records import Block, RankRecord
from benchmarks.pipelines.runners import Runner, prepare
from benchmarks.pipelines.scenario import Contestant, Plan
from benchmarks.pipelines.steps import stage_times, timeline_of
from benchmarks.pipelines.workload import Stream
from workers.memory import keep_freed_memory

TIMEOUT = timedelta(seconds=120)
# Steps in which a contestant fills its pipeline and libraries make their first allocations.
WARM_UP = 4
# How often a block is measured until nobody else disturbs it.
TRIES = 3


def main() -> None:
    plan = Plan.model_validate_json(Path(sys.argv[1]).read_text(encoding="utf-8"))
    torch.set_num_threads(1)
    keep_freed_memory()
    logging.getLogger("torchrec").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", category=FutureWarning, module="torchrec")
    dist.init_process_group("gloo", timeout=TIMEOUT)
    stream = Stream.of(plan.scenario)
    unable: dict[str, str] = {}
    runners = [runner for each in plan.contestants if (runner := _able(each, plan, stream, unable)) is not None]
    blocks = [block for turn in range(plan.turns) for block in _turn(plan, runners, turn)]
    record = RankRecord(
        rank=dist.get_rank(),
        blocks=tuple(blocks),
        timelines=tuple(timeline_of(runner) for runner in runners),
        stages=tuple(time for runner in runners for time in stage_times(runner)),
        unable=unable,
        unequal=unequal([runner.contestant for runner in runners], plan.scenario, stream),
    )
    path = Path(sys.argv[2]) / f"{dist.get_rank()}.json"
    path.write_text(record.model_dump_json(), encoding="utf-8")
    dist.barrier()
    dist.destroy_process_group()


def _able(contestant: Contestant, plan: Plan, stream: Stream, unable: dict[str, str]) -> Runner | None:
    """The contestant after its first steps; None if it cannot run here, with the reason in `unable`."""
    try:
        runner = prepare(contestant, plan.scenario, stream)
        for _ in range(WARM_UP):
            runner.step()
    except Exception as error:
        # All ranks run the same code on the same kind of device, so all of them fail in the same place.
        unable[contestant.name] = f"{type(error).__name__}: {error}"
        return None
    return runner


def _turn(plan: Plan, runners: Sequence[Runner], turn: int) -> list[Block]:
    """Every contestant once. Who begins changes with the turn, so that a drift of the machine favours nobody."""
    first = turn % len(runners)
    return [_block(plan, runner, turn) for runner in [*runners[first:], *runners[:first]]]


def _block(plan: Plan, runner: Runner, turn: int) -> Block:
    """The block with the fewest disturbances of a few tries; most often the first."""
    tries = [_try(plan, runner, turn)]
    while min(block.foreign_share for block in tries) > plan.quiet and len(tries) < TRIES:
        tries.append(_try(plan, runner, turn))
    return min(tries, key=lambda block: block.foreign_share)


def _try(plan: Plan, runner: Runner, turn: int) -> Block:
    gc.collect()
    await_idle()
    dist.barrier()
    for _ in range(plan.settle):
        runner.step()
    if runner.overlane is not None:
        runner.overlane.reports(wait=True)
    step_ms = []
    since = OthersTime.now()
    for _ in range(plan.block):
        begin = time.perf_counter()
        runner.step()
        step_ms.append((time.perf_counter() - begin) * 1e3)
    foreign = _foreign_share(since)
    return Block(
        turn=turn,
        contestant=runner.contestant.name,
        step_ms=tuple(step_ms),
        reports=tuple(runner.overlane.reports(wait=True)) if runner.overlane is not None else (),
        foreign_share=foreign,
    )


def _foreign_share(since: OthersTime) -> float:
    """The most that a rank has seen, so that all agree on whether to try again."""
    worst = torch.tensor(OthersTime.now().share(since))
    dist.all_reduce(worst, dist.ReduceOp.MAX)
    return float(worst)


if __name__ == "__main__":
    main()
