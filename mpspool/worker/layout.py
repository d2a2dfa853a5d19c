"""Requests that differ in nothing but their tensors' values, known by their bytes.

A client asks the same again and again: the same model, inputs, types and shapes, other values. All bytes of such requests
but the values' are then equal and lie at the same places. Once one of them has been parsed and checked, the others need
not be: it is enough to compare those bytes. That takes a tenth of the time.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Generic, NamedTuple, Self, TypeVar

import numpy as np

from mpspool.core import tfs
from mpspool.worker import aligned, codec
from mpspool.worker.engine.base import Array

# A request with more bytes beside its values is not worth remembering.
_MAX_LITERAL_BYTES = 4096
_MAX_KNOWN = 1024
_MAX_OF_ONE_SIZE = 8
_MAX_MET = 4096
_MAX_VARINT_BYTES = 10
# Tags of PredictRequest, of an entry of its inputs, and of TensorProto.
_INPUT = 0x12
_KEY, _VALUE = 0x0A, 0x12
_DTYPE, _SHAPE, _VERSION, _CONTENT = 0x08, 0x12, 0x18, 0x22
# The lists whose bytes are those of the array, and those of varints.
_FIXED = {0x2A: "float_val", 0x32: "double_val"}
_VARINTS = {0x3A: "int_val", 0x52: "int64_val"}
_LISTS = _FIXED | _VARINTS
# A longer list of varints hardly ever has the length of another one.
_MAX_VARINTS_BYTES = 1024

T = TypeVar("T")


class _OtherwiseError(Exception):
    """The request is not written in the one way that is known here."""


class _Span(NamedTuple):
    """The bytes of one tensor's values: after which tag they stand, and where."""

    tag: int
    start: int
    end: int


class _Values(NamedTuple):
    """Where an input's values lie in each body, and what they are. `number` is 0 where they lie there as in memory."""

    alias: str
    start: int
    end: int
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    number: int


