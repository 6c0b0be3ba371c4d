"""Prints the lock file: the version of every installed package but our own, as pip constraints.

Run in the environment that `make setup` made: `make lock`.
"""

import importlib.metadata
import re
import sys
from pathlib import Path

HEADER = """\
# Every version that the CPU and the GPU installation use; pip reads it as constraints (make setup).
# Regenerate with: make lock
"""
NOT_LOCKED = frozenset({"overlane", "pip", "setuptools", "wheel"})
# The CPU and the GPU build of fbgemm install the same package folder, so only one of them can be installed here.
FBGEMM_BUILDS = frozenset({"fbgemm-gpu", "fbgemm-gpu-cpu"})


def canonical(name: str) -> str:
    """The name as package indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def no_deps_names(folder: Path) -> set[str]:
    """Names in the `*-no-deps.txt` files, which pin their packages themselves."""
    lines = [line for file in folder.glob("*-no-deps.txt") for line in file.read_text(encoding="utf-8").splitlines()]
    return {canonical(line.split("==")[0]) for line in lines if line and not line.startswith("#")}


def lock_lines(installed: dict[str, str], without: set[str]) -> list[str]:
    """Sorted pins of `installed` (canonical name to version), both builds of fbgemm for the one that is there.

    Local versions (`2.13.0+cpu`) lose their local part: an index for another platform carries another one. Raises
    ValueError if no build of fbgemm is installed.
    """
    fbgemm = {version for name, version in installed.items() if name in FBGEMM_BUILDS}
    if len(fbgemm) != 1:
        raise ValueError(f"expected one version of {' or '.join(sorted(FBGEMM_BUILDS))}, found {sorted(fbgemm)}")
    pins = installed | dict.fromkeys(FBGEMM_BUILDS, fbgemm.pop())
    return sorted(f"{name}=={version.partition('+')[0]}" for name, version in pins.items() if name not in without)


def main() -> None:
    installed = {canonical(each.metadata["Name"]): each.version for each in importlib.metadata.distributions()}
    without = NOT_LOCKED | no_deps_names(Path(__file__).parent)
    sys.stdout.write(HEADER + "\n".join(lock_lines(installed, set(without))) + "\n")


if __name__ == "__main__":
    main()
