"""The page's own checks, run as `npm` runs them: types, then the tests of its logic. They open no sockets."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

DASHBOARD = Path(__file__).resolve().parents[3] / "service/dashboard"


@pytest.fixture(scope="module")
def npm() -> str:
    """The npm of the machine, or the one that `make setup` puts into the virtual environment where there is none."""
    found = shutil.which("npm", path=os.pathsep.join([os.environ.get("PATH", ""), str(Path(sys.executable).parent)]))
    if found is None:
        pytest.skip("there is no npm; make setup installs one")
    if not (DASHBOARD / "node_modules").is_dir():
        pytest.skip("the page's packages are not installed; run make setup")
    return found


@pytest.mark.parametrize("script", ["check", "test"])
def test_page(npm: str, script: str) -> None:
    path = os.pathsep.join([str(Path(npm).parent), os.environ.get("PATH", "")])
    done = subprocess.run(
        [npm, "run", "--silent", script],
        cwd=DASHBOARD,
        env={**os.environ, "PATH": path, "CI": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
