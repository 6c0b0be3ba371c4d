"""How far a training is: what a checkpoint holds beside the model, so that the next attempt goes on from there."""

from dataclasses import dataclass, replace

from workers.job import EarlyStoppingSpec
from workers.sources.schema import Consumed

_SIGN = {"auc": 1.0, "ne": -1.0}


@dataclass(frozen=True)
class Position:
    """After `steps` steps, which took `samples` samples over all ranks; steps that were left out count. `best` is the
    best value of early stopping's metric so far, and `stale` counts the evaluations since then.
    """

    steps: int = 0
    samples: int = 0
    best: float | None = None
    stale: int = 0

    @property
    def consumed(self) -> Consumed:
        """What a source goes on from."""
        return Consumed(self.steps, self.samples)

    def at(self, steps: int, samples_per_step: int) -> "Position":
        """The same, further on."""
        return replace(self, steps=steps, samples=self.samples + (steps - self.steps) * samples_per_step)

    def evaluated(self, stopping: EarlyStoppingSpec, metrics: dict[str, float | None]) -> "Position":
        """After another evaluation. A metric without a value is no improvement."""
        value = metrics.get(stopping.metric)
        if value is not None and self._is_better(stopping, value):
            return replace(self, best=value, stale=0)
        return replace(self, stale=self.stale + 1)

    def is_final(self, stopping: EarlyStoppingSpec | None) -> bool:
        """Whether early stopping has ended the training."""
        return stopping is not None and self.stale >= stopping.patience

    def _is_better(self, stopping: EarlyStoppingSpec, value: float) -> bool:
        return self.best is None or _SIGN[stopping.metric] * (value - self.best) > stopping.min_delta
