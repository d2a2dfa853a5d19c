"""Tensors as JSON, for people: a PredictRequest from a document, a document from a PredictResponse.

A document is {"input": value, ...}, or just the value where the signature has one input. A value
is a number, a string, true or false, or lists of them. Bytes that are no text are {"b64": "..."},
complex numbers are strings such as "1+2j".
"""

from __future__ import annotations

import base64
import binascii
import itertools
import json
import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError

from mpspool.core import tfs
from mpspool.core.envelope import varint
from mpspool.core.errors import Code, PoolError, invalid

Array = np.ndarray[Any, np.dtype[Any]]

_MAX_SHOWN_CHARS = 60
_MAX_DIMENSIONS = 64


def request(
    model: str, document: Any, signatures: Any, *, signature: str = "", version: int | None = None
) -> bytes:
    """A serialised PredictRequest.

    Args:
        model: the model's name.
        document: the parsed JSON.
        signatures: the model's tfs.SignatureDefMap.
        signature: one of its keys; empty for the default.
        version: of the model; None for the latest.

    Raises:
        PoolError: INVALID_ARGUMENT, naming the input, the value and what would do.
    """
    key = signature or tfs.DEFAULT_SIGNATURE
    known = signatures.signature_def
    if key not in known:
        raise invalid(f'Model "{model}" has no signature "{key}". It has: {_names(known)}.')
    message = tfs.PredictRequest()
    message.model_spec.name = model
    message.model_spec.signature_name = signature
    if version is not None:
        message.model_spec.version.value = version
    for alias, value in _by_input(document, known[key]).items():
        message.inputs[alias].CopyFrom(_tensor(alias, value, known[key].inputs[alias]))
    return bytes(message.SerializeToString())


def misfit(document: Any, signatures: Any, *, signature: str = "") -> str:
    """How the shapes of a document that can be sent differ from the signature's; "" where they do not."""
    definition = signatures.signature_def[signature or tfs.DEFAULT_SIGNATURE]
    found = [
        _misfit(alias, _shape(alias, value, definition.inputs[alias]), definition.inputs[alias])
        for alias, value in _by_input(document, definition).items()
    ]
    return " ".join(text for text in found if text)


def response(body: bytes) -> dict[str, Any]:
    """A serialised PredictResponse as {"output": value, ...}, ready for json.dumps().

    Raises:
        PoolError: INTERNAL, for bytes that are no PredictResponse.
    """
    try:
        outputs = tfs.PredictResponse.FromString(body).outputs
        return {alias: _value(outputs[alias]) for alias in sorted(outputs)}
    except (DecodeError, ValueError, KeyError) as error:
        raise PoolError(
            Code.INTERNAL, f"The answer is no PredictResponse that JSON can show: {error}"
        ) from error


def _names(names: Any) -> str:
    return ", ".join(f'"{name}"' for name in sorted(names)) or "none"


def _by_input(document: Any, definition: Any) -> dict[str, Any]:
    inputs = definition.inputs
    named = isinstance(document, dict) and not _is_b64(document)
    if not named:
        if len(inputs) != 1:
            raise invalid(
                f"The signature has {len(inputs)} inputs ({_names(inputs)}): "
                'give an object with a value for each, as {"name": value}.'
            )
        return {next(iter(inputs)): document}
    unknown = set(document) - set(inputs)
    if unknown:
        raise invalid(f"There is no input {_names(unknown)}. The signature has: {_names(inputs)}.")
    missing = set(inputs) - set(document) - set(definition.defaults)
    if missing:
        raise invalid(f"No value for the input {_names(missing)}. The signature has: {_names(inputs)}.")
    return dict(document)


def _is_b64(value: Any) -> bool:
    return isinstance(value, dict) and set(value) == {"b64"}


