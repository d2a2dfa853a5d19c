"""What a model may be asked to begin with, from its SavedModel's signature. Without TensorFlow, and without its graph.

A SavedModel has its graph in the same file as its signatures, often much of it: that is passed over.
"""

from __future__ import annotations

import itertools
import json
import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from mpspool.core.settings import ModelSettings

UNKNOWN = '{"INPUT": [...]}'
_MAX_ELEMENTS = 16
# SavedModel.meta_graphs; MetaGraphDef.meta_info_def and signature_def; MetaInfoDef.tags.
_META_GRAPHS, _META_INFO, _SIGNATURES, _TAGS = 2, 1, 5, 4
_VARINT, _FIXED64, _DELIMITED, _FIXED32 = 0, 1, 2, 5
_SIZES = {_FIXED64: 8, _FIXED32: 4}


class _Field(NamedTuple):
    """A field of a serialised message: its number, and where in the file its content is."""

    number: int
    start: int
    end: int


def example_input(model: ModelSettings) -> str:
    """JSON for `mpspool predict --input`.

    A value for each input whose shape is known, but perhaps for its batch, and is small; [...] for any other, and
    UNKNOWN where the signature cannot be read.
    """
    from google.protobuf.message import DecodeError

    try:
        with open(Path(model.path) / "saved_model.pb", "rb") as file:
            signature = _default_signature(file, set(model.saved_model_tags))
    except (OSError, ValueError, DecodeError):
        return UNKNOWN
    return UNKNOWN if signature is None else _document(signature)


def _default_signature(file: BinaryIO, tags: set[str]) -> Any:
    """Of the graph with these tags; None where it has none. Raises ValueError, DecodeError."""
    from mpspool.core import tfs

    size = os.fstat(file.fileno()).st_size
    for graph in _fields(file, 0, size):
        if graph.number != _META_GRAPHS:
            continue
        fields = list(_fields(file, graph.start, graph.end))
        found = {
            _bytes(file, tag).decode()
            for info in fields
            if info.number == _META_INFO
            for tag in _fields(file, info.start, info.end)
            if tag.number == _TAGS
        }
        if found == tags:
            known = tfs.SignatureDefMap()
            for entry in fields:
                if entry.number == _SIGNATURES:
                    known.MergeFromString(_as_only_field(_bytes(file, entry)))
            return known.signature_def.get(tfs.DEFAULT_SIGNATURE)
    return None


def _fields(file: BinaryIO, start: int, end: int) -> Iterator[_Field]:
    """Raises ValueError for what is no message."""
    while start < end:
        file.seek(start)
        key = _varint(file)
        wire = key & 7
        if wire == _VARINT:
            _varint(file)
            start = file.tell()
            continue
        size = _varint(file) if wire == _DELIMITED else _SIZES.get(wire, end)
        at = file.tell()
        start = at + size
        if start > end:
            raise ValueError("a message is cut short")
        yield _Field(key >> 3, at, start)


def _varint(file: BinaryIO) -> int:
    value = 0
    for shift in range(0, 70, 7):
        byte = file.read(1)
        if not byte:
            break
        value |= (byte[0] & 0x7F) << shift
        if byte[0] < 0x80:
            return value
    raise ValueError("no number")


def _bytes(file: BinaryIO, field: _Field) -> bytes:
    file.seek(field.start)
    return file.read(field.end - field.start)


def _as_only_field(content: bytes) -> bytes:
    """A message whose field 1 is that, serialised."""
    head = bytearray(b"\x0a")
    size = len(content)
    while size >= 0x80:
        head.append(size & 0x7F | 0x80)
        size >>= 7
    head.append(size)
    return bytes(head) + content


def _document(signature: Any) -> str:
    needed = {alias: signature.inputs[alias] for alias in sorted(signature.inputs)}
    needed = {alias: info for alias, info in needed.items() if alias not in signature.defaults}
    # One batch for all of them: three where each is a list of numbers, or less.
    batch = 3 if all(len(info.tensor_shape.dim) < 2 for info in needed.values()) else 1
    parts = [f"{json.dumps(alias)}: {_value(info, batch)}" for alias, info in needed.items()]
    return f"{{{', '.join(parts)}}}"


def _value(info: Any, batch: int) -> str:
    """JSON of a value that the input takes; "[...]" where that is not simple."""
    samples = _samples(info.dtype)
    sizes = [dimension.size for dimension in info.tensor_shape.dim]
    if sizes[:1] == [-1]:
        sizes[0] = batch
    if (
        info.WhichOneof("encoding") != "name"
        or info.tensor_shape.unknown_rank
        or min(sizes, default=1) < 0
        or math.prod(sizes) > _MAX_ELEMENTS
        or not samples
    ):
        return "[...]"
    return json.dumps(_nested(sizes, itertools.cycle(samples)))


def _samples(dtype: int) -> tuple[Any, ...]:
    """Elements of that type; none where it cannot be sent as JSON."""
    from mpspool.core import tfs

    known = tfs.DATA_TYPES.get(dtype)
    if known is None or not known.field:
        return ()
    if known.text.startswith(("int2", "uint2")):
        return (1, 0)
    return {"string": ("a", "b", "c"), "bool": (True, False)}.get(known.text, (1, 2, 5))


def _nested(sizes: list[int], samples: Iterator[Any]) -> Any:
    return [_nested(sizes[1:], samples) for _ in range(sizes[0])] if sizes else next(samples)
