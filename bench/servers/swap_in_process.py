"""One process that loads a model's next version beside the one that it serves, as TensorFlow Serving does.

Arguments: PORT BASE_PATH NAME THREADS. It looks at the base path once a second; the newest version is loaded in a thread
and warmed up, takes all requests from then on, and the one before it is closed when nothing runs in it any more.
Lines on stdout: "2 served", "1 gone". Our engine's call and our encoding, Python's gRPC.
"""

import functools
import gc
import os
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import grpc
import tensorflow as tf

from mpspool.core.errors import PoolError
from mpspool.core.ids import ModelVersion
from mpspool.core.methods import Method
from mpspool.core.settings import ModelSettings
from mpspool.worker.engine.load import load
from mpspool.worker.engine.session import SessionEngine
from mpspool.worker.predict import Predictor
from mpspool.worker.warmup import warm_up

_POLL_S = 1.0
_IDLE_POLL_S = 0.001
# Whatever else is said goes to stderr.
_LINES = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)
_CODES = {code.value[0]: code for code in grpc.StatusCode}


class Version:
    """A loaded version. May be asked by several threads."""

    def __init__(self, name: str, number: int, path: Path, threads: int) -> None:
        self.id = ModelVersion(name, number)
        self.running = 0
        settings = ModelSettings(name=name, version=number, path=str(path), slots=[], engine="session")
        config = tf.compat.v1.ConfigProto(
            intra_op_parallelism_threads=threads, inter_op_parallelism_threads=1
        )
        engine = load(settings, config)
        assert isinstance(engine, SessionEngine)
        predictor = Predictor(engine, self.id)
        warm_up(predictor, functools.partial(_answer, predictor), path)
        self._engine = engine
        self._mine = threading.local()

    def predict(self, body: bytes) -> bytes:
        """Raises PoolError."""
        predictor: Predictor | None = getattr(self._mine, "predictor", None)
        if predictor is None:  # a session may be run by several threads at a time, a predictor by one
            predictor = self._mine.predictor = Predictor(self._engine, self.id)
        return _answer(predictor, body, Method.PREDICT)

    def close(self) -> None:
        self._engine.close()


class Served:
    """The version that answers."""

    def __init__(self, version: Version) -> None:
        self._version = version
        self._lock = threading.Lock()

    @property
    def number(self) -> int:
        return self._version.id.version

    def predict(self, body: bytes, context: grpc.ServicerContext) -> bytes:
        with self._lock:
            version = self._version
            version.running += 1
        try:
            return version.predict(body)
        except PoolError as error:
            context.abort(_CODES[error.code.value], error.message)
            raise
        finally:
            with self._lock:
                version.running -= 1

    def replace(self, version: Version) -> None:
        """Returns once nothing is left of the one before."""
        with self._lock:
            before, self._version = self._version, version
        _say(version.id.version, "served")
        while before.running:
            time.sleep(_IDLE_POLL_S)
        before.close()
        number = before.id.version
        del before
        gc.collect()
        _say(number, "gone")


def _answer(predictor: Predictor, body: bytes, method: Method) -> bytes:
    """Raises PoolError."""
    call = predictor.read(body, method)
    return call.encode(predictor.run(call.kind, call.inputs()))


def _say(number: int, what: str) -> None:
    print(number, what, file=_LINES, flush=True)


def _newest(base_path: Path) -> int:
    return max(int(folder.name) for folder in base_path.iterdir() if folder.name.isdigit())


def main(port: str, folder: str, name: str, threads: str) -> None:
    base_path, count = Path(folder), int(threads)
    number = _newest(base_path)
    served = Served(Version(name, number, base_path / str(number), count))
    server = grpc.server(ThreadPoolExecutor(count))
    handlers = {"Predict": grpc.unary_unary_rpc_method_handler(served.predict)}
    service = "tensorflow.serving.PredictionService"
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, handlers),))
    server.add_insecure_port(f"127.0.0.1:{port}")
    server.start()
    _say(number, "served")
    while True:
        time.sleep(_POLL_S)
        if (number := _newest(base_path)) > served.number:
            served.replace(Version(name, number, base_path / str(number), count))


if __name__ == "__main__":
    main(*sys.argv[1:])
