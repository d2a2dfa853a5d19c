"""Pools of light workers: real routers and sockets, a model that takes no time, and runs that last until the test lets go."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import numpy as np

from mpspool.core import control, tfs
from mpspool.core.rundir import RunDir
from tests import tensors
from tests.conftest import PoolStarter
from tests.polling import until
from tests.pool import ROOT, Pool

PREDICT = f"/{tfs.PREDICTION_SERVICE}/Predict"
FLOAT = 1
# Without TensorFlow there is nothing to fork from.
LIGHT = {
    "PYTHONPATH": os.pathsep.join([str(ROOT / "tests" / "fakes" / "light_worker"), str(ROOT)]),
    "MPSPOOL_WORKERS_START": "exec",
}
# One graph of no bytes: whole, as far as can be seen without TensorFlow.
_SAVED_MODEL = b"\x08\x01\x12\x00"


@dataclass(frozen=True)
class Run:
    """One run of the model in a light worker."""

    worker: str
    signature: str
    shape: tuple[int, ...]
    values: list[float]

    @property
    def model(self) -> str:
        return self.worker.partition("@")[0]


class LightPool:
    """A pool of light workers and its one client. Values are given out once, so that each tells its request."""

    def __init__(self, pool: Pool, channel: grpc.Channel) -> None:
        self.pool = pool
        self._predict = channel.unary_unary(PREDICT)
        self._numbers = itertools.count(1)
        (pool.run_dir / "hold").mkdir()
        (pool.run_dir / "runs").touch()

    def values(self, *shape: int) -> np.ndarray[Any, Any]:
        """Numbers that no other request has."""
        count = int(np.prod(shape))
        return np.array([next(self._numbers) for _ in range(count)], np.float32).reshape(shape)

    def send(
        self, model: str, x: np.ndarray[Any, Any], signature: str = "", timeout_s: float = 30, **metadata: str
    ) -> grpc.Future:
        """A call under way; in the names of metadata "_" is "-"."""
        return self.call(body(model, x, signature), timeout_s, **metadata)

    def call(self, request: bytes, timeout_s: float = 30, **metadata: str) -> grpc.Future:
        """As send(), of a serialised request."""
        pairs = [(key.replace("_", "-"), value) for key, value in metadata.items()]
        return self._predict.future(request, timeout=timeout_s, metadata=pairs)

    def waiting(self, model: str) -> int:
        """How many requests for it wait for a worker."""
        snapshot = control.call(RunDir(self.pool.run_dir).router_control, "snapshot")
        (found,) = (item for item in snapshot["models"] if item["name"] == model)
        return int(found["versions"][0]["queued"])

    def queue(
        self, model: str, x: np.ndarray[Any, Any], signature: str = "", timeout_s: float = 30, **metadata: str
    ) -> grpc.Future:
        """A call that has been seen to wait."""
        before = self.waiting(model)
        call = self.send(model, x, signature, timeout_s, **metadata)
        until(lambda: self.waiting(model) > before, 10, f"one more waits for {model}")
        return call

    def learn(self, model: str, signature: str = "") -> None:
        """Lets the router see what such a request costs."""
        x = self.values(1)
        assert answer(self.send(model, x, signature)) == half(x)

    def runs(self, model: str) -> list[Run]:
        """Of its workers, in the order in which they began."""
        lines = map(json.loads, (self.pool.run_dir / "runs").read_text().splitlines())
        runs = [
            Run(line["worker"], line["signature"], tuple(line["shape"]), line["values"]) for line in lines
        ]
        return [run for run in runs if run.model == model]

    def began(self, model: str, x: np.ndarray[Any, Any]) -> bool:
        return any(x.flat[0] in run.values for run in self.runs(model))

    def order(self, model: str, calls: Mapping[str, np.ndarray[Any, Any]]) -> list[str]:
        """The names of these requests as their runs began."""
        ran = [value for run in self.runs(model) for value in run.values]
        return sorted(calls, key=lambda name: ran.index(float(calls[name].flat[0])))

    @contextlib.contextmanager
    def held(self, x: np.ndarray[Any, Any]) -> Iterator[None]:
        """A run that begins with this value lasts at least as long."""
        hold = self.pool.run_dir / "hold" / f"{x.flat[0]:g}"
        hold.touch()
        try:
            yield
        finally:
            hold.unlink()

    @contextlib.contextmanager
    def busy(self, *models: str) -> Iterator[None]:
        """A worker of each of these models is kept busy, by a request that the router learns nothing from."""
        calls = []
        with contextlib.ExitStack() as stack:
            for model in models:
                x = self.values()
                stack.enter_context(self.held(x))
                calls.append((x, self.send(model, x, "unknown")))
                until(lambda: self.began(model, x), 10, f"{model} is busy")  # noqa: B023
            yield
        for x, call in calls:
            assert answer(call) == half(x)

    def metric(self, name: str, **labels: str) -> float:
        """The sum of a metric's samples with these labels."""
        return metric(self.pool, name, **labels)


