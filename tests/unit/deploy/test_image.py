"""The Dockerfile passes its linter, and copies what exists."""

import re
import subprocess
import sys
from pathlib import Path

from tests.unit.deploy.crd import REPO

DOCKERFILE = REPO / "deploy/Dockerfile"


def copied_sources() -> list[str]:
    """Sources of every COPY that takes from the checkout, not from another stage."""
    lines = re.findall(r"^COPY (?!--from)(.+)$", DOCKERFILE.read_text(encoding="utf-8"), re.MULTILINE)
    return [source for line in lines for source in line.split()[:-1]]


def test_linter_is_content() -> None:
    linter = Path(sys.executable).parent / "hadolint"
    checked = subprocess.run([linter, DOCKERFILE], capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_everything_copied_exists_and_reaches_the_builder() -> None:
    sources = copied_sources()
    assert "pipeline/" in sources
    admitted = re.findall(r"^!(.+)$", DOCKERFILE.with_suffix(".dockerignore").read_text(encoding="utf-8"), re.MULTILINE)
    for source in sources:
        assert (REPO / source).exists(), source
        assert any(source.startswith(entry) for entry in admitted), f"{source} is kept from the builder"


def test_entry_points_exist() -> None:
    text = DOCKERFILE.read_text(encoding="utf-8")
    assert 'CMD ["overlane", "serve"]' in text
    assert 'overlane = "service.cli:main"' in (REPO / "pyproject.toml").read_text(encoding="utf-8")
    assert (REPO / "service/cli.py").is_file()
    assert (REPO / "workers/train.py").is_file()


def test_no_package_index_is_named() -> None:
    """Whoever builds brings an index; the image's recipe and the page's lock file name none."""
    lock = REPO / "service/dashboard/package-lock.json"
    assert "resolved" not in lock.read_text(encoding="utf-8")
    assert not re.search(r"https?://", DOCKERFILE.read_text(encoding="utf-8"))


def test_image_does_not_run_as_root() -> None:
    last_user = re.findall(r"^USER (\S+)$", DOCKERFILE.read_text(encoding="utf-8"), re.MULTILINE)[-1]
    assert last_user == "1000"
