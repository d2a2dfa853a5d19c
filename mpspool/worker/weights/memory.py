"""How much memory is this process's own."""

from __future__ import annotations

from pathlib import Path

_ROLLUP = Path("/proc/self/smaps_rollup")


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
