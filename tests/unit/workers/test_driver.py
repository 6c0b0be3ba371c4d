"""Which Ray a run joins, and what it says when there is none."""

import os
from typing import Any

import pytest
import ray

from workers import driver
from workers.driver import drive
from workers.job import WorkersSpec, parse_job
from workers.run import ExitStatus, Run

RUN = Run(parse_job({"name": "tiny"}), "tiny-1", "/nowhere")


@pytest.fixture
def addresses(monkeypatch: pytest.MonkeyPatch) -> list[str | None]:
    """The addresses that Ray was asked to join; nothing answers at any of them."""
    asked: list[str | None] = []

    def init(address: str | None = None, **_: Any) -> None:
        asked.append(address)
        raise ConnectionError("refused")

    monkeypatch.setattr(ray, "init", init)
    monkeypatch.setattr(driver, "_ENVIRONMENT", {})
    for name in ("RAY_ADDRESS", "RAY_AUTH_MODE"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    return asked


def test_without_an_address_no_cluster_of_somebody_else_is_joined(addresses: list[str | None]) -> None:
    assert drive(RUN) is ExitStatus.FAILED
    assert addresses == ["local"]


def test_a_cluster_that_does_not_answer_is_named(
    addresses: list[str | None], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    assert drive(RUN) is ExitStatus.FAILED
    assert addresses == [None]
    assert "failed: no Ray cluster answers at RAY_ADDRESS=10.0.0.1:6379: refused" in capsys.readouterr().out


def test_an_elastic_group_is_asked_for_as_a_range() -> None:
    elastic = driver._scaling(
        WorkersSpec.model_validate({"count": {"min": 1, "max": 4, "resize_every_s": 5}, "cpus": 2})
    )
    assert (elastic.num_workers, elastic.elastic_resize_monitor_interval_s) == ((1, 4), 5)
    assert (elastic.use_gpu, elastic.resources_per_worker) == (False, {"CPU": 2})
    fixed = driver._scaling(WorkersSpec.model_validate({"count": 2, "gpus": 1}))
    assert (fixed.num_workers, fixed.use_gpu, fixed.resources_per_worker) == (2, True, {"CPU": 1, "GPU": 1})


@pytest.mark.parametrize(("count", "timeout_s"), [(2, None), ({"min": 1, "max": 2}, "8")])
def test_an_elastic_group_does_not_wait_long_for_workers_that_are_gone(
    addresses: list[str | None], monkeypatch: pytest.MonkeyPatch, count: object, timeout_s: str | None
) -> None:
    name = "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S"
    monkeypatch.setenv(name, "")
    monkeypatch.delenv(name)
    job = parse_job({"name": "tiny", "workers": {"count": count}})
    assert drive(Run(job, "tiny-1", "/nowhere")) is ExitStatus.FAILED
    assert os.environ.get(name) == timeout_s
