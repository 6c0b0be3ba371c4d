"""Looks over the pipeline's shoulder: the outputs of its stages, batch by batch. The one place here that knows them."""

from collections.abc import Callable
from typing import Any

from torch import Tensor

from pipeline import TrainPipeline
from pipeline.executor import Inputs
from pipeline.report import Partition
from pipeline.stages.batch import Received
from pipeline.stages.overlap import Overlap, TrainerOverlap


class Watch:
    """What the stages of a pipeline produced. All models here have one sharding group, so group 0 is meant."""

    def __init__(self) -> None:
        self._seen: dict[tuple[str, int], Any] = {}

    def __call__(self, pipe: TrainPipeline[Any, Any]) -> None:
        """Watch this pipeline from now on."""
        for name, function in pipe._functions.items():
            pipe._functions[name] = self._watched(name, function)

    def _watched(self, name: str, function: Callable[[Inputs], Any]) -> Callable[[Inputs], Any]:
        def watched(inputs: Inputs) -> Any:
            value = function(inputs)
            self._seen[name, inputs.batch] = value
            return value

        return watched

    def rows(self, batch: int) -> list[int]:
        """The owner's rows of a batch, unique across its tables, in owner order."""
        received: Received = self._seen["receive", batch]
        return received.exchanges[0].rows.tolist()

    def shared_with_previous(self, batch: int) -> list[bool]:
        """On the owner: which of a batch's ids are OL for its lookup."""
        overlap: Overlap = self._seen["overlap", batch]
        return overlap.splits[0].mask.tolist()

    def shared_with_next(self, batch: int) -> list[bool] | None:
        """On the owner: which of a batch's ids are OL for its gradients; None where there is no next batch."""
        overlap: Overlap | None = self._seen.get(("overlap", batch + 1))
        return None if overlap is None or overlap.previous is None else overlap.previous[0].mask.tolist()

    def places(self, batch: int, part: Partition) -> list[int]:
        """On the trainer: the places in the batch whose embeddings travel in this part, in wire order."""
        parted: TrainerOverlap = self._seen["partition", batch]
        return parted.splits[0].part(part).index.tolist()

    def gradient_places(self, batch: int, part: Partition) -> list[int] | None:
        """The same for the gradients; None where there is no next batch."""
        parted: TrainerOverlap | None = self._seen.get(("partition", batch + 1))
        return None if parted is None or parted.previous is None else parted.previous[0].part(part).index.tolist()

    def embeddings(self, batch: int, part: Partition) -> Tensor:
        """What arrived for a batch in this part, `[num_ids, dim]` in wire order."""
        arrived: Tensor = self._seen[f"{part.value}_embedding_a2a", batch][0]
        return arrived

    def gradients_sent(self, batch: int, part: Partition) -> int:
        """How many rows of gradients a batch sends in this part."""
        sent = self._seen["backward", batch].parts[part][0]
        return 0 if sent is None else len(sent.wire)
