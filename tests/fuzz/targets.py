"""What is fuzzed: each target takes bytes, and raises only where the product would fail on them.

Nothing that a client sends may raise anything but PoolError, and none with INTERNAL: that is ours to say of ourselves. Files and
command lines may raise StartError alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from mpspool.core import envelope, tfs
from mpspool.core.errors import Code, PoolError, StartError, cut
from mpspool.core.ids import ModelVersion
from mpspool.core.methods import Method
from mpspool.core.settings import BatchingSettings
from mpspool.router.asked import Asked
from mpspool.router.fronts import inflate, reload
from mpspool.router.fronts.http2 import client_hello
from mpspool.router.fronts.rest_path import wanted
from mpspool.router.memory import Memory
from mpspool.supervisor.config.schema import pool_fields, read_config
from mpspool.supervisor.config.tensorflow_serving.convert import convert_files
from mpspool.supervisor.config.tensorflow_serving.serve import read_serving
from mpspool.worker.batch import Batching
from mpspool.worker.engine.base import Array, Signature, TensorSpec
from mpspool.worker.predict import Predictor
from tests.fakes.engine import FakeEngine
from tests.fakes.http2 import GREETING, Echo, Scene
from tests.serving_files import MODEL_CONFIG, PLATFORM_CONFIG, eas_service

Target = Callable[[bytes], None]

_MODEL = ModelVersion("m", 1)
_BATCHING = BatchingSettings(max_batch_size=8, pad_variable_length_inputs=True)
_FLOAT, _STRING, _INT64, _BOOL = 1, 7, 9, 10


def _signature(name: str, inputs: Mapping[str, int], outputs: Mapping[str, int]) -> Signature:
    def specs(types: Mapping[str, int]) -> dict[str, TensorSpec]:
        return {alias: TensorSpec(number, None) for alias, number in types.items()}

    return Signature(name, "", specs(inputs), specs(outputs), {"d": np.float32([1])} if "d" in inputs else {})


_SIGNATURES = [
    _signature(
        tfs.DEFAULT_SIGNATURE,
        {"x": _FLOAT, "s": _STRING, "i": _INT64, "b": _BOOL, "d": _FLOAT},
        {"y": _FLOAT},
    ),
    _signature("regress", {"inputs": _STRING}, {"outputs": _FLOAT}),
    _signature("classify", {"inputs": _STRING}, {"classes": _STRING, "scores": _FLOAT}),
]


def _answer(inputs: Mapping[str, Array]) -> Mapping[str, Array]:
    rows = max((len(array) for array in inputs.values() if array.ndim), default=1)
    numbers = np.zeros(rows, np.float32)
    labels = np.full((rows, 2), b"label", object)
    return {"y": numbers, "outputs": numbers, "classes": labels, "scores": np.zeros((rows, 2), np.float32)}


def _refused(error: PoolError) -> None:
    assert error.code is not Code.INTERNAL, error.message
    assert cut(error.message).encode(), "it goes to the router, and to the client"


def routed(data: bytes) -> None:
    """What the router reads of a request of each method before a worker does."""
    for method in tfs.LOG_FIELDS:
        asked = Asked(method)
        asked.spec_at_start(data)
        try:
            spec = asked.spec(data)
        except PoolError as error:
            _refused(error)
        else:
            asked.rows(data, asked.signature(spec), _BATCHING, asked.examples(data))
            assert envelope.peek(data, method)._replace(signature_name=spec.signature_name) == spec


def _run(method: Method) -> Target:
    predictor = Predictor(FakeEngine(_SIGNATURES, _answer), _MODEL)
    batching = Batching(_BATCHING)

    def run(data: bytes) -> None:
        for _ in range(3):  # what is met again may be known by its layout
            try:
                call = predictor.read(data, method)
                batching.rows(call)
                assert call.encode(predictor.run(call.kind, call.inputs()))
            except PoolError as error:
                _refused(error)

    return run


def rest_path(data: bytes) -> None:
    """A path of the REST API."""
    for verb in ("GET", "POST"):
        try:
            wanted(verb, data.decode(errors="replace"))
        except PoolError as error:
            _refused(error)


def http2(data: bytes) -> None:
    """A connection whose first byte says how what follows is cut."""
    step = data[0] + 1 if data else 1
    scene = Scene(kind=Echo)
    scene.receive(GREETING)
    for start in range(1, len(data), step):
        scene.receive(data[start : start + step])
        scene.check_counts()


def hello(data: bytes) -> None:
    """What a client begins with where TLS is spoken: the more there is, the more is known."""
    seen = client_hello.Kind.CUT
    for stop in range(1, len(data) + 1, max(1, len(data) // 16)):
        found = client_hello.read(data[:stop])
        assert seen in (client_hello.Kind.CUT, found.kind)
        seen = found.kind


def compressed(data: bytes) -> None:
    """A compressed message, whose format the first byte says. What is not of it is INTERNAL to gRPC itself."""
    encoding = inflate.ENCODINGS[data[0] % len(inflate.ENCODINGS)] if data else "identity"
    memory = Memory(2**24)
    try:
        if encoding != "identity":
            inflate.begin(data[1:], encoding)
        asyncio.run(inflate.inflate(data[1:], encoding, 2**20, memory.admit(len(data))))
    except PoolError as error:
        if error.code not in (Code.INTERNAL, Code.RESOURCE_EXHAUSTED):
            raise


def reloaded(data: bytes) -> None:
    """HandleReloadConfigRequest."""
    try:
        request = tfs.ReloadConfigRequest.FromString(data)
    except Exception:
        return
    try:
        reload.models_of(request)
    except PoolError as error:
        _refused(error)


def serving_file(data: bytes) -> None:
    """A file of TensorFlow Serving's, DeepRec's or EAS's."""
    with contextlib.suppress(StartError):
        convert_files(["file"], lambda _: data.decode(errors="replace"))


