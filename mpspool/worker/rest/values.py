"""Values of a JSON document as tensors. Rules and words are TensorFlow Serving's (util/json_tensor.cc).

Most tensors become arrays in one step; what does not is gone through value by value, which also says what is wrong with it.
"""

from __future__ import annotations

import base64
import binascii
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from mpspool.core import tfs
from mpspool.core.errors import Code, PoolError
from mpspool.worker import codec
from mpspool.worker.engine.base import Array
from mpspool.worker.rest.document import invalid, kind_of, shown

_B64 = "b64"
_FLOATS = frozenset({"DT_FLOAT", "DT_DOUBLE"})
_INTEGERS = frozenset(
    f"DT_{name}" for name in ("INT8", "INT16", "INT32", "INT64", "UINT8", "UINT32", "UINT64")
)


def is_b64(value: Any) -> bool:
    return isinstance(value, dict) and len(value) == 1 and isinstance(value.get(_B64), str)


def decode_b64(value: Any) -> bytes:
    """Of an object that is_b64(). Raises PoolError."""
    text = value[_B64].rstrip("=")
    try:
        return base64.b64decode(text + "=" * (-len(text) % 4), validate=True)
    except (binascii.Error, ValueError):
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
        if self._is_integer:
            limits = np.iinfo(self.dtype)
            self._least, self._most = int(limits.min), int(limits.max)

    def at_once(self, value: Any, *, has_bools: bool) -> Array | None:
        """The tensor of a value; None where it has to be gone through.

        Args:
            value: a number, true or false, or lists of them.
            has_bools: there are some in the document: to NumPy they are numbers.
        """
        if has_bools and self._name != "DT_BOOL":
            return None
        try:
            array: Array = np.array(value)
        except (ValueError, OverflowError):
            return None
        kind = array.dtype.kind
        if not array.size and kind == "f" and array.dtype != object:
            return array.astype(self.dtype)
        if self._is_float and kind in "iuf":
            with np.errstate(over="ignore"):
                return array.astype(self.dtype, copy=False)
        if self._is_integer and kind in "iu" and self._least <= array.min() and array.max() <= self._most:
            return array.astype(self.dtype, copy=False)
        return array if self._name == "DT_BOOL" and kind == "b" else None

    def one_by_one(self, value: Any) -> Array:
        """The tensor of a value. Raises PoolError."""
        shape = _shape(value)
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
            return value.encode("utf-8", "surrogatepass")
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


def _shape(value: Any) -> list[int]:
    """By the first value of each list, as all others have to be."""
    shape = []
    while isinstance(value, list):
        shape.append(len(value))
        if not value:
            break
        value = value[0]
    return shape
