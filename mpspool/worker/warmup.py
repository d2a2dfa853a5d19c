"""Warm-up before READY: the model's own recorded requests, else one synthetic call per signature."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import numpy as np
import tensorflow as tf
from google.protobuf.message import DecodeError

from mpspool.core import log, tfs
from mpspool.core.errors import PoolError
from mpspool.core.ids import ModelVersion
from mpspool.core.methods import Method
from mpspool.worker.engine.base import Array, Engine, Signature, TensorSpec
from mpspool.worker.engine.failure import PASSING, status_text
from mpspool.worker.engine.saved_model import LoadError
from mpspool.worker.predict import Predictor

logger = log.get("warmup")

# Place, limit and rules are TensorFlow Serving's (servables/tensorflow/saved_model_warmup_util).
REQUESTS_FILE = Path("assets.extra") / "tf_serving_warmup_requests"
MAX_RECORDS = 1000
Request = tuple[bytes, Method]
_METHODS = {field: method for method, field in tfs.LOG_FIELDS.items()}


def warm_up(
    predictor: Predictor,
    send: Callable[[bytes, Method], object],
    path: Path,
    others: Path | None = None,
    iterations: int = 1,
    *,
    others_may_fail: bool = False,
    rows: int = 1,
) -> tuple[int, int]:
    """Runs the model before a client does. Returns how many calls it answered, and how many of them were recorded requests.

    Args:
        predictor: of what was loaded.
        send: runs a request as a client's is run. Raises PoolError.
        path: the version folder, where the recorded requests lie.
        others: requests that were recorded for another version, for where there are none. Those that the signatures do not
            take are passed over: whether they may differ is for others to judge.
        iterations: how often each recorded request is sent; 0 for no call at all.
        others_may_fail: what was recorded for another version need not be answered in any case.
        rows: of a synthetic call.

    Raises:
        LoadError: a recorded request fails, or the version's own file cannot be read. A synthetic call that
            fails is only logged: it is our invention, and zeros may mean nothing to the model.
        PoolError: a recorded request failed for a reason that may pass.
    """
    if not iterations:
        return 0, 0
    start = time.monotonic()
    calls = recorded = 0
    if (path / REQUESTS_FILE).exists():
        calls = recorded = _replay(predictor, send, path / REQUESTS_FILE, iterations)
    else:
        if others is not None and others.exists():
            calls = recorded = _replay(
                predictor, send, others, iterations, others=True, may_fail=others_may_fail
            )
        if not recorded:
            engine = predictor.engine
            calls = sum(_synthetic_call(engine, signature, rows) for signature in engine.signatures.values())
    logger.info("warm", recorded=recorded > 0, calls=calls, seconds=round(time.monotonic() - start, 3))
    return calls, recorded


def _replay(
    predictor: Predictor,
    send: Callable[[bytes, Method], object],
    path: Path,
    iterations: int,
    *,
    others: bool = False,
    may_fail: bool = False,
) -> int:
    """Sends what is recorded there, perhaps for another version. Returns how many calls were answered."""
    answered = failed = 0
    for number, request in _requests(predictor.model, path, others=others):
        try:
            for _ in range(iterations):
                send(*request)
        except PoolError as error:
            if error.code in PASSING:
                raise
            if not others or (not may_fail and _fits(predictor, *request)):
                raise LoadError(f"warm-up record {number} of {path} failed: {error.message}") from error
            if not failed:
                logger.warning("another version's request failed", file=str(path), why=error.message)
            failed += 1
        else:
            answered += 1
    return answered * iterations


def _requests(model: ModelVersion, path: Path, *, others: bool) -> Iterator[tuple[int, Request]]:
    """With the number of the record. What is wrong with another version's file is only logged, and ends it: this one is not at fault."""
    try:
        yield from _read(model, path)
    except LoadError as error:
        if not others:
            raise
        logger.warning("another version's requests cannot be read", file=str(path), why=str(error))


