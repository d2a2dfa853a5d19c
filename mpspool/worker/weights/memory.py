"""How much memory is this process's own."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mpspool.core.segment_file import PAGE

if TYPE_CHECKING:
    import numpy as np

# Counts anonymous memory as it comes and goes, each processor for itself and then so many pages at a time, or two for each
# processor (lib/percpu_counter.c); the other looks at every page, for 10 to 30 ms of a processor in a worker.
_COUNTED, _LOOKED_AT = Path("/proc/self/status"), Path("/proc/self/smaps_rollup")
_PAGES_AT_A_TIME = 32
_MAY_BE_OFF_BYTES = 4 * 2**20
# Eight bytes a page, and what is known of it in the highest bits: Documentation/admin-guide/mm/pagemap.rst.
_PAGEMAP = Path("/proc/self/pagemap")
_ENTRY_BYTES = 8
# At a time: little enough for the C library to have the memory at hand.
_ENTRIES = 2**12
_PRESENT, _SWAPPED, _OF_A_FILE = 1 << 63, 1 << 62, 1 << 61


def private_bytes() -> int:
    """Anonymous memory: what this process wrote, the pages it copied of a private mapping included.

    A segment's own pages never count, however few processes map them; to Linux they would be
    Private_Dirty in the only worker. What a forked worker has of its parent's pages counts before
    and after, so a difference is the process's own. It may be off by 4 MiB.

    Raises:
        OSError: no such file: not Linux, or older than 4.14.
    """
    cpus = os.cpu_count() or 1
    few = cpus * max(_PAGES_AT_A_TIME, 2 * cpus) * PAGE <= _MAY_BE_OFF_BYTES
    source, name = (_COUNTED, b"RssAnon:") if few else (_LOOKED_AT, b"Anonymous:")
    for line in source.read_bytes().splitlines():
        if line.startswith(name):
            return int(line.split()[1]) * 1024
    raise OSError(f"{source} has no line {name.decode()}")


def own_pages(address: int, count: int) -> np.ndarray[Any, Any]:
    """Which pages of a private mapping of a file were written to, and are this process's own since.

    Args:
        address: of the first page.
        count: how many pages.

    Returns:
        A bool for each page; all False where the kernel does not say.
    """
    import numpy as np

    own = np.zeros(count, bool)
    with contextlib.suppress(OSError), open(_PAGEMAP, "rb", buffering=0) as pagemap:
        for first in range(0, count, _ENTRIES):
            wanted = min(_ENTRIES, count - first)
            place = (address // PAGE + first) * _ENTRY_BYTES
            entries = np.frombuffer(os.pread(pagemap.fileno(), wanted * _ENTRY_BYTES, place), np.uint64)
            in_memory, of_a_file = entries & (_PRESENT | _SWAPPED), entries & _OF_A_FILE
            own[first : first + len(entries)] = in_memory.astype(bool) & ~of_a_file.astype(bool)
    return own