def body(model: str, x: np.ndarray[Any, Any], signature: str = "") -> bytes:
    """A serialised PredictRequest."""
    return spec(model, signature) + inputs(x=x)


def spec(model: str, signature: str = "") -> bytes:
    """The part of a serialised PredictRequest that says who is asked."""
    request = tfs.PredictRequest()
    request.model_spec.name = model
    request.model_spec.signature_name = signature
    return bytes(request.SerializeToString())


def inputs(**arrays: np.ndarray[Any, Any]) -> bytes:
    """The part that has these inputs, in this order."""
    parts = []
    for name, array in arrays.items():
        request = tfs.PredictRequest()
        request.inputs[name].ParseFromString(tensors.encode(array, FLOAT))
        parts.append(request.SerializeToString())
    return b"".join(parts)


def answer(call: grpc.Future) -> list[Any]:
    """What a call is answered: y."""
    response = tfs.PredictResponse.FromString(call.result())
    return tensors.decode(response.outputs["y"].SerializeToString()).tolist()  # type: ignore[no-any-return]


def half(x: np.ndarray[Any, Any]) -> list[Any]:
    """What a light worker answers."""
    return (x / 2 + 2).tolist()  # type: ignore[no-any-return]


def metric(pool: Pool, name: str, **labels: str) -> float:
    """The sum of a metric's samples with these labels."""
    with urllib.request.urlopen(f"http://127.0.0.1:{pool.rest_port}/metrics", timeout=10) as response:
        lines = [line for line in response.read().decode().splitlines() if line.startswith(name)]
    wanted = [f'{label}="{value}"' for label, value in labels.items()]
    return sum(float(line.rpartition(" ")[2]) for line in lines if all(part in line for part in wanted))


@contextlib.contextmanager
def light_pool(start: PoolStarter, folder: Path, config: Mapping[str, Any]) -> Iterator[LightPool]:
    """Starts a pool of light workers by a pool file.

    Args:
        start: what starts it.
        folder: an empty one.
        config: the pool file; a model without a base_path is given one.
    """
    models = {
        name: said if "base_path" in said else {**said, "base_path": str(write_model(folder / name))}
        for name, said in config["models"].items()
    }
    file = folder / "pool.yaml"
    file.write_text(json.dumps({**config, "models": models}))
    pool = start(file, env=LIGHT).wait()
    with grpc.insecure_channel(pool.address) as channel:
        yield LightPool(pool, channel)


def write_model(base: Path, parameters: str = "") -> Path:
    """A base path that looks right without TensorFlow; `parameters` of batching, if any, in its version's folder."""
    version = base / "1"
    version.mkdir(parents=True)
    (version / "saved_model.pb").write_bytes(_SAVED_MODEL)
    if parameters:
        (version / "batching_params.pbtxt").write_text(parameters)
    return base