def _read(model: ModelVersion, path: Path) -> Iterator[tuple[int, Request]]:
    """Raises LoadError for a file that TensorFlow Serving does not take."""
    for number, record in enumerate(_records(path), 1):
        if number > MAX_RECORDS:
            raise LoadError(f"Number of warmup records exceeds the maximum ({MAX_RECORDS}) at {path}")
        try:
            log_entry = tfs.PredictionLog.FromString(record)
        except DecodeError as error:
            raise LoadError(f"Failed to parse warmup record {number} from {path}") from error
        request = _request(model, log_entry)
        if request is not None:
            yield number, request


def _request(model: ModelVersion, entry: tfs.PredictionLog) -> Request | None:
    """As a client of this model would send it; None for a record of nothing. Raises LoadError for one that is not replayed."""
    kind = entry.WhichOneof("log_type")
    if not kind:
        return None
    if kind not in _METHODS:
        raise LoadError(f"Unsupported log_type for warmup: {kind}")
    request = getattr(entry, kind).request
    # Recorded under whatever name the model had then: TensorFlow Serving does not look at it.
    for spec in tfs.model_specs(request):
        spec.name = model.name
    return request.SerializeToString(), _METHODS[kind]


def _fits(predictor: Predictor, body: bytes, method: Method) -> bool:
    """Whether the model's signatures take a request: where it fails all the same, the model is at fault."""
    try:
        call = predictor.read(body, method)
    except PoolError:
        return False
    if method is not Method.PREDICT:
        return True  # what examples have to hold is not in a signature
    specs = call.kind.plan.signature.inputs
    return all(_is_of(specs[alias], array) for alias, array in call.inputs().items())


def _is_of(spec: TensorSpec, array: Array) -> bool:
    """Whether an input has a shape that its signature allows."""
    if spec.shape is None:
        return True
    return len(spec.shape) == array.ndim and all(
        size in (None, given) for size, given in zip(spec.shape, array.shape, strict=True)
    )


def _records(path: Path) -> Iterator[bytes]:
    try:
        yield from tf.compat.v1.io.tf_record_iterator(str(path))
    except tf.errors.OpError as error:
        garbled = isinstance(error, tf.errors.DataLossError)
        hint = ". Please verify your warmup data is in TFRecord format." if garbled else ""
        raise LoadError(f"{path}: {status_text(error)}{hint}") from error


def _synthetic_call(engine: Engine, signature: Signature, rows: int) -> bool:
    """Whether there was a call, and the model answered it."""
    inputs = synthetic_inputs(signature, rows)
    if inputs is None:
        logger.info("not warmed: its shapes are open", signature=signature.name)
        return False
    try:
        engine.run(signature.name, inputs, list(signature.outputs))
    except PoolError as error:
        logger.warning("synthetic warm-up call failed", signature=signature.name, error=error.message)
        return False
    return True


def synthetic_inputs(signature: Signature, rows: int = 1) -> Mapping[str, Array] | None:
    """A batch of so many rows, zeros and empty strings; None where a shape leaves more than the batch open."""
    inputs = dict(signature.defaults)
    for alias, spec in signature.inputs.items():
        if alias in inputs:
            continue
        if not _known(spec):
            return None
        inputs[alias] = _zeros(spec, rows)
    return inputs


def _known(spec: TensorSpec) -> bool:
    return (
        spec.shape is not None
        and None not in spec.shape[1:]
        and spec.dtype in tfs.DATA_TYPES  # a composite tensor's is left out
        and tf.as_dtype(spec.dtype).is_numpy_compatible
    )


def _zeros(spec: TensorSpec, rows: int) -> Array:
    assert spec.shape is not None
    shape = [rows if size is None else size for size in spec.shape]
    dtype = tf.as_dtype(spec.dtype)
    return np.full(shape, b"", object) if dtype == tf.string else np.zeros(shape, dtype.as_numpy_dtype)
