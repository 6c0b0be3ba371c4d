"""The OL/NOL schedule on TorchRec: a training pipeline that hides the embedding AllToAlls and changes no bit.

Names are loaded on first use, since TorchRec takes seconds to import and a `StepReport` needs none of it.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pipeline import schedules as schedules
    from pipeline.errors import UnsupportedModel as UnsupportedModel
    from pipeline.report import StepReport as StepReport
    from pipeline.sharding import data_parallel_wrapper as data_parallel_wrapper
    from pipeline.sharding import sharders as sharders
    from pipeline.train_pipeline import TrainPipeline as TrainPipeline

_HOMES = {
    "StepReport": "pipeline.report",
    "TrainPipeline": "pipeline.train_pipeline",
    "UnsupportedModel": "pipeline.errors",
    "data_parallel_wrapper": "pipeline.sharding",
    "sharders": "pipeline.sharding",
}

__all__ = ["StepReport", "TrainPipeline", "UnsupportedModel", "data_parallel_wrapper", "schedules", "sharders"]


def __getattr__(name: str) -> Any:
    if name == "schedules":
        return import_module("pipeline.schedules")
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'pipeline' has no attribute {name!r}")
