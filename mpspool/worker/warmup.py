"""Warm-up before READY: the model's own recorded requests, else one synthetic call per signature."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import tensorflow as tf
from google.protobuf.message import DecodeError

from mpspool.core import log, tfs
from mpspool.core.errors import PoolError
from mpspool.worker.engine.base import Array, Engine, Signature, TensorSpec
from mpspool.worker.engine.failure import PASSING, status_text
from mpspool.worker.engine.saved_model import LoadError
from mpspool.worker.predict import Predictor

logger = log.get("warmup")

# Place, limit and rules are TensorFlow Serving's (servables/tensorflow/saved_model_warmup_util).
REQUESTS_FILE = Path("assets.extra") / "tf_serving_warmup_requests"
MAX_RECORDS = 1000
_METHODS = {field: method for method, field in tfs.LOG_FIELDS.items()}


def warm_up(predictor: Predictor, path: Path, others: Path | None = None, iterations: int = 1) -> int:
    """Runs the model before a client does. Returns how many calls it answered.

    Args:
        predictor: of what was loaded.
        path: the version folder, where the recorded requests lie.
        others: requests that were recorded for another version, for where there are none.
        iterations: how often each recorded request is sent; 0 for no call at all.

    Raises:
        LoadError: a recorded request fails, or the file cannot be read. A synthetic call that
            fails is only logged: it is our invention, and zeros may mean nothing to the model.
        PoolError: a recorded request failed for a reason that may pass.
    """
    if not iterations:
        return 0
    start = time.monotonic()
    requests = recorded_requests(path, others)
    if requests is not None:
        count = _replay(predictor, requests, iterations)
    else:
        engine = predictor.engine
        count = sum(_synthetic_call(engine, signature) for signature in engine.signatures.values())
    logger.info(
        "warm", recorded=requests is not None, calls=count, seconds=round(time.monotonic() - start, 3)
    )
    return count


def recorded_requests(path: Path, others: Path | None = None) -> Path | None:
    """The file that warm_up() would take them from; None where there is none."""
    return next((file for file in (path / REQUESTS_FILE, others) if file is not None and file.exists()), None)


def _replay(predictor: Predictor, path: Path, iterations: int) -> int:
    count = 0
    for count, record in enumerate(_records(path), 1):
        if count > MAX_RECORDS:
            raise LoadError(f"Number of warmup records exceeds the maximum ({MAX_RECORDS}) at {path}")
        try:
            log_entry = tfs.PredictionLog.FromString(record)
        except DecodeError as error:
            raise LoadError(f"Failed to parse warmup record {count} from {path}") from error
        try:
            for _ in range(iterations):
                _replay_one(predictor, log_entry)
        except PoolError as error:
            if error.code in PASSING:
                raise
            raise LoadError(f"warm-up record {count} of {path} failed: {error.message}") from error
    return count * iterations


def _replay_one(predictor: Predictor, entry: tfs.PredictionLog) -> None:
    kind = entry.WhichOneof("log_type")
    if kind in _METHODS:
        request = getattr(entry, kind).request
        # Recorded under whatever name the model had then: TensorFlow Serving does not look at it.
        for spec in tfs.model_specs(request):
            spec.name = predictor.model.name
        predictor.predict(request.SerializeToString(), _METHODS[kind])
    elif kind:
        raise LoadError(f"Unsupported log_type for warmup: {kind}")


def _records(path: Path) -> Iterator[bytes]:
    try:
        yield from tf.compat.v1.io.tf_record_iterator(str(path))
    except tf.errors.OpError as error:
        garbled = isinstance(error, tf.errors.DataLossError)
        hint = ". Please verify your warmup data is in TFRecord format." if garbled else ""
        raise LoadError(f"{path}: {status_text(error)}{hint}") from error


def _synthetic_call(engine: Engine, signature: Signature) -> bool:
    """Whether there was a call, and the model answered it."""
    inputs = synthetic_inputs(signature)
    if inputs is None:
        logger.info("not warmed: its shapes are open", signature=signature.name)
        return False
    try:
        engine.run(signature.name, inputs, list(signature.outputs))
    except PoolError as error:
        logger.warning("synthetic warm-up call failed", signature=signature.name, error=error.message)
        return False
    return True


def synthetic_inputs(signature: Signature) -> Mapping[str, Array] | None:
    """A batch of one, zeros and empty strings; None where a shape leaves more than the batch open."""
    inputs = dict(signature.defaults)
    for alias, spec in signature.inputs.items():
        if alias in inputs:
            continue
        if not _known(spec):
            return None
        inputs[alias] = _zeros(spec)
    return inputs


def _known(spec: TensorSpec) -> bool:
    return (
        spec.shape is not None and None not in spec.shape[1:] and tf.as_dtype(spec.dtype).is_numpy_compatible
    )


def _zeros(spec: TensorSpec) -> Array:
    assert spec.shape is not None
    shape = [1 if size is None else size for size in spec.shape]
    dtype = tf.as_dtype(spec.dtype)
    return np.full(shape, b"", object) if dtype == tf.string else np.zeros(shape, dtype.as_numpy_dtype)
