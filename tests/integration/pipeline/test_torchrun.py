"""The library on its own: a TorchRec script with torchrun and no Ray."""

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]
SCRIPT = ROOT / "examples" / "torchrun_pipeline.py"


def test_the_example_trains_on_two_ranks_without_ray() -> None:
    loopback = ["--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:0", "--local-addr", "127.0.0.1"]
    # Both ranks write every module that they import to stderr.
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "PYTHONPROFILEIMPORTTIME": "1",
        "GLOO_SOCKET_IFNAME": "lo",
        "CUDA_VISIBLE_DEVICES": "",
    }
    command = [sys.executable, "-m", "torch.distributed.run", *loopback, "--nproc-per-node", "2", str(SCRIPT)]
    done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=120)
    noise = "\n".join(line for line in done.stderr.splitlines() if not line.startswith("import time:"))
    assert done.returncode == 0, noise

    lines = sorted(done.stdout.splitlines())
    figures = [re.fullmatch(r"rank (\d): loss ([\d.]+) -> ([\d.]+), comm overlap (\d+)%", line) for line in lines]
    assert [each and each[1] for each in figures] == ["0", "1"], done.stdout
    for each in figures:
        assert each is not None
        assert float(each[3]) < 0.5 * float(each[2]), "it must learn"
        assert 0 <= int(each[4]) <= 100

    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines() if line.startswith("import time:")}
    assert {"pipeline.executor", "torchrec"} <= imported
    assert not {name for name in imported if name.partition(".")[0] in ("ray", "fastapi")}


def test_the_example_is_short() -> None:
    assert len(SCRIPT.read_text().splitlines()) < 60