def command_line(data: bytes) -> None:
    """Of tensorflow_model_server, a word a line; after an empty line the text of every file that it names."""
    words, _, text = data.decode(errors="replace").partition("\n\n")
    with contextlib.suppress(StartError):
        serving = read_serving(words.split("\n"), {}, lambda _: text, pool_fields())
        read_config(None, {}, {}, serving=serving)


def pool_file(data: bytes) -> None:
    """A pool.yaml."""
    with tempfile.NamedTemporaryFile(dir="/dev/shm") as file:
        file.write(data)
        file.flush()
        with contextlib.suppress(StartError):
            read_config(Path(file.name), {}, {})[1].told()


TARGETS: dict[str, Callable[[], Target]] = {
    "routed": lambda: routed,
    "predict": lambda: _run(Method.PREDICT),
    "classify": lambda: _run(Method.CLASSIFY),
    "regress": lambda: _run(Method.REGRESS),
    "multi_inference": lambda: _run(Method.MULTI_INFERENCE),
    "rest_predict": lambda: _run(Method.REST_PREDICT),
    "rest_classify": lambda: _run(Method.REST_CLASSIFY),
    "rest_path": lambda: rest_path,
    "http2": lambda: http2,
    "hello": lambda: hello,
    "compressed": lambda: compressed,
    "reloaded": lambda: reloaded,
    "serving_file": lambda: serving_file,
    "command_line": lambda: command_line,
    "pool_file": lambda: pool_file,
}


def _predict_seed() -> Any:
    request = tfs.PredictRequest()
    request.model_spec.name = "m"
    for alias, number, field, values in (
        ("x", _FLOAT, "float_val", [1.0]),
        ("s", _STRING, "string_val", [b"a"]),
        ("i", _INT64, "int64_val", [1]),
        ("b", _BOOL, "bool_val", [True]),
    ):
        tensor = request.inputs[alias]
        tensor.dtype = number
        tensor.tensor_shape.dim.add(size=1)
        getattr(tensor, field).extend(values)
    return request


