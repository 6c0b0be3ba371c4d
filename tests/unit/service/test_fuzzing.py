"""A short run of made-up requests, always the same ones; the long one is `python -m tests.unit.service.fuzzing`."""

from pathlib import Path

import pytest

from tests.unit.service.fuzzing import fuzz, silent_log


@pytest.mark.filterwarnings("ignore")
def test_made_up_requests_are_answered_as_the_document_says(tmp_path: Path) -> None:
    with silent_log():
        found = fuzz(tmp_path, seed=1, max_examples=2, coverage=False)
    assert found.failures == {}
    assert found.requests > 50
    # All checks of schemathesis that have something to check here.
    for check in ("not_a_server_error", "response_schema_conformance", "negative_data_rejection", "ignored_auth"):
        assert found.checks[check] > 0
