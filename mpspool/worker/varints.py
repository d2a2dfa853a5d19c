"""Packed varints, many at once: the wire form of every integer list of a TensorProto."""

from __future__ import annotations

from typing import Any

import numpy as np
from google.protobuf.message import DecodeError

from mpspool.core import tfs

Values = np.ndarray[Any, np.dtype[np.uint64]]

_MAX_BYTES = 10
# Up to so many values, or bytes, protobuf's own code is faster than a dozen array operations.
_FEW_VALUES, _FEW_BYTES = 512, 1024
# And so few values are faster without it.
_VERY_FEW = 3
_INT64_VAL_TAG = b"\x52"
_MASK64 = 2**64 - 1
_ONE_BYTE = [bytes([value]) for value in range(0x80)]


def one(value: int) -> bytes:
    """The varint of one integer, a negative one as the ten bytes of its 64-bit complement."""
    if 0 <= value < 0x80:
        return _ONE_BYTE[value]
    value &= _MASK64
    encoded = bytearray()
    while value >= 0x80:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def read(data: bytes, count: int) -> tuple[list[int], int]:
    """The first `count` varints of the data, and the position after them.

    Raises:
        ValueError: the data ends before, or one has more than ten bytes.
    """
    window = np.frombuffer(data, np.uint8, min(len(data), count * _MAX_BYTES))
    ends = np.flatnonzero(window < 0x80)[:count]
    if len(ends) < count:
        raise ValueError("the data ends within a varint")
    position = int(ends[-1]) + 1 if count else 0
    return decode(data[:position]).tolist(), position


def decode(data: bytes) -> Values:
    """All varints of the data, as 64-bit values.

    Raises:
        ValueError: the last one is cut off, or one has more than ten bytes.
    """
    if data.isascii():
        return np.frombuffer(data, np.uint8).astype(np.uint64)
    if len(data) <= _FEW_BYTES:
        return _decode_few(data)
    window = np.frombuffer(data, np.uint8)
    ends = np.flatnonzero(window < 0x80)
    if not len(ends) or ends[-1] != len(data) - 1:
        raise ValueError("the data ends within a varint")
    starts = np.empty_like(ends)
    starts[0] = 0
    starts[1:] = ends[:-1] + 1
    sizes = ends - starts + 1
    longest = int(sizes.max())
    if longest > _MAX_BYTES:
        raise ValueError("a varint of more than ten bytes")
    values = (window[starts] & 0x7F).astype(np.uint64)
    for index in range(1, longest):
        has = np.flatnonzero(sizes > index)
        part = (window[starts[has] + index] & 0x7F).astype(np.uint64)
        values[has] |= part << np.uint64(7 * index)
    return values


def _decode_few(data: bytes) -> Values:
    try:
        tensor = tfs.TensorProto.FromString(_INT64_VAL_TAG + one(len(data)) + data)
    except DecodeError:
        raise ValueError("a varint of more than ten bytes, or one that is cut off") from None
    return np.array(tensor.int64_val[:], np.int64).view(np.uint64)


def encode(array: np.ndarray[Any, np.dtype[Any]]) -> bytes:
    """The varints of a flat array of integers, one after the other."""
    if len(array) <= _VERY_FEW:
        return b"".join([one(value) for value in array.tolist()])
    if len(array) <= _FEW_VALUES:
        return _encode_few(array)
    # A signed integer is extended to 64 bits before its complement is taken.
    values = array.astype(np.int64).view(np.uint64) if array.dtype.kind == "i" else array.astype(np.uint64)
    longest = max(1, (int(values.max()).bit_length() + 6) // 7)
    if longest == 1:
        return values.astype(np.uint8).tobytes()
    sizes = np.ones(len(values), np.uint8)
    rows = np.empty((len(values), longest), np.uint8)
    for index in range(longest):
        shifted = values >> np.uint64(7 * index)
        more = shifted >= 0x80
        rows[:, index] = (shifted & np.uint64(0x7F)).astype(np.uint8) | (more.view(np.uint8) << 7)
        if index + 1 < longest:
            sizes += more
    return rows[np.arange(longest, dtype=np.uint8) < sizes[:, None]].tobytes()


def _encode_few(array: np.ndarray[Any, np.dtype[Any]]) -> bytes:
    if array.dtype.kind == "i":
        field: bytes = tfs.TensorProto(int64_val=array.tolist()).SerializeToString()
        position = 1
    else:
        field = tfs.TensorProto(uint64_val=array.tolist()).SerializeToString()
        position = 2
    while field[position] >= 0x80:  # the size, after the tag
        position += 1
    return field[position + 1 :]
