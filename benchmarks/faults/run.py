"""Many runs with a fault each, on a Ray of their own: `make bench ARGS=faults`."""

import json
import os
import random
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks.faults import struck
from benchmarks.faults.injection import UPLOAD, WRITE, Fault, Kind
from benchmarks.faults.struck import RANKS, STEPS, end_checkpoint
from benchmarks.results import Figure, Result
from pipeline.schedules import PRIORITIZED
from workers.training.state import tensors_in

RUNS = int(os.environ.get("OVERLANE_FAULT_RUNS", "100"))
FIRST_SEED = int(os.environ.get("OVERLANE_FAULT_FIRST_SEED", "0"))
EVERY = 5
# How often each kind comes, of 20.
_KINDS = {
    Kind.KILL: 11,
    Kind.RAISE: 2,
    Kind.HANG: 2,
    Kind.FREEZE: 1,
    Kind.KILL_MONITOR: 2,
    Kind.KILL_DRIVER: 2,
}
_HANG_TIMEOUT_S = 4
_WRITE_TIMEOUT_S = 10
_RUN_TIMEOUT_S = 300


def job(name: str, faults: list[Fault]) -> dict[str, Any]:
    """The small job, which goes on after faults, and waits for nothing long."""
    return struck.job(
        faults,
        name=name,
        workers={"count": RANKS, "hang_timeout_s": _HANG_TIMEOUT_S},
        checkpoint={"every_steps": EVERY, "timeout_s": _WRITE_TIMEOUT_S},
        retries={"max": 3},
    )


def draw(seed: int, folder: Path) -> Fault:
    """A fault at a random place and moment."""
    chance = random.Random(seed)
    (kind,) = chance.choices(list(_KINDS), list(_KINDS.values()))
    place = chance.choice([stage.name for stage in PRIORITIZED.stages] + [WRITE, UPLOAD] * 3)
    # At the end of a run, after its last regular checkpoint, there is one more.
    count = chance.randrange(STEPS // EVERY if place in (WRITE, UPLOAD) else STEPS)
    marker, driver = folder / f"fault-{seed}", folder / f"driver-{seed}"
    rank = chance.randrange(RANKS)
    return Fault(kind=kind, place=place, rank=rank, count=count, marker=marker, driver=driver, job_id=f"run-{seed}")


def run() -> Result:
    """Run them all and compare the state at the end with that of a run without faults, bit by bit."""
    with tempfile.TemporaryDirectory(prefix="ovl-", dir="/tmp") as name, own_ray(Path(name) / "ray") as address:
        folder = Path(name)
        expected = tensors_in(Submission(address, folder, "run-without", []).run())
        outcomes = [_outcome(seed, folder, address, expected) for seed in range(FIRST_SEED, FIRST_SEED + RUNS)]
    for each in outcomes:
        sys.stdout.write(f"{each}\n")
    good = [each for each in outcomes if each.equal and each.struck]
    kinds = Counter(each.fault.kind.value for each in outcomes)
    return Result.now(
        "faults",
        f"Runs of {STEPS} steps on {RANKS} ranks with one fault each, at a random moment; the weights and the state "
        "of both optimizers at the end against those of a run without",
        f"{RUNS} of {RUNS} equal, bit by bit",
        reached=len(good) == RUNS,
        figures=[
            Figure(name="runs", value=RUNS),
            Figure(name="ended with the same bits", value=len(good)),
            *(Figure(name=f"runs with fault {kind!r}", value=count) for kind, count in sorted(kinds.items())),
        ],
    )


@dataclass(frozen=True)
class Outcome:
    """What became of one run."""

    fault: Fault
    struck: bool
    equal: bool
    submissions: int
    why: str

    def __str__(self) -> str:
        fault = self.fault
        verdict = "the same bits" if self.equal else f"DIFFERENT: {self.why}"
        struck = "" if self.struck else " (did NOT strike)"
        return f"{fault.job_id}: {fault.kind} at {fault.place} {fault.count} of rank {fault.rank}{struck}: {verdict}"


def _outcome(seed: int, folder: Path, address: str, expected: dict[str, torch.Tensor]) -> Outcome:
    fault = draw(seed, folder)
    submission = Submission(address, folder, fault.job_id, [fault])
    submissions, why, equal = 0, "", False
    try:
        # A driver that is killed is submitted again under its id, as the control plane or a person would.
        found = None
        while found is None and submissions < 2:
            submissions += 1
            found = submission.try_once()
        if found is None:
            why = submission.last_words()
        else:
            state = tensors_in(found)
            different = [name for name in expected if not torch.equal(expected[name], state[name])]
            equal, why = not different, ", ".join(different)
    except subprocess.TimeoutExpired:
        why = f"not at its end after {_RUN_TIMEOUT_S} s"
    outcome = Outcome(fault, fault.marker.exists(), equal, submissions, why)
    sys.stderr.write(f"[{seed - FIRST_SEED + 1}/{RUNS}] {outcome}\n")
    return outcome


@dataclass(frozen=True)
class Submission:
    """A job as `python -m workers.train` gets it."""

    address: str
    folder: Path
    job_id: str
    faults: list[Fault]

    def run(self) -> Path:
        """Run it once; the folder of its last checkpoint."""
        found = self.try_once()
        assert found is not None, self.last_words()
        return found

    def try_once(self) -> Path | None:
        """The folder of the last checkpoint; None if the run did not succeed."""
        environment = {
            **os.environ,
            "RAY_ADDRESS": self.address,
            "RAY_AUTH_MODE": "disabled",
            "OVERLANE_JOB": json.dumps(job(self.job_id, self.faults)),
            "OVERLANE_JOB_ID": self.job_id,
            "OVERLANE_STORAGE": str(self.folder / "storage"),
        }
        command = [sys.executable, "-m", "workers.train", "--job", "env:OVERLANE_JOB"]
        with self._log.open("a", encoding="utf-8") as log:
            process = subprocess.Popen(command, env=environment, stdout=log, stderr=subprocess.STDOUT)
            (self.folder / f"driver-{self.job_id.removeprefix('run-')}").write_text(f"{process.pid}", encoding="utf-8")
            try:
                status = process.wait(_RUN_TIMEOUT_S)
            finally:
                process.kill()
        if status != 0:
            return None
        return end_checkpoint(self.folder / "storage" / self.job_id)

    def last_words(self) -> str:
        """The end of what the runs have printed."""
        return self._log.read_text(encoding="utf-8", errors="replace")[-2_000:]

    @property
    def _log(self) -> Path:
        return self.folder / f"{self.job_id}.log"


@contextmanager
def own_ray(folder: Path, cpus: int = RANKS + 1) -> Iterator[str]:
    """A Ray of this benchmark's own, in a folder of its own; its address."""
    import ray

    os.environ.update(RAY_AUTH_MODE="disabled", RAY_USAGE_STATS_ENABLED="0")
    os.environ.pop("RAY_ADDRESS", None)
    context = ray.init(
        address="local",
        num_cpus=cpus,
        object_store_memory=200_000_000,
        include_dashboard=False,
        log_to_driver=False,
        _temp_dir=str(folder),
    )
    try:
        yield context.address_info["gcs_address"]
    finally:
        ray.shutdown()
