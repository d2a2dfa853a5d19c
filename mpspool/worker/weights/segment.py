"""A segment of weights: made once by the publisher, mapped by every worker.

No segment ever has a name in a folder: when the last process that holds one ends, it is gone.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import mmap
import os
import tempfile
from typing import TYPE_CHECKING, Any, Self

from mpspool.core import tfs
from mpspool.core.segment_file import (
    PAGE,
    Manifest,
    Placed,
    Private,
    SegmentError,
    read_manifest,
)
from mpspool.worker.weights import available_memory, huge_pages, memory
from mpspool.worker.weights.checkpoint import canonical

if TYPE_CHECKING:
    import numpy as np

__all__ = ["Manifest", "Placed", "Private", "Segment", "SegmentError", "create", "seal", "write"]

_SHM = "/dev/shm"  # noqa: S108 - what lies there has no name
_MFD_NOEXEC_SEAL = 0x0008
_MADV_POPULATE_READ = 22
_MAP_NORESERVE = 0x4000
_CHUNK_BYTES = 2**20
_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SEAL
_REMEDIES = {
    "memfd": "free memory, raise the container's memory limit, or set weights.backing: file",
    "shm": "containers often cap /dev/shm at 64 MB: make it larger, or set weights.backing: memfd",
    "file": "free space there, name another weights.folder, or set weights.backing: memfd",
}


def create(backing: str, folder: str, size: int, name: str) -> int:
    """A descriptor of a new file without a name, with room for all of its bytes.

    Args:
        backing: "memfd", "shm" or "file".
        folder: for "file".
        size: in bytes.
        name: what /proc shows of a memfd.

    Raises:
        SegmentError: there is no room.
    """
    where = {"memfd": "memory", "shm": _SHM}.get(backing, folder)
    if backing != "file":
        _require_room(size, backing)
    descriptor = -1
    try:
        descriptor = _memfd(name) if backing == "memfd" else _unnamed(where)
        if backing == "file":
            os.posix_fallocate(descriptor, 0, size)
        else:  # memory is taken as it is written to, in huge pages where there are some
            os.ftruncate(descriptor, size)
    except OSError as error:
        if descriptor >= 0:
            os.close(descriptor)
        raise _shortage(size, where, error.strerror or str(error), backing) from error
    return descriptor


def write(descriptor: int, data: bytes, offset: int) -> None:
    """Writes all of it. Raises SegmentError."""
    try:
        while data:
            written = os.pwrite(descriptor, data, offset)
            data, offset = data[written:], offset + written
    except OSError as error:
        raise SegmentError(f"the weights could not be written: {error.strerror}") from error


def complete(descriptor: int, size: int) -> None:
    """Takes what memory is missing still, where nothing was written: a worker that finds none would be killed.

    Raises:
        SegmentError: there is none.
    """
    try:
        os.posix_fallocate(descriptor, 0, size)
    except OSError as error:
        raise SegmentError(f"the weights could not be written: {error.strerror}") from error


def seal(descriptor: int) -> int:
    """Takes a written segment's descriptor for one through which nobody can ever change it.

    Raises:
        SegmentError: the kernel refuses.
    """
    try:
        with contextlib.suppress(PermissionError):  # what is no memfd has its seals, or none, from the start
            _add_seals(descriptor)
        os.fchmod(descriptor, 0o400)
        return os.open(f"/proc/self/fd/{descriptor}", os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise SegmentError(f"the weights could not be sealed: {error.strerror}") from error
    finally:
        os.close(descriptor)


class Segment:
    """A finished segment as a worker uses it. Its descriptor stays open: a new pool process finds it there.

    Attributes:
        fd: the segment's own.
        manifest: what is in it.
    """

    def __init__(self, fd: int, manifest: Manifest) -> None:
        self.fd = fd
        self.manifest = manifest
        self._placed = {(tensor.key, canonical(tensor.spec)): tensor for tensor in manifest.tensors}
        self._address = 0

    @classmethod
    def open(cls, fd: int) -> Self:
        """Takes the descriptor over. Raises SegmentError for what is no finished segment."""
        return cls(fd, read_manifest(fd))

    def map(self) -> None:
        """Maps it afresh, as it was published: pages that are written to become this process's own.

        Every mapping keeps its addresses for as long as the process lives, as variables may point there. Of an
        earlier one only these are left: what was written to it is forgotten.

        Raises:
            SegmentError: the kernel refuses.
        """
        size = self.manifest.size
        if self._address:
            huge_pages.advise(self._address, size, mmap.MADV_DONTNEED)
        flags, access = mmap.MAP_PRIVATE | _MAP_NORESERVE, mmap.PROT_READ | mmap.PROT_WRITE
        try:
            self._address = huge_pages.map_aligned(self.fd, size, flags, access)
        except OSError as error:
            raise SegmentError(f"the weights could not be mapped: {error.strerror}") from error
        # All page tables at once, 0.1 s per GB of small pages: batch 1 is half as slow again where they fill up
        # one by one.
        with contextlib.suppress(OSError):  # before Linux 5.14
            huge_pages.advise(self._address, size, _MADV_POPULATE_READ)

    def find(self, key: str, spec: str = "") -> Placed | None:
        """Where a tensor lies, or the slice of one, however its spec is written."""
        return self._placed.get((key, canonical(spec)))

    def array(self, key: str, spec: str = "", *, spare: bool = False) -> np.ndarray[Any, Any] | None:
        """A tensor's memory, which map() has mapped.

        Args:
            key: its name in the checkpoint.
            spec: RestoreV2's shape_and_slice.
            spare: flat, and with the spare element after it.

        Returns:
            An array of its shape, or of one dimension; None where the segment does not have it.
        """
        import numpy as np

        placed = self.find(key, spec)
        if placed is None:
            return None
        dtype = tfs.numpy_dtype(placed.dtype)
        count = placed.size // dtype.itemsize
        array: np.ndarray[Any, Any] = np.frombuffer(self._memory(), dtype, count + spare, placed.offset)
        return array if spare else array.reshape(placed.shape)

    def offset(self, array: np.ndarray[Any, Any]) -> int | None:
        """Where in the mapping an array begins; None for one that lies elsewhere."""
        offset = array.ctypes.data - self._address
        return offset if 0 <= offset < self.manifest.size else None

    def published(self, placed: Placed, array: np.ndarray[Any, Any]) -> bool:
        """Has an array the bytes that were published, whatever was written to the mapping since?"""
        if array.nbytes != placed.size:
            return False
        data = array.reshape(-1).view("uint8")
        return all(
            data[start : start + _CHUNK_BYTES].tobytes()
            == os.pread(self.fd, min(_CHUNK_BYTES, placed.size - start), placed.offset + start)
            for start in range(0, placed.size, _CHUNK_BYTES)
        )

    def written(self) -> np.ndarray[Any, Any]:
        """Of each page of the mapping, whether it was written to and is this process's own since."""
        return memory.own_pages(self._address, self.manifest.size // PAGE)

    def _memory(self) -> memoryview:
        assert self._address
        return memoryview((ctypes.c_char * self.manifest.size).from_address(self._address))


def _memfd(name: str) -> int:
    flags = os.MFD_ALLOW_SEALING | os.MFD_CLOEXEC
    try:
        return os.memfd_create(name, flags | _MFD_NOEXEC_SEAL)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
    return os.memfd_create(name, flags)  # a kernel before 6.3


def _unnamed(folder: str) -> int:
    try:
        return os.open(folder, os.O_TMPFILE | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600)
    except OSError as error:
        # The latter is what a kernel without O_TMPFILE sees: a folder to be written to.
        if error.errno not in {errno.EOPNOTSUPP, errno.EISDIR}:
            raise
    descriptor, path = tempfile.mkstemp(prefix=".mpspool-", dir=folder)
    os.unlink(path)
    return descriptor


def _add_seals(descriptor: int) -> None:
    try:
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _SEALS)
    except OSError as error:
        if error.errno != errno.EINVAL:  # a file on a disk
            raise


def _require_room(size: int, backing: str) -> None:
    """The kernel gives memory until it has none, and then ends a process: better to refuse before."""
    available = available_memory.available_bytes()
    if available is not None and size > available:
        raise _shortage(size, "memory", f"{max(available, 0):,} bytes are available", backing)
    if backing == "shm" and size > (free := _free_bytes(_SHM)):
        raise _shortage(size, _SHM, f"{free:,} bytes are free there", backing)


def _free_bytes(folder: str) -> int:
    found = os.statvfs(folder)
    return found.f_bavail * found.f_frsize


def _shortage(size: int, where: str, reason: str, backing: str) -> SegmentError:
    return SegmentError(
        f"the weights need {size:,} bytes in {where} (weights.backing: {backing}): {reason}: "
        f"{_REMEDIES[backing]}; beside another version, swap: stop_first needs room for one"
    )
