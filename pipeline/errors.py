"""Errors that a user of the pipeline can meet.

PipelineError
 ├─ UnsupportedModel      the model, plan or optimizer cannot be trained exactly; raised before the first step
 ├─ InvalidSchedule       a schedule table fails one of its checks
 ├─ UnevenData            some ranks ran out of batches before others
 └─ PendingGradients      the model was used while deferred gradients were not applied yet
"""


class PipelineError(Exception):
    """Base of all errors raised on purpose by `pipeline`."""


class UnsupportedModel(PipelineError):  # noqa: N818 - the public contract names it so
    """The model cannot be trained exactly; says which module, why, and what to change."""


class InvalidSchedule(PipelineError, ValueError):  # noqa: N818
    """A schedule table fails one of its checks; carries the drawing with the wrong row marked."""


class UnevenData(PipelineError):  # noqa: N818
    """Some ranks ran out of batches before others. Every batch that all ranks had has been trained and applied."""


class PendingGradients(PipelineError):  # noqa: N818
    """The model was called outside the pipeline while deferred gradients were still to be applied."""