def _shown(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= _MAX_SHOWN_CHARS else text[:_MAX_SHOWN_CHARS] + "..."


def _tensor(alias: str, value: Any, info: Any) -> Any:
    shape = _shape(alias, value, info)
    tensor = tfs.TensorProto(dtype=info.dtype)
    tensor.tensor_shape.SetInParent()
    for size in shape:
        tensor.tensor_shape.dim.add(size=size)
    leaves = _leaves(alias, value, shape)
    if info.dtype == tfs.DT_STRING:
        tensor.string_val.extend(_string(where, leaf) for where, leaf in leaves)
    else:
        tensor.tensor_content = _numbers(alias, leaves, info.dtype).tobytes()
    return tensor


def _shape(alias: str, value: Any, info: Any) -> list[int]:
    """The sizes along the first element of each list; an empty one's inner sizes are the signature's."""
    shape: list[int] = []
    while isinstance(value, list):
        shape.append(len(value))
        if not value:
            break
        value = value[0]
    if len(shape) > _MAX_DIMENSIONS:
        raise invalid(
            f'Input "{alias}": {len(shape)} lists within one another; {_MAX_DIMENSIONS} is the most.'
        )
    unseen = _wanted(info)[len(shape) :] if shape[-1:] == [0] else []
    return shape + [max(size, 0) for size in unseen]


def _wanted(info: Any) -> list[int]:
    return [dimension.size for dimension in info.tensor_shape.dim]


def _misfit(alias: str, shape: list[int], info: Any) -> str:
    wanted = _wanted(info)
    if info.tensor_shape.unknown_rank or (
        len(shape) == len(wanted)
        and all(want in (-1, size) for size, want in zip(shape, wanted, strict=True))
    ):
        return ""
    text = ", ".join("any" if size < 0 else str(size) for size in wanted)
    remedy = f"Put it in {len(wanted) - len(shape)} more [ ]." if len(shape) < len(wanted) else ""
    return f'Input "{alias}": the shape is {shape}, but the model takes [{text}]. {remedy}'.rstrip()


def _leaves(where: str, value: Any, shape: list[int]) -> Iterator[tuple[str, Any]]:
    """Each element with the place it has in the document. Raises PoolError where lists are ragged."""
    if not shape:
        if isinstance(value, list):
            raise invalid(f'Input "{where}": a list, where the elements before it are none: {_shown(value)}.')
        yield where, value
        return
    if not isinstance(value, list):
        raise invalid(f'Input "{where}": {_shown(value)} is no list, as the elements before it are.')
    if len(value) != shape[0]:
        raise invalid(
            f'Input "{where}": {len(value)} elements, but the lists before it have {shape[0]}; no tensor is ragged.'
        )
    for index, element in enumerate(value):
        yield from _leaves(f"{where}[{index}]", element, shape[1:])


def _string(where: str, value: Any) -> bytes:
    if isinstance(value, str):
        try:
            return value.encode()
        except UnicodeEncodeError:
            raise invalid(
                f'Input "{where}": {_shown(value)} has half of a surrogate pair, which is no text; give its bytes as'
                ' {"b64": "..."}.'
            ) from None
    if _is_b64(value):
        try:
            return base64.b64decode(value["b64"], validate=True)
        except (binascii.Error, TypeError, ValueError):
            raise invalid(f'Input "{where}": {_shown(value["b64"])} is not base64.') from None
    raise invalid(f'Input "{where}": {_shown(value)} is no string; give "text" or {{"b64": "..."}}.')


def _numbers(alias: str, leaves: Iterator[tuple[str, Any]], number: int) -> Array:
    try:
        dtype = tfs.numpy_dtype(number)
    except KeyError:
        raise invalid(f'Input "{alias}": a {tfs.type_text(number)} cannot be given as JSON.') from None
    convert = _CONVERTERS[_kind(dtype)]
    limits = _limits(dtype)
    values: list[Any] = []
    for where, leaf in leaves:
        value = convert(leaf)
        if value is None:
            raise invalid(
                f'Input "{where}": {_shown(leaf)} is no {tfs.type_text(number)}; {_HINTS[_kind(dtype)]}.'
            )
        if limits and not limits[0] <= value <= limits[1]:
            raise invalid(
                f'Input "{where}": {leaf} does not fit; a {tfs.type_text(number)} goes from {limits[0]} to {limits[1]}.'
            )
        values.append(value)
    with np.errstate(over="ignore"):  # beyond a float's range is infinity
        if dtype.kind != "V":
            return np.array(values, dtype)
        wide = np.array(values, np.int8 if limits else np.float64)
        return wide.view(dtype) if limits else wide.astype(dtype)


def _kind(dtype: np.dtype[Any]) -> str:
    if dtype.kind == "V":
        return "i" if "int" in dtype.name else "f"
    return "i" if dtype.kind == "u" else dtype.kind


def _limits(dtype: np.dtype[Any]) -> tuple[int, int] | None:
    if _kind(dtype) != "i":
        return None
    bits = int(dtype.name.lstrip("uint"))
    return (0, 2**bits - 1) if dtype.name.startswith("u") else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


def _as_integer(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _as_float(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        return float(value)
    except OverflowError:  # an integer beyond a float's range
        return math.inf if value > 0 else -math.inf


def _as_bool(value: Any) -> bool | None:
    return value if isinstance(value, bool) else None


def _as_complex(value: Any) -> complex | None:
    try:
        return complex(value) if not isinstance(value, (bool, list, dict)) else None
    except OverflowError:  # an integer beyond a float's range
        return complex(math.inf if value > 0 else -math.inf)
    except (TypeError, ValueError):
        return None


_CONVERTERS: dict[str, Callable[[Any], Any]] = {
    "i": _as_integer,
    "f": _as_float,
    "b": _as_bool,
    "c": _as_complex,
}
_HINTS = {
    "i": "give a whole number",
    "f": "give a number, NaN or Infinity",
    "b": "give true or false",
    "c": 'give a number, or a string as "1+2j"',
}


def _value(tensor: Any) -> Any:
    shape = [dimension.size for dimension in tensor.tensor_shape.dim]
    if tensor.dtype == tfs.DT_STRING:
        strings = (
            _strings(tensor.tensor_content, math.prod(shape)) if tensor.tensor_content else tensor.string_val
        )
        array = np.empty(len(strings), object)
        array[:] = [_text(value) for value in strings]
        return array.reshape(shape).tolist()
    array = flat(tensor)
    if array.dtype.kind == "c":
        array = array.astype(str)
    elif array.dtype.kind == "V":
        array = array.astype(np.int64 if _kind(array.dtype) == "i" else np.float64)
    return array.reshape(shape).tolist()


def _strings(content: bytes, count: int) -> list[bytes]:
    """All lengths as varints, then all bytes. Raises ValueError for what is none."""
    sizes, position = [], 0
    try:
        for _ in range(count):
            size, position = varint(content, position)
            sizes.append(size)
    except IndexError:
        raise ValueError("tensor_content ends within its strings' lengths") from None
    ends = [position + end for end in itertools.accumulate(sizes)]
    if (ends[-1] if ends else position) != len(content):
        raise ValueError("tensor_content is not of its strings' size")
    return [content[end - size : end] for end, size in zip(ends, sizes, strict=True)]


def flat(tensor: Any) -> Array:
    """The values as they were sent, in one dimension; not strings. Raises ValueError or KeyError for what is no tensor."""
    dtype = tfs.numpy_dtype(tensor.dtype)
    if tensor.tensor_content:
        return np.frombuffer(tensor.tensor_content, dtype)
    field = tfs.DATA_TYPES[tensor.dtype].field
    values = getattr(tensor, field)
    if field == "float8_val":
        return np.frombuffer(values, dtype)
    if field == "half_val":
        return np.array(values, np.uint16).view(dtype)
    if dtype.kind == "c":
        parts = np.array(values, f"f{dtype.itemsize // 2}")
        return parts.view(dtype)
    return np.array(values, np.int8).view(dtype) if dtype.kind == "V" else np.array(values, dtype)


def _text(value: bytes) -> Any:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return {"b64": base64.b64encode(value).decode()}
