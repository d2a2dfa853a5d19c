"""Values of a JSON document as tensors. Rules and words are TensorFlow Serving's (util/json_tensor.cc).

Most tensors become arrays in one step; what does not is gone through value by value, which also says what is wrong with it.
"""

from __future__ import annotations

import binascii
import math
from collections.abc import Sequence
from itertools import chain
from typing import Any

import numpy as np

from mpspool.core import tfs
from mpspool.core.errors import Code, PoolError, invalid
from mpspool.worker import codec
from mpspool.worker.engine.base import Array
from mpspool.worker.rest.document import as_bytes, kind_of, shown

_B64 = "b64"
_FLOATS = frozenset({"DT_FLOAT", "DT_DOUBLE"})
_INTEGERS = frozenset(
    f"DT_{name}" for name in ("INT8", "INT16", "INT32", "INT64", "UINT8", "UINT32", "UINT64")
)
# The dimensions of a value: with that of the rows they are as many as NumPy 1.26 has. TensorFlow's kernels take fewer.
_MAX_RANK = 31


def is_b64(value: Any) -> bool:
    return isinstance(value, dict) and len(value) == 1 and isinstance(value.get(_B64), str)


def decode_b64(value: Any) -> bytes:
    """Of an object that is_b64(); it may be in lines, and without padding. Raises PoolError."""
    text = "".join(value[_B64].split()).rstrip("=")
    try:
        return binascii.a2b_base64(text + "=" * (-len(text) % 4), strict_mode=True)
    except ValueError:
        raise invalid("Unable to base64 decode") from None


class Type:
    """The element type of an input.

    Args:
        number: tensorflow.DataType.
    """

    def __init__(self, number: int) -> None:
        known = tfs.DATA_TYPES.get(number)
        self._text = tfs.type_text(number)
        self._name = known.name if known else ""
        self.dtype: np.dtype[Any] = codec.array_dtype(number) if known and known.field else np.dtype(object)
        self._is_float, self._is_integer = self._name in _FLOATS, self._name in _INTEGERS
        # What JSON's values are in Python. An exact type: True is an int, too.
        self._classes: frozenset[type] = frozenset()
        if self._is_float:
            self._classes = frozenset({float, int})
        elif self._is_integer:
            self._classes = frozenset({int})
            limits = np.iinfo(self.dtype)
            self._least, self._most = int(limits.min), int(limits.max)
        elif self._name in ("DT_STRING", "DT_BOOL"):
            self._classes = frozenset({bool} if self._name == "DT_BOOL" else {str, dict})

    def at_once(self, value: Any) -> Array | None:
        """The tensor of a value; None where it has to be gone through, mostly because something is wrong with it."""
        # NumPy is never left to find out what it is given: an array of strings has room in each place for the longest.
        found = _flattened(value)
        if found is None:
            return None
        shape, flat, classes = found
        if not classes <= self._classes:
            return None
        try:
            array = self._from(flat)
        except (OverflowError, PoolError):
            return None
        return None if array is None else array.reshape(shape)

    def _from(self, flat: list[Any]) -> Array | None:
        """Of elements of the right classes; None where one is out of range. Raises OverflowError or PoolError for others."""
        if self._name == "DT_STRING":
            return np.fromiter(map(self._string, flat), self.dtype, len(flat))
        if self._name == "DT_UINT64":
            return np.fromiter(flat, self.dtype, len(flat)) if min(flat, default=0) >= 0 else None
        if self._is_integer:
            wide: Array = np.fromiter(flat, np.int64, len(flat))
            if flat and not (self._least <= wide.min() and wide.max() <= self._most):
                return None
            return wide.astype(self.dtype, copy=False)
        with np.errstate(over="ignore"):
            return np.fromiter(flat, self.dtype, len(flat))

    def one_by_one(self, value: Any) -> Array:
        """The tensor of a value. Raises PoolError."""
        shape = _shape(value)
        if len(shape) > _MAX_RANK:
            raise invalid(f"A tensor of {len(shape)} dimensions is not supported, only of up to {_MAX_RANK}")
        found: list[Any] = []
        self._walk(value, 0, shape, found)
        array: Array = np.empty(len(found), self.dtype)
        with np.errstate(over="ignore"):
            array[:] = found
        return array.reshape(shape)

    def _walk(self, value: Any, level: int, shape: Sequence[int], found: list[Any]) -> None:
        rank = len(shape)
        if not isinstance(value, list):
            if level != rank:
                raise invalid(
                    f"JSON Value: {shown(value)} found at incorrect level: {level + 1} in the JSON DOM. "
                    f"Expected at level: {rank}"
                )
            found.append(self._element(value))
            return
        if level >= rank:
            raise invalid(f"Encountered list at unexpected level: {level} expected < {rank}")
        if len(value) != shape[level]:
            raise invalid(
                f"Encountered list at unexpected size: {len(value)} at level: {level} expected size: {shape[level]}"
            )
        for item in value:
            self._walk(item, level + 1, shape, found)

    def _element(self, value: Any) -> Any:
        if self._name == "DT_STRING":
            return self._string(value)
        if isinstance(value, dict):
            raise self._wrong(value)
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if self._is_float:
            if not is_number:
                raise self._wrong(value)
            return _as_float(value)
        if self._is_integer:
            if not is_number or not isinstance(value, int) or not self._least <= value <= self._most:
                raise self._wrong(value)
            return value
        if self._name == "DT_BOOL":
            if not isinstance(value, bool):
                raise self._wrong(value)
            return value
        text = f"Conversion of JSON Value: {shown(value)} to type: {self._text}"
        raise PoolError(Code.UNIMPLEMENTED, text)

    def _string(self, value: Any) -> bytes:
        if isinstance(value, str):
            return as_bytes(value)
        if isinstance(value, dict):
            if not is_b64(value):
                raise invalid(f"JSON Value: {shown(value)} not formatted correctly for base64 data")
            return decode_b64(value)
        raise self._wrong(value)

    def _wrong(self, value: Any) -> PoolError:
        return invalid(
            f"JSON Value: {shown(value)} Type: {kind_of(value)} is not of expected type: {self._text}"
        )


def _as_float(value: float) -> float:
    try:
        return float(value)
    except OverflowError:  # an integer beyond a float's range
        return math.inf if value > 0 else -math.inf


def _flattened(value: Any) -> tuple[list[int], list[Any], set[type]] | None:
    """Shape, elements, and of which classes they are; None for lists of several lengths, or too many of them."""
    shape, flat = ([len(value)], value) if isinstance(value, list) else ([], [value])
    while list in (classes := set(map(type, flat))):
        sizes = set(map(len, flat)) if len(classes) == 1 else ()
        if len(sizes) != 1 or len(shape) == _MAX_RANK:
            return None
        shape.extend(sizes)
        flat = list(chain.from_iterable(flat))
    return shape, flat, classes


def _shape(value: Any) -> list[int]:
    """By the first value of each list, as all others have to be."""
    shape = []
    while isinstance(value, list):
        shape.append(len(value))
        if not value:
            break
        value = value[0]
    return shape
