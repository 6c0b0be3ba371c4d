"""How long a killed worker holds training up, against a loop that does nothing: `make bench ARGS=restart`."""

import os
import signal
import tempfile
import time
from pathlib import Path

from benchmarks.faults.injection import Fault, Kind
from benchmarks.faults.run import Submission, own_ray
from benchmarks.faults.struck import RANKS
from benchmarks.results import Ratio, Result

TURNS = 6
_TARGET = 1.5


def run() -> Result:
    """Kill a worker of either, turn by turn, and take the time until the loop is at work again."""
    with tempfile.TemporaryDirectory(prefix="ovl-", dir="/tmp") as name, own_ray(Path(name) / "ray") as address:
        folder = Path(name)
        turns = [(_ours(turn, folder, address), _empty(turn, folder)) for turn in range(TURNS)]
    ratio = Ratio.of("training", "an empty loop of Ray Train", turns)
    return Result.now(
        "restart",
        f"From the SIGKILL of one of {RANKS} workers to the next training step, against Ray Train's own restart of an "
        "empty loop in a torch process group, on the same Ray with the same settings",
        f"at most {_TARGET}",
        reached=ratio.median <= _TARGET,
        ratios=[ratio],
    )


def _ours(turn: int, folder: Path, address: str) -> float:
    """Milliseconds from the kill to the first forward of the next attempt."""
    marker, driver = folder / f"ours-{turn}", folder / f"driver-{turn}"
    fault = Fault(kind=Kind.KILL, place="backward", rank=1, count=12, marker=marker, driver=driver)
    Submission(address, folder, f"run-{turn}", [fault]).run()
    return _milliseconds(marker)


def _empty(turn: int, folder: Path) -> float:
    """Milliseconds from the kill to the next start of the loop."""
    from ray.train import FailureConfig, RunConfig, ScalingConfig
    from ray.train.torch import TorchConfig, TorchTrainer

    from workers.driver import set_defaults

    set_defaults(hang_timeout_s=60.0)
    marker = folder / f"empty-{turn}"
    TorchTrainer(
        _empty_loop,
        train_loop_config={"marker": str(marker)},
        torch_config=TorchConfig(backend="gloo"),
        scaling_config=ScalingConfig(num_workers=RANKS, resources_per_worker={"CPU": 1}),
        run_config=RunConfig(
            name=marker.name, storage_path=str(folder / "storage"), failure_config=FailureConfig(max_failures=1)
        ),
    ).fit()
    return _milliseconds(marker)


def _empty_loop(config: dict[str, str]) -> None:
    """Rank 1 ends itself in the first attempt; in the second, rank 0 says that it is there."""
    import torch.distributed as dist

    marker = Path(config["marker"])
    dist.barrier()
    if marker.exists():
        if dist.get_rank() == 0:
            marker.with_suffix(".resumed").write_text(f"{time.time()}\n", encoding="utf-8")
    elif dist.get_rank() == 1:
        marker.write_text(f"{time.time()}", encoding="utf-8")
        os.kill(os.getpid(), signal.SIGKILL)
    dist.barrier()


def _milliseconds(marker: Path) -> float:
    struck = float(marker.read_text(encoding="utf-8").split()[0])
    resumed = [float(line) for line in marker.with_suffix(".resumed").read_text(encoding="utf-8").splitlines()]
    return (min(resumed) - struck) * 1e3
