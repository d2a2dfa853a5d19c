"""What a worker adds to its engine's call, for requests of one row that share a run: one process, no sockets.

    python -m bench.batch

The limit is the engine's call on arrays of that many rows that lie ready. "Together" is all that a worker does with
a dispatch of that many requests: parse, join, run, split, encode. "One by one" is the same without joining them. A
ratio is of two figures of one round, one taken right after the other; the median of the rounds is shown.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bench import environments
from bench.environments import BenchError
from bench.models import MODELS, Array, Model, check, ensure_exported, inputs_for
from bench.peers import THREADS
from mpspool.core import tfs
from mpspool.core.errors import Code
from mpspool.core.ids import ModelVersion
from mpspool.core.messages import Dispatch, Request
from mpspool.core.progress import ProgressWriter
from mpspool.core.settings import BatchingSettings, ModelSettings

_MODELS = ("half_plus_two", "widedeep")
_BATCHES = (1, 4, 16, 64)
_LISTS = {"float32": "float_val", "int64": "int64_val"}


class Figures(NamedTuple):
    """Microseconds per request: the median of the rounds, and the median ratio to the limit."""

    limit_us: float
    together_us: float
    together_ratio: float
    one_by_one_us: float


def request(model: Model, row: int, encoding: str) -> bytes:
    """A serialised request of one row, its tensors as "content" or as "lists"."""
    message = tfs.PredictRequest()
    message.model_spec.name = model.name
    for alias, array in inputs_for(model, 1, seed=row).items():
        tensor = message.inputs[alias]
        tensor.dtype = tfs.number_of(array.dtype)
        for size in array.shape:
            tensor.tensor_shape.dim.add(size=size)
        if encoding == "content":
            tensor.tensor_content = array.tobytes()
        else:
            getattr(tensor, _LISTS[array.dtype.name]).extend(array.reshape(-1).tolist())
    body: bytes = message.SerializeToString()
    return body


class Bench:
    """One model, loaded as a worker loads it.

    Args:
        model: which.
        models: the folder of the exported ones.
        page: the worker's progress page.
    """

    def __init__(self, model: Model, models: Path, page: ProgressWriter) -> None:
        from tensorflow.core.protobuf import config_pb2

        from mpspool.worker.engine.load import load
        from mpspool.worker.predict import Predictor
        from mpspool.worker.runner import Runner

        threads = {"intra_op_parallelism_threads": THREADS, "inter_op_parallelism_threads": THREADS}
        settings = ModelSettings(name=model.name, version=1, path=str(models / model.name / "1"), slots=[])
        self._model = model
        self._engine = load(settings, config_pb2.ConfigProto(**threads))
        predictor = Predictor(self._engine, ModelVersion(model.name, 1))
        self._runner = Runner(predictor, BatchingSettings(), page)

    def measure(self, batch: int, encoding: str, rounds: int, seconds: float) -> Figures:
        """Raises AssertionError where an answer is wrong."""
        rows = [inputs_for(self._model, 1, seed=row) for row in range(batch)]
        ready = {alias: np.concatenate([row[alias] for row in rows]) for alias in rows[0]}
        bodies = [request(self._model, row, encoding) for row in range(batch)]
        ways = [
            lambda: self._engine.run(tfs.DEFAULT_SIGNATURE, ready, list(self._model.outputs)),
            *(self._dispatch(bodies, together=together) for together in (True, False)),
        ]
        for way in ways[1:]:
            for row, outcome in zip(rows, way(), strict=True):
                assert outcome.code == Code.OK, outcome.message
                check(self._model, row, _outputs(outcome.body))
        taken = [[_call_us(way, seconds) / batch for way in ways] for _ in range(rounds)]
        limit, together, one_by_one = (statistics.median(column) for column in zip(*taken, strict=True))
        ratio = statistics.median(figures[1] / figures[0] for figures in taken)
        return Figures(limit, together, ratio, one_by_one)

    def _dispatch(self, bodies: list[bytes], *, together: bool) -> Callable[[], Any]:
        dispatch = Dispatch(1, 1, [Request(body) for body in bodies], together)
        return lambda: self._runner.run(dispatch, bodies, []).outcomes


def _outputs(body: bytes) -> dict[str, Array]:
    response = tfs.PredictResponse.FromString(body)
    return {alias: np.array(tensor.float_val, np.float32) for alias, tensor in response.outputs.items()}


def _call_us(call: Callable[[], Any], seconds: float) -> float:
    """Of one call, the mean over that time."""
    count, start = 0, time.perf_counter()
    now = start
    while now < start + seconds:
        for _ in range(20):
            call()
        count += 20
        now = time.perf_counter()
    return (now - start) / count * 1e6


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench.batch", description="Measure what a worker adds to a run that requests share."
    )
    parser.add_argument("--models", default=",".join(_MODELS))
    parser.add_argument("--batches", default=",".join(map(str, _BATCHES)))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.3, help="of each figure of a round")
    parser.add_argument("--cache", type=Path, default=environments.DEFAULT_CACHE)
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    options = _arguments(argv)
    os.environ |= {"CUDA_VISIBLE_DEVICES": "-1", "TF_CPP_MIN_LOG_LEVEL": "2"}
    try:
        models = ensure_exported(options.cache.resolve())
    except BenchError as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1
    print("us per request of one row: the engine's call, together (x the call), one by one")
    with tempfile.TemporaryDirectory() as folder:
        page = ProgressWriter(Path(folder) / "progress")
        for name in options.models.split(","):
            bench = Bench(MODELS[name], models, page)
            for encoding in ("content", "lists"):
                for batch in map(int, options.batches.split(",")):
                    found = bench.measure(batch, encoding, options.rounds, options.seconds)
                    print(
                        f"{name:14} {encoding:8} batch {batch:3}: {found.limit_us:7.2f} {found.together_us:8.2f}"
                        f" ({found.together_ratio:.2f} x) {found.one_by_one_us:8.2f}",
                        flush=True,
                    )
        page.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
