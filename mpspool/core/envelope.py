"""Which model a request is for, read from its bytes without parsing its tensors or examples.

A request is walked field by field at the top level, each skipped by its length, so a large one
costs no more than a small one, and one that was cut off is seen to be. What lies inside is
the worker's to judge.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from functools import lru_cache
from typing import Final, NamedTuple

from mpspool.core.errors import Code, PoolError
from mpspool.core.methods import Method

# Wire types of the protocol buffers encoding.
_VARINT, _FIXED64, _LEN, _GROUP, _END_GROUP, _FIXED32 = range(6)
_MODEL_SPEC_TAG = 1 << 3 | _LEN  # also of an InferenceTask
_TASKS_TAG = 1 << 3 | _LEN  # of a MultiInferenceRequest
_INPUT_TAG = 2 << 3 | _LEN  # of a request with examples
# Of an Input: a list of examples, or one with a context.
_LIST_TAG = 1 << 3 | _LEN
_CONTEXT_TAG = 2 << 3 | _LEN
_EXAMPLE_TAG = 1 << 3 | _LEN  # of either
_INPUTS_TAG = 2 << 3 | _LEN
_OUTPUT_FILTER_TAG = 3 << 3 | _LEN
_KEY_TAG = 1 << 3 | _LEN  # of a map's entry
_VALUE_TAG = 2 << 3 | _LEN  # of a map's entry
_DTYPE_TAG = 1 << 3 | _VARINT  # of a TensorProto
_SHAPE_TAG = 2 << 3 | _LEN
_DIM_TAG = 2 << 3 | _LEN  # of a TensorShapeProto
_MAX_ROWS = 2**31
# A request of more fields than anybody sends is refused, and of one of more examples nobody counts them: all others wait meanwhile.
# Groups, which are none of ours, count by their bytes.
_MOST_FIELDS = 2**16
_MOST_EXAMPLES = 2**18
# Fields of an input, which has two, and the bytes of its tensor's type and shape.
_MOST_OF_INPUT, _MAX_HEAD_BYTES = 8, 2**13
# Bytes of types and shapes of all inputs, by which it is told who shares a batch.
_MOST_OF_HEADS = 2**14
# Tasks of a MultiInferenceRequest by whose signatures it is told from others.
_MOST_TASKS = 16
_MAX_VARINT_BYTES = 10
_MAX_GROUP_DEPTH = 100
_MAX_REMEMBERED_BYTES = 512
_MASK64 = 2**64 - 1
# A class is asked for its members more slowly.
_MULTI_INFERENCE: Final = Method.MULTI_INFERENCE


class ModelSpecPeek(NamedTuple):
    """A request's model_spec. `version` and `label` are None where not set, and never both set."""

    name: str
    version: int | None
    label: str | None
    signature_name: str


class _MalformedError(ValueError):
    pass


def missing_spec() -> PoolError:
    """The error for a request that names no model_spec, in TensorFlow Serving's words."""
    return PoolError(Code.INVALID_ARGUMENT, "Missing ModelSpec")


def missing_name() -> PoolError:
    """The error for a model_spec without a name, in TensorFlow Serving's words."""
    return PoolError(Code.INVALID_ARGUMENT, "ModelSpec has no name specified.")


def malformed(body: bytes, message: str = "tensorflow.serving.PredictRequest") -> PoolError:
    """The error for bytes that are not the message they should be."""
    return PoolError(
        Code.INVALID_ARGUMENT, f"The {len(body)} bytes received are not a {message}: truncated or malformed"
    )


def peek(body: bytes, method: Method = Method.PREDICT) -> ModelSpecPeek:
    """The model_spec of a serialised request; of a MultiInferenceRequest that of its first task.

    Args:
        body: the request.
        method: of gRPC, which says what it is.

    Raises:
        PoolError: INVALID_ARGUMENT, for bytes whose top level does not add up, a missing
            model_spec, or one without a name.
    """
    try:
        spec = _find_spec(body) if method is not _MULTI_INFERENCE else _find_task_spec(body)
        found = None if spec is None else _read_spec(spec)
    except (_MalformedError, IndexError, UnicodeDecodeError):
        raise malformed(body, method.message) from None
    if found is None:
        raise missing_spec()
    if not found.name:
        raise missing_name()
    return found


