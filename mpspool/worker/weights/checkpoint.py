"""The index of a TensorFlow checkpoint, read without TensorFlow: its tensors, and where their bytes lie.

PREFIX.index is a sorted table: blocks of prefix-compressed keys, an index of the blocks, a footer.
Under the empty key lies a BundleHeaderProto, under every other one a BundleEntryProto. A partitioned
variable's own entry only lists its slices; the bytes of each have an entry under a key that encodes
name and slice (and begins with a zero byte).
Format: tensorflow/core/util/tensor_bundle, tensorflow/core/util/saved_tensor_slice_util.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import google_crc32c

from mpspool.core import tfs
from mpspool.core.tfrecord import masked

# What to do about one that is not whole.
EXPORT_AGAIN = "export the model again, or copy its whole variables folder"

_FOOTER_BYTES = 48
_TABLE_MAGIC = 0xDB4775248B80FB57
# After each block: how it is compressed, one byte, and its checksum, four.
_TRAILER = struct.Struct("<BI")
_READ_VERSION = 1
_BIG_ENDIAN = 1
_WHOLE_EXTENT = -1
_SIGN_BIT = 1 << 63
_VALUE = "/.ATTRIBUTES/VARIABLE_VALUE"
# Where an element's size is its name's: float8 and int4 have one byte, and are not among these.
_SIZED = re.compile(r"(?:u?int|b?float|complex)(8|16|32|64|128)")


class CheckpointError(Exception):
    """A checkpoint that cannot be read; the text names the file and what to do."""


class UnsupportedError(CheckpointError):
    """A sound checkpoint, but of a kind that only TensorFlow reads."""


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor of a checkpoint, or one slice of a partitioned variable.

    Attributes:
        key: its name in the checkpoint.
        spec: empty for a whole tensor; for a slice what RestoreV2 calls shape_and_slice: the whole
            variable's shape and each dimension's start and length, "10 20 0,5:0,20".
        dtype: TensorFlow's number.
        shape: of the slice.
        offset: of its bytes in the shard.
        crc32c: of its bytes, masked.
    """

    key: str
    spec: str
    dtype: int
    shape: tuple[int, ...]
    shard: int
    offset: int
    size: int
    crc32c: int


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What an index says."""

    shards: int
    tensors: tuple[Tensor, ...]


class _Message(NamedTuple):
    """A protobuf message by field number: its last numbers, and all of its byte strings."""

    numbers: dict[int, int]
    strings: dict[int, list[bytes]]

    def number(self, field: int, default: int = 0) -> int:
        return self.numbers.get(field, default)


class _Entry(NamedTuple):
    dtype: int
    shape: tuple[int, ...]
    shard: int
    offset: int
    size: int
    crc32c: int
    slices: list[bytes]


def variable_name(key: str) -> str:
    """As whoever wrote the model knows it: TF2 has each variable's value under a key of its own making."""
    return key.removesuffix(_VALUE)


def is_absent(prefix: Path) -> bool:
    """Whether there is nothing of a checkpoint, neither an index nor data."""
    return not index_file(prefix).exists() and not any(prefix.parent.glob(f"{prefix.name}.data-*"))


def index_file(prefix: Path) -> Path:
    return prefix.with_name(f"{prefix.name}.index")


def shard_file(prefix: Path, shard: int, shards: int) -> Path:
    return prefix.with_name(f"{prefix.name}.data-{shard:05}-of-{shards:05}")


def require_whole(prefix: Path, checkpoint: Checkpoint) -> None:
    """Raises CheckpointError for a shard that is not there, or ends before its last tensor does."""
    ends: dict[int, int] = {}
    for tensor in checkpoint.tensors:
        ends[tensor.shard] = max(ends.get(tensor.shard, 0), tensor.offset + tensor.size)
    for shard, end in sorted(ends.items()):
        path = shard_file(prefix, shard, checkpoint.shards)
        found = path.stat().st_size if path.exists() else None
        if found is None or found < end:
            what = "missing" if found is None else f"cut: it has {found:,} of {end:,} bytes"
            raise CheckpointError(f"{path} is {what}: {EXPORT_AGAIN}")


