"""The tokens file: what may stand in it, who may write it, and when it is read again."""

import os
from pathlib import Path

import pytest
from structlog.typing import EventDict

from service.security.roles import Caller, Role
from service.security.tokens_file import InvalidTokensFileError, TokensFile, new_entry, read_tokens
from tests.unit.service.callers import WHO, Callers

HASH = "sha256:" + 64 * "0"


@pytest.fixture
def callers(tmp_path: Path) -> Callers:
    return Callers(tmp_path / "tokens.yaml")


def written(folder: Path, text: str) -> Path:
    path = folder / "tokens.yaml"
    path.write_text(text)
    path.chmod(0o600)
    return path


def test_every_token_is_found_and_no_other(callers: Callers) -> None:
    file = TokensFile(callers.file)
    for name, token in callers.tokens.items():
        assert file.caller(token) == Caller(name, *WHO[name])
        for wrong in (token[:-1], token + "x", token.upper(), token.removeprefix("overlane_"), f"\u00e9{token}"):
            assert file.caller(wrong) is None
    assert file.caller("") is None
    assert file.caller(callers.entries["root"].hash) is None


def test_only_hashes_are_at_rest(callers: Callers) -> None:
    text = callers.file.read_text()
    for token in callers.tokens.values():
        assert token not in text
        assert token.removeprefix("overlane_") not in text


def test_tokens_are_long_and_never_the_same() -> None:
    tokens = {new_entry("ci", Role.VIEWER, "*")[0] for _ in range(50)}
    assert len(tokens) == 50
    assert min(map(len, tokens)) >= len("overlane_") + 43


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("", "needs a list with at least one entry; `overlane token` makes one"),
        ("[]", "needs a list with at least one entry"),
        ("{name: ci}", "needs a list with at least one entry"),
        ("- ci", "entry 1: expected a mapping with the fields name, role, project, hash"),
        ("- {name: ci, role: viewer, project: a}", "entry 1: hash: Field required"),
        (f"- {{name: CI!, role: viewer, project: a, hash: '{HASH}'}}", "entry 1: name: String should match"),
        (f"- {{name: ci, role: root, project: a, hash: '{HASH}'}}", "entry 1: role: Input should be 'viewer', "),
        (f"- {{name: ci, role: viewer, project: A B, hash: '{HASH}'}}", "entry 1: project: String should match"),
        (f"- {{name: ci, role: admin, project: a, hash: '{HASH}'}}", "entry 1: project: an admin acts in every"),
        ("- {name: ci, role: viewer, project: a, hash: md5:00}", "entry 1: hash: String should match"),
        ("- {name: ci, role: viewer, project: a, hash: 12}", "entry 1: hash: Input should be a valid string"),
        (f"- {{name: ci, role: viewer, project: a, hash: '{HASH}\n'}}", "entry 1: hash: String should match"),
        (f"- {{name: ci, role: viewer, project: a, hash: '{HASH}', note: b}}", "entry 1: note: unknown field; known"),
        (f"- {{name: ci, name: ci, role: viewer, project: a, hash: '{HASH}'}}", "line 1: not valid YAML, an entry is"),
        (f"- {{name: ci, role: viewer, project: *, hash: '{HASH}'}}", "line 1: not valid YAML"),
        ("- !!python/object/apply:os.system ['true']", "line 1: not valid YAML"),
        ("[" * 5000, "not valid YAML"),
    ],
)
def test_a_fault_names_file_entry_and_field(tmp_path: Path, text: str, fault: str) -> None:
    path = written(tmp_path, text)
    with pytest.raises(InvalidTokensFileError) as caught:
        read_tokens(path)
    assert f"{path}: {fault}" in str(caught.value)


def test_all_faults_are_named_at_once(tmp_path: Path) -> None:
    path = written(
        tmp_path, "- {name: ci, role: root, project: a}\n- {name: cd, role: viewer, project: '*', hash: x}\n"
    )
    with pytest.raises(InvalidTokensFileError) as caught:
        read_tokens(path)
    for fault in ("entry 1: role: ", "entry 1: hash: ", "entry 2: hash: "):
        assert f"{path}: {fault}" in str(caught.value)


@pytest.mark.parametrize(("field", "changes"), [("name", {"name": "root"}), ("hash", {"hash": "root"})])
def test_no_name_and_no_token_twice(callers: Callers, field: str, changes: dict[str, str]) -> None:
    root = callers.entries["root"]
    same = {"name": root.name} if "name" in changes else {"hash": root.hash}
    callers.entries["ci"] = callers.entries["ci"].model_copy(update=same)
    callers.write()
    with pytest.raises(InvalidTokensFileError, match=rf"entry 4: {field}: the same as that of entry 1"):
        read_tokens(callers.file)


