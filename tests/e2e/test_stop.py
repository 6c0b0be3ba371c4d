"""Jobs that are stopped: one that trains, live on the page; one that waits, with the page's button."""

from collections.abc import Iterator

import pytest

from tests.e2e.browser import Page
from tests.e2e.conftest import Trained
from tests.e2e.running import JOB_S, Json, until

ENDED = ("succeeded", "failed", "stopped", "lost")


@pytest.fixture(scope="module")
def long_job(trained: Trained) -> Iterator[Json]:
    """A job that trains until it is stopped, on all CPUs of the cluster."""
    spec = trained.spec | {"name": "long"}
    spec["training"] = spec["training"] | {"max_steps": None, "epochs": 1000}
    answer = trained.rest.submit(spec)
    assert answer.status_code == 202, answer.text
    job = answer.json()
    assert answer.headers["Location"].endswith(f"/v1/jobs/{job['id']}")
    yield job
    trained.rest.http.post(f"/v1/jobs/{job['id']}/stop")
    trained.rest.wait(job["id"], *ENDED)


def test_stops_through_page_and_rest(trained: Trained, long_job: Json, page: Page) -> None:
    rest = trained.rest
    rest.wait(long_job["id"], "running")

    # The CPUs are taken, so a second job waits, and is stopped with the button of its page.
    waiting = rest.submit(trained.spec | {"name": "waiting"}).json()
    assert until(lambda: rest.job(waiting["id"])["reason"], JOB_S, "a reason for waiting")
    assert rest.job(waiting["id"])["state"] == "queued"
    page.open(f"#/jobs/{waiting['id']}")
    page.click("button.stop")
    page.click("dialog[open] button.danger")
    page.wait_for('.job-header [data-field="state"][data-value="stopped"]')
    assert rest.job(waiting["id"])["state"] == "stopped"

    # The page of the job that trains follows it without being loaded again.
    page.open(f"#/jobs/{long_job['id']}")
    page.wait_for('.job-header [data-field="state"][data-value="running"]')
    seen = page.attribute('.job-header [data-field="steps_done"]', "data-value")
    page.wait_for(f'.job-header [data-field="steps_done"]:not([data-value="{seen}"])')
    assert rest.http.post(f"/v1/jobs/{long_job['id']}/stop").status_code == 202
    stopped = rest.wait(long_job["id"], *ENDED)
    assert stopped["state"] == "stopped", stopped
    page.wait_for('[data-complete="true"] [data-field="state"][data-value="stopped"]')
    assert rest.http.post(f"/v1/jobs/{long_job['id']}/stop").status_code == 202
