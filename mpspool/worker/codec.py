"""Tensors between the wire and numpy: TensorProto bytes to arrays and back.

Decoding follows TensorFlow's Tensor::FromProto, so what it accepts and refuses is accepted and
refused here: tensor_content must be of the right size; a list that is too short repeats its last
value, an empty one gives zeros, one that is too long is cut; a tensor without elements ignores
its values. Two things are refused beside it: more dimensions than an array can have, and a list
so short that filling the shape would allocate what nobody sent.

Encoding writes the bytes directly: typed lists, as TensorFlow Serving's answers have them by default, or tensor_content.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache, lru_cache
from itertools import pairwise
from typing import Any

import numpy as np
from google.protobuf import unknown_fields

from mpspool.core import tfs
from mpspool.worker import varints
from mpspool.worker.engine.base import Array

# A list shorter than its tensor is filled up to this many bytes; a client that means a larger
# tensor can afford to send it.
MAX_FILLED_BYTES = 256 * 2**20
_MAX_DIMENSIONS = 64
_MAX_REMEMBERED_BYTES = 512
# Below this an array's bytes are copied at once; above, they are handed on as a view.
_VIEW_FROM_BYTES = 4096

_FIXED_FIELDS: dict[str, np.dtype[Any]] = {
    "float_val": np.dtype("<f4"),
    "double_val": np.dtype("<f8"),
    "scomplex_val": np.dtype("<c8"),
    "dcomplex_val": np.dtype("<c16"),
}
# Lists of these are written as the array lies in memory.
_AS_IN_MEMORY = frozenset((*_FIXED_FIELDS, "float8_val", "bool_val"))
_FIELD_NUMBERS: dict[str, int] = {field.name: field.number for field in tfs.TensorProto.DESCRIPTOR.fields}


Payload = bytes | memoryview


class TensorError(ValueError):
    """A TensorProto that is no tensor: TensorFlow says "tensor parsing error" of it."""


def _dimensions(shape: bytes) -> tuple[tuple[int, ...], int]:
    """The sizes and the element count of a serialised TensorShapeProto.

    unknown_rank means nothing here: TensorFlow takes the dimensions that are listed.
    """
    sizes = tuple(dimension.size for dimension in tfs.TensorShapeProto.FromString(shape).dim)
    if len(sizes) > _MAX_DIMENSIONS or any(size < 0 for size in sizes):
        raise TensorError
    if math.prod(size or 1 for size in sizes) >= 2**59:  # an array of 16-byte elements ends there
        raise TensorError
    return sizes, math.prod(sizes)


_known_dimensions = lru_cache(maxsize=4096)(_dimensions)


@cache
def array_dtype(number: int) -> np.dtype[Any]:
    """The dtype TensorFlow takes an array of this type in.

    As numpy_dtype(), but a quantized type is a structure of one field, named after the type.

    Raises:
        TensorError: it has no arrays (resource, variant, a reference, an unknown number).
    """
    try:
        dtype = tfs.numpy_dtype(number)
    except KeyError:
        raise TensorError from None
    text = tfs.DATA_TYPES[number].text
    return np.dtype([(text, dtype)]) if text.startswith("q") else dtype


def decode(raw: Any, reparse: Callable[[], Any]) -> Array:
    """The array of a tensor.

    Args:
        raw: a tfs.RawTensor.
        reparse: gives the same tensor as a tfs.TensorProto; called where a list was sent unpacked.

    Returns:
        An array that may be read-only and may share the tensor's memory; one value for all
        elements is there once, whatever the shape. Strings are an object array of bytes.

    Raises:
        TensorError: it is no tensor, or none of an array's.
    """
    sizes = raw.tensor_shape.SerializeToString()
    # What a client makes up is remembered only while it is small.
    shape, count = (_known_dimensions if len(sizes) <= _MAX_REMEMBERED_BYTES else _dimensions)(sizes)
    number = raw.dtype
    dtype = array_dtype(number)
    if not count:
        return np.empty(shape, dtype)
    content = raw.tensor_content
    if content:
        flat = _from_content(content, number, dtype, count)
    else:
        flat = _from_list(raw, number, dtype, count, reparse)
    return flat.reshape(shape)


def _from_content(content: bytes, number: int, dtype: np.dtype[Any], count: int) -> Array:
    if number == tfs.DT_STRING:
        return _strings_from_content(content, count)
    if len(content) != count * dtype.itemsize:
        raise TensorError
    array = np.frombuffer(content, dtype)
    if dtype.kind == "b" and array.view(np.uint8).max() > 1:
        raise TensorError
    return array


def _strings_from_content(content: bytes, count: int) -> Array:
    """All lengths as varints, then all bytes."""
    if count > len(content):
        raise TensorError
    try:
        sizes, position = varints.read(content, count)
    except ValueError:
        raise TensorError from None
    if sum(sizes) != len(content) - position:
        raise TensorError
    strings = np.empty(count, object)
    for index, size in enumerate(sizes):
        strings[index] = content[position : position + size]
        position += size
    return strings


def _from_list(raw: Any, number: int, dtype: np.dtype[Any], count: int, reparse: Callable[[], Any]) -> Array:
    field = tfs.DATA_TYPES[number].field
    if len(unknown_fields.UnknownFieldSet(raw)):
        return _fill(_unpacked_values(reparse(), number, field), dtype, count)
    if field == "string_val":
        return _fill(_objects(list(raw.string_val)), dtype, count)
    if field == "float8_val":
        return _fill(np.frombuffer(raw.float8_val, dtype), dtype, count)
    chunks = getattr(raw, field)
    return _fill(packed_values(chunks[0] if len(chunks) == 1 else b"".join(chunks), number), dtype, count)


def packed_values(data: bytes, number: int) -> Array:
    """The values of a packed list, in the integer or floating type the tensor is stored as. Raises TensorError."""
    fixed = _FIXED_FIELDS.get(tfs.DATA_TYPES[number].field)
    if fixed is not None:
        part = fixed.itemsize // (2 if fixed.kind == "c" else 1)
        if len(data) % part:
            raise TensorError
        return np.frombuffer(data, fixed, len(data) // fixed.itemsize)
    try:
        return _narrowed(varints.decode(data), number)
    except ValueError:
        raise TensorError from None


def _unpacked_values(tensor: Any, number: int, field: str) -> Array:
    """As packed_values, from a parsed TensorProto."""
    values = getattr(tensor, field)
    if field == "string_val":
        return _objects(list(values))
    if field == "float8_val":
        return np.frombuffer(values, tfs.numpy_dtype(number))
    fixed = _FIXED_FIELDS.get(field)
    if fixed is None:
        return _narrowed(np.array([value & 2**64 - 1 for value in values], np.uint64), number)
    if fixed.kind == "c":
        parts = np.array(values[: len(values) // 2 * 2], f"<f{fixed.itemsize // 2}")
        return parts.view(fixed)
    return np.array(values, fixed)


def _narrowed(values: np.ndarray[Any, np.dtype[np.uint64]], number: int) -> Array:
    """Varint values as the type's own: the low bits count, as in a C++ conversion."""
    dtype = tfs.numpy_dtype(number)
    if dtype.itemsize == 8:
        return values.view(dtype)
    if tfs.DATA_TYPES[number].field == "half_val":
        return values.astype(np.uint16).view(dtype)
    if dtype.kind == "b":
        return values.astype(np.bool_)
    if dtype.kind == "V":  # int4 and its like: no wider conversion is defined for them
        bits = 4 if "4" in dtype.name else 2
        low = (values & np.uint64(2**bits - 1)).astype(np.int8)
        if not dtype.name.startswith("u"):
            low = (low ^ (1 << bits - 1)) - (1 << bits - 1)  # sign extension
        return low.view(dtype)
    return values.astype(dtype)


