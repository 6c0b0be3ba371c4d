"""Stands in for training: a job process that does what its job's `model.params` say, and reports as training does."""

import json
import os
import signal
import sys
import time
import urllib.request
from datetime import UTC, datetime
from typing import Any


def main() -> int:
    # As training does: the tests may run in the background of a script, where SIGINT is ignored.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    job = json.loads(os.environ["OVERLANE_JOB"])
    todo: dict[str, Any] = job["model"]["params"]
    sys.stdout.write("größe: hello\n")
    sys.stdout.flush()
    if todo.get("ray"):
        import ray

        ray.init(log_to_driver=False)
        sys.stdout.write(f"CPUs of the cluster: {ray.cluster_resources()['CPU']:.0f}\n")
    for step in range(todo.get("steps", 0)):
        report({"samples": [sample(step, rank) for rank in range(job["workers"]["count"])]})
    try:
        while todo.get("hang"):
            time.sleep(0.05)
    except KeyboardInterrupt:
        sys.stdout.write("interrupted, ending cleanly\n")
        report({"stop": {"saved_at_step": todo.get("steps", 0)}})
        return 0
    if "failure" in todo:
        report({"failure": {"message": todo["failure"], "traceback": "Traceback: of the rank"}})
    return int(todo.get("status", 0))


def report(batch: dict[str, Any]) -> None:
    token = json.loads(os.environ["RAY_JOB_CONFIG_JSON_ENV_VAR"])["metadata"]["overlane_report_token"]
    request = urllib.request.Request(
        f"{os.environ['OVERLANE_REPORT_URL']}/internal/v1/jobs/{os.environ['OVERLANE_JOB_ID']}/reports",
        data=json.dumps(batch).encode(),
        headers={"Authorization": f"Bearer {token}"},
    )
    with urllib.request.urlopen(request) as answer:
        assert answer.status == 204


def sample(step: int, rank: int) -> dict[str, Any]:
    return {
        "step": step, "rank": rank, "samples": 8, "step_ms": 4.0, "compute_ms": 3.0, "comm_ms": 2.0, "exposed_ms": 0.5,
        "hidden_ms": 1.5, "comm_overlap": 0.75, "ids": 10, "overlapped_ids": 5, "id_overlap": 0.5, "loss": 0.1,
        "time": datetime.now(UTC).isoformat(),
        "collectives": [
            {"name": "embedding", "partition": "ol", "bytes_sent": 9, "bytes_received": 9, "ms": 2.0, "exposed_ms": 0.5}
        ],
    }  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