@pytest.mark.parametrize(
    "line",
    [
        "- {{name: ci, role: viewer, project: a, hash: {token}}}",
        "- {{name: {token}, role: viewer, project: a, hash: {token}}}",
        "- {{name: ci, role: {token}, project: {token}, hash: {token}}}",
        "- {token}",
        "- {{token: {token}}}",
        "- {{name: ci, role: viewer, project: a, hash: '{token}",
        "{token}",
        "- *{token}",
        "- {{name: ci, role: viewer, project: a, hash: *{token}}}",
        "- {{{token}: ci}}",
        "- {{{token}: ci, {token}: ci}}",
    ],
)
def test_a_token_in_the_place_of_its_hash_is_not_repeated(tmp_path: Path, line: str) -> None:
    token = new_entry("ci", Role.VIEWER, "a")[0]
    path = written(tmp_path, line.format(token=token))
    with pytest.raises(InvalidTokensFileError) as caught:
        read_tokens(path)
    assert token not in str(caught.value)
    assert caught.value.__cause__ is None


@pytest.mark.parametrize("mode", [0o620, 0o602, 0o666])
def test_a_file_that_others_may_write_is_refused(callers: Callers, mode: int) -> None:
    callers.file.chmod(mode)
    with pytest.raises(InvalidTokensFileError, match=rf"others may write it \(mode 0{mode:o}\); chmod go-w"):
        read_tokens(callers.file)
    callers.file.chmod(0o644)
    assert len(read_tokens(callers.file)) == len(WHO)


def test_a_folder_in_which_others_may_replace_the_file_is_refused(callers: Callers) -> None:
    folder = callers.file.parent
    folder.chmod(0o777)
    with pytest.raises(InvalidTokensFileError, match="others may replace it"):
        read_tokens(callers.file)
    folder.chmod(0o1777)
    assert read_tokens(callers.file)


def test_the_folder_of_a_link_counts_too(callers: Callers, tmp_path: Path) -> None:
    (tmp_path / "public").mkdir()
    link = tmp_path / "public" / "tokens.yaml"
    link.symlink_to(callers.file)
    assert read_tokens(link)
    (tmp_path / "public").chmod(0o777)
    with pytest.raises(InvalidTokensFileError, match="others may replace it"):
        read_tokens(link)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_a_file_of_another_user_is_refused(callers: Callers) -> None:
    os.chown(callers.file, 12345, 12345)
    with pytest.raises(InvalidTokensFileError, match="belongs to another user"):
        read_tokens(callers.file)


@pytest.mark.parametrize("kind", ["missing", "folder", "pipe", "binary", "huge"])
def test_what_is_no_file_of_tokens(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "tokens.yaml"
    words = "cannot be read: No such file"
    if kind == "folder":
        path.mkdir()
        words = "not a file|Is a directory"
    elif kind == "pipe":
        os.mkfifo(path, 0o600)
        words = "not a file"
    elif kind == "binary":
        path.write_bytes(b"\xff\xfe")
        words = "not UTF-8"
    elif kind == "huge":
        path.write_text("#" * 2**20 + "\n")
        words = "larger than"
    if path.exists():
        path.chmod(0o700)
    with pytest.raises(InvalidTokensFileError, match=words):
        read_tokens(path)


def test_it_is_read_again_when_it_changes_and_only_then(
    callers: Callers, events: list[EventDict], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = TokensFile(callers.file)
    for _ in range(3):
        assert file.caller(callers.tokens["ci"]) is not None
    assert [event["event"] for event in events] == ["tokens_file_read"]
    del callers.entries["ci"]
    callers.write()
    assert file.caller(callers.tokens["ci"]) is None
    assert file.caller(callers.tokens["root"]) is not None
    assert [event["event"] for event in events] == ["tokens_file_read"] * 2


def test_a_file_that_was_spoilt_lets_nobody_in_until_it_is_mended(callers: Callers, events: list[EventDict]) -> None:
    file = TokensFile(callers.file)
    file.check()
    good = callers.file.read_text()
    for spoil in (
        lambda: callers.file.write_text("- {name: ci"),
        lambda: callers.file.chmod(0o666),
        callers.file.unlink,
    ):
        spoil()
        for _ in range(3):
            with pytest.raises(InvalidTokensFileError):
                file.caller(callers.tokens["root"])
    callers.file.write_text(good)
    assert file.caller(callers.tokens["root"]) is not None
    assert [event["event"] for event in events].count("tokens_file_invalid") == 3


def test_every_entry_is_compared(callers: Callers, monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[str] = []

    def watched(stored: str, given: str) -> bool:
        compared.append(stored)
        return stored == given

    monkeypatch.setattr("service.security.tokens_file.hmac.compare_digest", watched)
    file = TokensFile(callers.file)
    for token in (callers.tokens["root"], callers.tokens["rival"], "nobody's"):
        compared.clear()
        file.caller(token)
        assert compared == [entry.hash for entry in callers.entries.values()]
