"""A headless Chromium that reads the page as a person's browser shows it."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import Select, WebDriverWait

WAIT_S = 20

# Every figure below an element: {field: unrounded value}.
_FIGURES = """
const found = {};
for (const each of document.querySelector(arguments[0]).querySelectorAll("[data-field]"))
  found[each.dataset.field] = each.dataset.value;
return found;
"""
_COLLECTIVES = """
return [...document.querySelectorAll("tr[data-collective]")].map((row) => [
  row.dataset.collective,
  row.dataset.partition,
  Object.fromEntries([...row.querySelectorAll("[data-field]")].map((each) => [each.dataset.field, each.dataset.value])),
]);
"""


def missing() -> str | None:
    """Why no browser can be started here, or None."""
    absent = [name for name in ("chromium", "chromedriver") if shutil.which(name) is None]
    return f"{' and '.join(absent)} not installed (Debian: chromium chromium-driver)" if absent else None


class Page:
    """The dashboard in a browser."""

    def __init__(self, driver: webdriver.Chrome, url: str) -> None:
        self.driver = driver
        self.url = url

    def open(self, route: str) -> None:
        """Load the page anew at `route`, e.g. `#/jobs/ID`."""
        self.driver.get("about:blank")
        self.driver.get(f"{self.url}/{route}")

    def wait_for(self, selector: str) -> None:
        WebDriverWait(self.driver, WAIT_S, poll_frequency=0.1).until(
            lambda driver: driver.find_elements(By.CSS_SELECTOR, selector), f"no {selector} on the page"
        )

    def wait_gone(self, selector: str) -> None:
        WebDriverWait(self.driver, WAIT_S, poll_frequency=0.1).until_not(
            lambda driver: driver.find_elements(By.CSS_SELECTOR, selector), f"{selector} stays on the page"
        )

    def click(self, selector: str) -> None:
        self.wait_for(selector)
        self.driver.find_element(By.CSS_SELECTOR, selector).click()

    def choose(self, selector: str, value: str) -> None:
        Select(self.driver.find_element(By.CSS_SELECTOR, selector)).select_by_value(value)

    def text(self, selector: str) -> str:
        return self.driver.find_element(By.CSS_SELECTOR, selector).text

    def attribute(self, selector: str, name: str) -> str | None:
        return self.driver.find_element(By.CSS_SELECTOR, selector).get_attribute(name)

    def figures(self, selector: str) -> dict[str, str]:
        """Unrounded figures below the first element that `selector` finds, by field."""
        found = self.driver.execute_script(_FIGURES, selector)
        assert isinstance(found, dict)
        return found

    def collectives(self) -> dict[tuple[str, str], dict[str, str]]:
        """Figures of every collective on the page, by name and partition (`none` where it has none)."""
        rows: list[tuple[str, str, dict[str, str]]] = self.driver.execute_script(_COLLECTIVES)
        return {(name, partition): figures for name, partition, figures in rows}

    def size(self, width: int, height: int) -> None:
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)

    def script(self, source: str) -> Any:
        return self.driver.execute_script(source)

    def offline(self, away: bool) -> None:
        """Cut the browser off from the service, or connect it again."""
        conditions = {"offline": away, "latency": 0, "downloadThroughput": -1, "uploadThroughput": -1}
        self.driver.execute_cdp_cmd("Network.enable", {})
        self.driver.execute_cdp_cmd("Network.emulateNetworkConditions", conditions)

    def complaints(self) -> list[str]:
        """What the browser has logged as an error since the last call, e.g. a breach of the content security policy."""
        entries = self.driver.get_log("browser")  # type: ignore[no-untyped-call]
        return [entry["message"] for entry in entries if entry["level"] == "SEVERE"]


@contextmanager
def chromium(profile: Path) -> Iterator[webdriver.Chrome]:
    """Debian's Chromium with a profile of its own."""
    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or ""
    for argument in (
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-sync",
        "--hide-scrollbars",
        f"--user-data-dir={profile}",
    ):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver")))
    try:
        yield driver
    finally:
        driver.quit()
