"""The file that holds a model version's weights: what its first bytes say, and how it is found again.

    magic, 8 bytes | length of the manifest, 8 bytes, little-endian | the manifest, JSON | the tensors

Each tensor begins on a page of its own. The magic is written last: a file without it is not finished.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import mmap
import os
import stat
import struct
from pathlib import Path

import msgspec

from mpspool.core.ids import ModelVersion, escape

MAGIC = b"MPSPOOL\1"
PAGE = mmap.PAGESIZE
_LENGTH = struct.Struct("<Q")
_PREFIX = "mpspool."
# The kernel allows 249 bytes for the name of a memfd.
_MAX_NAME_BYTES = 200


class Placed(msgspec.Struct, frozen=True):
    """A tensor in the segment.

    Attributes:
        key: its name in the checkpoint.
        spec: of a slice of a partitioned variable, RestoreV2's shape_and_slice; else empty.
        dtype: TensorFlow's number.
        shape: of the slice.
        offset: in the file.
    """

    key: str
    spec: str
    dtype: int
    shape: tuple[int, ...]
    offset: int
    size: int


class Private(msgspec.Struct, frozen=True):
    """A tensor that every worker restores for itself, and why."""

    key: str
    spec: str
    dtype: int
    size: int
    reason: str


class Manifest(msgspec.Struct, frozen=True):
    """What a segment holds.

    Attributes:
        source: names the checkpoint as it was when it was copied; see source_of().
        size: of the whole file, in bytes.
    """

    model: str
    version: int
    source: str
    tensors: list[Placed]
    private: list[Private]
    size: int


class SegmentError(Exception):
    """A segment that could not be made, or is none; the text says what to do."""


_decode = msgspec.json.Decoder(Manifest).decode


def source_of(prefix: Path) -> str:
    """A digest of a checkpoint: its index, and its shards' names, sizes and times.

    Raises:
        OSError: the index cannot be read.
    """
    digest = hashlib.sha256(prefix.with_name(f"{prefix.name}.index").read_bytes())
    for shard in sorted(prefix.parent.glob(f"{prefix.name}.data-*-of-*")):
        found = shard.stat()
        digest.update(f"{shard.name} {found.st_size} {found.st_mtime_ns}\n".encode())
    return digest.hexdigest()


def memfd_name(model: ModelVersion) -> str:
    """What /proc/PID/fd shows of it, after "/memfd:"."""
    return (_PREFIX + escape(str(model)))[:_MAX_NAME_BYTES]


def header(manifest: Manifest) -> bytes:
    """What follows the magic."""
    content = msgspec.json.encode(manifest)
    return _LENGTH.pack(len(content)) + content


def read_manifest(descriptor: int) -> Manifest:
    """The manifest of a finished segment.

    Raises:
        SegmentError: it is none, or not a finished one.
    """
    try:
        size = os.fstat(descriptor).st_size
        start = os.pread(descriptor, len(MAGIC) + _LENGTH.size, 0)
        if not start.startswith(MAGIC) or not _sealed(descriptor):
            raise SegmentError("this is no finished weights segment")
        (length,) = _LENGTH.unpack_from(start, len(MAGIC))
        content = os.pread(descriptor, min(length, size), len(start))
        manifest = _decode(content)
    except (OSError, struct.error, msgspec.DecodeError) as error:
        raise SegmentError(f"this weights segment cannot be read: {error}") from error
    if manifest.size != size:
        raise SegmentError(f"this weights segment has {size} bytes instead of {manifest.size}")
    return manifest


def find(pid: int, model: ModelVersion) -> int | None:
    """A living process's segment of a model version.

    Args:
        pid: a process of the same user.
        model: whose weights.

    Returns:
        A descriptor of the caller's own, read-only; None where the process has no such segment.
    """
    folder = f"/proc/{pid}/fd"
    try:
        names = os.listdir(folder)
    except OSError:
        return None
    for name in names:
        descriptor = _open_candidate(f"{folder}/{name}")
        if descriptor is None:
            continue
        with contextlib.suppress(SegmentError):
            manifest = read_manifest(descriptor)
            if (manifest.model, manifest.version) == (model.name, model.version):
                return descriptor
        os.close(descriptor)
    return None


def _open_candidate(link: str) -> int | None:
    """Opens what may be a segment: a memfd by its name, or a file without a name in any folder."""
    try:
        target = os.readlink(link)
        if not target.endswith(" (deleted)"):
            return None
        if target.startswith("/memfd:") and not target.startswith(f"/memfd:{_PREFIX}"):
            return None
        found = os.stat(link)
        if not stat.S_ISREG(found.st_mode) or found.st_size < PAGE:
            return None
        return os.open(link, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None


def _sealed(descriptor: int) -> bool:
    """False for a memfd that can still change. A file on a disk has no seals, one on a tmpfs has this one."""
    try:
        return bool(fcntl.fcntl(descriptor, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SEAL)
    except OSError as error:
        return error.errno == errno.EINVAL
