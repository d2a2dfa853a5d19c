"""The engine that TensorFlow Serving has: a v1 Session over the meta graph, TF1 and TF2 models alike."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.core.protobuf import config_pb2
from tensorflow.python.saved_model.loader_impl import SavedModelLoader

from mpspool.core.errors import PoolError
from mpspool.core.weights import WeightsReport
from mpspool.worker.batch_function import stop_waiting
from mpspool.worker.engine.base import Array, Signature
from mpspool.worker.engine.compiled_calls import COMPILED
from mpspool.worker.engine.failure import pool_error
from mpspool.worker.engine.saved_model import Signatures, read_meta_graph
from mpspool.worker.engine.subnormals import without_subnormals
from mpspool.worker.engine.uninitialised import uninitialised
from mpspool.worker.weights.binding import bind
from mpspool.worker.weights.report import all_private
from mpspool.worker.weights.segment import Segment

v1 = tf.compat.v1

# Runs the kernels in the calling thread, without a hand-over to a thread pool.
_CALLING_THREAD = -1
# An output filter is the client's choice, and each choice is compiled: the oldest are forgotten.
_MAX_CALLS = 64


@dataclass(frozen=True, slots=True)
class _Call:
    """One signature and choice of outputs, compiled.

    Attributes:
        feeds: the input aliases, in the order `run` takes them.
        run: arrays in, the fetched arrays out.
        echoes: position in the answer and input alias of each output that is an input itself.
    """

    feeds: tuple[str, ...]
    run: Callable[..., list[Any]]
    echoes: tuple[tuple[int, str], ...]


@dataclass(frozen=True, slots=True)
class _CallAll:
    """Several signatures and a choice of outputs, compiled.

    Attributes:
        feeds: the tensors, which are all given the same.
        run: arrays in, the fetched arrays out.
        places: where among these each output is; None for one that is an input itself.
    """

    feeds: tuple[str, ...]
    run: Callable[..., list[Any]]
    places: tuple[int | None, ...]


class SessionEngine:
    """A loaded model version. Implements Engine.

    Args:
        path: the version folder.
        tags: of the meta graph to load.
        signatures: what the meta graph promises.
        config: a ConfigProto, None for TensorFlow's defaults.
        weights: a segment, mapped; or why there is none.

    Raises:
        tf.errors.OpError, OSError, ValueError, RuntimeError: the loader's, when it cannot be loaded.
    """

    name = "session"

    def __init__(
        self,
        path: Path,
        tags: Sequence[str],
        signatures: Signatures,
        config: Any | None,
        weights: Segment | str,
    ) -> None:
        self._signatures = signatures
        self._options = config_pb2.RunOptions()
        if config is None or config.inter_op_parallelism_threads <= 1:
            self._options.inter_op_thread_pool = _CALLING_THREAD
        self._session = v1.Session(graph=tf.Graph(), config=config)
        try:
            self._weights = self._load(path, tags, weights)
        except BaseException:
            self.close()
            raise
        self._call = lru_cache(_MAX_CALLS)(self._compile)
        self._call_all = lru_cache(_MAX_CALLS)(self._compile_all)

    def _load(self, path: Path, tags: Sequence[str], weights: Segment | str) -> Callable[[], WeightsReport]:
        batches_itself = bool(self._signatures.batch_functions)
        if not isinstance(weights, str):
            meta_graph = read_meta_graph(path, tags)
            if batches_itself:
                stop_waiting(meta_graph)
            return bind(self._session, path, meta_graph, weights).report
        loader = SavedModelLoader(str(path))
        if batches_itself:
            stop_waiting(loader.get_meta_graph_def_from_tags(list(tags)))  # what it loads, and no copy
        with self._session.graph.as_default():
            loader.load(self._session, list(tags))
        report = all_private(path, weights)
        return lambda: report

    def weights(self) -> WeightsReport:
        """See Engine.weights."""
        return self._weights()

    @property
    def signatures(self) -> Mapping[str, Signature]:
        return self._signatures.specs

    @property
    def signature_def_map(self) -> bytes:
        return self._signatures.serialised

    def run(self, signature: str, inputs: Mapping[str, Array], outputs: Sequence[str]) -> list[Array]:
        """See Engine.run."""
        try:
            call = self._call(signature, tuple(outputs))
            defaults = self._signatures.specs[signature].defaults
            if defaults:
                inputs = {**defaults, **inputs}
            fetched = call.run(*[inputs[alias] for alias in call.feeds])
        except PoolError:
            raise
        except Exception as error:
            raise pool_error(error) from error
        for position, alias in call.echoes:
            fetched.insert(position, inputs[alias])
        return [value if type(value) is np.ndarray else _as_array(value) for value in fetched]

    def run_all(self, wanted: Sequence[tuple[str, Sequence[str]]], value: Array) -> list[Array]:
        """See Engine.run_all. What the signatures have in common is computed once."""
        try:
            call = self._call_all(tuple((signature, tuple(outputs)) for signature, outputs in wanted))
            fetched = call.run(*[value] * len(call.feeds))
        except PoolError:
            raise
        except Exception as error:
            raise pool_error(error) from error
        found = [value if index is None else fetched[index] for index in call.places]
        return [one if type(one) is np.ndarray else _as_array(one) for one in found]

    def unready(self) -> str:
        """Why a signature would lack what it reads: variables or tables that the loader left empty. Else ""."""
        graph = self._session.graph
        outputs = [info for sig in self._signatures.definitions.values() for info in sig.outputs.values()]
        named = [info.name for info in outputs if info.WhichOneof("encoding") == "name"]
        missing = uninitialised(self._session, [graph.get_tensor_by_name(name).op for name in named])
        graph.finalize()
        shown = ", ".join(missing[:3]) + (", ..." if len(missing) > 3 else "")
        return f"{len(missing)} resources are not initialised: {shown}" if missing else ""

    def close(self) -> None:
        """Releases the model's memory."""
        self._session.close()

    def _compile(self, signature: str, outputs: tuple[str, ...]) -> _Call:
        self._signatures.require_plain(signature)
        definition = self._signatures.definitions[signature]
        aliases = {info.name: alias for alias, info in definition.inputs.items()}
        tensors = [definition.outputs[alias].name for alias in outputs]
        # A Session refuses to fetch what it is fed.
        echoes = tuple((position, aliases[name]) for position, name in enumerate(tensors) if name in aliases)
        fetches = [name for name in tensors if name not in aliases]
        feeds = {alias: info.name for alias, info in definition.inputs.items()}
        run = self._callable(list(feeds.values()), fetches) if fetches or not echoes else _fetch_nothing
        return _Call(tuple(feeds), run, echoes)

    def _compile_all(self, wanted: tuple[tuple[str, tuple[str, ...]], ...]) -> _CallAll:
        feeds: dict[str, None] = {}
        tensors: list[str] = []
        for signature, outputs in wanted:
            self._signatures.require_plain(signature)
            definition = self._signatures.definitions[signature]
            feeds |= dict.fromkeys(info.name for info in definition.inputs.values())
            tensors += [definition.outputs[alias].name for alias in outputs]
        fetches = [name for name in dict.fromkeys(tensors) if name not in feeds]
        places = tuple(None if name in feeds else fetches.index(name) for name in tensors)
        run = self._callable(list(feeds), fetches) if fetches else _fetch_nothing
        return _CallAll(tuple(feeds), run, places)

    def _callable(self, feeds: list[str], fetches: list[str]) -> Callable[..., list[Any]]:
        start_ns = time.perf_counter_ns()
        options = config_pb2.CallableOptions(feed=feeds, fetch=fetches, run_options=self._options)
        try:
            # Private, and ten times as fast as the public call.
            make = self._session._make_callable_from_options  # noqa: SLF001
        except AttributeError:
            made: Callable[..., list[Any]] = self._session.make_callable(fetches, feeds)
        else:
            made = make(options)
            if self._options.inter_op_thread_pool == _CALLING_THREAD:
                made = without_subnormals(made)
        COMPILED.count += 1
        COMPILED.total_us += (time.perf_counter_ns() - start_ns) // 1000
        return made


def _fetch_nothing(*_feeds: Array) -> list[Any]:
    return []


def _as_array(value: Any) -> Array:
    """Scalars come as NumPy scalars, and as bytes where they are strings."""
    return np.array(value, dtype=object if isinstance(value, bytes) else None)
