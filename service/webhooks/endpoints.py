"""Who is told of changes of state: the file that OVERLANE_WEBHOOKS_FILE names, read when the service starts.

    ops: {url: "https://hooks.example/overlane", secret_file: ops.secret}
    ads: {url: "https://ads.example/jobs", secret: "whsec_…", project: ads, states: [failed, lost]}

An operator writes it, so an address may be any one that the service can reach; a job file cannot name one.
"""

import base64
import binascii
import hashlib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Self

import httpx
import yaml
from pydantic import BaseModel, ConfigDict, Field, SecretStr, StringConstraints, ValidationError, model_validator

from service.models import JobState
from service.security.trusted_file import UntrustedFileError, read_trusted
from workers.job_text import load_yaml

SECRET_PREFIX = "whsec_"
# As Standard Webhooks has it, for the key behind the prefix.
_KEY_BYTES = range(24, 65)
_MOST = 32
_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")
_EXAMPLE = "ops: {url: https://hooks.example/overlane, secret_file: ops.secret}"
# Their values are not repeated: an address may hold a password, or look like none.
_PRIVATE = ("url", "secret", "secret_file")


class InvalidWebhooksError(ValueError):
    """A webhooks file that cannot be used; the message names file, endpoint, field and value, and never a secret."""


class _Entry(BaseModel):
    """An endpoint as it stands in the file."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    url: str
    secret: SecretStr | None = None
    secret_file: Path | None = None
    project: Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9-]{0,62}$")] | None = None
    states: tuple[JobState, ...] | None = Field(default=None, min_length=1)

    @model_validator(mode="after")
    def _one_secret(self) -> Self:
        if (self.secret is None) == (self.secret_file is None):
            raise ValueError("secret: give either secret: whsec_... or secret_file: the file that holds it")
        return self


class Endpoint(BaseModel):
    """Somebody who is told of changes of state: of one `project` or of all (None), of some `states` or of all.

    `secrets` sign a message, each for itself: while a secret is exchanged there are two of them.
    """

    model_config = ConfigDict(frozen=True)

    name: str
    url: SecretStr
    secrets: tuple[SecretStr, ...]
    project: str | None = None
    states: frozenset[JobState] | None = None

    def wants(self, project: str, state: JobState) -> bool:
        """Whether it is told that a job of this project has entered this state."""
        return self.project in (None, project) and (self.states is None or state in self.states)

    @property
    def shown_url(self) -> str:
        """The address without what may be secret in it: user, password, query."""
        return str(httpx.URL(self.url.get_secret_value()).copy_with(userinfo=b"", query=None, fragment=None))

    @property
    def url_hash(self) -> str:
        """What is kept in the database to know the address again."""
        return hashlib.sha256(self.url.get_secret_value().encode()).hexdigest()


def read_endpoints(path: Path | None) -> tuple[Endpoint, ...]:
    """Read the file; no file is no endpoints. Raises `InvalidWebhooksError`."""
    if path is None:
        return ()
    try:
        content = load_yaml(read_trusted(path))
    except UntrustedFileError as error:
        raise InvalidWebhooksError(f"{path}: {error}") from None
    except (ValueError, yaml.YAMLError, RecursionError) as error:
        mark = error.problem_mark if isinstance(error, yaml.MarkedYAMLError) else None
        where = "" if mark is None else f"line {mark.line + 1}: "
        # Not the error itself, which repeats the line.
        raise InvalidWebhooksError(f"{path}: {where}not valid YAML, such as {_EXAMPLE}, each name once") from None
    if not isinstance(content, dict) or not content:
        raise InvalidWebhooksError(f"{path}: expected names with endpoints, such as {_EXAMPLE}")
    if len(content) > _MOST:
        raise InvalidWebhooksError(f"{path}: has {len(content)} endpoints, and may have {_MOST}")
    endpoints = tuple(_endpoint(path, name, fields) for name, fields in content.items())
    if any(isinstance(fields, dict) and "secret" in fields for fields in content.values()):
        try:
            read_trusted(path, secret=True)
        except UntrustedFileError as error:
            raise InvalidWebhooksError(f"{path}: {error}") from None
    return endpoints


def _endpoint(path: Path, name: object, fields: object) -> Endpoint:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise InvalidWebhooksError(f"{path}: {name!r} is no name of an endpoint: small letters, digits and -")
    if not isinstance(fields, dict):
        raise InvalidWebhooksError(f"{path}: {name}: expected an endpoint, such as {_EXAMPLE}")
    where = f"{path}: {name}"
    try:
        entry = _Entry.model_validate(fields)
    except ValidationError as error:
        raise InvalidWebhooksError(f"{where}.{_fault(error, fields)}") from None
    return Endpoint(
        name=name,
        url=SecretStr(_url(where, entry.url)),
        secrets=_secrets(where, path, entry),
        project=entry.project,
        states=None if entry.states is None else frozenset(entry.states),
    )


def _fault(error: ValidationError, fields: Mapping[Any, Any]) -> str:
    detail = error.errors()[0]
    field = ".".join(str(part) for part in detail["loc"])
    if detail["type"] == "extra_forbidden":
        return f"{field}: unknown field; known are {', '.join(_Entry.model_fields)}"
    message = detail["msg"].removeprefix("Value error, ")
    if not field:
        return message
    name = detail["loc"][0]
    return f"{field}: {message}" + ("" if name in _PRIVATE or name not in fields else f" (got {fields[name]!r})")


def _url(where: str, text: str) -> str:
    try:
        url = httpx.URL(text)
    except httpx.InvalidURL:
        url = httpx.URL("")
    if url.scheme not in ("http", "https") or not url.host:
        raise InvalidWebhooksError(f"{where}.url: not an address such as https://hooks.example/overlane")
    return text


def _secrets(where: str, path: Path, entry: _Entry) -> tuple[SecretStr, ...]:
    """All secrets of an endpoint: words, since a file ends with a line break and may hold a new and an old secret."""
    if entry.secret_file is None:
        where, text = f"{where}.secret", entry.secret.get_secret_value() if entry.secret else ""
    else:
        file = path.parent / entry.secret_file
        where = f"{where}.secret_file {file}"
        try:
            text = read_trusted(file, secret=True)
        except UntrustedFileError as error:
            raise InvalidWebhooksError(f"{where}: {error}") from None
    words = text.split()
    if not words or not all(_is_secret(word) for word in words):
        raise InvalidWebhooksError(
            f"{where}: not a secret: {SECRET_PREFIX} and {_KEY_BYTES[0]} to {_KEY_BYTES[-1]} bytes in base64, as made "
            f"by: echo {SECRET_PREFIX}$(head -c 32 /dev/urandom | base64)"
        )
    return tuple(SecretStr(word) for word in words)


def _is_secret(word: str) -> bool:
    try:
        key = base64.b64decode(word.removeprefix(SECRET_PREFIX), validate=True)
    except (binascii.Error, ValueError):
        return False
    return word.startswith(SECRET_PREFIX) and len(key) in _KEY_BYTES
