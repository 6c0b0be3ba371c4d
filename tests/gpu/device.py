"""Runs a case of the rank pool on CUDA and NCCL instead of the CPU and gloo."""

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from tests.ranks import RankPool


def run(pool: RankPool, world_size: int, case: Callable[..., Any], /, **arguments: Any) -> list[Any]:
    """Run `case(device, **arguments)` with one CUDA device per rank; returns the results by rank."""
    return pool.run(world_size, on_device, timeout_s=300, kind="cuda", case=case, arguments=arguments)


def on_device(_: torch.device, kind: str, case: Callable[..., Any], arguments: dict[str, Any]) -> Any:
    """The same ranks again, over the transport of another kind of device.

    Everything that can be deterministic is: plain training must give the same bits twice before it can be compared.
    """
    rank, world_size = dist.get_rank(), dist.get_world_size()
    store = dist.PrefixStore(kind, dist.distributed_c10d._get_default_store())
    device = torch.device(kind, rank) if kind == "cuda" else torch.device(kind)
    torch.get_device_module(device).set_device(device)
    torch.use_deterministic_algorithms(True, warn_only=True)
    dist.destroy_process_group()
    dist.init_process_group("nccl" if kind == "cuda" else "gloo", store=store, rank=rank, world_size=world_size)
    try:
        return case(device, **arguments)
    finally:
        torch.use_deterministic_algorithms(False)
