"""How much memory is this process's own."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mpspool.core.segment_file import PAGE

if TYPE_CHECKING:
    import numpy as np

_ROLLUP = Path("/proc/self/smaps_rollup")
# Eight bytes a page, and what is known of it in the highest bits: Documentation/admin-guide/mm/pagemap.rst.
_PAGEMAP = Path("/proc/self/pagemap")
_ENTRY_BYTES = 8
_ENTRIES = 2**17
_PRESENT, _SWAPPED, _OF_A_FILE = 1 << 63, 1 << 62, 1 << 61


def private_bytes() -> int:
    """Anonymous memory: what this process wrote, the pages it copied of a private mapping included.

    A segment's own pages never count, however few processes map them; to Linux they would be
    Private_Dirty in the only worker. What a forked worker has of its parent's pages counts before
    and after, so a difference is the process's own.

    Raises:
        OSError: no such file: not Linux, or older than 4.14.
    """
    for line in _ROLLUP.read_text(encoding="ascii").splitlines():
        name, _, value = line.partition(":")
        if name == "Anonymous":
            return int(value.split()[0]) * 1024
    raise OSError(f"{_ROLLUP} has no line Anonymous")


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
