"""Room on a file system for a copy that is under way: nobody else gets it meanwhile, another model's copy least of all."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

# What stays free of the file system: a part of it, and no more than that.
_FREE_PART, _FREE_BYTES = 0.05, 2**30
# Of that, the part that what has come and is not given back yet may take.
_STEPS = 16
_FULL = (errno.ENOSPC, errno.EDQUOT)
# Of a file system that keeps no room, or none so large in one file.
_UNABLE = (errno.EOPNOTSUPP, errno.ENOSYS, errno.EFBIG)


class NoRoomError(Exception):
    """The text says what there is instead."""


class Room:
    """The blocks of a file without a name, so that they are free again however its process ends.

    Args:
        descriptor: of that file.
        size: in bytes, what is to come.
        step: what of it is given back together.
    """

    def __init__(self, descriptor: int, size: int, step: int) -> None:
        self._descriptor = descriptor
        self._kept = self._left = size
        self._step = step

    def came(self, count: int) -> None:
        """So many bytes of the file under way take their room themselves by now."""
        self._keep(self._left - count)

    def done(self, size: int) -> None:
        """All of a file does."""
        self._left -= size
        self._keep(self._left)

    def _keep(self, left: int) -> None:
        if self._kept - left >= self._step:
            os.ftruncate(self._descriptor, max(0, left))
            self._kept = left


@contextlib.contextmanager
def kept(folder: Path, size: int) -> Iterator[Room]:
    """Room for so many bytes, as long as it is needed.

    Where the file system cannot keep it (NFS before 4.2), it has been looked for at least.

    Raises:
        NoRoomError: there is not so much, beside what is to stay free.
        OSError: the file system refused.
    """
    step = _look_for(size, folder)
    with tempfile.TemporaryFile(dir=folder) as file:
        try:
            _allocate(file.fileno(), size)
        except OSError as error:
            if error.errno in _FULL:  # a quota, or somebody was faster
                raise NoRoomError(f"{folder} has no room for them: {error.strerror}") from error
            if error.errno not in _UNABLE:
                raise
            size = 0
        _look_for(0, folder)  # others may have looked when we did
        yield Room(file.fileno(), size, step)


def _look_for(size: int, folder: Path) -> int:
    """What may be given back together there. Raises NoRoomError."""
    found = os.statvfs(folder)
    stays = min(_FREE_BYTES, int(found.f_blocks * found.f_frsize * _FREE_PART))
    free = found.f_bavail * found.f_frsize - stays
    if size > free:
        raise NoRoomError(f"{max(0, free):,} can be had in {folder}")
    return stays // _STEPS


def _allocate(descriptor: int, size: int) -> None:
    """Not posix_fallocate(), which writes to each block where the file system cannot. Raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    if size and libc.fallocate(descriptor, 0, ctypes.c_int64(0), ctypes.c_int64(size)):
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
