"""The run folder's lock: one pool per run folder, and the pid of its foreground process.

The pid stays in the file of a pool that failed, so that who waits for it can tell that from one that was stopped.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator

from mpspool.core.errors import Problem, StartError
from mpspool.core.rundir import RunDir

# Whoever asks whether the lock is held holds it for a moment.
_PATIENCE_S = 0.3


def _try(descriptor: int, how: int) -> bool:
    try:
        fcntl.flock(descriptor, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def recorded_pid(run: RunDir) -> int:
    """The pid that the file has, whoever holds the lock; 0 where it has none."""
    try:
        return int(run.lock.read_text())
    except (OSError, ValueError):
        return 0


def holder(run: RunDir) -> int:
    """The pid of the foreground process whose pool runs there, 0 where none does."""
    try:
        descriptor = os.open(run.lock, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return 0
    try:
        return 0 if _try(descriptor, fcntl.LOCK_SH) else recorded_pid(run)
    finally:
        os.close(descriptor)


def failed(run: RunDir, pid: int) -> bool:
    """Has the foreground process of this pid ended without leaving, and nobody followed it?"""
    return not holder(run) and recorded_pid(run) == pid


def leave(run: RunDir) -> None:
    """The end of the pool, which was asked for; by the process that holds the folder."""
    os.truncate(run.lock, 0)


@contextlib.contextmanager
def held(run: RunDir) -> Iterator[None]:
    """Holds the run folder, which is made where it is not there; no child inherits the lock.

    Raises:
        StartError: another process holds it, or the folder cannot be used.
    """
    try:
        for folder in run.folders():
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        run.root.chmod(0o700)
        descriptor = os.open(run.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise unusable(run, error) from error
    try:
        _take(run, descriptor)
        try:
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        except OSError as error:
            raise unusable(run, error) from error
        yield
    finally:
        os.close(descriptor)


def unusable(run: RunDir, error: OSError) -> StartError:
    """What to say of a run folder in which something cannot be done."""
    reason = f"{error.filename or run.root}: {error.strerror}; choose another with --run-dir"
    return StartError([Problem("run_dir", reason)])


def _take(run: RunDir, descriptor: int) -> None:
    end = time.monotonic() + _PATIENCE_S
    while not _try(descriptor, fcntl.LOCK_EX):
        if time.monotonic() > end:
            text = (
                f"{run.root} is in use by the pool of process {recorded_pid(run)};"
                f" stop that one (mpspool stop --run-dir {run.root}) or choose another run folder (--run-dir)"
            )
            raise StartError([Problem("run_dir", text)])
        time.sleep(0.02)
