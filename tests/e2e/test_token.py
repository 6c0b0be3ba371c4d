"""The page of a service that asks for tokens, on the real application with a Ray that runs nothing."""

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import uvicorn

from service.app import create_app
from service.security.roles import Role
from service.security.tokens_file import new_entry
from service.settings import Settings
from tests.e2e.browser import Page, chromium, missing
from tests.unit.service.fakes import FakeRay

FORM = "form.token"


@pytest.fixture(scope="module")
def token_and_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    folder = tmp_path_factory.mktemp("guarded")
    token, entry = new_entry("looker", Role.VIEWER, "ranking")
    tokens_file = folder / "tokens.yaml"
    tokens_file.write_text(f"{entry.line}\n")
    tokens_file.chmod(0o600)
    app = create_app(Settings(home=folder / "home", tokens_file=tokens_file), FakeRay())
    server = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=0, log_config=None, access_log=False))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        assert thread.is_alive()
        time.sleep(0.05)
    yield token, f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    server.should_exit = True
    thread.join()


@pytest.fixture
def page(token_and_url: tuple[str, str], tmp_path: Path) -> Iterator[Page]:
    if (why := missing()) is not None:
        pytest.skip(why)
    with chromium(tmp_path / "profile") as driver:
        yield Page(driver, token_and_url[1])


def enter(page: Page, text: str) -> None:
    page.wait_for(FORM)
    field = page.driver.find_element("css selector", f"{FORM} input")
    field.clear()
    field.send_keys(text)
    page.click(f"{FORM} button")


def test_the_page_asks_for_a_token_and_keeps_it_in_its_tab(page: Page, token_and_url: tuple[str, str]) -> None:
    token, _ = token_and_url
    page.open("#/")
    page.wait_for(FORM)
    assert "overlane token" in page.text(FORM)
    enter(page, "overlane_wrong")
    page.wait_for(f"{FORM} .notice")
    assert "does not know this token" in page.text(f"{FORM} .notice")
    enter(page, "not a token")
    assert "no spaces" in page.text(f"{FORM} .notice")
    enter(page, token)
    page.wait_gone(FORM)
    page.wait_for(".empty")

    assert page.script("return Object.values(sessionStorage)") == [token]
    assert page.script("return localStorage.length") == 0
    assert page.script("return document.cookie") == ""
    assert token not in page.script("return location.href + document.documentElement.outerHTML")

    page.open("#/")
    page.wait_for(".empty")
    assert page.script("return document.querySelector('form.token')") is None
    page.click("button.forget")
    page.wait_for(FORM)
    assert page.script("return sessionStorage.length") == 0

    # Chromium logs each 401 as an error, and each breach of the policy, of which there must be none.
    complaints = page.complaints()
    assert [each for each in complaints if "401" not in each] == []


def test_runs_of_others_are_asked_for_only_when_they_are_wanted(page: Page, token_and_url: tuple[str, str]) -> None:
    page.open("#/")
    enter(page, token_and_url[0])
    page.wait_for(".empty")
    page.click("button.show-runs")
    page.wait_for(".runs-refused")
    assert "needs the role admin, and the token has viewer" in page.text(".runs-refused")
