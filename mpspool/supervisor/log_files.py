"""The logs of a run folder: which there are, their text, and what is added to them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

from mpspool.core.ids import WORKER_PREFIX, escape
from mpspool.core.rundir import RunDir

_POLL_S = 0.2
_SUFFIX = ".log"


def names(run: RunDir) -> list[str]:
    """The processes that have a log."""
    return sorted(path.name.removesuffix(_SUFFIX) for path in run.logs.glob(f"*{_SUFFIX}"))


def find(run: RunDir, process: str) -> Path | None:
    """The log of a process, named as in `mpspool status` or as supervisord's program."""
    for name in (process, escape(process), WORKER_PREFIX + escape(process)):
        if (path := run.log_file(name)).is_file() and "/" not in name:
            return path
    return None


class Tail:
    """Reads a log that grows and is rotated away.

    Args:
        from_end: begin with what is added from now on.
    """

    def __init__(self, path: Path, *, from_end: bool = False) -> None:
        self._path = path
        self._offset = path.stat().st_size if from_end else 0
        self._inode = path.stat().st_ino
        self._part = ""

    def lines(self) -> Iterator[str]:
        """The whole lines that have come since the last call."""
        try:
            found = self._path.stat()
            if found.st_ino != self._inode or found.st_size < self._offset:
                self._inode, self._offset = found.st_ino, 0
            with self._path.open("rb") as file:
                file.seek(self._offset)
                data = file.read()
        except OSError:
            return
        self._offset += len(data)
        *whole, self._part = (self._part + data.decode(errors="replace")).split("\n")
        yield from whole


def follow(run: RunDir, process: str | None) -> Iterator[tuple[str, str]]:
    """(name, line) for ever: of one process, or of all, those that come later included."""
    tails: dict[str, Tail] = {}
    first = True
    while True:
        wanted = names(run) if process is None else [process]
        for name in wanted:
            path = run.log_file(name)
            if name not in tails and path.is_file():
                tails[name] = Tail(path, from_end=first and process is None)
        first = False
        for name, tail in tails.items():
            for line in tail.lines():
                yield name, line
        time.sleep(_POLL_S)
