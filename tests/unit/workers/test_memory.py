"""Freed memory is kept: the kernel does not have to zero the same pages again and again."""

import platform
import subprocess
import sys

import pytest

PROGRAM = """
import resource, sys
import numpy as np
from workers.memory import keep_freed_memory

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(20):
        several = [np.ones(400_000) for _ in range(16)]
        del several
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

if sys.argv[1] == "keep":
    assert keep_freed_memory()
    faults()
print(faults())
"""


def faults(how: str) -> int:
    """Page faults of a process of its own, since what malloc is told holds for the whole process."""
    done = subprocess.run([sys.executable, "-c", PROGRAM, how], capture_output=True, text=True, check=True)
    return int(done.stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc is told")
def test_memory_that_is_allocated_again_needs_no_new_pages() -> None:
    pages = 20 * 16 * 400_000 * 8 // 4096
    assert faults("give back") > pages / 4
    assert faults("keep") < pages / 100