def _find_spec(body: bytes) -> bytes | None:
    """The content of the field model_spec; sent twice, both one after the other, which merges them."""
    spec = None
    position, end = 0, len(body)
    fields = pieces = 0
    while position < end:
        fields += 1
        if fields > _MOST_FIELDS:
            raise _MalformedError
        tag = body[position]
        if tag & 0x87 == _LEN and tag > 7:  # a tag of one byte, as it is nearly always
            size = body[position + 1]
            start = position + 2
            if size >= 0x80:
                size, start = varint(body, position + 1)
            position = start + size
        else:
            tag, start, position = _field(body, position)
            if tag & 7 == _GROUP:
                fields += position - start
        if position > end:
            raise _MalformedError
        if tag == _MODEL_SPEC_TAG:
            pieces += 1
            spec = body[start:position]
    return spec if pieces <= 1 else _merged_spec(body)


def _merged_spec(body: bytes) -> bytes:
    """What is sent in pieces."""
    spec = bytearray()
    for start, end in _contents(body, 0, len(body), _MODEL_SPEC_TAG):
        spec += body[start:end]
    return bytes(spec)


def _find_task_spec(body: bytes) -> bytes:
    """The model_spec of the first task; empty where there is none."""
    tasks = list(_contents(body, 0, len(body), _TASKS_TAG))
    if not tasks:
        return b""
    start, end = tasks[0]
    return _find_spec(body[start:end]) or b""


def peek_signatures(body: bytes) -> list[str]:
    """The signature_name of each task of a MultiInferenceRequest that peek() took, as far as they can be told; of many those of the first."""
    names: list[str] = []
    try:
        for start, end in itertools.islice(_contents(body, 0, len(body), _TASKS_TAG), _MOST_TASKS):
            names.append(_read_spec(_find_spec(body[start:end]) or b"").signature_name)
    except (_MalformedError, IndexError, UnicodeDecodeError):
        pass  # a worker says what is wrong with it
    return names


def varint(data: bytes, position: int) -> tuple[int, int]:
    """A varint's value and the position after it. Raises IndexError, or ValueError for one of too many bytes."""
    value = data[position]
    if value < 0x80:
        return value, position + 1
    value = 0
    for shift in range(0, 7 * _MAX_VARINT_BYTES, 7):
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & _MASK64, position
    raise _MalformedError


def _field(data: bytes, position: int, depth: int = 0, group_end: int = 0) -> tuple[int, int, int]:
    """One field: its tag, where its content starts, where it ends (past a group's end tag).

    Args:
        data: has it.
        position: where it begins.
        depth: of the groups that it is in.
        group_end: where the outermost of them has ended.

    Raises:
        IndexError, _MalformedError: it goes past the data, or is no field.
    """
    tag = data[position]
    if tag & 0x87 == _LEN and tag > 7 and (size := data[position + 1]) < 0x80:
        start = position + 2
        position = start + size
        if position > len(data):
            raise _MalformedError
        return tag, start, position
    tag, position = varint(data, position)
    wire = tag & 7
    # A field number of 0 is none; protobuf does not mind it within an unknown group.
    if tag >= 2**32 or wire > _FIXED32 or (tag < 8 and not depth):
        raise _MalformedError
    start = position
    if wire == _VARINT:
        position = varint(data, position)[1]
    elif wire == _FIXED64:
        position += 8
    elif wire == _FIXED32:
        position += 4
    elif wire == _LEN:
        size, start = varint(data, position)
        position = start + size
    elif wire == _GROUP:
        position = _skip_group(data, position, tag, depth + 1, group_end or position + _MOST_FIELDS)
    elif not depth:
        raise _MalformedError  # the end of a group that never began
    if position > len(data):
        raise _MalformedError
    return tag, start, position


def _skip_group(data: bytes, position: int, opening: int, depth: int, end: int) -> int:
    if depth > _MAX_GROUP_DEPTH:
        raise _MalformedError
    while position <= end:
        tag, _, position = _field(data, position, depth, end)
        if tag & 7 == _END_GROUP:
            if tag != opening + 1:
                raise _MalformedError
            return position
    raise _MalformedError


def _read_spec(spec: bytes) -> ModelSpecPeek:
    # What a client makes up is remembered only while it is small.
    return _known_spec(spec) if len(spec) <= _MAX_REMEMBERED_BYTES else _parse_spec(spec)


