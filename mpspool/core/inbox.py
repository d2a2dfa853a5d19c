"""The inbox: memory of a worker's that the router writes its requests' bodies to, where those of a dispatch are long together.

Through a socket they are copied four times, and threads of both sides wake up for them; here they are written once and
read once. The worker makes the memory, which has no name in any file system, and so is gone with it; the router opens it
by the worker's descriptor under /proc.

The router holds one region for each credit: what lies there stays until the worker has given the credit back.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Sequence

REGION_BYTES = 2**21
_NAME = "mpspool-inbox"
# Where a body begins: at the beginning of a line of the CPU's cache.
_ALIGNMENT = 64

# Where a body lies in an inbox: offset and size, in bytes.
Place = tuple[int, int]


class Inbox:
    """The worker's side.

    Attributes:
        path: what the router opens, as long as this process lives.

    Args:
        regions: how many dispatches it may hold at once.

    Raises:
        OSError: there is no memory for it.
    """

    def __init__(self, regions: int) -> None:
        size = regions * REGION_BYTES
        self._descriptor = os.memfd_create(_NAME, os.MFD_CLOEXEC)
        os.ftruncate(self._descriptor, size)  # pages come as they are written to
        self._map = mmap.mmap(self._descriptor, size, prot=mmap.PROT_READ)
        self.path = f"/proc/{os.getpid()}/fd/{self._descriptor}"

    def body(self, place: Place) -> bytes:
        """A copy of what lies there."""
        offset, size = place
        return self._map[offset : offset + size]

    def close(self) -> None:
        self._map.close()
        os.close(self._descriptor)


class InboxWriter:
    """The router's side.

    Args:
        path: of the worker's.

    Raises:
        OSError: it cannot be opened, or is not an inbox.
    """

    def __init__(self, path: str) -> None:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            if _NAME not in os.readlink(f"/proc/self/fd/{descriptor}"):
                raise OSError(f"{path} is not a worker's inbox")
            self._map = mmap.mmap(descriptor, os.fstat(descriptor).st_size)
        finally:
            os.close(descriptor)
        self._free = list(range(0, len(self._map), REGION_BYTES))
        self._taken: dict[int, int] = {}

    def put(self, dispatch: int, bodies: Sequence[bytes]) -> list[Place | None]:
        """Writes the bodies of a dispatch; None for each that there is no room for."""
        if not self._free:
            return [None] * len(bodies)
        start = self._taken[dispatch] = self._free.pop()
        end = start + REGION_BYTES
        places: list[Place | None] = []
        for body in bodies:
            size = len(body)
            if start + size > end:
                places.append(None)
                continue
            self._map[start : start + size] = body
            places.append((start, size))
            start += size + (-size % _ALIGNMENT)
        return places

    def release(self, dispatch: int) -> None:
        """The worker has read them; nothing for a dispatch that put nothing."""
        start = self._taken.pop(dispatch, None)
        if start is not None:
            self._free.append(start)

    def close(self) -> None:
        self._map.close()
