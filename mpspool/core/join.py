"""One PredictResponse of several: the answers to consecutive rows of one request."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from google.protobuf import unknown_fields
from google.protobuf.message import DecodeError

from mpspool.core import tfs

# The bytes of one value, in the lists where that is fixed.
_VALUE_BYTES = {"float_val": 4, "double_val": 8, "scomplex_val": 8, "dcomplex_val": 16}
_CONTENT = "tensor_content"
# Of one in tensor_content, by the list that it would stand in; those of int_val have any size.
_CONTENT_BYTES = {
    **_VALUE_BYTES,
    "half_val": 2,
    "int64_val": 8,
    "bool_val": 1,
    "uint32_val": 4,
    "uint64_val": 8,
    "float8_val": 1,
}
# A match of so many takes no more than some MiB.
_AT_ONCE = 2**16
# Each byte but a varint's last one has its high bit set.
_NOT_LAST = bytes(range(0x80, 0x100))
_VARINT = rb"[\x80-\xff]*+[\x00-\x7f]"
_OF_TWO_OR_MORE = re.compile(rb"[\x80-\xff]++[\x00-\x7f]")
_OF_TWO = re.compile(rb"(?<![\x80-\xff])[\x80-\xff][\x00-\x7f]")
_OF_MORE = re.compile(rb"[\x80-\xff]{2,}+[\x00-\x7f]")


def join(parts: Sequence[bytes]) -> bytes:
    """The response whose rows are those of the parts, one part after the other.

    Values are not looked at one by one, nor strings; bytes are joined, but where some parts have them in lists and others as
    content, as when a reload says `tensor_content` while they are run. The model_spec is the first part's.

    Args:
        parts: serialised PredictResponses of consecutive ranges of a request's rows, at least one.

    Raises:
        ValueError: they do not go together: outputs, types or the shapes but for dimension 0 differ, or one has not
            a value for each of its elements.
    """
    responses = [_parse(part) for part in parts]
    joined = tfs.RawPredictResponse(model_spec=responses[0].model_spec)
    aliases = set(responses[0].outputs)
    for before, after in pairwise(responses):
        if set(after.outputs) != aliases:
            raise ValueError(f"the outputs differ: {sorted(before.outputs)}, then {sorted(after.outputs)}")
        if after.model_spec != before.model_spec:
            raise ValueError(f"the model differs: {before.model_spec}, then {after.model_spec}")
    for alias in aliases:
        try:
            _join_tensors([response.outputs[alias] for response in responses], joined.outputs[alias])
        except ValueError as error:
            raise ValueError(f'output "{alias}": {error}') from None
    serialised: bytes = joined.SerializeToString(deterministic=True)
    return serialised


def _parse(part: bytes) -> Any:
    try:
        return tfs.RawPredictResponse.FromString(part)
    except DecodeError:
        raise ValueError(f"{len(part)} bytes are no PredictResponse") from None


def _join_tensors(tensors: Sequence[Any], joined: Any) -> None:
    shapes = [[dim.size for dim in tensor.tensor_shape.dim] for tensor in tensors]
    if not all(shapes):
        raise ValueError("a tensor without dimensions has no rows")
    if len({tensor.dtype for tensor in tensors}) > 1:
        raise ValueError(f"the types differ: {[tfs.type_text(tensor.dtype) for tensor in tensors]}")
    if any(shape[1:] != shapes[0][1:] for shape in shapes):
        raise ValueError(f"the shapes differ in more than dimension 0: {shapes}")
    joined.dtype = tensors[0].dtype
    for size in (sum(shape[0] for shape in shapes), *shapes[0][1:]):
        joined.tensor_shape.dim.add(size=size)
    counts = [math.prod(shape) for shape in shapes]
    filled = [(tensor, count) for tensor, count in zip(tensors, counts, strict=True) if count]
    if not filled:
        return
    fields = {_field(tensor) for tensor, _ in filled}
    if len(fields) > 1:
        if joined.dtype == tfs.DT_STRING:
            raise ValueError(f"the values are in several fields: {sorted(fields)}")
        for tensor, count in filled:
            _to_content(tensor, count)
        fields = {_CONTENT}
    _join_values([tensor for tensor, _ in filled], [count for _, count in filled], fields.pop(), joined)


def _to_content(tensor: Any, count: int) -> None:
    """Has a tensor's values, which may stand in a list, stand in tensor_content."""
    field = _field(tensor)
    if field == _CONTENT:
        return
    from mpspool.core import json_tensors  # numpy, and seldom wanted

    _packed(getattr(tensor, field), count, field)
    tensor.tensor_content = json_tensors.flat(
        tfs.TensorProto.FromString(tensor.SerializeToString())
    ).tobytes()
    tensor.ClearField(field)


