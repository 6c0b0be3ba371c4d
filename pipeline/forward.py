"""What stands in for the forward of a prioritized module."""

from collections.abc import Callable
from typing import Any

from torchrec.distributed.train_pipeline.pipeline_context import TrainPipelineContext
from torchrec.distributed.train_pipeline.runtime_forwards import BaseForward

from pipeline.errors import UnsupportedModel


class PipelinedForward(BaseForward[TrainPipelineContext]):  # type: ignore[misc]  # TorchRec is untyped to mypy
    """Hands over what the pipeline has prepared for this step.

    Outside a step (in an evaluation, say) it calls the module's own forward.
    """

    original: Callable[..., Any]
    before_original: Callable[[str], None]
    _prepared: Any = None
    _in_step = False

    def prepare(self, embeddings: Any) -> None:
        """The model's forward comes next; it gets these embeddings."""
        self._prepared, self._in_step = embeddings, True

    def leave_step(self) -> bool:
        """The model's forward is over. Says whether it called the module."""
        called = self._prepared is None
        self._prepared, self._in_step = None, False
        return called

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not self._in_step:
            self.before_original(self.name)
            return self.original(*args, **kwargs)
        if self._prepared is None:
            raise UnsupportedModel(
                f"{self.name} is called more than once in the model's forward; give each call a module of its own"
            )
        prepared, self._prepared = self._prepared, None
        return prepared
