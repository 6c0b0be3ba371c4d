"""What the property leaves behind: its seed and its tally, printed at the end of the run."""

import os
import secrets
from collections import Counter
from dataclasses import dataclass, field

import pytest

from tests.integration.pipeline.property.case import Case
from tests.integration.pipeline.property.outcome import Outcome, Verdict

# Another one in every run; OVERLANE_PROPERTY_SEED repeats a run.
SEED = int(os.environ.get("OVERLANE_PROPERTY_SEED", secrets.randbelow(2**32)))


@dataclass
class Tally:
    """Counts of what random cases came to, and one case for each reason that is not `exact`."""

    verdicts: Counter[Verdict] = field(default_factory=Counter)
    reasons: dict[str, str] = field(default_factory=dict)
    prioritized: int = 0

    def add(self, case: Case, outcome: Outcome) -> None:
        self.verdicts[outcome.verdict] += 1
        self.prioritized += outcome.verdict is Verdict.EXACT and bool(outcome.prioritized)
        if outcome.verdict is not Verdict.EXACT:
            reason = f"{outcome.verdict}: {outcome.detail.splitlines()[0] if outcome.detail else ''}"
            self.reasons.setdefault(reason, repr(case))

    def __str__(self) -> str:
        counts = ", ".join(f"{count} {verdict}" for verdict, count in sorted(self.verdicts.items()))
        return f"{counts}; {self.prioritized} with prioritized modules"


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
