"""What an operator may set."""

import sys
from pathlib import Path

import pytest
from pydantic import ValidationError

from service.settings import Settings
from tests.unit.service.callers import Callers


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.2", "::1", "localhost"])
def test_loopback(host: str) -> None:
    assert Settings(host=host).host == host


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "example.org", ""])
def test_elsewhere_is_refused_with_a_reason(host: str) -> None:
    with pytest.raises(ValidationError, match=r"no authentication without OVERLANE_TOKENS_FILE.*use 127\.0\.0\.1"):
        Settings(host=host)


def test_elsewhere_needs_a_tokens_file_that_can_be_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OVERLANE_TOKENS_FILE", str(tmp_path / "tokens.yaml"))
    with pytest.raises(ValidationError, match=r"tokens\.yaml: cannot be read: No such file"):
        Settings(host="0.0.0.0")
    Callers(tmp_path / "tokens.yaml")
    assert Settings(host="10.1.2.3").own_hosts == {"10.1.2.3"}


def test_the_command_of_a_job() -> None:
    assert Settings().job_command.startswith(sys.executable)
    assert Settings(ray_address="http://head:8265").job_command.startswith("python -m workers.train")
    assert Settings(entrypoint="true").job_command == "true"


def test_the_environment_is_read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("OVERLANE_HOME", str(tmp_path))
    monkeypatch.setenv("OVERLANE_PORT", "9000")
    assert (Settings().database.database, Settings().port) == (str(tmp_path / "overlane.db"), 9000)


def test_names_of_the_service(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OVERLANE_ALLOWED_HOSTS", "one.example, two.example")
    assert Settings().allowed_hosts == ("one.example", "two.example")
    settings = Settings(report_url="https://overlane.svc:8443/prefix")
    assert settings.own_hosts == {"127.0.0.1", "one.example", "two.example", "overlane.svc"}
    with pytest.raises(ValidationError, match="report_url"):
        Settings(report_url="overlane.svc")


def test_the_address_of_the_service() -> None:
    assert Settings(port=1).url == "http://127.0.0.1:1"
    assert Settings(host="::1", port=1).url == "http://[::1]:1"


@pytest.mark.parametrize("address", ["head:8265", "ray://head:10001", "http://head:8265/path"])
def test_only_an_http_address_is_one_of_ray(address: str) -> None:
    with pytest.raises(ValidationError, match="ray_address"):
        Settings(ray_address=address)
