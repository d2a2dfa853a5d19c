"""Tensors as JSON text. What is not a finite number is written NaN, Infinity, -Infinity, as TensorFlow Serving does."""

from __future__ import annotations

import base64
import math
from collections.abc import Sequence
from itertools import chain, repeat
from typing import Any

import numpy as np
import orjson

from mpspool.core.errors import Code, PoolError
from mpspool.worker.engine.base import Array

_BYTES_SUFFIX = "_bytes"
_NUMBERS = frozenset(
    {"float32", "float64", "int8", "int16", "int32", "int64", "uint8", "uint32", "uint64", "bool"}
)


class UnwritableError(Exception):
    """A tensor of this type has no JSON form."""


def text(array: Array, *, as_bytes: bool = False) -> bytes:
    """The JSON of a whole tensor.

    Args:
        array: the tensor.
        as_bytes: its strings are bytes, and written in base64.

    Raises:
        UnwritableError: its type has no JSON form.
    """
    if array.dtype.kind in "OSU":
        return orjson.dumps(
            _nested([_string(one, as_bytes) for one in array.reshape(-1).tolist()], array.shape)
        )
    if array.dtype.name not in _NUMBERS:
        raise UnwritableError
    whole = np.ascontiguousarray(array) if array.ndim else array[()]
    written = orjson.dumps(whole, option=orjson.OPT_SERIALIZE_NUMPY)
    if array.dtype.kind == "f" and not (finite := np.isfinite(array)).all():
        return _with_words(written, array[~finite].tolist())
    return written


def rows(array: Array, *, as_bytes: bool = False) -> list[bytes]:
    """The JSON of each row of a tensor that has rows. Raises UnwritableError."""
    count, depth = len(array), array.ndim - 2
    if not count:
        return []
    if array.dtype.kind in "OSU":
        return [text(row, as_bytes=as_bytes) for row in array] if depth >= 0 else _strings(array, as_bytes)
    if not array.size:
        return list(repeat(text(array[0]), count))
    inner = text(array)[1:-1]
    if depth < 0:
        return inner.split(b",")
    # No string is in it: a row ends where so many brackets do.
    ends, starts = b"]" * (depth + 1), b"[" * (depth + 1)
    pieces = inner[len(starts) : -len(ends)].split(ends + b"," + starts)
    return [starts + piece + ends for piece in pieces]


def is_bytes(alias: str) -> bool:
    """Whether strings of an output are bytes, which its name says."""
    return alias.endswith(_BYTES_SUFFIX)


def unwritable(data_type: str) -> PoolError:
    """The error about an output of this type."""
    return PoolError(Code.INVALID_ARGUMENT, f"Failed to write JSON value for tensor type: {data_type}")


def _strings(array: Array, as_bytes: bool) -> list[bytes]:
    return [orjson.dumps(_string(one, as_bytes)) for one in array.tolist()]


def _string(value: Any, as_bytes: bool) -> Any:
    """A string; bytes, and what is not text all the same, as an object."""
    data = value if isinstance(value, bytes) else str(value).encode()
    if not as_bytes:
        try:
            return data.decode()
        except UnicodeDecodeError:
            pass
    return {"b64": base64.b64encode(data).decode()}


def _with_words(written: bytes, values: list[float]) -> bytes:
    """A text of numbers, with the words for these in the places where orjson has a null."""
    first, *others = written.split(b"null")
    words = [b"NaN" if math.isnan(one) else b"Infinity" if one > 0 else b"-Infinity" for one in values]
    return first + b"".join(chain.from_iterable(zip(words, others, strict=True)))


def _nested(flat: list[Any], shape: Sequence[int]) -> Any:
    if not shape:
        return flat[0]
    for size in reversed(shape[1:]):
        flat = [flat[start : start + size] for start in range(0, len(flat), size)] if size else []
    return flat if 0 not in shape[1:] else np.empty(shape).tolist()
