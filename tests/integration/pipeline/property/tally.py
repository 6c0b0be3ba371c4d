"""The seed of a run's random cases, and what they came to."""

import os
import secrets
from collections import Counter
from dataclasses import dataclass, field

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