def _objects(values: list[bytes]) -> Array:
    array = np.empty(len(values), object)
    array[:] = values
    return array


def _fill(values: Array, dtype: np.dtype[Any], count: int) -> Array:
    """Exactly `count` values: cut, or with the last one repeated. Where that is the only one, it is in memory once."""
    given = len(values)
    if given > count:
        values = values[:count]
    elif given < count:
        if count * dtype.itemsize > MAX_FILLED_BYTES:
            raise TensorError
        if given > 1:
            filled = np.empty(count, values.dtype)
            filled[:given] = values
            filled[given:] = values[-1]
            values = filled
        elif not given:
            values = np.full(1, _zero(dtype), values.dtype)
    if values.dtype != dtype:
        values = values.view(dtype)
    return values if len(values) == count else np.broadcast_to(values, count)


def _zero(dtype: np.dtype[Any]) -> Any:
    return b"" if dtype.kind == "O" else 0


@cache
def _key(field: int, wire: int) -> bytes:
    return varints.one(field << 3 | wire)


@lru_cache(maxsize=4096)
def head(number: int, shape: tuple[int, ...], size: int, content: bool = False) -> bytes:
    """What stands before the payload of so many bytes in a TensorProto: dtype, tensor_shape, the field's tag and size.

    The field is the type's list, or tensor_content.
    """
    sizes = [b"\x08" + varints.one(size) if size else b"" for size in shape]
    dims = b"".join(b"\x12" + varints.one(len(size)) + size for size in sizes)
    start = b"\x08" + varints.one(number) + b"\x12" + varints.one(len(dims)) + dims
    field = "tensor_content" if content else tfs.DATA_TYPES[number].field
    if not size or field == "string_val":  # each string has a tag of its own
        return start
    return start + _key(_FIELD_NUMBERS[field], 2) + varints.one(size)


