"""The tokens file: who may use the service, as a list in YAML with one entry for each token.

    - {name: ci, role: submitter, project: ranking, hash: "sha256:…"}

Only hashes stand in it. A plain hash will do, since `overlane token` makes tokens that are random and long.
"""

import hashlib
import hmac
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import structlog
import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from service.security.roles import EVERY_PROJECT, Caller, Role
from service.security.trusted_file import UntrustedFileError, read_trusted
from workers.job_text import load_yaml

log = structlog.get_logger(__name__)

NAME_PATTERN = r"^[a-z0-9][a-z0-9._-]{0,62}$"
PROJECT_PATTERN = r"^(\*|[a-z0-9][a-z0-9-]{0,62})$"

_EXAMPLE = 'an entry is - {name: ci, role: viewer, project: "*", hash: "sha256:..."}, each field once'
_LONGEST_FIELD = 20


class InvalidTokensFileError(ValueError):
    """The tokens file cannot be used. The message names file, entry and field, and never a value."""

    def __init__(self, path: Path, faults: Sequence[str]) -> None:
        super().__init__("; ".join(f"{path}: {fault}" for fault in faults))


class TokenEntry(BaseModel):
    """One token: whose it is, what it is good for, and its hash."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field(pattern=NAME_PATTERN)
    role: Role
    project: str = Field(pattern=PROJECT_PATTERN)
    hash: str = Field(pattern=r"^sha256:[0-9a-f]{64}$")

    @model_validator(mode="after")
    def _admins_are_everywhere(self) -> Self:
        if self.role is Role.ADMIN and self.project != EVERY_PROJECT:
            raise ValueError(f"project: an admin acts in every project; write '{EVERY_PROJECT}'")
        return self

    @property
    def caller(self) -> Caller:
        return Caller(self.name, self.role, self.project)

    @property
    def line(self) -> str:
        """The entry as it stands in the file."""
        return f'- {{name: {self.name}, role: {self.role.value}, project: "{self.project}", hash: "{self.hash}"}}'


def new_entry(name: str, role: Role, project: str) -> tuple[str, TokenEntry]:
    """A new token, and the entry that makes it known. Raises `pydantic.ValidationError`."""
    token = f"overlane_{secrets.token_urlsafe(32)}"
    return token, TokenEntry(name=name, role=role, project=project, hash=_hash(token))


@dataclass(frozen=True)
class _State:
    """What was found in the file, or why it cannot be used, when its status was `status`."""

    status: tuple[int, ...] | None
    entries: tuple[TokenEntry, ...]
    error: InvalidTokensFileError | None


class TokensFile:
    """The callers that a file names, as it stands now: it is read again when it has changed.

    A file that cannot be used lets nobody in: the entry that somebody wanted to remove may still be in the last good
    one.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._state = _State(None, (), None)

    def caller(self, token: str) -> Caller | None:
        """Whose token this is, found in a time that does not depend on it. Raises `InvalidTokensFileError`."""
        given, found = _hash(token), None
        for entry in self._entries():
            # Every entry is compared, also after one has matched.
            if hmac.compare_digest(entry.hash, given):
                found = entry.caller
        return found

    def check(self) -> None:
        """Raise `InvalidTokensFileError` if the file cannot be used."""
        self._entries()

    @property
    def version(self) -> tuple[int, ...] | None:
        """Another one when the file has changed; None while there is no file."""
        return _status(self._path)

    def _entries(self) -> tuple[TokenEntry, ...]:
        status = _status(self._path)
        if self._state.status is None or status != self._state.status:
            self._state = self._read(status)
        if self._state.error is not None:
            raise self._state.error
        return self._state.entries

    def _read(self, status: tuple[int, ...] | None) -> _State:
        try:
            entries = read_tokens(self._path)
        except InvalidTokensFileError as error:
            if str(error) != str(self._state.error):
                log.error("tokens_file_invalid", error=str(error))
            return _State(status, (), error)
        log.info("tokens_file_read", tokens=len(entries))
        return _State(status, entries, None)


def read_tokens(path: Path) -> tuple[TokenEntry, ...]:
    """Raises `InvalidTokensFileError` with all faults of all entries."""
    try:
        raw = load_yaml(read_trusted(path))
    except UntrustedFileError as error:
        raise InvalidTokensFileError(path, [str(error)]) from None
    except (ValueError, yaml.YAMLError, RecursionError) as error:
        mark = error.problem_mark if isinstance(error, yaml.MarkedYAMLError) else None
        where = "" if mark is None else f"line {mark.line + 1}: "
        raise InvalidTokensFileError(path, [f"{where}not valid YAML, {_EXAMPLE}"]) from None
    if not isinstance(raw, list) or not raw:
        raise InvalidTokensFileError(path, ["needs a list with at least one entry; `overlane token` makes one"])
    entries: list[TokenEntry] = []
    faults: list[str] = []
    for number, fields in enumerate(raw, start=1):
        try:
            entries.append(TokenEntry.model_validate(fields))
        except ValidationError as error:
            faults += [f"entry {number}: {fault}" for fault in faults_of_entry(error)]
    for field in ("name", "hash"):
        values = [getattr(entry, field) for entry in entries]
        if not faults and len(set(values)) < len(values):
            second = next(place for place, value in enumerate(values) if value in values[:place])
            first = values.index(values[second])
            faults.append(f"entry {second + 1}: {field}: the same as that of entry {first + 1}")
    if faults:
        raise InvalidTokensFileError(path, faults)
    return tuple(entries)


def faults_of_entry(error: ValidationError) -> list[str]:
    """`field: what is wrong`, without the value: somebody may have put a token where its hash belongs."""
    faults = []
    for detail in error.errors(include_input=False, include_context=False, include_url=False):
        field, message = ".".join(str(part) for part in detail["loc"]), detail["msg"].removeprefix("Value error, ")
        if detail["type"] == "extra_forbidden":
            field = field if len(field) <= _LONGEST_FIELD else ""
            message = f"unknown field; known fields: {', '.join(TokenEntry.model_fields)}"
        elif detail["type"] in ("model_type", "model_attributes_type", "dict_type"):
            message = f"expected a mapping with the fields {', '.join(TokenEntry.model_fields)}"
        faults.append(f"{field}: {message}" if field else message)
    return faults


def _hash(token: str) -> str:
    return f"sha256:{hashlib.sha256(token.encode()).hexdigest()}"


def _status(path: Path) -> tuple[int, ...] | None:
    """What changes when the file does; None if there is none."""
    try:
        found = path.stat()
    except OSError:
        return None
    return (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)
