"""What an MPS server's log says of who caused a fatal fault.

NVIDIA documents that the log of a fatal memory fault names the pid of the client that triggered it, and shows no such
line; what it shows, "The following clients have a sticky error set:" with a pid a line, are those that were hit. So a
pid counts where a line says of it that it caused, triggered or encountered the fault, or where it is the only one hit.
"""

from __future__ import annotations

import re
from pathlib import Path

# More than a fault leaves there; what lies before it is not read again.
_TAIL_BYTES = 256 * 1024
_PREFIX = re.compile(r"^\[[^\]]*\]\s*")
_FAULT = re.compile(r"\bfatal\b|\bfault\b", re.IGNORECASE)
_CAUSE = re.compile(r"trigger|caus|encounter|raised", re.IGNORECASE)
_PID = re.compile(r"\bPID[:\s]+(\d+)|\bclient\s+\{?(\d+)", re.IGNORECASE)
_HIT = re.compile(r"clients have a sticky error", re.IGNORECASE)


def culprits(lines: list[str]) -> list[int]:
    """The pids that caused a fatal fault, as far as these lines of a server.log name them."""
    named: list[int] = []
    hit: list[int] = []
    listing = False
    for line in lines:
        text = _PREFIX.sub("", line).strip().removeprefix("SIMULATED ").removeprefix("Volta MPS: ")
        if listing and text.isdigit():
            hit.append(int(text))
            continue
        listing = bool(_HIT.search(text))
        if _FAULT.search(text) and _CAUSE.search(text):
            named += [int(found[1] or found[2]) for found in _PID.finditer(text)]
    return list(dict.fromkeys(named or (hit if len(set(hit)) == 1 else [])))


class ServerLog:
    """A server.log that grows, read a piece at a time."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read = self._size()

    def culprits(self) -> list[int]:
        """Those that the lines added since the last call name, or since we began to look."""
        size = self._size()
        begin = max(self._read if self._read <= size else 0, size - _TAIL_BYTES)
        self._read = size
        try:
            with self._path.open("rb") as file:
                file.seek(begin)
                added = file.read(size - begin)
        except OSError:
            return []
        return culprits(added.decode(errors="replace").splitlines())

    def _size(self) -> int:
        try:
            return self._path.stat().st_size
        except OSError:
            return 0
