"""Every mutant is caught by the check that its row names, and without a mutant none of these checks complains."""

from contextlib import nullcontext

import pytest

from pipeline import schedules
from tests.integration.pipeline.mutants import document
from tests.integration.pipeline.mutants.catchers import Catcher
from tests.integration.pipeline.mutants.table import MUTANTS, Mutant
from tests.ranks import RankPool


@pytest.mark.parametrize("schedule", schedules.ALL)
@pytest.mark.parametrize("catcher", Catcher, ids=lambda catcher: catcher.name)
def test_nothing_is_wrong_without_a_mutant(ranks: RankPool, catcher: Catcher, schedule: str) -> None:
    assert catcher.faults(ranks, nullcontext, schedule) == []


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: f"{mutant.name} ({mutant.caught_by.name})")
def test_the_mutant_is_caught(ranks: RankPool, mutant: Mutant) -> None:
    assert mutant.caught_by.faults(ranks, mutant.mutate, mutant.schedule), f"{mutant.name} survived"


def test_names_are_unique() -> None:
    names = [(mutant.name, mutant.caught_by) for mutant in MUTANTS]
    assert len(set(names)) == len(names)


def test_the_document_is_up_to_date() -> None:
    assert document.PATH.read_text() == document.document(), f"stale; run python -m {document.__name__}"
