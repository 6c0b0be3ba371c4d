"""The whole service once for all end-to-end tests, and a browser."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from tests.e2e import browser
from tests.e2e.running import JOB_S, REPO, START_S, Json, Quickstart, Rest, processes_of


@dataclass(frozen=True)
class Trained:
    """The service, up, with one finished job; `home` is its folder."""

    rest: Rest
    spec: Json
    job_id: str
    home: Path


@pytest.fixture(scope="session")
def small_job() -> Json:
    """The example, shortened; for the picture in the README as it is."""
    spec = yaml.safe_load((REPO / "examples/movielens.yaml").read_text(encoding="utf-8"))
    assert isinstance(spec, dict)
    if "OVERLANE_SCREENSHOT" not in os.environ:
        spec["training"] |= {"batch_size": 256, "epochs": 1, "max_steps": 120}
    return spec


@pytest.fixture(scope="session")
def trained(small_job: Json, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trained]:
    home = tmp_path_factory.mktemp("home")
    job_file = tmp_path_factory.mktemp("job") / "movielens.yaml"
    job_file.write_text(yaml.safe_dump(small_job), encoding="utf-8")
    quickstart = Quickstart(home, job_file)
    try:
        rest = Rest(quickstart.line(r"Control plane: (http://\S+)", START_S)[1])
        job_id = quickstart.line(r"Submitted \S+ as (\S+)", START_S)[1]
        job = rest.wait(job_id, "succeeded", "failed", "stopped", "lost")
        assert job["state"] == "succeeded", f"{job}\n{quickstart.text}"
        quickstart.line("The service stays up", JOB_S)
        yield Trained(rest, small_job, job_id, home)
        assert quickstart.stop() == 0, quickstart.text
        assert processes_of(home) == []
    finally:
        quickstart.kill()


@pytest.fixture(scope="session")
def page(trained: Trained, tmp_path_factory: pytest.TempPathFactory) -> Iterator[browser.Page]:
    if why := browser.missing():
        pytest.skip(why)
    with browser.chromium(tmp_path_factory.mktemp("profile")) as driver:
        yield browser.Page(driver, trained.rest.url)


@pytest.fixture
def empty_home(tmp_path: Path) -> Path:
    """A folder in which nothing may be left behind."""
    return tmp_path / "home"
