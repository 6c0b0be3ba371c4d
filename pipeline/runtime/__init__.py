"""The one seam to the hardware: lanes, fences, collectives and their moments."""

import torch

from pipeline.runtime.base import Output, Runtime
from pipeline.runtime.cpu import CpuRuntime
from pipeline.runtime.cuda import CudaRuntime

__all__ = ["CpuRuntime", "CudaRuntime", "Output", "Runtime", "for_device"]


def for_device(device: torch.device, rank: int) -> Runtime:
    """The runtime of a device. Raises ValueError for a device type that has none."""
    match device.type:
        case "cpu":
            return CpuRuntime(rank)
        case "cuda":
            return CudaRuntime(rank, torch.cuda, device)
        case other:
            raise ValueError(f"device: {other!r} is not supported; use cpu or cuda")
