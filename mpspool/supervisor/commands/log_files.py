"""The logs of a run folder: which there are, their text, and what is added to them."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from io import FileIO
from pathlib import Path

from mpspool.core.ids import WORKER_PREFIX, WorkerId, escape
from mpspool.core.rundir import RunDir

_POLL_S = 0.2
_SUFFIX = ".log"


def names(run: RunDir) -> list[str]:
    """The processes that have a log."""
    return sorted(path.name.removesuffix(_SUFFIX) for path in run.logs.glob(f"*{_SUFFIX}"))


def find(run: RunDir, process: str) -> Path | None:
    """The log of a process, named as in `mpspool status` or as supervisord's program.

    Of a worker that was never started, for want of its weights, that of their publisher.
    """
    candidates = [process, escape(process), WORKER_PREFIX + escape(process)]
    with contextlib.suppress(ValueError):
        candidates.append(WorkerId.parse(process).model_version.publisher)
    for name in candidates:
        if (path := run.log_file(name)).is_file() and "/" not in name:
            return path
    return None


class Tail:
    """Reads a log that grows and is rotated away.

    Args:
        path: of a log that is there.
        from_end: begin with what is added from now on.

    Raises:
        OSError: it cannot be read.
    """

    def __init__(self, path: Path, *, from_end: bool = False) -> None:
        self._path = path
        self._file = path.open("rb", buffering=0)
        self._part = b""
        if from_end:
            self._file.seek(0, os.SEEK_END)

    def lines(self) -> list[str]:
        """The whole lines that have come since the last call."""
        successor = self._successor()
        lines = self._added()
        if successor is not None:  # the file we have got nothing more after it had been replaced
            self._file.close()
            self._file = successor
            lines += self._added()
        return lines

    def close(self) -> None:
        self._file.close()

    def _successor(self) -> FileIO | None:
        """What has been put in the place of the file that we read."""
        try:
            if os.path.samestat(self._path.stat(), os.fstat(self._file.fileno())):
                return None
            return self._path.open("rb", buffering=0)
        except OSError:
            return None

    def _added(self) -> list[str]:
        if os.fstat(self._file.fileno()).st_size < self._file.tell():  # it was begun anew
            self._file.seek(0)
            self._part = b""
        *whole, self._part = (self._part + self._file.readall()).split(b"\n")
        return [line.decode(errors="replace") for line in whole]


def follow(run: RunDir, process: str | None) -> Iterator[tuple[str, str]]:
    """(name, line) for ever: of one process, or of all, those that come later included."""
    tails: dict[str, Tail] = {}
    first = True
    try:
        while True:
            for name in names(run) if process is None else [process]:
                if name not in tails:
                    with contextlib.suppress(OSError):
                        tails[name] = Tail(run.log_file(name), from_end=first and process is None)
            first = False
            for name, tail in tails.items():
                for line in tail.lines():
                    yield name, line
            time.sleep(_POLL_S)
    finally:
        for tail in tails.values():
            tail.close()
