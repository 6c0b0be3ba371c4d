"""A copy of the training's state that a checkpoint is written from, while training goes on and changes the original."""

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch.distributed._shard.sharded_tensor.api import ShardedTensor
from torch.distributed._shard.sharded_tensor.shard import Shard


class Staging:
    """Host memory for one copy of a state. It serves for the next copy again, so that a checkpoint costs the training
    one pass over its state and no new memory.
    """

    def __init__(self) -> None:
        self._held: dict[str, Any] = {}

    @torch.no_grad()
    def copy(self, state: Mapping[str, Any]) -> dict[str, Any]:
        """The state with every tensor in host memory. Overwrites the copy before it."""
        return {name: self._copied(name, value) for name, value in state.items()}

    def _copied(self, name: str, value: Any) -> Any:
        match value:
            case ShardedTensor():
                return self._copied_shards(name, value)
            case torch.Tensor():
                return self._copied_tensor(name, value)
            case Mapping():
                return {key: self._copied(f"{name}/{key}", below) for key, below in value.items()}
            case list():
                return [self._copied(f"{name}/{place}", below) for place, below in enumerate(value)]
            case _:
                return value

    def _copied_tensor(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        held: torch.Tensor | None = self._held.get(name)
        if held is None or held.shape != tensor.shape or held.dtype != tensor.dtype:
            held = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=tensor.device.type == "cuda")
            self._held[name] = held
        return held.copy_(tensor)

    def _copied_shards(self, name: str, sharded: ShardedTensor) -> ShardedTensor:
        held: ShardedTensor | None = self._held.get(name)
        if held is None:
            held = self._held[name] = _like_on_host(sharded)
        for own, other in zip(held.local_shards(), sharded.local_shards(), strict=True):
            own.tensor.copy_(other.tensor)
        return held


def _like_on_host(sharded: ShardedTensor) -> ShardedTensor:
    """The same shards in the same places, with memory of their own on the host."""
    metadata = copy.deepcopy(sharded.metadata())
    for each in metadata.shards_metadata:
        assert each.placement is not None
        each.placement._device = torch.device("cpu")
    places = {tuple(each.shard_offsets): each for each in metadata.shards_metadata}
    shards = [
        Shard(
            torch.empty(shard.tensor.shape, dtype=shard.tensor.dtype, pin_memory=shard.tensor.device.type == "cuda"),
            places[tuple(shard.metadata.shard_offsets)],
        )
        for shard in sharded.local_shards()
    ]
    return ShardedTensor._init_from_local_shards_and_global_metadata(
        shards, sharded_tensor_metadata=metadata, process_group=sharded._process_group
    )
