"""What became of a case: exact, refused, or a fault."""

import gc
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum

import torch
import torch.distributed as dist

from pipeline.errors import UnsupportedModel
from tests.integration.pipeline.property.case import Case
from tests.integration.pipeline.property.state import differences
from tests.integration.pipeline.property.training import PipelineLoop, PlainLoop, Trained, train
from tests.ranks import RankFailed, RankPool


class Verdict(StrEnum):
    """How the pipeline's training compares with plain training."""

    EXACT = "exact"
    REFUSED = "refused"
    UNTRAINABLE = "plain TorchRec cannot train it here"
    DIFFERENT = "different numbers"
    FAILED = "fails where plain training does not"


@dataclass(frozen=True)
class Outcome:
    """The verdict on one rank or, taken together, on all. `not_prioritized` maps module names to reasons."""

    verdict: Verdict
    detail: str = ""
    prioritized: tuple[str, ...] = ()
    not_prioritized: dict[str, str] = field(default_factory=dict)

    @property
    def kept(self) -> bool:
        """Whether the promise was kept: the same numbers, or a refusal before the first step."""
        return self.verdict in (Verdict.EXACT, Verdict.REFUSED)


def judge(pool: RankPool, case: Case, *, timeout_s: float = 30) -> Outcome:
    """Train the case both ways on the pool's ranks and take their outcomes together: the worst, in Verdict's order."""
    try:
        outcomes = pool.run(case.world_size, compare, timeout_s=timeout_s, case=case)
    except RankFailed as hang:
        return Outcome(Verdict.FAILED, str(hang))
    verdicts = {outcome.verdict for outcome in outcomes}
    if Verdict.UNTRAINABLE in verdicts:
        untrainable = [outcome for outcome in outcomes if outcome.verdict is Verdict.UNTRAINABLE]
        # The rank that failed first says why; the others only saw it leave.
        return min(untrainable, key=lambda outcome: "Connection closed by peer" in outcome.detail)
    if verdicts == {Verdict.EXACT} or verdicts == {Verdict.REFUSED}:
        return outcomes[0]
    worst = Verdict.FAILED if Verdict.FAILED in verdicts else Verdict.DIFFERENT
    told = [f"--- rank {rank}: {outcome.verdict}\n{outcome.detail}" for rank, outcome in enumerate(outcomes)]
    return Outcome(worst, "\n".join(told))


def compare(device: torch.device, case: Case) -> Outcome:
    """On every rank: train both ways."""
    outcome = _compare(device, case)
    if not outcome.kept:
        # The models of a failed run keep connections open, and other ranks would wait for their timeout.
        gc.collect()
    return outcome


def _compare(device: torch.device, case: Case) -> Outcome:
    plain = attempt(lambda: train(case, PlainLoop(case, device), lambda: None))
    if isinstance(plain, str):
        return Outcome(Verdict.UNTRAINABLE, plain)
    if not all(torch.isfinite(each).all() for each in (*plain.outputs, *plain.state.values())):
        return Outcome(Verdict.UNTRAINABLE, "training diverges")
    # No rank may begin with the pipeline while another still fails in plain training.
    dist.barrier()
    steps: list[None] = []
    try:
        loop = PipelineLoop(case, device)
        trained = train(case, loop, lambda: steps.append(None))
    except UnsupportedModel as refusal:
        if steps:
            return Outcome(Verdict.FAILED, f"refused only after {len(steps)} steps: {refusal}")
        return Outcome(Verdict.REFUSED, str(refusal))
    except Exception:
        return Outcome(Verdict.FAILED, traceback.format_exc())
    return _compared(plain, trained, loop)


def _compared(plain: Trained, piped: Trained, loop: PipelineLoop) -> Outcome:
    different = differences(plain.state, piped.state)
    if len(plain.outputs) != len(piped.outputs):
        different.append(f"{len(plain.outputs)} outputs, {len(piped.outputs)} by the pipeline")
    pairs = zip(plain.outputs, piped.outputs, strict=False)
    different += [f"output {place}" for place, (one, other) in enumerate(pairs) if not torch.equal(one, other)]
    named = loop.pipe.prioritized.keys() | loop.pipe.not_prioritized.keys()
    every = {f"embeddings.{which}" for which in range(len(loop.case.modules))}
    different += [f"{name} is neither prioritized nor told why not" for name in sorted(every - named)]
    verdict = Verdict.DIFFERENT if different else Verdict.EXACT
    return Outcome(verdict, "\n".join(different), tuple(loop.pipe.prioritized), loop.pipe.not_prioritized)


def attempt(training: Callable[[], Trained]) -> Trained | str:
    """What training gave, or the error that it raised."""
    try:
        return training()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
