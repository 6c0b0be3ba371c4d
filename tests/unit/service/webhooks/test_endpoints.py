"""The webhooks file: what it says, what is wrong with it, and what it keeps to itself."""

import base64
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from service.models import JobState
from service.settings import Settings, faults_of
from service.webhooks.endpoints import InvalidWebhooksError, read_endpoints
from tests.unit.service.webhooks.receiver import OTHER_SECRET, SECRET, webhooks_file

URL = "https://user:hunter2@hooks.example:8443/overlane?key=hunter3"


def written(folder: Path, text: str) -> Path:
    path = folder / "webhooks.yaml"
    path.write_text(text)
    path.chmod(0o600)
    return path


def test_what_a_file_says(tmp_path: Path) -> None:
    (tmp_path / "ads.secret").write_text(f"{OTHER_SECRET}\n{SECRET}\n")
    (tmp_path / "ads.secret").chmod(0o600)
    fields = {"url": URL, "secret_file": "ads.secret", "project": "ads", "states": ["failed", "lost"]}
    path = webhooks_file(tmp_path / "webhooks.yaml", {"ads": fields, "ops": {"url": "http://10.0.0.1"}})
    ads, ops = read_endpoints(path)
    assert [secret.get_secret_value() for secret in ads.secrets] == [OTHER_SECRET, SECRET]
    assert ads.url.get_secret_value() == URL
    assert ads.wants("ads", JobState.LOST)
    assert not ads.wants("ads", JobState.SUCCEEDED)
    assert not ads.wants("other", JobState.LOST)
    assert all(ops.wants("any", state) for state in JobState)
    assert read_endpoints(None) == ()


def test_what_is_secret_is_not_shown(tmp_path: Path) -> None:
    [ops] = read_endpoints(webhooks_file(tmp_path / "webhooks.yaml", {"ops": {"url": URL}}))
    assert ops.shown_url == "https://hooks.example:8443/overlane"
    shown = f"{ops!r} {ops} {vars(ops)} {ops.model_dump_json()} {ops.shown_url}"
    assert "hunter" not in shown
    assert SECRET not in shown


_SECRET = f"secret: {SECRET}"


def _key(size: int) -> str:
    return f"whsec_{base64.b64encode(b'x' * size).decode()}"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "expected names with endpoints, such as ops: {url: https://"),
        ("- ops", "expected names with endpoints"),
        ("ops: https://hooks.example", "ops: expected an endpoint, such as"),
        (f"Ops: {{url: https://h, {_SECRET}}}", "'Ops' is no name of an endpoint: small letters, digits and -"),
        (f"ops: {{url: https://h, {_SECRET}}}\nops: {{}}", "line 1: not valid YAML"),
        (f"ops: {{{_SECRET}", "line 1: not valid YAML"),
        (f"ops: {{{_SECRET}}}", "ops.url: Field required"),
        (f"ops: {{url: 7, {_SECRET}}}", "ops.url: Input should be a valid string"),
        (f"ops: {{url: ftp://hunter2@h, {_SECRET}}}", "ops.url: not an address such as https://hooks.example/overlane"),
        (f"ops: {{url: 'https://', {_SECRET}}}", "ops.url: not an address"),
        (f"ops: {{url: hooks.example, {_SECRET}}}", "ops.url: not an address"),
        (f"ops: {{url: 'https://h:hunter2', {_SECRET}}}", "ops.url: not an address"),
        (f"ops: {{url: https://h, {_SECRET}, methods: [PUT]}}", "ops.methods: unknown field; known are url, secret"),
        (f"ops: {{url: https://h, {_SECRET}, states: [done]}}", "ops.states.0: Input should be 'queued'"),
        (f"ops: {{url: https://h, {_SECRET}, states: [done]}}", "(got ['done'])"),
        (f"ops: {{url: https://h, {_SECRET}, states: []}}", "ops.states: Tuple should have at least 1 item"),
        (f"ops: {{url: https://h, {_SECRET}, project: '*'}}", "ops.project: String should match pattern"),
        ("ops: {url: https://h}", "ops.secret: give either secret: whsec_... or secret_file"),
        (f"ops: {{url: https://h, {_SECRET}, secret_file: x}}", "ops.secret: give either"),
        ("ops: {url: https://h, secret: hunter2}", "ops.secret: not a secret: whsec_ and 24 to 64 bytes in base64"),
        ("ops: {url: https://h, secret: ''}", "ops.secret: not a secret"),
        ("ops: {url: https://h, secret: [hunter2]}", "ops.secret: Input should be a valid string"),
        (f"ops: {{url: https://h, secret: {_key(23)}}}", "ops.secret: not a secret"),
        (f"ops: {{url: https://h, secret: {_key(65)}}}", "ops.secret: not a secret"),
        (f"ops: {{url: https://h, secret: {SECRET} hunter2}}", "ops.secret: not a secret"),
        ("ops: {url: https://h, secret_file: missing}", "missing: cannot be read: No such file or directory"),
        (
            "\n".join(f"ops-{each}: {{url: https://h, {_SECRET}}}" for each in range(33)),
            "has 33 endpoints, and may have 32",
        ),
    ],
)
def test_what_is_wrong_with_a_file(tmp_path: Path, text: str, words: str) -> None:
    path = written(tmp_path, text)
    with pytest.raises(InvalidWebhooksError) as raised:
        read_endpoints(path)
    assert str(raised.value).startswith(f"{path}: ")
    assert words in str(raised.value)
    assert "hunter" not in str(raised.value)
    assert SECRET not in str(raised.value)


