"""`python -m bench.rest`: what a request by REST costs the pool, beside the same request by gRPC.

CPU seconds of all the pool's processes for each 1,000 requests of one client after the other, in turns, and the ratio. The goal is at
most 2 for 512 rows of widedeep.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc

from bench import measure
from bench.models import MODELS, ensure_exported, inputs_for
from bench.server import free_ports
from mpspool.core import tfs

_MARK = f"rest{os.getpid()}."
_READY_S = 120.0
Ask = Callable[[], object]


@contextmanager
def _pool(base_path: Path, name: str, port: int, threads: int) -> Iterator[None]:
    with tempfile.TemporaryDirectory(prefix="mps-") as folder:
        command = [sys.executable, "-P", "-m", "mpspool", "start", "--model", f"{name}={base_path}"]
        command += ["--run-dir", folder, "--cpu-slots", "2", "--intra-op-threads", str(threads)]
        command += ["--grpc-port", str(port), "--rest-port", str(port + 1)]
        environment = {**os.environ, measure.MARK: _MARK, "TF_CPP_MIN_LOG_LEVEL": "3"}
        with open(Path(folder) / "out", "wb") as out:
            process = subprocess.Popen(command, env=environment, stdout=out, stderr=out)
        try:
            wait = [sys.executable, "-P", "-m", "mpspool", "wait", "--run-dir", folder]
            subprocess.run(wait, check=True, timeout=_READY_S, stdout=subprocess.DEVNULL)
            yield
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(60)


def _by_grpc(name: str, inputs: dict[str, Any], channel: grpc.Channel) -> Ask:
    request = tfs.PredictRequest()
    request.model_spec.name = name
    for alias, array in inputs.items():
        tensor = request.inputs[alias]
        tensor.dtype = tfs.number_of(array.dtype)
        for size in array.shape:
            tensor.tensor_shape.dim.add(size=size)
        tensor.tensor_content = array.tobytes()
    body = request.SerializeToString()
    call = channel.unary_unary(f"/{tfs.PREDICTION_SERVICE}/Predict")
    return lambda: call(body, timeout=30)


def _by_rest(name: str, document: Any, connection: http.client.HTTPConnection) -> Ask:
    body = json.dumps(document).encode()

    def ask() -> None:
        connection.request("POST", f"/v1/models/{name}:predict", body)
        found = connection.getresponse()
        text = found.read()
        if found.status != 200:
            raise RuntimeError(f"{found.status}: {text.decode()}")

    return ask


def _cpu_s() -> float:
    return sum(measure.cpu_by_pid(measure.marked(_MARK)).values())


def _cost(ask: Ask, seconds: float) -> tuple[float, float]:
    """CPU milliseconds of a request, and how long it takes."""
    before, start, count = _cpu_s(), time.monotonic(), 0
    while time.monotonic() < start + seconds:
        ask()
        count += 1
    return (_cpu_s() - before) * 1000 / count, (time.monotonic() - start) * 1000 / count


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--batches", default="1,32,512")
    parser.add_argument("--cache", type=Path, default=Path(".cache/bench"))
    options = parser.parse_args()
    models = ensure_exported(options.cache)
    name, port = "widedeep", free_ports()
    print("| widedeep, rows | gRPC: CPU ms, ms | REST rows | REST columns | rows / gRPC | columns / gRPC |")
    print("|---|---|---|---|---|---|")
    with _pool(models / name, name, port, 1), grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        connection = http.client.HTTPConnection("127.0.0.1", port + 1, timeout=30)
        for batch in map(int, options.batches.split(",")):
            inputs = inputs_for(MODELS[name], batch)
            columns = {alias: array.tolist() for alias, array in inputs.items()}
            rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
            asks = [
                _by_grpc(name, inputs, channel),
                _by_rest(name, {"instances": rows}, connection),
                _by_rest(name, {"inputs": columns}, connection),
            ]
            found: list[list[tuple[float, float]]] = [[], [], []]
            for _ in range(options.repeat):
                for ask, costs in zip(asks, found, strict=True):
                    costs.append(_cost(ask, options.seconds))
            cpu, took = ([statistics.median(one[i] for one in costs) for costs in found] for i in (0, 1))
            cells = [f"{c:.2f}, {t:.2f}" for c, t in zip(cpu, took, strict=True)]
            ratios = [f"{cost / cpu[0]:.2f}" for cost in cpu[1:]]
            print("| " + " | ".join([str(batch), *cells, *ratios]) + " |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
