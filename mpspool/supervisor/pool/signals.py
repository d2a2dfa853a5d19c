"""Signals to processes that are held by their pidfds, so that none ever reaches another's pid; and their stacks."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from pathlib import Path

_POLL_S = 0.04


def hold(pid: int) -> int:
    """A pidfd, to be closed; -1 where there is no such process, or no more of them can be had."""
    try:
        return os.pidfd_open(pid) if pid > 0 else -1
    except OSError:
        return -1


def send(pidfd: int, signum: signal.Signals) -> None:
    """Nothing where it is gone, or was not there."""
    if pidfd >= 0:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(pidfd, signum)


async def dump(pidfd: int, file: Path, gone: asyncio.Event, limit_s: float) -> None:
    """A stack dump into its log, if it can still give one; it must have faulthandler's handler for SIGUSR1.

    Args:
        pidfd: the process', or that of what relays signals to it.
        file: its log.
        gone: set when it has ended.
        limit_s: how long to wait until the dump is there.
    """
    before = _size(file)
    send(pidfd, signal.SIGUSR1)
    send(pidfd, signal.SIGCONT)
    end = time.monotonic() + limit_s
    size = before
    while time.monotonic() < end and not gone.is_set():
        await asyncio.sleep(_POLL_S)
        last, size = size, _size(file)
        if before < size == last:
            return


def _size(file: Path) -> int:
    try:
        return file.stat().st_size
    except OSError:
        return 0
