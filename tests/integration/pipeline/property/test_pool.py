"""A rank that fails, dies or hangs costs one case, not those after it."""

import os
import threading

import pytest
import torch
import torch.distributed as dist

from tests import ranks as pool_module
from tests.ranks import RankFailed, RankPool


def summed(device: torch.device, fault: str) -> int:
    """Rank 1 does not take part in the sum if there is a fault, and rank 0 waits for it."""
    if dist.get_rank() == 1:
        match fault:
            case "raises":
                raise ValueError("on purpose")
            case "dies":
                os._exit(1)
            case "hangs":
                threading.Event().wait()
    total = torch.ones((), device=device)
    dist.all_reduce(total)
    return int(total)


@pytest.mark.parametrize("fault", ["raises", "dies", "hangs"])
def test_the_pool_is_usable_after_a_fault(monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    monkeypatch.setattr(pool_module, "GRACE_S", 1.0)
    with RankPool(2) as pool:
        with pytest.raises(RankFailed, match="on purpose" if fault == "raises" else "rank 1\nhung or died"):
            pool.run(2, summed, timeout_s=2, fault=fault)
        assert pool.run(2, summed, fault="") == [2, 2]
