"""What the page shows is what the REST API answers."""

import os
from collections.abc import Iterator

import pytest

from tests.e2e.browser import Page
from tests.e2e.conftest import Trained
from tests.e2e.running import REPO, Json

COLLECTIVES = {
    ("input_dist", "none"),
    ("overlap_mask", "none"),
    ("embedding", "ol"),
    ("embedding", "nol"),
    ("gradient", "ol"),
    ("gradient", "nol"),
    ("dense_allreduce", "none"),
}
TIMES = ("step_ms", "compute_ms", "comm_ms", "exposed_ms", "hidden_ms")


@pytest.fixture(autouse=True)
def _wide(page: Page) -> Iterator[None]:
    page.size(1280, 1600)
    page.complaints()
    yield
    page.size(1280, 1600)


def number(text: str) -> float | None:
    return None if text == "null" else float(text)


def assert_collectives(page: Page, expected: list[Json]) -> None:
    shown = page.collectives()
    assert set(shown) == {(each["name"], each["partition"] or "none") for each in expected}
    for each in expected:
        figures = shown[each["name"], each["partition"] or "none"]
        assert number(figures["ms"]) == each["ms"]["mean"]
        assert number(figures["exposed_ms"]) == each["exposed_ms"]["mean"]
        assert number(figures["hidden_ms"]) == pytest.approx(each["ms"]["mean"] - each["exposed_ms"]["mean"], abs=1e-9)
        assert number(figures["comm_overlap"]) == each["comm_overlap"]
        assert number(figures["bytes_sent"]) == each["bytes_sent"]
        assert number(figures["bytes_received"]) == each["bytes_received"]


def open_job(page: Page, job_id: str) -> None:
    page.open(f"#/jobs/{job_id}")
    page.wait_for(f'[data-job="{job_id}"][data-complete="true"]')


def take_picture_for_the_readme(page: Page) -> None:
    page.size(1280, 600)
    page.size(1280, int(page.script("return document.documentElement.scrollHeight")))
    assert page.driver.save_screenshot(str(REPO / "docs/page.png"))


def test_list_shows_the_job(page: Page, trained: Trained) -> None:
    page.open("#/")
    row = f'tr[data-job="{trained.job_id}"]'
    page.wait_for(row)
    job = trained.rest.job(trained.job_id)
    shown = page.figures(row)
    assert shown["state"] == job["state"] == "succeeded"
    assert number(shown["steps_done"]) == job["result"]["steps"]
    for field in ("samples_per_s", "step_ms", "exposed_ms", "comm_overlap"):
        assert number(shown[field]) == job["latest"][field]
    assert "succeeded" in page.text(row)
    assert page.complaints() == []
    page.click(f"{row} a")
    page.wait_for(f'div[data-job="{trained.job_id}"]')


def test_headline_figures(page: Page, trained: Trained) -> None:
    open_job(page, trained.job_id)
    job = trained.rest.job(trained.job_id)
    overlap = trained.rest.get(f"/v1/jobs/{trained.job_id}/overlap")
    shown = page.figures(".figures")
    assert {field: number(shown[field]) for field in TIMES} == {field: overlap[field]["mean"] for field in TIMES}
    assert number(shown["comm_overlap"]) == overlap["comm_overlap"]
    assert number(shown["id_overlap"]) == overlap["id_overlap"]
    assert number(shown["loss"]) == job["latest"]["loss"]
    header = page.figures(".job-header")
    assert header["state"] == "succeeded"
    for name, value in job["result"]["metrics"].items():
        assert number(header[f"metrics.{name}"]) == value
    assert page.complaints() == []


def test_every_collective_ol_and_nol_apart(page: Page, trained: Trained) -> None:
    open_job(page, trained.job_id)
    overlap = trained.rest.get(f"/v1/jobs/{trained.job_id}/overlap")
    assert_collectives(page, overlap["collectives"])
    assert set(page.collectives()) == COLLECTIVES


def test_one_rank(page: Page, trained: Trained) -> None:
    open_job(page, trained.job_id)
    overlap = trained.rest.get(f"/v1/jobs/{trained.job_id}/overlap")
    for rank in overlap["ranks"]:
        shown = page.figures(f'table.ranks tr[data-rank="{rank["rank"]}"]')
        assert number(shown["step_ms"]) == rank["step_ms"]["mean"]
        assert number(shown["exposed_ms"]) == rank["exposed_ms"]["mean"]
        assert number(shown["comm_overlap"]) == rank["comm_overlap"]
    page.choose(".rank-picker select", "1")
    page.wait_for('table.collectives[data-rank="1"]')
    assert_collectives(page, overlap["ranks"][1]["collectives"])


def test_charts_hold_every_step(page: Page, trained: Trained) -> None:
    open_job(page, trained.job_id)
    steps = trained.rest.job(trained.job_id)["result"]["steps"]
    page.wait_for(f'.chart[data-points="{steps}"] canvas')
    if "OVERLANE_SCREENSHOT" in os.environ:
        take_picture_for_the_readme(page)


def test_a_job_that_does_not_exist(page: Page, trained: Trained) -> None:
    page.open("#/jobs/job-nowhere")
    page.wait_for('[data-trouble="problem"]')
    detail = trained.rest.http.get("/v1/jobs/job-nowhere").json()["detail"]
    assert detail in page.text('[data-trouble="problem"]')


def test_the_page_says_when_the_service_is_away_and_recovers(page: Page, trained: Trained) -> None:
    page.open("#/")
    page.wait_for(f'tr[data-job="{trained.job_id}"]')
    page.offline(True)
    try:
        page.wait_for('[data-trouble="unreachable"]')
        assert trained.job_id in page.text("table.jobs")
    finally:
        page.offline(False)
    page.wait_gone("[data-trouble]")


@pytest.mark.parametrize("width", [1280, 400])
def test_nothing_runs_out_of_the_window(page: Page, trained: Trained, width: int) -> None:
    page.size(width, 900)
    for route in ("#/", f"#/jobs/{trained.job_id}"):
        page.open(route)
        page.wait_for(f'[data-job="{trained.job_id}"]')
        assert page.script("return document.documentElement.scrollWidth") <= width
