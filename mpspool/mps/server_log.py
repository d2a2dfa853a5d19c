"""What an MPS server writes of a fatal fault: whom it has hit, and who caused it where it says so.

NVIDIA documents that the log of a fatal memory fault names the pid of the client that triggered it, and shows no such
line. Driver 580 does not: its "Client {PID: 1313, Context: 1} encountered a fatal GPU error." is about whoever noticed
first, which with busy clients was another than the one that faulted. Those that were hit, the cause among them, follow a
line "The following client process have a sticky error set:", a pid a line; the documentation has "clients" there. So a
pid counts as the cause where a line says of it that it caused or triggered the fault, or where it is the only one hit.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

# More than a fault leaves there; what lies before it is not read again.
_TAIL_BYTES = 256 * 1024
_PREFIX = re.compile(r"^\[[^\]]*\]\s*")
_FAULT = re.compile(r"\bfatal\b|\bfault\b", re.IGNORECASE)
_CAUSE = re.compile(r"trigger|caus|raised", re.IGNORECASE)
_PID = re.compile(r"\bPID[:\s]+(\d+)|\bclient\s+\{?(\d+)", re.IGNORECASE)
_HIT = re.compile(r"clients?( process)? have a sticky error", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Fault:
    """Pids: of those that a fatal fault hit, and of those that caused it, as far as they are named."""

    hit: list[int]
    culprits: list[int]


def fault(lines: list[str]) -> Fault:
    """What these lines of a server's say; of several faults all of it."""
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
    hit = list(dict.fromkeys(hit))
    return Fault(hit, list(dict.fromkeys(named or (hit if len(hit) == 1 else []))))


class ServerLog:
    """The file that a server's lines end up in, from what it had when we began to look, or were last told to forget."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._known = self._size()

    def fault(self) -> Fault:
        return fault(self._lines())

    def forget(self) -> None:
        """What is there by now is of no later fault."""
        self._known = self._size()

    def _lines(self) -> list[str]:
        size = self._size()
        if size < self._known:  # another file has taken its place
            self._known = 0
        begin = max(self._known, size - _TAIL_BYTES)
        try:
            with self._path.open("rb") as file:
                file.seek(begin)
                added = file.read(size - begin)
        except OSError:
            return []
        return added.decode(errors="replace").splitlines()

    def _size(self) -> int:
        try:
            return self._path.stat().st_size
        except OSError:
            return 0
