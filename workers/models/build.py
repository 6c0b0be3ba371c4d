"""From the `model` section of a job file to a module."""

import importlib
import inspect
from collections.abc import Callable

from torch import nn

from workers.job import InvalidJob, ModelSpec
from workers.sources.schema import Schema


def build_model(spec: ModelSpec, schema: Schema) -> nn.Module:
    """Call the factory that the job names. Raises `InvalidJob` if it cannot be imported or does not take the params."""
    module, _, name = spec.factory.partition(":")
    try:
        factory: Callable[..., nn.Module] = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise InvalidJob([f"model.factory: cannot import {spec.factory!r}: {error}"]) from error
    try:
        inspect.signature(factory).bind(schema, **spec.params)
    except TypeError as error:
        raise InvalidJob([f"model.params: {spec.factory} does not take them: {error}"]) from error
    return factory(schema, **spec.params)