def element_bytes(dtype: int) -> int | None:
    """The size of an element as the checkpoint stores it; None where that varies or is not known here."""
    known = tfs.DATA_TYPES.get(dtype)
    name = known.numpy_name if known else ""
    if name == "bool":
        return 1
    match = _SIZED.fullmatch(name)
    return int(match[1]) // 8 if match else None


def canonical(spec: str) -> str:
    """One text for all that mean the same slice; empty for one that is the whole tensor.

    Raises:
        ValueError: it is no shape_and_slice.
    """
    if not spec:
        return ""
    *shape, extents = spec.split(" ")
    sizes = [int(size) for size in shape]
    pairs = []
    for size, extent in zip(sizes, extents.split(":"), strict=True):
        start, length = (0, size) if extent == "-" else (int(number) for number in extent.split(","))
        pairs.append((start, length))
    if pairs == [(0, size) for size in sizes]:
        return ""
    return _spec(tuple(sizes), pairs)


def read_index(prefix: Path) -> Checkpoint:
    """Reads PREFIX.index. The order of the tensors is that of the index.

    Raises:
        CheckpointError: it is missing or damaged.
        UnsupportedError: only TensorFlow can read it.
    """
    path = index_file(prefix)
    try:
        data = path.read_bytes()
    except FileNotFoundError as error:
        raise CheckpointError(f"{path} is missing: {EXPORT_AGAIN}") from error
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror}") from error
    try:
        return _checkpoint(dict(_table(data)))
    except UnsupportedError as error:
        raise UnsupportedError(f"{path} {error}") from error
    except (ValueError, IndexError, struct.error) as error:
        raise CheckpointError(f"{path} is damaged ({error}): {EXPORT_AGAIN}") from error


def _checkpoint(table: dict[bytes, bytes]) -> Checkpoint:
    if b"" not in table:
        raise ValueError("it has no header")
    header = _message(table.pop(b""))
    shards = header.number(1)
    if header.number(2) == _BIG_ENDIAN:
        raise UnsupportedError("is of a big-endian machine")
    for version in header.strings.get(3, []):
        if _message(version).number(2) > _READ_VERSION:
            raise UnsupportedError("is of a newer format")
    tensors: list[Tensor] = []
    for key, value in table.items():
        if key.startswith(b"\0"):
            continue  # a slice: found by its variable's entry
        name, entry = key.decode(), _entry(value)
        if entry.slices:
            tensors += [_slice(table, key, entry, item) for item in entry.slices]
        else:
            tensors.append(_tensor(name, "", entry))
    for tensor in tensors:
        if tensor.shard >= shards:
            raise ValueError(f"{tensor.key} is in shard {tensor.shard} of {shards}")
    return Checkpoint(shards, tuple(tensors))


def _slice(table: dict[bytes, bytes], key: bytes, whole: _Entry, proto: bytes) -> Tensor:
    """The slice of a partitioned variable that a TensorSliceProto describes."""
    extents = []
    for extent in _message(proto).strings.get(1, []):
        message = _message(extent)
        extents.append((message.number(1), message.number(2, _WHOLE_EXTENT)))
    if len(extents) != len(whole.shape):
        raise ValueError(f"{key.decode()} has a slice of another rank")
    found = table.get(_slice_key(key, extents))
    if found is None:
        raise ValueError(f"{key.decode()} lacks a slice")
    entry = _entry(found)
    expected = [
        size if length == _WHOLE_EXTENT else length
        for size, (_, length) in zip(whole.shape, extents, strict=True)
    ]
    if list(entry.shape) != expected or entry.dtype != whole.dtype:
        raise ValueError(f"{key.decode()} has a slice that is not as it says")
    return _tensor(key.decode(), _spec(whole.shape, extents), entry)


def _tensor(key: str, spec: str, entry: _Entry) -> Tensor:
    element = element_bytes(entry.dtype)
    if element is not None and entry.size != element * math.prod(entry.shape):
        raise ValueError(f"{key} has {entry.size} bytes, and a shape of another size")
    return Tensor(key, spec, entry.dtype, entry.shape, entry.shard, entry.offset, entry.size, entry.crc32c)


def _spec(shape: tuple[int, ...], extents: list[tuple[int, int]]) -> str:
    slices = (f"{start},{length}" if length != _WHOLE_EXTENT else "-" for start, length in extents)
    return f"{' '.join(map(str, shape))} {':'.join(slices)}"


