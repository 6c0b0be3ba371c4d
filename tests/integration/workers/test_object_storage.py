"""Checkpoints in an S3-compatible store: written there, and found again by the attempt that follows a crash."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from pyarrow import fs

from benchmarks.faults.injection import UPLOAD, Fault, Kind
from benchmarks.faults.struck import STEPS, job
from tests.integration.workers.conftest import Jobs
from tests.integration.workers.loops import assert_same_state
from workers.run import ExitStatus
from workers.training.state import tensors_in


@pytest.fixture(scope="module")
def bucket() -> Iterator[str]:
    """The address of an empty bucket."""
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer("127.0.0.1", 0)
    server.start()
    host, port = server.get_host_and_port()
    # A key in the address keeps the environment of Ray's workers out of this.
    address = f"s3://key:secret@runs/storage?endpoint_override={host}:{port}&scheme=http&region=us-east-1"
    store, _ = fs.FileSystem.from_uri(f"{address}&allow_bucket_creation=true")
    store.create_dir("runs")
    yield address
    server.stop()


def test_a_run_goes_on_from_a_checkpoint_in_object_storage(
    ray_address: str, bucket: str, unstruck: dict[str, torch.Tensor], tmp_path: Path
) -> None:
    """Also when the crash left another one half uploaded, which the next attempt removes."""
    fault = Fault(kind=Kind.KILL, place=UPLOAD, rank=1, count=2, marker=tmp_path / "struck")
    status, output = Jobs(ray_address, bucket).run(job([fault], retries={"max": 1}), "stored")
    assert status == ExitStatus.SUCCEEDED, output
    assert fault.marker.exists()
    store, root = fs.FileSystem.from_uri(bucket)
    found = store.get_file_info(fs.FileSelector(f"{root}/stored"))
    saved = sorted(each.base_name for each in found if each.base_name.startswith("step-"))
    assert saved == ["step-00000025-attempt-1", f"step-{STEPS:08d}-attempt-1"]
    (tmp_path / "end").mkdir()
    fs.copy_files(f"{root}/stored/{saved[-1]}", str(tmp_path / "end"), source_filesystem=store)
    assert_same_state(tensors_in(tmp_path / "end"), unstruck)
