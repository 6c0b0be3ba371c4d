"""The command of a run, before it reaches Ray."""

import signal

import pytest

from workers.run import ExitStatus
from workers.train import main


def test_a_run_can_be_stopped_from_its_first_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that a script started in the background inherits an ignored SIGINT."""
    monkeypatch.setenv("BAD", "{}")
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        assert main(["--job", "env:BAD"]) == ExitStatus.INVALID_JOB
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)
