"""What an operator can set: environment variables with the prefix OVERLANE_, or options of `overlane serve`."""

import os
import shlex
import sys
from pathlib import Path
from typing import Annotated, Self
from urllib.parse import urlsplit

from pydantic import Field, SecretStr, ValidationError, field_validator, model_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict
from sqlalchemy import URL

from service.addresses import DEFAULT_PORT, is_loopback
from service.jobs.quotas import read_quotas
from service.security.tokens_file import read_tokens
from service.store.engine import parse_url
from service.webhooks.endpoints import read_endpoints


def _own_cpus() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)


class Settings(BaseSettings):
    """Everything the control plane is told from outside.

    `home` holds the database, the logs of ended jobs, the checkpoints and the embedded Ray's files. `database_url` is
    that of a database elsewhere: `postgresql://user:password@host:5432/database`. `ray_address` is the HTTP address of
    an existing cluster's dashboard (`http://head:8265`); without it the service starts a Ray head of its own with
    `cluster_cpus` CPUs. `ray_token_file` holds that cluster's token, if it asks for one. `report_url`
    is where the jobs reach this service; by default the address it listens on. `entrypoint` is the command that Ray
    runs for a job. `allowed_hosts` are further names under which the service may be addressed, separated by commas;
    the one in `report_url` is always among them. `tokens_file` names who may use the service, see `tokens_file.py`.
    `quotas_file` says what each project may hold at once, see `quotas.py`. `webhooks_file` names who is told of
    changes of state, see `webhooks/endpoints.py`.

    `archive_steps_after_days` and `remove_jobs_after_days` count from the end of a job, see `retention.py`.

    A request that is no event stream may take `request_timeout_s`. A token, or an address without one, may send
    `rate_burst` requests at once and `rate_limit` a second; 0 means any number.
    """

    model_config = SettingsConfigDict(env_prefix="OVERLANE_", frozen=True, extra="ignore")

    host: str = "127.0.0.1"
    port: int = Field(default=DEFAULT_PORT, ge=0, le=65535)
    home: Path = Path(".overlane")
    database_url: SecretStr | None = None
    ray_address: str | None = Field(default=None, pattern=r"^https?://[^/]+/?$")
    ray_token_file: Path | None = None
    report_url: str | None = Field(default=None, pattern=r"^https?://[^/]+(/.*)?$")
    cluster_cpus: int = Field(default_factory=_own_cpus, ge=1)
    entrypoint: str | None = None
    dashboard: Path = Path(__file__).parent / "dashboard" / "dist"
    allowed_hosts: Annotated[tuple[str, ...], NoDecode] = ()
    tokens_file: Path | None = None
    quotas_file: Path | None = None
    webhooks_file: Path | None = None
    archive_steps_after_days: float | None = Field(default=None, gt=0, le=36500)
    remove_jobs_after_days: float | None = Field(default=None, gt=0, le=36500)
    request_timeout_s: float = Field(default=30, gt=0)
    rate_limit: float = Field(default=200, ge=0)
    rate_burst: int = Field(default=1000, ge=1)

    @field_validator("home")
    @classmethod
    def _absolute(cls, home: Path) -> Path:
        return home.expanduser().resolve()

    @field_validator("database_url")
    @classmethod
    def _of_a_known_database(cls, url: SecretStr | None) -> SecretStr | None:
        if url is not None:
            parse_url(url.get_secret_value())
        return url

    @field_validator("quotas_file")
    @classmethod
    def _of_known_limits(cls, path: Path | None) -> Path | None:
        read_quotas(path)
        return path

    @field_validator("webhooks_file")
    @classmethod
    def _of_known_endpoints(cls, path: Path | None) -> Path | None:
        read_endpoints(path)
        return path

    @field_validator("allowed_hosts", mode="before")
    @classmethod
    def _between_commas(cls, hosts: object) -> object:
        return tuple(host.strip() for host in hosts.split(",") if host.strip()) if isinstance(hosts, str) else hosts

    @model_validator(mode="after")
    def _loopback_or_tokens(self) -> Self:
        if self.tokens_file is not None:
            read_tokens(self.tokens_file)
        elif not is_loopback(self.host):
            raise ValueError(
                f"host {self.host}: the service has no authentication without OVERLANE_TOKENS_FILE, so it listens on "
                "loopback only; use 127.0.0.1, or make a file of tokens with `overlane token`"
            )
        return self

    @property
    def url(self) -> str:
        """Where the service listens."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}"

    @property
    def own_hosts(self) -> frozenset[str]:
        """Names, beside the loopback ones, that requests may carry."""
        reported_to = urlsplit(self.report_url or "").hostname
        return frozenset((*self.allowed_hosts, self.host, reported_to or self.host))

    @property
    def jobs_run_here(self) -> bool:
        """Whether jobs run on this machine, as the user that the service runs as."""
        return self.ray_address is None

    @property
    def job_command(self) -> str:
        """The shell command of a job: this interpreter on the embedded cluster, the image's own elsewhere."""
        if self.entrypoint is not None:
            return self.entrypoint
        python = "python" if self.ray_address else shlex.quote(sys.executable)
        return f"{python} -m workers.train --job env:OVERLANE_JOB"

    @property
    def database(self) -> URL:
        if self.database_url is not None:
            return parse_url(self.database_url.get_secret_value())
        return URL.create("sqlite+aiosqlite", database=str(self.home / "overlane.db"))

    @property
    def dry_run_command(self) -> str:
        """The shell command that checks a job without training it."""
        return f"{self.job_command} --plan"

    @property
    def logs(self) -> Path:
        return self.home / "logs"

    @property
    def storage(self) -> Path:
        return self.home / "storage"

    @property
    def archive(self) -> Path:
        return self.home / "archive"


def faults_of(error: ValidationError) -> str:
    """What is wrong with settings, in one line for the operator."""
    faults = []
    for fault in error.errors():
        field, message = ".".join(str(part) for part in fault["loc"]), fault["msg"].removeprefix("Value error, ")
        faults.append(f"{field}: {message}" if field else message)
    return "; ".join(faults)
