"""GPU tests: marked `gpu`, and skipped with the reason where there are too few CUDA devices."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.ranks import RankPool

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.gpu)
            if not torch.cuda.is_available():
                item.add_marker(pytest.mark.skip(reason=f"no CUDA device: torch {torch.__version__} sees none"))


@pytest.fixture(params=[1, 2, 3, 4], ids=lambda size: f"{size} device(s)")
def world_size(request: pytest.FixtureRequest) -> int:
    """One rank per device, for as many devices as there are."""
    size: int = request.param
    found = torch.cuda.device_count()
    if size > found:
        pytest.skip(f"needs {size} CUDA devices, {found} found")
    return size


@pytest.fixture(scope="session")
def cuda_ranks() -> Iterator[RankPool]:
    # Read when the rank processes start: cuBLAS gives the same bits again only with a fixed workspace.
    os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
    with RankPool(min(4, torch.cuda.device_count())) as pool:
        yield pool