def _examples_seed(signature: str) -> Any:
    request = tfs.ClassificationRequest()
    request.model_spec.name, request.model_spec.signature_name = "m", signature
    given = request.input.example_list_with_context
    given.context.features.feature["w"].bytes_list.value.append(b"a")
    given.examples.add().features.feature["x"].float_list.value.append(1)
    return request


def _multi_seed() -> Any:
    request = tfs.MultiInferenceRequest()
    for method in ("classify", "regress"):
        task = request.tasks.add(method_name=f"tensorflow/serving/{method}")
        task.model_spec.name, task.model_spec.signature_name = "m", method
    request.input.example_list.examples.add()
    return request


def _reload_seed() -> Any:
    request = tfs.ReloadConfigRequest()
    model = request.config.model_config_list.config.add(name="m", base_path="/m", model_platform="tensorflow")
    model.model_version_policy.specific.versions.append(1)
    model.version_labels["stable"] = 1
    return request


def _hello_seed() -> bytes:
    context = ssl.create_default_context()
    context.set_alpn_protocols(["h2", "http/1.1"])
    out = ssl.MemoryBIO()
    with contextlib.suppress(ssl.SSLWantReadError):
        context.wrap_bio(ssl.MemoryBIO(), out, server_hostname="localhost").do_handshake()
    return out.read()


_BATCHING_FILE = "max_batch_size { value: 8 } allowed_batch_sizes: [4, 8] batch_timeout_micros { value: 0 }"
_TLS_FILE = 'server_key: "k" server_cert: "c" custom_ca: "ca" client_verify: true'
_POOL_FILE = b"""
gpus: [0, 2]
cpusets: ["0-3", "4-7"]
batching: {max_batch_size: 8, allowed_batch_sizes: [4, 8]}
mps: {mode: auto, active_thread_percentage: 50}
scheduling: {policy: sjf}
max_queued_bytes: 1GiB
models:
  m: {base_path: /m, version_policy: {latest: 2}, version_labels: {stable: 1}, weights: {shared: on}}
"""


def seeds(target: str) -> list[bytes]:
    """Right inputs to begin with."""
    requests = {
        "predict": [_predict_seed()],
        "classify": [_examples_seed("classify")],
        "regress": [_examples_seed("regress")],
        "multi_inference": [_multi_seed()],
        "reloaded": [_reload_seed()],
    }
    documents = {
        "rest_predict": [
            b'{"signature_name": "serving_default", "instances": [{"x": 1, "s": "a", "i": 1, "b": true, "d": NaN}]}',
            b'{"inputs": {"x": [[1.5]], "s": {"b64": "aGk="}, "i": [1], "b": [false], "d": []}}',
            b'{"instances": [{"x": -Inf, "s": "\xff\\ud83d\\ude00", "i": 1, "b": true, "d": 1}]}',
        ],
        "rest_classify": [
            b'{"signature_name": "classify", "context": {"w": "a"}, "examples": [{"x": [1, true], "y": {"b64": "aGk="}}]}'
        ],
        "hello": [_hello_seed()],
        "serving_file": [
            text.encode()
            for text in (
                MODEL_CONFIG.format(root="/m"),
                PLATFORM_CONFIG,
                eas_service("/m"),
                _BATCHING_FILE,
                _TLS_FILE,
            )
        ],
        "command_line": [
            b"--port=0\n--model_base_path=/m\n--enable_batching\n--batching_parameters_file=b\n\n"
            + _BATCHING_FILE.encode(),
            b"--model_config_file=m\n--saved_model_tags=a,b\n\n" + MODEL_CONFIG.format(root="/m").encode(),
        ],
        "pool_file": [_POOL_FILE],
        "rest_path": [b"/v1/models/m/versions/1:predict", b"/v1/models/%6d/labels/a/metadata"],
    }
    if target in documents:
        return documents[target]
    requests["routed"] = [one for found in list(requests.values())[:4] for one in found]
    return [request.SerializeToString() for request in requests.get(target, [])]
