"""How a training process on a CPU holds its memory."""

import ctypes

import structlog

log = structlog.get_logger(__name__)

# The parameters' numbers in glibc's malloc.h.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_TRIM_BYTES, _MMAP_BYTES = 2**31 - 1, 2**30


def keep_freed_memory() -> bool:
    """Let the C library keep what is freed for the next allocation; True if it does so from now on.

    A step allocates the same activations and gradients as the step before it. glibc hands blocks of that size back to
    the kernel, which must fill every page with zeros when it gives them out again: 4 to 10 % of backward. The process
    then stays as large as it has ever been, which a training does anyhow. C libraries other than glibc are left alone.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        log.info("the C library has no mallopt; freed memory goes back to the kernel in every step")
        return False
    return bool(mallopt(_M_TRIM_THRESHOLD, _TRIM_BYTES)) and bool(mallopt(_M_MMAP_THRESHOLD, _MMAP_BYTES))