@pytest.mark.parametrize("size", [24, 64])
def test_keys_of_the_sizes_that_the_standard_has(tmp_path: Path, size: int) -> None:
    [ops] = read_endpoints(written(tmp_path, f"ops: {{url: https://h, secret: {_key(size)}}}"))
    assert ops.secrets[0].get_secret_value() == _key(size)


@pytest.mark.parametrize(
    ("mode", "words"),
    [
        (0o602, "others may write it (mode 0602); chmod go-w"),
        (0o620, "others may write it (mode 0620); chmod go-w"),
        (0o604, "holds a secret and everybody may read it (mode 0604); chmod o-r"),
    ],
)
@pytest.mark.parametrize("which", ["webhooks.yaml", "ops.secret"])
def test_files_that_others_can_change_or_everybody_can_read(tmp_path: Path, mode: int, words: str, which: str) -> None:
    (tmp_path / "ops.secret").write_text(SECRET)
    (tmp_path / "ops.secret").chmod(0o600)
    fields: dict[str, Any] = {"secret": SECRET} if which == "webhooks.yaml" else {"secret_file": "ops.secret"}
    path = webhooks_file(tmp_path / "webhooks.yaml", {"ops": {"url": URL, **fields}})
    assert len(read_endpoints(path)) == 1
    (tmp_path / which).chmod(mode)
    with pytest.raises(InvalidWebhooksError) as raised:
        read_endpoints(path)
    assert words in str(raised.value)
    assert str(tmp_path / which) in str(raised.value)


def test_a_file_without_secrets_in_it_may_be_read_by_everybody(tmp_path: Path) -> None:
    (tmp_path / "ops.secret").write_text(SECRET)
    (tmp_path / "ops.secret").chmod(0o640)
    path = webhooks_file(tmp_path / "webhooks.yaml", {"ops": {"url": URL, "secret_file": "ops.secret"}})
    path.chmod(0o644)
    assert len(read_endpoints(path)) == 1


def test_the_service_does_not_start_with_a_file_that_it_cannot_use(tmp_path: Path) -> None:
    with pytest.raises(ValidationError) as raised:
        Settings(webhooks_file=written(tmp_path, f"ops: {{url: hooks.example, {_SECRET}}}"))
    assert "webhooks.yaml: ops.url: not an address" in faults_of(raised.value)
    assert SECRET not in faults_of(raised.value)
    with pytest.raises(ValidationError) as raised:
        Settings(webhooks_file=tmp_path / "missing.yaml")
    assert "missing.yaml: cannot be read: No such file" in faults_of(raised.value)