def number_of(array: Array) -> int:
    """Its tensorflow.DataType. Raises TensorError."""
    try:
        return tfs.number_of(array.dtype)
    except KeyError:
        raise TensorError(f"cannot send an array of {array.dtype}") from None


def payloads(
    array: Array, number: int, bounds: Sequence[int] | None = None, content: bool = False
) -> list[Payload]:
    """What a TensorProto has after its head(), for each range of the array's rows. May be views of its memory.

    Args:
        array: strings as objects (bytes), or in numpy's own string types; a quantized type as a
            structure or as its plain integer.
        number: the type, a tensorflow.DataType.
        bounds: where the ranges begin and end, 0 the first of them; None for one tensor of the whole array.
        content: for tensor_content, in place of the type's list.

    Raises:
        TensorError: no tensor has such values.
    """
    try:
        values, encode_some = _writer(array, number, content)
        if bounds is None:
            return [encode_some(values) if encode_some else values]
        width = len(values) // len(array)
        ranges = [values[start * width : end * width] for start, end in pairwise(bounds)]
        return [encode_some(one) for one in ranges] if encode_some else ranges
    except (KeyError, TypeError):
        raise TensorError(f"cannot send an array of {array.dtype} as {tfs.type_text(number)}") from None


def _writer(array: Array, number: int, content: bool) -> tuple[Any, Callable[[Any], bytes] | None]:
    """What is written, flat, and how a part of it becomes bytes, unless it is bytes."""
    field = tfs.DATA_TYPES[number].field
    if field == "string_val":
        return _strings(array), _string_content if content else _string_list
    array = _plain(array, number)
    if content or field in _AS_IN_MEMORY:
        return _bytes_of(array), None
    if field == "half_val":
        array = array.view(np.uint16)
    elif array.dtype.kind == "V":
        array = array.astype(np.int8)
    return array.reshape(-1), varints.encode


def _plain(array: Array, number: int) -> Array:
    """The array in the type's own dtype and contiguous, a quantized one as its integers."""
    dtype = tfs.numpy_dtype(number)
    if array.dtype.names:
        array = array.view(dtype)
    if array.dtype != dtype:
        if array.dtype.kind not in "OSU" and dtype.kind != "O":
            array = array.astype(dtype)
        else:
            raise TypeError
    return array if array.flags.c_contiguous else np.ascontiguousarray(array)


def _bytes_of(array: Array) -> bytes | memoryview:
    if array.nbytes < _VIEW_FROM_BYTES:
        return array.tobytes()
    return array.reshape(-1).view(np.uint8).data


def _string_list(strings: list[bytes]) -> bytes:
    serialised: bytes = tfs.RawTensor(string_val=strings).SerializeToString()
    return serialised


def _string_content(strings: list[bytes]) -> bytes:
    """See _strings_from_content()."""
    return varints.encode(np.array([len(one) for one in strings], np.int64)) + b"".join(strings)


def _strings(array: Array) -> list[bytes]:
    if array.dtype.kind == "U":
        return [value.encode() for value in array.reshape(-1).tolist()]
    if array.dtype.kind not in "OS":
        raise TypeError
    strings: list[bytes] = array.reshape(-1).tolist()
    return strings
