"""Which Ray a run joins, and what it says when there is none."""

from typing import Any

import pytest
import ray

from workers import driver
from workers.driver import drive
from workers.job import parse_job
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
