"""The lock file is what `make lock` would write: sorted, complete, and installable on either kind of machine."""

import importlib.util
import tomllib
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from tests.unit.deploy.crd import REPO


def load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("lock", REPO / "requirements/lock.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


lock = load()
lock_lines: Callable[[dict[str, str], set[str]], list[str]] = lock.lock_lines


def test_both_builds_of_fbgemm_and_no_local_version() -> None:
    installed = {"torch": "2.13.0+cpu", "fbgemm-gpu-cpu": "1.8.0", "overlane": "0.1.0", "aiohttp": "3.14.5"}
    assert lock_lines(installed, {"overlane"}) == [
        "aiohttp==3.14.5",
        "fbgemm-gpu-cpu==1.8.0",
        "fbgemm-gpu==1.8.0",
        "torch==2.13.0",
    ]


def test_an_environment_without_fbgemm_is_refused() -> None:
    with pytest.raises(ValueError, match="expected one version of fbgemm-gpu or fbgemm-gpu-cpu, found \\[\\]"):
        lock_lines({"torch": "2.13.0"}, set())


def test_packages_without_their_dependencies_are_pinned_elsewhere(tmp_path: Path) -> None:
    (tmp_path / "cpu-no-deps.txt").write_text("# why\ntorchrec==1.9.2\nA_b==1\n")
    assert lock.no_deps_names(tmp_path) == {"torchrec", "a-b"}


def test_every_direct_dependency_is_in_the_lock_file() -> None:
    project = tomllib.loads((REPO / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    pinned = {
        lock.canonical(line.split("==")[0]): line.split("==")[1]
        for line in (REPO / "requirements/lock.txt").read_text(encoding="utf-8").splitlines()
        if not line.startswith("#")
    }
    for requirement in (*project["dependencies"], *extras["cpu"], *extras["gpu"], *extras["dev"]):
        name, version = requirement.split("==")
        assert pinned.get(lock.canonical(name.partition("[")[0])) == version, requirement
