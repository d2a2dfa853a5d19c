"""A slot's lock: held for life by the process that fills the slot, which the next one to fill it kills.

A record lock: the kernel knows who holds it, no child inherits it, and it goes with its holder, or as soon as
that one closes any descriptor of the file.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import signal
import struct
from pathlib import Path

# struct flock: type, whence, start, length, pid.
_FLOCK = "hhqqi0q"
_KILLED_S = 10.0


def take_over(path: Path) -> int:
    """Locks the file for as long as this process lives, and kills the process that holds it.

    Returns:
        The pid that was killed, 0 where nobody held it.

    Raises:
        OSError: the file cannot be opened, or its holder cannot be killed.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    killed = 0
    while True:
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            killed = _kill_holder(descriptor) or killed
        else:
            return killed


def holder(path: Path) -> int:
    """The pid of the process that has taken the file over; 0 for none, or for us.

    Never asked by the holder itself: it would lose the lock.
    """
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return 0
    try:
        return max(0, _holder(descriptor))  # negative where it is no process of ours
    finally:
        os.close(descriptor)


def _holder(descriptor: int) -> int:
    """0 where nobody holds it, negative where a process does that has no pid here."""
    wanted = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
    kind, _, _, _, pid = struct.unpack(_FLOCK, fcntl.fcntl(descriptor, fcntl.F_GETLK, wanted))
    return 0 if kind == fcntl.F_UNLCK else int(pid) or -1


def _kill_holder(descriptor: int) -> int:
    """Returns its pid once it is gone, 0 where the lock has changed hands."""
    if (pid := _holder(descriptor)) <= 0:
        if pid < 0:
            raise OSError("the lock is held by a process of another pid namespace")
        return 0
    with contextlib.suppress(ProcessLookupError):
        pidfd = os.pidfd_open(pid)
        try:
            if _holder(descriptor) != pid:  # the pid may be another's by now
                return 0
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
            poll = select.poll()
            poll.register(pidfd, select.POLLIN)
            if not poll.poll(_KILLED_S * 1000):
                raise OSError(
                    f"process {pid}, which holds the lock, is still there {_KILLED_S:g} s after SIGKILL"
                )
        finally:
            os.close(pidfd)
    return pid