def _parse_spec(spec: bytes) -> ModelSpecPeek:
    name, signature_name = "", ""
    version: int | None = None
    label: str | None = None
    position = fields = 0
    while position < len(spec):
        tag, start, position = _field(spec, position)
        fields += 1 if tag != 2 << 3 | _LEN else 1 + position - start  # a version has fields of its own
        if fields > _MOST_FIELDS:
            raise _MalformedError
        content = spec[start:position]
        if tag == 1 << 3 | _LEN:
            name = content.decode()
        elif tag == 2 << 3 | _LEN:
            version, label = _parse_int64_value(content, version or 0), None
        elif tag == 3 << 3 | _LEN:
            signature_name = content.decode()
        elif tag == 4 << 3 | _LEN:
            version, label = None, content.decode()
    return ModelSpecPeek(name, version, label, signature_name)


_known_spec = lru_cache(maxsize=1024)(_parse_spec)


def _parse_int64_value(data: bytes, value: int) -> int:
    """google.protobuf.Int64Value, merged into what an earlier one said."""
    position = 0
    while position < len(data):
        tag, start, position = _field(data, position)
        if tag == 1 << 3 | _VARINT:
            unsigned = varint(data, start)[0]
            value = unsigned - 2**64 if unsigned >= 2**63 else unsigned
    return value


def peek_start(start: bytes, method: Method = Method.PREDICT) -> ModelSpecPeek | None:
    """The model_spec in the first bytes of a request; None where they do not begin with all of it."""
    try:
        tag, begin, end = _field(start, 0)
        if tag != _MODEL_SPEC_TAG:
            return None
        found = start[begin:end]
        return _read_spec(found if method is not _MULTI_INFERENCE else _find_spec(found) or b"")
    except (_MalformedError, IndexError, UnicodeDecodeError):
        return None


def peek_examples(body: bytes) -> int:
    """How many examples a request has that peek() took and that is no PredictRequest; 0 where they cannot be told."""
    try:
        return _count(body)
    except (_MalformedError, IndexError):
        return 0


def _count(body: bytes) -> int:
    count = position = counted = 0
    left = _MOST_EXAMPLES
    while position < len(body) and left >= 0:
        tag, start, position = _field(body, position)
        left -= _weight(tag, start, position)
        if tag != _INPUT_TAG:
            continue
        while start < position and left >= 0:
            tag, at, start = _within(body, start, position)
            left -= _weight(tag, at, start)
            if tag not in (_LIST_TAG, _CONTEXT_TAG):
                continue
            if tag != counted:  # a list of the other kind takes the place of what was there
                count, counted = 0, tag
            while at < start and left >= 0:
                tag, begin, at = _within(body, at, start)
                left -= _weight(tag, begin, at)
                count += tag == _EXAMPLE_TAG
    return count if left >= 0 else 0


def _weight(tag: int, start: int, end: int) -> int:
    """How many fields one counts as: a group by its bytes."""
    return 1 if tag & 7 != _GROUP else end - start


def _within(body: bytes, position: int, end: int) -> tuple[int, int, int]:
    """As _field(), of a message that ends there: thousands of them whose fields went on to the end of the body would be walked again
    and again.
    """
    tag, start, position = _field(body, position)
    if position > end:
        raise _MalformedError
    return tag, start, position


def _contents(
    body: bytes, position: int, end: int, wanted: int, most: int = _MOST_FIELDS
) -> Iterator[tuple[int, int]]:
    """Where the contents of fields with this tag begin and end. Raises IndexError or _MalformedError, of more than `most` too."""
    fields = 0
    while position < end:
        tag, start, position = _within(body, position, end)
        fields += _weight(tag, start, position)
        if fields > most:
            raise _MalformedError
        if tag == wanted:
            yield start, position


def peek_rows(body: bytes, *, padded: bool = False) -> tuple[int, bytes, bytes]:
    """How many rows a PredictRequest that peek() took has, and what decides with whom it may share a batch.

    Args:
        body: the request.
        padded: inputs of different sizes are made one size.

    Returns:
        Dimension 0 of its inputs. And the bytes of its output_filter; and what stands for the types and the other dimensions of
        its inputs, or just for their number where they are padded. 0 and nothing more where it has no inputs, one of them no
        dimensions or another dimension 0 than the others, or where that cannot be told.
    """
    try:
        return _read_rows(body, padded)
    except (_MalformedError, IndexError):
        return 0, b"", b""