def _entry(data: bytes) -> _Entry:
    message = _message(data)
    shape = _message(b"".join(message.strings.get(2, [])))
    sizes = tuple(_message(dimension).number(1) for dimension in shape.strings.get(2, []))
    if shape.number(3) or any(size & _SIGN_BIT for size in sizes):
        raise ValueError("a tensor's shape is not known")
    return _Entry(
        dtype=message.number(1),
        shape=sizes,
        shard=message.number(3),
        offset=message.number(4),
        size=message.number(5),
        crc32c=message.number(6),
        slices=message.strings.get(7, []),
    )


def _slice_key(name: bytes, extents: list[tuple[int, int]]) -> bytes:
    """The key of a slice: zero, name, rank, and each start and length, in an encoding that sorts."""
    key = b"\0" + name.replace(b"\0", b"\0\xff") + b"\0\1" + _ordered(len(extents))
    return key + b"".join(_ordered_signed(number) for extent in extents for number in extent)


def _ordered(number: int) -> bytes:
    """How many bytes, and these, the highest first."""
    length = (number.bit_length() + 7) // 8
    return bytes([length]) + number.to_bytes(length, "big")


def _ordered_signed(number: int) -> bytes:
    """A two's complement in seven bits a byte, after as many ones as there are bytes: zeros if negative."""
    bits = (~number if number < 0 else number).bit_length() + 1
    length = (bits + 6) // 7
    leading = ((1 << length) - 1) << (7 * length)
    return (number % (1 << 8 * length) ^ leading).to_bytes(length, "big")


def _table(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    """The keys and values of a table."""
    footer = data[-_FOOTER_BYTES:]
    if len(footer) < _FOOTER_BYTES or int.from_bytes(footer[-8:], "little") != _TABLE_MAGIC:
        raise ValueError("it does not end as an index does")
    handles, _ = _varints(footer, 0, 4)
    for _, handle in _block(data, *handles[2:]):
        (offset, size), _ = _varints(handle, 0, 2)
        yield from _block(data, offset, size)


def _block(data: bytes, offset: int, size: int) -> Iterator[tuple[bytes, bytes]]:
    """The entries of one block, its checksum verified."""
    end = offset + size
    compression, checksum = _TRAILER.unpack_from(data, end)
    if masked(google_crc32c.value(data[offset : end + 1])) != checksum:
        raise ValueError(f"the block at {offset} does not match its checksum")
    if compression:
        raise UnsupportedError("is compressed")
    block = data[offset:end]
    # The block ends with the places of the entries whose keys are whole, and their count.
    limit = len(block) - 4 * (1 + int.from_bytes(block[-4:], "little"))
    position, key = 0, b""
    while position < limit:
        (shared, unshared, length), position = _varints(block, position, 3)
        key = key[:shared] + block[position : position + unshared]
        position += unshared + length
        yield key, block[position - length : position]
    if position != limit:
        raise ValueError(f"the block at {offset} is cut")


def _message(data: bytes) -> _Message:
    """The fields of a serialised protobuf message."""
    message = _Message({}, {})
    position = 0
    while position < len(data):
        (tag,), position = _varints(data, position, 1)
        field, kind = tag >> 3, tag & 7
        if kind == 0:
            (message.numbers[field],), position = _varints(data, position, 1)
            continue
        if kind == 2:
            (size,), position = _varints(data, position, 1)
            message.strings.setdefault(field, []).append(data[position : position + size])
        elif kind in {1, 5}:
            size = 8 if kind == 1 else 4
            message.numbers[field] = int.from_bytes(data[position : position + size], "little")
        else:
            raise ValueError("an entry cannot be parsed")
        position += size
    if position != len(data):
        raise ValueError("an entry is cut")
    return message


def _varints(data: bytes, position: int, count: int) -> tuple[list[int], int]:
    """That many varints from the position on, and the position after them."""
    values = []
    for _ in range(count):
        value = shift = 0
        while (byte := data[position]) & 0x80:
            value |= (byte & 0x7F) << shift
            shift += 7
            position += 1
            if shift > 63:
                raise ValueError("a number is too long")
        values.append(value | byte << shift)
        position += 1
    return values, position
