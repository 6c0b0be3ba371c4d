"""The table of answered TorchRec tests says what the tests here say."""

import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

from tests.integration.pipeline.torchrec_pec import test_collision_handlers, test_embedding, test_train_pipeline

README = Path(__file__).with_name("README.md")
HOMES: tuple[ModuleType, ...] = (test_collision_handlers, test_embedding, test_train_pipeline)


def rows() -> Iterator[tuple[str, str]]:
    for line in README.read_text().splitlines():
        if row := re.fullmatch(r"\| (\w+\.test_\w+) \| (.+) \|", line):
            yield row[1], row[2]


def test_every_test_of_torchrec_has_one_row() -> None:
    names = [name for name, _ in rows()]
    assert len(names) == len(set(names)) == 33


def test_every_answer_exists_and_names_its_question() -> None:
    answers = {name: each for home in HOMES for name, each in inspect.getmembers(home, inspect.isfunction)}
    for question, answer in rows():
        if answer.startswith("does not apply: "):
            continue
        group, name = question.split(".")
        for function in re.findall(r"\btest_\w+", answer):
            story = inspect.getdoc(answers[function]) or ""
            by_case = name in test_collision_handlers.PAIRS and "named after" in story
            assert group in story, question
            assert name in story or by_case, question