def _field(tensor: Any) -> str:
    """The field that has a tensor's values."""
    field = tfs.DATA_TYPES[tensor.dtype].field if tensor.dtype in tfs.DATA_TYPES else ""
    if not field:
        raise ValueError(f"there are no values of the type {tfs.type_text(tensor.dtype)}")
    if tensor.tensor_content:
        return _CONTENT
    if len(unknown_fields.UnknownFieldSet(tensor)):
        raise ValueError("a list that is not packed")
    return field


def _join_values(tensors: Sequence[Any], counts: Sequence[int], field: str, joined: Any) -> None:
    if field == _CONTENT and joined.dtype == tfs.DT_STRING:
        pieces = [_content_of_strings(tensor, count) for tensor, count in zip(tensors, counts, strict=True)]
        joined.tensor_content = b"".join([lengths for lengths, _ in pieces] + [rest for _, rest in pieces])
    elif field == _CONTENT:
        bytes_each = {
            len(tensor.tensor_content) / count for tensor, count in zip(tensors, counts, strict=True)
        }
        if bytes_each != {_content_bytes(joined.dtype)}:
            raise ValueError("tensor_content is not of its shape's size")
        joined.tensor_content = b"".join([tensor.tensor_content for tensor in tensors])
    elif field == "string_val":
        for tensor, count in zip(tensors, counts, strict=True):
            _require(count, len(tensor.string_val))
            tensor.ClearField("tensor_shape")  # which would follow what is there
            joined.MergeFrom(tensor)
    else:
        lists = [
            _packed(getattr(tensor, field), count, field)
            for tensor, count in zip(tensors, counts, strict=True)
        ]
        values = b"".join(lists)
        if field == "float8_val":
            joined.float8_val = values
        else:
            getattr(joined, field).append(values)


def _packed(chunks: Any, count: int, field: str) -> bytes:
    """A packed list's bytes."""
    values = chunks if field == "float8_val" else b"".join(chunks)
    if field in _VALUE_BYTES:
        given = len(values) / _VALUE_BYTES[field]
    elif field == "float8_val":
        given = len(values)
    else:
        given = len(values.translate(None, _NOT_LAST))
    _require(count, given)
    return bytes(values)


def _require(count: int, given: float) -> None:
    if given != count:
        raise ValueError(f"{given:g} values for {count} elements")


def _content_bytes(number: int) -> int:
    """Of one value in tensor_content."""
    data_type = tfs.DATA_TYPES[number]
    if data_type.field in _CONTENT_BYTES:
        return _CONTENT_BYTES[data_type.field]
    return max(8, int(data_type.text.lstrip("quint"))) // 8  # int4 has a byte


def _content_of_strings(tensor: Any, count: int) -> tuple[bytes, bytes]:
    """All lengths as varints, and all bytes."""
    content: bytes = tensor.tensor_content
    end = 0
    for start in range(0, count, _AT_ONCE):
        found = re.compile(b"(?:%b){%d}" % (_VARINT, min(_AT_ONCE, count - start))).match(content, end)
        if found is None:
            raise ValueError("tensor_content ends within its strings' lengths")
        end = found.end()
    lengths, rest = content[:end], content[end:]
    if _sum_of_varints(lengths) != len(rest):
        raise ValueError("tensor_content is not of its strings' size")
    return lengths, rest


def _sum_of_varints(varints: bytes) -> int:
    of_two = b"".join(_OF_TWO.findall(varints))
    lower, upper = of_two[::2], of_two[1::2]
    total = sum(_OF_TWO_OR_MORE.sub(b"", varints)) + sum(lower) + 0x80 * (sum(upper) - len(lower))
    return total + sum(map(_value, _OF_MORE.findall(varints)))


def _value(varint: bytes) -> int:
    value = 0
    for index, byte in enumerate(varint):
        value |= (byte & 0x7F) << 7 * index
    return value
