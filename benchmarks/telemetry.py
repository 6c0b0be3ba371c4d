"""What telemetry costs a training step: the MovieLens job on two ranks, telemetry on and off taking turns.

On is what `workers.training.loop` does after each step: report, sample, record; and behind it the sender's thread, the
monitor actor, and its delivery by HTTP, all on this machine. Off is the same loop without any of it.
"""

import os
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import cycle
from pathlib import Path
from typing import Any

import ray

from benchmarks.results import Ratio, Result
from workers.job import JobSpec, load_job
from workers.telemetry.monitor import Destination, MonitorLink, start_monitor

JOB = Path(__file__).parent.parent / "examples" / "movielens.yaml"
RANKS, WARM_UP, BLOCK, TURNS = 2, 60, 100, 240
LIMIT = 1.01


def run() -> Result:
    """Take turns and compare. The target holds for the median turn."""
    turns = []
    with _sink() as url, ranks(load_job(JOB), Destination(url, "none"), "benchmark") as group:
        block(group, telemetry=True, steps=WARM_UP)
        before = block(group, telemetry=False, steps=BLOCK)
        for _ in range(TURNS):
            on = block(group, telemetry=True, steps=BLOCK)
            after = block(group, telemetry=False, steps=BLOCK)
            # A machine drifts by several percent within seconds, far more than what is judged here. So each block is
            # compared with both its neighbours, and there are enough turns for the median to be good to 0.4 %.
            turns.append((on, (before + after) / 2))
            before = after
    ratio = Ratio.of("telemetry on", "telemetry off", turns)
    return Result.now(
        "telemetry",
        f"step time of {JOB.name} on {RANKS} ranks, mean of {BLOCK} steps a turn",
        f"at most {LIMIT}",
        reached=ratio.median <= LIMIT,
        ratios=[ratio],
    )


def block(group: list[Any], *, telemetry: bool, steps: int) -> float:
    """The mean step of a block in milliseconds, the slowest rank's. A median would hide the steps in which a batch of
    samples is sent. Blocks are long against the sender's interval, so that little of it falls into the next block.
    """
    blocks_ms: list[float] = ray.get([rank.block.remote(telemetry, steps) for rank in group])
    return max(blocks_ms)


@contextmanager
def ranks(job: JobSpec, destination: Destination, job_id: str) -> Iterator[list[Any]]:
    """Two ranks, and a monitor that delivers to `destination`."""
    os.environ["RAY_AUTH_MODE"] = "disabled"
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    ray.init(address="local", num_cpus=RANKS, include_dashboard=False, object_store_memory=200_000_000)
    try:
        with tempfile.TemporaryDirectory() as folder:
            monitor = start_monitor(job_id, RANKS, destination)
            yield [
                ray.remote(Rank).options(num_cpus=1).remote(job, rank, str(Path(folder) / "store"), job_id)
                for rank in range(RANKS)
            ]
            del monitor
    finally:
        ray.shutdown()


@contextmanager
def _sink() -> Iterator[str]:
    """The URL of something that takes deliveries."""
    sink = ThreadingHTTPServer(("127.0.0.1", 0), _Sink)
    threading.Thread(target=sink.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{sink.server_address[1]}"
    finally:
        sink.shutdown()


class Rank:
    """One rank with an endless supply of batches."""

    def __init__(self, job: JobSpec, rank: int, store: str, job_id: str) -> None:
        import torch
        import torch.distributed as dist

        from pipeline import TrainPipeline
        from workers.models import build_model
        from workers.sources import open_source
        from workers.telemetry.sender import Telemetry
        from workers.training.batches import to_batch
        from workers.training.progress import Progress
        from workers.training.sharded import shard

        torch.set_num_threads(1)
        dist.init_process_group(
            "gloo", init_method=f"file://{store}", rank=rank, world_size=RANKS, timeout=timedelta(seconds=60)
        )
        source = open_source(job.data)
        model = shard(build_model(job.model, source.schema), job.training, torch.device("cpu"))
        samples = source.train_batches(rank, RANKS, job.training.batch_size, 1, job.training.seed)
        self._batches = cycle([to_batch(each, source.schema) for each in samples])
        self._pipe: Any = TrainPipeline(model.module, model.dense_optimizer, torch.device("cpu"))
        telemetry = Telemetry(MonitorLink(job_id), rank, 0)
        telemetry.start()
        self._progress = Progress(self._pipe, telemetry, attempt=0)
        self._steps = 0

    def block(self, telemetry: bool, steps: int) -> float:
        """Train some steps; milliseconds of each in the mean."""
        # What nobody asked for in the block before must not be worked out at the cost of this one.
        self._pipe.reports()
        begin = time.perf_counter()
        for _ in range(steps):
            output = self._pipe.progress(self._batches)
            self._steps += 1
            if telemetry:
                self._progress.add(self._steps, output[0], 0.0)
        if telemetry:
            self._progress.tell()
        return (time.perf_counter() - begin) * 1e3 / steps


class _Sink(BaseHTTPRequestHandler):
    """Takes deliveries and answers as the control plane does."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(204)
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        """Silent: one line per delivery would be noise."""