def _read_rows(body: bytes, padded: bool) -> tuple[int, bytes, bytes]:
    rows = -1
    inner = b""
    inputs = filters = shapes = heads = 0
    outputs = b""
    position, end = 0, len(body)
    while position < end:
        tag = body[position]
        if tag & 0x87 == _LEN:
            size = body[position + 1]
            start = position + 2
            if size >= 0x80:
                size, start = varint(body, position + 1)
            position = start + size
        else:
            tag, start, position = _field(body, position)
        if tag == _INPUTS_TAG and rows:
            head = _tensor_head(body, start, position)
            if head is None or heads + len(head) > _MOST_OF_HEADS:
                rows = 0
                continue
            heads += len(head)
            parse = _known_head if len(head) <= _MAX_REMEMBERED_BYTES else _parse_head
            of_this, inner = parse(head, padded)
            rows = of_this if rows in (-1, of_this) else 0
            inputs += 1
            shapes += hash(inner)
        elif tag == _OUTPUT_FILTER_TAG:
            filters += 1
            if filters == 1:
                outputs = body[start:position] + b"\n"
    if rows <= 0:
        return 0, b"", b""
    if filters > 1:
        outputs = _all_filters(body)
    # In whatever order they come: a map has none. Where inputs have changed shapes with one another, the worker sees it.
    return rows, outputs, inner if inputs == 1 else (shapes & _MASK64).to_bytes(8, "little")


def _all_filters(body: bytes) -> bytes:
    """Of a request with several. They grow in place, as _merged_spec()."""
    outputs = bytearray()
    for start, end in _contents(body, 0, len(body), _OUTPUT_FILTER_TAG):
        outputs += body[start:end]
        outputs += b"\n"
    return bytes(outputs)


def names_twice(body: bytes) -> bool:
    """Whether a PredictRequest that peek() took has an input of one name twice: then the last of them is meant, not the first.

    True where that cannot be told.
    """
    try:
        names = [_name(body, start, end) for start, end in _contents(body, 0, len(body), _INPUTS_TAG)]
    except (_MalformedError, IndexError):
        return True
    return len(set(names)) < len(names)


def _name(body: bytes, position: int, end: int) -> bytes:
    """Of an entry of the inputs, which may lack one or have several."""
    name = b""
    for start, stop in _contents(body, position, end, _KEY_TAG, _MOST_OF_INPUT):
        name = body[start:stop]
    return name


def _tensor_head(body: bytes, position: int, end: int) -> bytes | None:
    """Type and shape of an input, which lie before its values in what every client sends; None elsewhere."""
    if end - position > 8 and body[position] == _KEY_TAG and body[position + 1] < 0x80:
        # As it is nearly always: name, tensor, in it type and shape, each of one byte where it can be.
        at = position + 2 + body[position + 1]
        if at < end and body[at] == _VALUE_TAG:
            size, at = varint(body, at + 1)
            if body[at] == _DTYPE_TAG and body[at + 2] == _SHAPE_TAG and body[at + 1] < 0x80 > body[at + 3]:
                after = at + 4 + body[at + 3]
                if after <= at + size:
                    return body[at:after]
    fields = 0
    while position < end and fields < _MOST_OF_INPUT:
        fields += 1
        tag, start, position = _within(body, position, end)
        if tag == _VALUE_TAG:
            begin, stop = start, position
            position = begin
            while position < stop and position - begin <= _MAX_HEAD_BYTES:
                tag, _, after = _within(body, position, stop)
                if tag not in (_DTYPE_TAG, _SHAPE_TAG):
                    break
                position = after
            return body[begin:position] if position - begin <= _MAX_HEAD_BYTES else None
    return None


def _parse_head(head: bytes, padded: bool) -> tuple[int, bytes]:
    """Dimension 0, and type and other dimensions, or how many."""
    sizes: list[int] = []
    rest = bytearray()
    position = 0
    while position < len(head):
        tag, start, position = _field(head, position)
        if tag == _SHAPE_TAG:
            sizes += _sizes(head[start:position])
        else:
            rest += head[start:position]
    rows = sizes[0] if sizes and 0 < sizes[0] < _MAX_ROWS else 0
    return rows, bytes(rest) + repr(len(sizes) if padded else sizes[1:]).encode()


_known_head = lru_cache(maxsize=4096)(_parse_head)


def _sizes(shape: bytes) -> list[int]:
    """The dimensions of a TensorShapeProto."""
    sizes = []
    position = 0
    while position < len(shape):
        tag, start, position = _field(shape, position)
        if tag == _DIM_TAG:
            sizes.append(_parse_int64_value(shape[start:position], 0))
    return sizes
