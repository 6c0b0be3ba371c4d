"""A job file makes the control plane open nothing, import nothing, start nothing, and reach nobody."""

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from service.cluster.embedded import EmbeddedRay
from service.settings import Settings
from tests.unit.service.conftest import JOB, Plane

pytestmark = pytest.mark.anyio

SECRET = "the-content-of-a-file-of-the-server"
COLUMNS = {"label": "clicked", "ids": ["user"]}


class Watch:
    """What this process does while it is watched: events of Python's audit, and paths that are looked at."""

    def __init__(self) -> None:
        self.on = False
        self.seen: list[str] = []
        # A hook stays for the life of the process.
        sys.addaudithook(self._hook)

    def _hook(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self.on:
            self.seen.append(f"{event} {arguments!r}")

    def of(self, word: str) -> list[str]:
        return [line for line in self.seen if word in line]


WATCH = Watch()


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Iterator[Watch]:
    stat = os.stat

    def watched(path: Any, *arguments: Any, **options: Any) -> os.stat_result:
        WATCH._hook("stat", (path,))
        return stat(path, *arguments, **options)

    monkeypatch.setattr(os, "stat", watched)
    WATCH.seen.clear()
    WATCH.on = True
    yield WATCH
    WATCH.on = False


def paths(folder: Path) -> dict[str, Path]:
    """Files of the server, of every kind."""
    made = {name: folder / f"server-{name}" for name in ("file", "folder", "pipe", "missing", "dangling")}
    made["file"].write_text(SECRET)
    made["folder"].mkdir()
    os.mkfifo(made["pipe"])
    made["dangling"].symlink_to(folder / "nothing")
    return made


def reading(source: str, path: str) -> dict[str, Any]:
    columns = {"columns": COLUMNS} if source == "parquet" else {}
    return JOB | {"data": {"source": source, "path": path} | columns}


async def submit(plane: Plane, spec: dict[str, Any]) -> httpx.Response:
    return await plane.http.post("/v1/jobs", json=spec)


def settings_elsewhere(settings: Settings) -> Settings:
    return settings.model_copy(update={"ray_address": "http://ray.test:8265"})


class TestWhereJobsRunElsewhere:
    @pytest.fixture
    def settings(self, settings: Settings) -> Settings:
        return settings_elsewhere(settings)

    @pytest.mark.parametrize("source", ["parquet", "criteo-tsv", "movielens-100k"])
    async def test_no_answer_tells_what_the_server_has(
        self, plane: Plane, tmp_path: Path, watch: Watch, source: str
    ) -> None:
        found = paths(tmp_path)
        watch.seen.clear()
        for kind, path in found.items():
            answer = await submit(plane, reading(source, str(path)))
            assert answer.status_code == 202, (kind, answer.text)
            assert watch.of(f"{path.name}'") == []


class TestWhereJobsRunHere:
    """There a job sees what the control plane may tell of: whether a path exists."""

    @pytest.mark.parametrize("source", ["parquet", "criteo-tsv", "movielens-100k"])
    async def test_a_path_is_looked_at_and_never_opened(
        self, plane: Plane, tmp_path: Path, watch: Watch, source: str
    ) -> None:
        found = paths(tmp_path)
        watch.seen.clear()
        for path in found.values():
            answer = await submit(plane, reading(source, str(path)))
            assert answer.status_code in (202, 422)
            assert SECRET not in answer.text
            assert {line.split(" ")[0] for line in watch.of(f"{path.name}'")} == {"stat"}

    @pytest.mark.parametrize(
        "path", ["\0", "x" * 5000, "/" + "y/" * 3000, "\ud800", "~root/x", "$HOME", "*", "file:///x"]
    )
    @pytest.mark.parametrize("source", ["parquet", "criteo-tsv", "movielens-100k"])
    async def test_no_path_breaks_the_service(self, plane: Plane, source: str, path: str) -> None:
        body = json.dumps(reading(source, path))
        answer = await plane.http.post("/v1/jobs", content=body, headers={"Content-Type": "application/json"})
        assert answer.status_code in (202, 422), answer.text


@pytest.mark.parametrize(
    "changes",
    [
        {"model": {"factory": "hostile_model:make"}},
        {"data": {"source": "hostile_model:open"}},
        {"model": {"factory": "os:system", "params": {"command": "touch hostile_model"}}},
        {"data": {"source": "parquet", "path": "s3://hostile_model.example/x", "columns": COLUMNS}},
        {"data": {"source": "parquet", "path": "http://hostile_model.example/x", "columns": COLUMNS}},
        {"data": {"source": "criteo-tsv", "path": "file:///hostile_model"}},
    ],
)
async def test_nothing_that_a_job_names_is_imported_started_or_reached(
    plane: Plane, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, watch: Watch, changes: dict[str, Any]
) -> None:
    (tmp_path / "hostile_model.py").write_text("raise SystemExit('imported')")
    monkeypatch.syspath_prepend(tmp_path)
    watch.seen.clear()
    answer = await submit(plane, JOB | changes)
    assert answer.status_code == 202, answer.text
    await plane.rounds(3)
    assert answer.json()["id"] in plane.ray.jobs
    assert watch.of("hostile_model") == []
    assert [line for line in watch.seen if line.startswith(("subprocess", "os.system", "os.exec", "os.fork"))] == []
    assert "hostile_model" not in sys.modules


@pytest.mark.parametrize(
    "line",
    [
        "model: {params: {x: !!python/object/apply:os.system ['touch hostile']}}",
        "model: {params: {x: !!python/name:os.environ}}",
        "model: !!python/module:hostile",
        "data: !include /etc/passwd",
        "<<: !!python/object/new:os.environ {a: b}",
    ],
)
async def test_yaml_makes_no_objects(plane: Plane, line: str) -> None:
    answer = await plane.http.post(
        "/v1/jobs", content=f"name: tiny\n{line}\n", headers={"Content-Type": "application/yaml"}
    )
    assert answer.status_code == 422


async def test_no_variable_of_the_server_is_filled_in(plane: Plane, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SERVER_SECRET", SECRET)
    for text in ("$SERVER_SECRET", "${SERVER_SECRET}", "%SERVER_SECRET%", "env:SERVER_SECRET", "{{SERVER_SECRET}}"):
        answer = await submit(plane, JOB | {"model": {"params": {"x": text}}})
        assert answer.json()["spec"]["model"]["params"] == {"x": text}
        await plane.rounds(1)
    assert all(SECRET not in str(submission) for submission in plane.ray.submissions.values())


def test_jobs_of_the_embedded_ray_inherit_nothing_that_the_service_was_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OVERLANE_DATABASE_URL", f"postgresql://overlane:{SECRET}@db/overlane")
    monkeypatch.setenv("OVERLANE_TOKEN", SECRET)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", f"authorization={SECRET}")
    monkeypatch.setenv("RAY_AUTH_TOKEN", SECRET)
    inherited = EmbeddedRay(tmp_path, 1)._environment()
    assert SECRET not in str(inherited)
    assert [name for name in inherited if name.startswith("OVERLANE_")] == ["OVERLANE_CLUSTER"]
