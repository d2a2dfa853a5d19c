"""The requests of a load: made from the model's signature, from JSON, or as files have them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError

from mpspool.core import tfs
from mpspool.loadtest import records

_MAX_BYTES = 2**31 - 1
_REMEDY = "give --input or --request"


class RequestError(Exception):
    """No request can be made of what was given."""


def synthetic(model: str, signatures: Any, *, signature: str, version: int | None, rows: int) -> bytes:
    """A request made up: small numbers and short texts, in the shapes of the signature.

    Args:
        model: its name.
        signatures: its tfs.SignatureDefMap.
        signature: one of its keys; empty for the default.
        version: of the model; None for the latest.
        rows: what a first dimension is that the signature leaves open.

    Raises:
        RequestError: there is no such signature, or it leaves more open than that, or nothing for several rows.
    """
    key = signature or tfs.DEFAULT_SIGNATURE
    known = signatures.signature_def
    if key not in known:
        raise RequestError(
            f"the model {model!r} has no signature {key!r}; it has: {', '.join(sorted(known))}"
        )
    definition = known[key]
    message = tfs.PredictRequest()
    _name(message, model, signature, version)
    shapes = {}
    for alias in sorted(set(definition.inputs) - set(definition.defaults)):
        message.inputs[alias].CopyFrom(_tensor(alias, definition.inputs[alias], rows))
        shapes[alias] = [dimension.size for dimension in definition.inputs[alias].tensor_shape.dim]
    if rows > 1 and not any(shape[:1] == [-1] for shape in shapes.values()):
        fixed = " and ".join(f"the input {alias!r} has the shape {shape}" for alias, shape in shapes.items())
        fixed = fixed or "the signature has no input"
        raise RequestError(f"there is no room for {rows} rows: {fixed}; leave out --rows, or {_REMEDY}")
    return bytes(message.SerializeToString())


def _tensor(alias: str, info: Any, rows: int) -> Any:
    shape = [dimension.size for dimension in info.tensor_shape.dim]
    if shape[:1] == [-1]:
        shape[0] = rows
    what = f"the input {alias!r}"
    if info.WhichOneof("encoding") != "name":
        raise RequestError(f"{what} is no dense tensor: {_REMEDY}")
    if info.tensor_shape.unknown_rank or min(shape, default=1) < 0:
        text = "any" if info.tensor_shape.unknown_rank else str(shape).replace("-1", "any")
        raise RequestError(f"{what} has the shape {text}, which leaves open what to send: {_REMEDY}")
    data_type = tfs.DATA_TYPES.get(info.dtype)
    if data_type is None or not data_type.field:
        raise RequestError(f"{what} is a {tfs.type_text(info.dtype)}, which cannot be made up: {_REMEDY}")
    tensor = tfs.TensorProto(dtype=info.dtype)
    tensor.tensor_shape.SetInParent()
    for size in shape:
        tensor.tensor_shape.dim.add(size=size)
    count = math.prod(shape)
    if info.dtype == tfs.DT_STRING:
        tensor.string_val.extend(itertools.islice(itertools.cycle((b"a", b"b", b"c")), count))
        return tensor
    dtype = tfs.numpy_dtype(info.dtype)
    if count * dtype.itemsize > _MAX_BYTES:
        raise RequestError(f"{what} would have {count * dtype.itemsize} bytes: fewer --rows")
    # Indices of the smallest table are right, and not all rows are alike.
    values = np.resize(np.array([0, 1] if dtype.kind in "iub" else [0, 1, 0.5], np.float64), count)
    tensor.tensor_content = values.astype(dtype).tobytes()
    return tensor


def from_files(
    paths: Sequence[Path], model: str, *, signature: str | None, version: int | None
) -> list[bytes]:
    """Each file a serialised PredictRequest, or a TFRecord of PredictionLogs; a folder stands for its files.

    They are sent as they are, but for the model's name, and what else is given.

    Raises:
        RequestError: naming the file, or the folder.
    """
    found = []
    for path in itertools.chain.from_iterable(map(_files, paths)):
        try:
            data = path.read_bytes()
            bodies = list(records.predict_requests(data)) if records.are_records(data) else [data]
        except (OSError, records.RecordError) as error:
            raise RequestError(f"{path}: {error}") from error
        for body in bodies:
            try:
                found.append(_renamed(body, model, signature, version))
            except DecodeError as error:
                raise RequestError(
                    f"{path} is neither a PredictRequest nor a TFRecord of PredictionLogs, as of `mpspool capture`; JSON goes by --input"
                ) from error
    if not found:
        raise RequestError(
            f"there is no request in {' or '.join(map(str, paths))}; name another with --request"
        )
    return found


def _files(path: Path) -> Sequence[Path]:
    try:
        if not path.is_dir():
            return [path]
        entries = sorted(path.iterdir())
        return [entry for entry in entries if entry.is_file() and not entry.name.startswith(".")]
    except OSError as error:
        raise RequestError(f"{path}: {error}") from error


def _renamed(body: bytes, model: str, signature: str | None, version: int | None) -> bytes:
    message = tfs.PredictRequest.FromString(body)
    if not message.inputs and not message.model_spec.name:
        raise DecodeError("neither a model nor an input")
    _name(message, model, signature, version)
    return bytes(message.SerializeToString())


def _name(message: Any, model: str, signature: str | None, version: int | None) -> None:
    message.model_spec.name = model
    if signature is not None:
        message.model_spec.signature_name = signature
    if version is not None:
        message.model_spec.version.value = version
