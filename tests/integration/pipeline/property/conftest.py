"""What the property leaves behind: its seed and its tally, printed at the end of the run."""

import pytest

from tests.integration.pipeline.property.tally import SEED, Tally

TALLY = pytest.StashKey[Tally]()


@pytest.fixture(scope="session")
def tally(request: pytest.FixtureRequest) -> Tally:
    return request.config.stash.setdefault(TALLY, Tally())


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if TALLY not in config.stash:
        return
    found = config.stash[TALLY]
    terminalreporter.section("random trainings, pipeline against plain TorchRec")
    terminalreporter.line(f"OVERLANE_PROPERTY_SEED={SEED}: {found}")
    for reason, case in found.reasons.items():
        terminalreporter.line(f"  {reason}\n    {case}")
