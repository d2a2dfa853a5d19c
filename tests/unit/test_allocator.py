"""What is freed stays with the process, as far as it is to: by the pages that the kernel has to give it anew."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

PAGE = os.sysconf("SC_PAGE_SIZE")
# As it is where the C library has learned nothing yet: every larger block comes from the kernel, and goes back there.
NOTHING_LEARNED = {"MALLOC_MMAP_THRESHOLD_": str(128 * 1024), "MALLOC_TRIM_THRESHOLD_": str(128 * 1024)}


def fresh_pages(settle: str, blocks: int, size: int) -> float:
    """Pages that the kernel gives anew for so many blocks of so many bytes, which are written to and freed, on average."""
    code = f"""
import ctypes, resource
from mpspool.core import allocator
{settle}
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_size_t], [ctypes.c_void_p]
def call():
    found = [libc.malloc({size}) for _ in range({blocks})]
    for block in found:
        ctypes.memset(block, 1, {size})
    for block in found:
        libc.free(block)
call()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(20):
    call()
print((resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) / 20)
"""
    environment = {**os.environ, **NOTHING_LEARNED}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    return float(done.stdout)


@pytest.mark.parametrize(
    ("settle", "blocks", "size", "stays"),
    [
        ("", 8, 2**21, False),
        ("allocator.keep_tensors()", 8, 2**21, True),
        ("allocator.keep_tensors()", 1, 2**26, False),
        ("", 8, 133_000, False),
        ("allocator.keep_bodies()", 8, 133_000, True),
        ("allocator.keep_bodies()", 8, 2**21, False),
    ],
)
def test_what_stays(settle: str, blocks: int, size: int, stays: bool) -> None:
    """A worker keeps the blocks of a call's results, a router those of bodies of some 100 KB; neither keeps what is huge to it."""
    fresh = fresh_pages(settle, blocks, size)
    if stays:
        assert fresh < 10
    else:
        assert fresh > blocks * size / PAGE / 2
