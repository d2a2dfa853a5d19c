"""The progress page: what a worker is running right now, readable after it was killed.

A worker that aborts takes its unsent messages with it, so "I have started" cannot be a message if
it is to decide which request is suspected of the death. It is a store into a small shared file
instead: the worker writes, the router reads, and the page outlives both. It carries the heartbeat
too, from a thread of its own, so that a long TensorFlow call is not taken for a hung process.

All fields are native unsigned 64-bit words, each written by one store. Times are CLOCK_MONOTONIC.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import time
from dataclasses import dataclass
from pathlib import Path

_SIZE = 4096
_DISPATCH, _INDEX, _STARTED_NS, _BEAT_NS = range(4)
# In place of an index: all of a dispatch that has no outcome yet runs at once.
WHOLE = 2**32 - 1
# Without a heartbeat for so long, of ten a second, a process stands still, on a busy machine, too.
_ALIVE_NS = 10_000_000_000


@dataclass(frozen=True, slots=True)
class Progress:
    """One reading of the page.

    Attributes:
        dispatch: the dispatch being run, 0 when idle.
        index: which request of it is running; the ones before it have finished. WHOLE where they run together.
        started_ns: when that request was started.
        beat_ns: the last heartbeat.
    """

    dispatch: int
    index: int
    started_ns: int
    beat_ns: int


class ProgressWriter:
    """The worker's side. Creates the file; close() removes it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(descriptor, 0, _SIZE)  # a full disk is an error here, and not a SIGBUS later
            self._map = mmap.mmap(descriptor, _SIZE)
        finally:
            os.close(descriptor)
        self._words = memoryview(self._map).cast("Q")
        self.beat()

    def beat(self) -> None:
        self._words[_BEAT_NS] = time.monotonic_ns()

    def start(self, dispatch: int, index: int) -> None:
        """Call just before the request is parsed: from here on it may be what kills us."""
        words = self._words
        words[_DISPATCH] = 0  # a reader between the stores sees "idle", never a wrong pair
        words[_INDEX] = index
        words[_STARTED_NS] = time.monotonic_ns()
        words[_DISPATCH] = dispatch

    def finish(self) -> None:
        """Call when the outcomes of all that ran are known."""
        self._words[_DISPATCH] = 0

    def close(self) -> None:
        self._words.release()
        self._map.close()
        self._path.unlink(missing_ok=True)


class ProgressReader:
    """Whoever looks. Raises OSError where the page is not there, and ValueError where it is only being made."""

    def __init__(self, path: Path) -> None:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            self._map = mmap.mmap(descriptor, _SIZE, prot=mmap.PROT_READ)
        finally:
            os.close(descriptor)
        self._words = memoryview(self._map).cast("Q")

    def read(self) -> Progress:
        words = self._words
        return Progress(words[_DISPATCH], words[_INDEX], words[_STARTED_NS], words[_BEAT_NS])

    def close(self) -> None:
        self._words.release()
        self._map.close()


def runs_a_request(path: Path) -> bool:
    """Whether the worker whose page that is lives, and runs one; not where there is no page."""
    with contextlib.suppress(OSError, ValueError), contextlib.closing(ProgressReader(path)) as page:
        found = page.read()
        return bool(found.dispatch) and time.monotonic_ns() - found.beat_ns < _ALIVE_NS
    return False
