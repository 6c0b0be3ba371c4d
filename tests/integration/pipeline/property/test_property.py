"""The property: whatever the model, plan, data and loop, the pipeline trains what plain training would, or refuses."""

from collections import Counter

from hypothesis import HealthCheck, Phase, assume, given, seed, settings

from tests.integration.pipeline.property.case import Case
from tests.integration.pipeline.property.outcome import Verdict, judge
from tests.integration.pipeline.property.strategies import cases
from tests.integration.pipeline.property.tally import SEED, Tally
from tests.ranks import RankPool

EXAMPLES = 200
# Of the cases that are tried, those that plain TorchRec itself cannot train.
MOST_UNTRAINABLE = 0.05


def test_random_cases_are_exact_or_refused(ranks: RankPool, tally: Tally) -> None:
    """Every example is a training of its own, both ways, compared bit for bit; hypothesis shrinks what fails."""

    @seed(SEED)
    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        database=None,
        print_blob=True,
        phases=(Phase.generate, Phase.shrink),
        suppress_health_check=(HealthCheck.too_slow, HealthCheck.filter_too_much),
    )
    @given(cases())
    def holds(case: Case) -> None:
        outcome = judge(ranks, case)
        tally.add(case, outcome)
        assume(outcome.verdict is not Verdict.UNTRAINABLE)
        assert outcome.kept, f"{outcome.verdict}\n{case}\n{outcome.detail}"

    holds()
    counts = Counter(tally.verdicts)
    assert counts[Verdict.EXACT] + counts[Verdict.REFUSED] >= EXAMPLES, counts
    assert counts[Verdict.UNTRAINABLE] <= MOST_UNTRAINABLE * counts.total(), tally.reasons
    assert tally.prioritized >= EXAMPLES / 4, "too few cases have a prioritized module to prove anything"
