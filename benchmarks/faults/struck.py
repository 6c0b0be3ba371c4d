"""A small job that faults strike, and its state at the end."""

from pathlib import Path
from typing import Any

import torch

from benchmarks.faults.injection import Fault
from workers.training.state import tensors_in

STEPS, RANKS = 30, 2
MODEL: dict[str, Any] = {"embedding_dim": 8, "hidden": [8]}
DATA: dict[str, Any] = {"samples": STEPS * RANKS * 32, "rows": 300, "id_overlap": 0.5, "holdout_samples": 64}


def job(faults: list[Fault], **sections: Any) -> dict[str, Any]:
    """The job with these faults; `sections` replace its own. It does not start again by itself."""
    params = {**MODEL, "faults": [fault.model_dump(mode="json") for fault in faults]}
    return {
        "name": "struck",
        "model": {"factory": "benchmarks.faults.injection:ranker", "params": params},
        "data": {"source": "synthetic", "params": DATA},
        "training": {"batch_size": 32},
        "workers": {"count": RANKS},
        "checkpoint": {"every_steps": 5},
        "retries": {"max": 0},
        **sections,
    }


def end_state(run_folder: Path, steps: int = STEPS) -> dict[str, torch.Tensor]:
    """What a run leaves in its folder: the state after its last step."""
    return tensors_in(end_checkpoint(run_folder, steps))


def end_checkpoint(run_folder: Path, steps: int = STEPS) -> Path:
    """The checkpoint after the last step; the newest, if several attempts came that far."""
    return max(run_folder.glob(f"step-{steps:08d}-*"), key=lambda path: path.name)