class Layout:
    """The bytes that a kind of requests has in common.

    Attributes:
        literals: these bytes, and where they begin in each body. All bodies are of one length.
        is_fixed: the values of each body of the layout are right: there is nothing to find out about them.

    Args:
        body: one of them.
        values: where in it the values are, by position.
    """

    def __init__(self, body: bytes, values: Sequence[_Values]) -> None:
        self._values = values
        self.is_fixed = not any(one.number for one in values)
        starts = [0, *(one.end for one in values)]
        ends = [*(one.start for one in values), len(body)]
        # The first bytes differ least: they name the model.
        self.literals = [(body[start:end], start) for start, end in zip(starts, ends, strict=True)][::-1]

    @classmethod
    def of(cls, body: bytes, inputs: Mapping[str, Array]) -> Self | None:
        """The layout of a request.

        Args:
            body: the request, which has been parsed, and found right.
            inputs: its tensors, those that it left to defaults not among them.

        Returns:
            None where other values can need another layout, or another check than that of the size.
        """
        if len(body) - sum(array.nbytes for array in inputs.values()) > _MAX_LITERAL_BYTES:
            return None
        try:
            spans = _spans(body)
            values = [_values(alias, span, inputs[alias]) for alias, span in spans.items()]
        except (_OtherwiseError, IndexError):
            return None
        return cls(body, sorted(values, key=lambda one: one.start)) if len(values) == len(inputs) else None

    def arrays(self, body: bytes) -> dict[str, Array] | None:
        """The tensors of a body of this layout, by alias; None where its values are not as usual. They may share its memory."""
        arrays: dict[str, Array] = {}
        for alias, start, end, dtype, shape, number in self._values:
            if number:
                array = _varints(body[start:end], number, dtype)
                if array is None or array.size != math.prod(shape):
                    return None
            else:
                array = np.frombuffer(body, dtype, (end - start) // dtype.itemsize, start)
            arrays[alias] = array if len(shape) == 1 else array.reshape(shape)
        return arrays

    def joined(self, bodies: Sequence[bytes], padding: int) -> dict[str, Array]:
        """The tensors of bodies of this layout, one after the other, and the last one's first row `padding` times more.

        Only where the layout is fixed.
        """
        arrays = {}
        for alias, start, end, dtype, shape, _ in self._values:
            size = end - start
            row = size // shape[0]
            more = row * padding
            if size * len(bodies) + more < aligned.FROM_BYTES:
                pieces = [body[start:end] for body in bodies]
                if padding:
                    pieces.append(pieces[-1][:row] * padding)
                array: Array = np.frombuffer(b"".join(pieces), dtype)
            else:
                memory = aligned.memory(size * len(bodies) + more)
                filled = memory.data
                for position, body in enumerate(bodies):
                    filled[position * size : (position + 1) * size] = memoryview(body)[start:end]
                if padding:
                    filled[-more:] = bodies[-1][start : start + row] * padding
                array = memory.view(dtype)
            arrays[alias] = array if len(shape) == 1 else array.reshape(-1, *shape[1:])
        return arrays


class Layouts(Generic[T]):
    """What is known by its layout. It forgets all when there is too much of it."""

    def __init__(self) -> None:
        self._by_size: dict[int, list[tuple[Sequence[tuple[bytes, int]], T]]] = {}
        self._count = 0
        # The lengths of bodies that were met, and whether another one is worth a closer look.
        self._met: dict[int, bool] = {}

    def find(self, body: bytes) -> T | None:
        for literals, thing in self._by_size.get(len(body), ()):
            for literal, start in literals:
                if not body.startswith(literal, start):
                    break
            else:
                return thing
        return None

    def worth_learning(self, body: bytes) -> bool:
        """Whether a body that was not found may be one of many. Not so the first of its length."""
        worth = self._met.get(len(body))
        if worth is None:
            if len(self._met) >= _MAX_MET:
                self._met.clear()
            self._met[len(body)] = True
        return bool(worth)

    def learn(self, body: bytes, inputs: Mapping[str, Array], thing: T) -> Layout | None:
        """Remembers the thing for all bodies of this one's layout, if it has one. See Layout.of()."""
        if self._count >= _MAX_KNOWN:
            self._by_size.clear()
            self._count = 0
        others = self._by_size.get(len(body), [])
        layout = Layout.of(body, inputs) if len(others) < _MAX_OF_ONE_SIZE else None
        if layout is None:
            self._met[len(body)] = False
        else:
            self._by_size[len(body)] = [*others, (layout.literals, thing)]
            self._count += 1
        return layout


def _values(alias: str, span: _Span, array: Array) -> _Values:
    number = tfs.number_of(array.dtype)
    is_own_list = _LISTS.get(span.tag) == tfs.DATA_TYPES[number].field
    if is_own_list and span.tag in _VARINTS and span.end - span.start <= _MAX_VARINTS_BYTES:
        return _Values(alias, span.start, span.end, array.dtype, array.shape, number)
    # Booleans in tensor_content are looked at one by one; strings have no fixed size.
    if (
        array.dtype.kind in "bO"
        or not array.nbytes
        or span.end - span.start != array.nbytes
        or not (span.tag == _CONTENT or is_own_list)
    ):
        raise _OtherwiseError
    return _Values(alias, span.start, span.end, array.dtype, array.shape, 0)


def _varints(data: bytes, number: int, dtype: np.dtype[Any]) -> Array | None:
    try:
        return codec.packed_values(data, number).view(dtype)  # a quantized type's is a structure
    except codec.TensorError:
        return None


def _spans(body: bytes) -> dict[str, _Span]:
    """The values of each input of a request. Raises _OtherwiseError or IndexError."""
    spans = {}
    for tag, start, end in _fields(body, 0, len(body)):
        if tag == _INPUT:
            alias, span = _entry(body, start, end)
            if alias in spans:
                raise _OtherwiseError
            spans[alias] = span
    return spans


def _entry(body: bytes, start: int, end: int) -> tuple[str, _Span]:
    fields = [(tag, *place) for tag, *place in _fields(body, start, end)]
    if [tag for tag, _, _ in fields] != [_KEY, _VALUE]:
        raise _OtherwiseError
    (_, key_start, key_end), (_, tensor_start, tensor_end) = fields
    spans = []
    for tag, value_start, value_end in _fields(body, tensor_start, tensor_end):
        if tag == _CONTENT or tag in _LISTS:
            spans.append(_Span(tag, value_start, value_end))
        elif tag not in (_DTYPE, _SHAPE, _VERSION):
            raise _OtherwiseError
    if len(spans) != 1:
        raise _OtherwiseError
    return body[key_start:key_end].decode(), spans[0]


def _fields(body: bytes, position: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Tag, start and end of each field's content, if all tags are of one byte."""
    while position < end:
        tag = body[position]
        if tag & 7 == 2:
            size, start = _varint(body, position + 1)
            position = start + size
        elif tag & 7 == 0:
            start = position + 1
            _, position = _varint(body, start)
        else:
            raise _OtherwiseError
        if tag >= 0x80 or position > end:
            raise _OtherwiseError
        yield tag, start, position


def _varint(body: bytes, position: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 7 * _MAX_VARINT_BYTES, 7):
        byte = body[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
    raise _OtherwiseError
