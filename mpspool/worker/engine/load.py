"""Loads one model version with the engine that can serve it."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import tensorflow as tf

from mpspool.core import log
from mpspool.core.settings import ModelSettings
from mpspool.worker import device
from mpspool.worker.device_failure import named
from mpspool.worker.engine.base import Engine
from mpspool.worker.engine.failure import PASSING, status_text
from mpspool.worker.engine.saved_model import LoadError, Signatures
from mpspool.worker.engine.saved_model_config import overridden
from mpspool.worker.engine.session import SessionEngine
from mpspool.worker.engine.tf2 import Tf2Engine
from mpspool.worker.weights.checkpoint import (
    CheckpointError,
    UnsupportedError,
    index_file,
    read_index,
    require_whole,
)
from mpspool.worker.weights.segment import Segment

__all__ = ["LoadError", "load", "load_ops"]

logger = log.get("engine")

T = TypeVar("T")
E = TypeVar("E", bound=Engine)

_NODE = "\n\t [[{{"
_MOST_TOLD = 3
_ONE_CALL = (
    "each call waits there for others (BatchFunction), and a worker runs one at a time: export the model with"
    " batch_timeout_micros=0, or without it"
)
_UNREGISTERED_OP = re.compile(r"Op type not registered '([^']+)'")


def load(
    settings: ModelSettings,
    config: Any | None = None,
    segment: Segment | None = None,
    unshared: str = "weights.shared: off",
) -> Engine:
    """Loads the version folder of the settings.

    With `engine` "auto" that is a Session; and the TF2 loader where the Session would lack what a
    signature reads, which is found out here and not at the first request.

    Args:
        settings: which model, and how.
        config: the ConfigProto of device.session_config(); None for TensorFlow's defaults. What the version says of its
            own session goes before it.
        segment: of this version's weights. With `weights.shared` "auto" a model whose variables cannot be
            bound to it is loaded as without.
        unshared: where there is no segment, why.

    Raises:
        LoadError: it can never be loaded as it is.
        SegmentError: the segment could not be mapped.
        tf.errors.OpError, RuntimeError: it could not be loaded this time.
    """
    path = Path(settings.path)
    if segment is None and settings.weights.shared == "on":
        raise LoadError(f"{path}: weights.shared is on, but {unshared}")
    for library in settings.custom_ops:
        load_ops(library)
    signatures = Signatures.read(path, settings.saved_model_tags)
    config = overridden(path, config)
    weights = segment or unshared
    if settings.engine == "tf2":
        return _chosen(_tf2_engine(settings, signatures, config, weights), "configured")
    try:
        engine = _session_engine(settings, signatures, config, weights)
    except LoadError as error:
        if settings.engine == "session":
            raise
        return _chosen(
            _fall_back(settings, signatures, config, weights, error), f"the Session cannot serve it: {error}"
        )
    return _chosen(engine, "configured" if settings.engine == "session" else "the Session can serve it")


def _chosen(engine: Engine, reason: str) -> Engine:
    logger.info("engine", engine=engine.name, reason=reason)
    return engine


def load_ops(library: str) -> None:
    """Registers the ops of a shared library. Raises LoadError."""
    if not Path(library).exists():
        raise LoadError(f"custom_ops: there is no file {library}")
    try:
        tf.load_op_library(library)
    except tf.errors.OpError as error:
        raise LoadError(f"custom_ops: {library} cannot be loaded: {status_text(error)}") from error


def _session_engine(
    settings: ModelSettings, signatures: Signatures, config: Any | None, weights: Segment | str
) -> SessionEngine:
    path = Path(settings.path)
    engine = _sharing(
        settings,
        weights,
        lambda chosen: SessionEngine(path, settings.saved_model_tags, signatures, config, chosen),
    )
    if reason := _never(path, engine.unready):
        engine.close()
        raise LoadError(f"{path}: {reason}")
    return engine


def _tf2_engine(
    settings: ModelSettings, signatures: Signatures, config: Any | None, weights: Segment | str
) -> Tf2Engine:
    path = Path(settings.path)
    for one in signatures.batch_functions[:_MOST_TOLD]:
        micros = one.batch_timeout_micros
        logger.warning("waits within the graph", op=one.name, batch_timeout_micros=micros, reason=_ONE_CALL)
    if config is not None:
        device.configure_eager(config)
    return _sharing(
        settings, weights, lambda chosen: Tf2Engine(path, settings.saved_model_tags, signatures, chosen)
    )


def _fall_back(
    settings: ModelSettings,
    signatures: Signatures,
    config: Any | None,
    weights: Segment | str,
    error: LoadError,
) -> Tf2Engine:
    """Raises the Session's error where the TF2 loader fails too: it is the plainer one."""
    try:
        return _tf2_engine(settings, signatures, config, weights)
    except LoadError:
        raise error from None


def _sharing(settings: ModelSettings, weights: Segment | str, make: Callable[[Segment | str], E]) -> E:
    """Makes an engine whose weights are shared, or else private where that is allowed."""
    path = Path(settings.path)
    if isinstance(weights, str):
        return _never(path, lambda: make(weights))
    required = settings.weights.shared == "on"
    weights.map()  # afresh: an engine that was made before may have written to its variables
    try:
        engine = _never(path, lambda: make(weights))
    except LoadError as error:
        reason = f"it cannot be loaded with shared weights: {error}"
        if required:
            raise LoadError(f"{path}: weights.shared is on, but {reason}") from error
        logger.warning("weights not shared", reason=reason)
        return _never(path, lambda: make(reason))
    if required and not (report := engine.weights()).shared_variables:
        why = "; ".join(report.why) or "it has none"
        raise LoadError(f"{path}: weights.shared is on, but none of its variables can be shared: {why}")
    return engine


def _never(path: Path, make: Callable[[], T]) -> T:
    """Calls make, and turns what lies in the model's files into LoadError. A GPU that fails does not."""
    try:
        return make()
    except tf.errors.OpError as error:
        if error.error_code in PASSING or named(error.message):
            raise
        raise LoadError(_explain(path, status_text(error))) from error
    except (OSError, ValueError, KeyError, TypeError, RuntimeError, IndexError) as error:
        if named(str(error)):
            raise
        raise LoadError(_explain(path, str(error))) from error


def _explain(path: Path, text: str) -> str:
    if match := _UNREGISTERED_OP.search(text):
        return (
            f'{path}: the op "{match[1]}" is not registered in TensorFlow {tf.__version__}: '
            "name the shared library that defines it under custom_ops"
        )
    # What follows names the loader's own node, and says nothing to the reader.
    return f"{path} cannot be loaded: {_damage(path) or text.partition(_NODE)[0]}"


def _damage(path: Path) -> str:
    """Which of the files with its weights is missing or cut, where TensorFlow says only that it has read too little; "" for none."""
    prefix = path / "variables" / "variables"
    try:
        require_whole(prefix, read_index(prefix))
    except UnsupportedError:
        return ""
    except CheckpointError as error:
        return str(error) if index_file(prefix).exists() else ""
    return ""
