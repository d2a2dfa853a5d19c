"""The official tensorflow-serving-api client against a real pool: answers and errors as TF Serving's."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

from mpspool.core.process import alive
from tests import models
from tests.conftest import PoolStarter
from tests.polling import until
from tests.pool import Pool, cli

MESSAGE_LIMIT = 4 * 2**20


@pytest.fixture(scope="module")
def tf() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import tensorflow as tf
    return tf


@pytest.fixture(scope="module")
def pool(
    start_module_pool: PoolStarter,
    model_dir: Callable[[str], Path],
    tmp_path_factory: pytest.TempPathFactory,
) -> Pool:
    config = tmp_path_factory.mktemp("config") / "pool.yaml"
    names = ["half_plus_two", "multi_signature", "dtypes"]
    lines = [f"  - {{name: {name}, base_path: {model_dir(name)}, cpu_slots: 1}}" for name in names]
    config.write_text("models:\n" + "\n".join(lines) + f"\nmax_message_bytes: {MESSAGE_LIMIT}\n")
    return start_module_pool(config).wait()


@pytest.fixture(scope="module")
def channel(pool: Pool) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(pool.address, options=[("grpc.max_send_message_length", -1)]) as opened:
        yield opened


@pytest.fixture(scope="module")
def stub(channel: grpc.Channel, apis: Any) -> Any:
    return apis.service.PredictionServiceStub(channel)


def request(apis: Any, tf: Any, model: str = "half_plus_two", **inputs: Any) -> Any:
    made = apis.predict.PredictRequest()
    made.model_spec.name = model
    for alias, value in inputs.items():
        made.inputs[alias].CopyFrom(tf.make_tensor_proto(value))
    return made


X = np.array([1, 2, 5], np.float32)


def test_predict_answers_like_tensorflow_serving(stub: Any, apis: Any, tf: Any) -> None:
    """Values in float_val, model_spec with name, version and signature, as TF Serving answers."""
    answer = stub.Predict(request(apis, tf, x=X), timeout=10)
    assert answer.model_spec.name == "half_plus_two"
    assert answer.model_spec.version.value == 1
    assert answer.model_spec.signature_name == "serving_default"
    assert list(answer.outputs["y"].float_val) == [2.5, 3, 4.5]
    assert not answer.outputs["y"].tensor_content


def test_predict_by_version(stub: Any, apis: Any, tf: Any) -> None:
    """The version named is the one that answers."""
    asked = request(apis, tf, x=X)
    asked.model_spec.version.value = 1
    assert stub.Predict(asked, timeout=10).model_spec.version.value == 1


def test_zero_batch_is_no_error(stub: Any, apis: Any, tf: Any) -> None:
    """An empty batch gives empty outputs."""
    answer = stub.Predict(request(apis, tf, x=np.zeros(0, np.float32)), timeout=10)
    assert tf.make_ndarray(answer.outputs["y"]).shape == (0,)


ARGUMENTS = {
    "serving_default": {"x": np.ones((2, 3), np.float32)},
    "add": {"a": X, "b": np.float32(1)},
    "transpose": {"x": np.ones((2, 3), np.int32)},
    "classify": {"inputs": np.array([b"a", b"abcdefgh"])},
}


def test_every_signature_is_served(stub: Any, apis: Any, tf: Any) -> None:
    """Each signature of GetModelMetadata answers to its own inputs."""
    asked = apis.metadata.GetModelMetadataRequest()
    asked.model_spec.name = "multi_signature"
    asked.metadata_field.append("signature_def")
    answer = stub.GetModelMetadata(asked, timeout=10)
    signatures = apis.metadata.SignatureDefMap()
    assert answer.metadata["signature_def"].Unpack(signatures)
    served = 0
    for name, signature in signatures.signature_def.items():
        if name == "__saved_model_init_op":
            continue
        call = request(apis, tf, "multi_signature", **ARGUMENTS[name])
        call.model_spec.signature_name = name
        assert set(stub.Predict(call, timeout=10).outputs) == set(signature.outputs)
        served += 1
    assert served == 4


def test_output_filter(stub: Any, apis: Any, tf: Any) -> None:
    """Only the outputs asked for come back; unknown and doubled ones are refused."""
    asked = request(apis, tf, x=X)
    asked.output_filter.append("y")
    assert set(stub.Predict(asked, timeout=10).outputs) == {"y"}
    asked.output_filter.append("y")
    refused(stub, asked, grpc.StatusCode.INVALID_ARGUMENT, "duplicate output tensor alias: y")
    del asked.output_filter[:]
    asked.output_filter.append("z")
    refused(
        stub,
        asked,
        grpc.StatusCode.INVALID_ARGUMENT,
        "output tensor alias not found in signature: z Outputs expected to be in the set {y}.",
    )


def test_status(apis: Any, channel: grpc.Channel) -> None:
    """GetModelStatus says AVAILABLE."""
    asked = apis.status.GetModelStatusRequest()
    asked.model_spec.name = "half_plus_two"
    (version,) = (
        apis.model_service.ModelServiceStub(channel).GetModelStatus(asked, timeout=10).model_version_status
    )
    assert (version.version, version.state) == (1, 30)


@pytest.mark.parametrize(
    ("name", "version", "text"),
    [
        ("half_plus_two", 7, "Could not find version 7 of model half_plus_two"),
        ("nobody", 0, "Could not find any versions of model nobody"),
    ],
)
def test_status_of_what_is_not_there(
    name: str, version: int, text: str, apis: Any, channel: grpc.Channel
) -> None:
    """GetModelStatus knows neither: TF Serving's texts."""
    asked = apis.status.GetModelStatusRequest()
    asked.model_spec.name = name
    if version:
        asked.model_spec.version.value = version
    with pytest.raises(grpc.RpcError) as refusal:
        apis.model_service.ModelServiceStub(channel).GetModelStatus(asked, timeout=10)
    assert (refusal.value.code(), refusal.value.details()) == (grpc.StatusCode.NOT_FOUND, text)


def refused(stub: Any, asked: Any, code: grpc.StatusCode, text: str) -> None:
    with pytest.raises(grpc.RpcError) as refusal:
        stub.Predict(asked, timeout=10)
    assert (refusal.value.code(), refusal.value.details()) == (code, text)


INVALID = grpc.StatusCode.INVALID_ARGUMENT
NOT_FOUND = grpc.StatusCode.NOT_FOUND


def _spec(**fields: Any) -> Callable[[Any], None]:
    def change(asked: Any) -> None:
        for name, value in fields.items():
            if name == "version":
                asked.model_spec.version.value = value
            else:
                setattr(asked.model_spec, name, value)

    return change


BAD = {
    "no model_spec": (lambda asked: asked.ClearField("model_spec"), INVALID, "Missing ModelSpec"),
    "empty name": (_spec(name="", signature_name="s"), INVALID, "ModelSpec has no name specified."),
    "unknown model": (_spec(name="nobody"), NOT_FOUND, "Servable not found for request: Latest(nobody)"),
    "unknown version": (
        _spec(version=7),
        NOT_FOUND,
        "Servable not found for request: Specific(half_plus_two, 7)",
    ),
    "unknown label": (_spec(version_label="l"), INVALID, "Unrecognized servable version label: l"),
    "unknown signature": (
        _spec(signature_name="s"),
        grpc.StatusCode.FAILED_PRECONDITION,
        'Serving signature key "s" not found.',
    ),
    "missing input": (
        lambda asked: asked.inputs.clear(),
        INVALID,
        (
            "input size does not match signature: 0!=1 len({}) != len({x}). Sent extra: {}. "
            "Missing but required: {x}."
        ),
    ),
    "extra input": (
        lambda asked: asked.inputs["z"].CopyFrom(asked.inputs["x"]),
        INVALID,
        (
            "input size does not match signature: 2!=1 len({x,z}) != len({x}). Sent extra: {z}. "
            "Missing but required: {}."
        ),
    ),
    "wrong element count": (
        lambda asked: setattr(asked.inputs["x"], "tensor_content", b"123"),
        INVALID,
        "tensor parsing error: x",
    ),
    "misnamed input": (
        lambda asked: (asked.inputs["z"].CopyFrom(asked.inputs["x"]), asked.inputs.pop("x")),
        INVALID,
        (
            "Signature input alias: x(feed name: serving_default_x:0) not found in request and no default "
            "value provided. Inputs expected to be in the request {z}, or default input alias set: "
        ),
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input(case: str, stub: Any, apis: Any, tf: Any) -> None:
    """TF Serving's code and text for each kind of bad input."""
    change, code, text = BAD[case]
    asked = request(apis, tf, x=X)
    change(asked)
    refused(stub, asked, code, text)


def test_wrong_dtype_and_shape(stub: Any, apis: Any, tf: Any) -> None:
    """The wrong dtype and shape are the client's error and harm nobody; of the shape the kernel itself speaks."""
    refused(
        stub,
        request(apis, tf, x=np.array([True])),
        INVALID,
        "Expects arg[0] to be float but bool is provided",
    )
    wide = request(apis, tf, "multi_signature", x=np.ones((2, 4), np.float32))
    with pytest.raises(grpc.RpcError) as refusal:
        stub.Predict(wide, timeout=10)
    assert refusal.value.code() is INVALID
    text, node, _ = refusal.value.details().partition("\n\t [[{{function_node ")
    # TensorFlow's optimizer is free to swap the operands.
    assert text in ("Incompatible shapes: [2,4] vs. [3]", "Incompatible shapes: [3] vs. [2,4]")
    assert node
    assert stub.Predict(request(apis, tf, x=X), timeout=10).outputs["y"].float_val[0] == 2.5


def test_garbage_and_truncated_bytes(channel: grpc.Channel, apis: Any, tf: Any) -> None:
    """Bytes that are no PredictRequest are INVALID_ARGUMENT, not INTERNAL, and harm nobody."""
    raw = channel.unary_unary("/tensorflow.serving.PredictionService/Predict")
    whole = request(apis, tf, x=X).SerializeToString()
    for body in (b"\xff\xfe\xfd garbage", whole[:-1], whole[: len(whole) // 2], whole + b"\x12\x7f"):
        text = f"The {len(body)} bytes received are not a tensorflow.serving.PredictRequest: truncated or malformed"
        with pytest.raises(grpc.RpcError) as refusal:
            raw(body, timeout=10)
        assert (refusal.value.code(), refusal.value.details()) == (INVALID, text)
    assert raw(whole, timeout=10)


def test_message_over_the_limit(stub: Any, apis: Any, tf: Any) -> None:
    """A message over max_message_bytes is RESOURCE_EXHAUSTED; one below it is served."""
    big = request(apis, tf, x=np.zeros(MESSAGE_LIMIT // 4 + 1, np.float32))
    text = f"SERVER: Received message larger than max ({big.ByteSize()} vs. {MESSAGE_LIMIT})"
    refused(stub, big, grpc.StatusCode.RESOURCE_EXHAUSTED, text)
    fits = request(apis, tf, x=np.zeros(MESSAGE_LIMIT // 8, np.float32))
    assert len(stub.Predict(fits, timeout=30).outputs["y"].float_val) == MESSAGE_LIMIT // 8


def test_large_messages_by_default(
    start_pool: PoolStarter, model_dir: Callable[[str], Path], apis: Any, tf: Any
) -> None:
    """64 MB, sixteen times gRPC's own limit, there and back: the default is TF Serving's."""
    pool = start_pool("--model", f"half_plus_two={model_dir('half_plus_two')}", "--cpu-slots", 1).wait()
    asked = request(apis, tf, x=np.arange(2**24, dtype=np.float32))
    sizes = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]
    with grpc.insecure_channel(pool.address, options=sizes) as opened:
        answer = apis.service.PredictionServiceStub(opened).Predict(asked, timeout=60)
    values = tf.make_ndarray(answer.outputs["y"])
    assert np.array_equal(values, np.arange(2**24, dtype=np.float32) / 2 + 2)


@pytest.mark.parametrize("name", models.DTYPES)
@pytest.mark.parametrize("content", [True, False])
def test_dtypes_both_encodings(name: str, content: bool, stub: Any, apis: Any, tf: Any) -> None:
    """Every dtype comes back as it went, by tensor_content and by typed list, answered as a typed list."""
    dtype = getattr(tf, name)
    values = [b"a\x00", b"", b"\xff"] if name == "string" else [0, 1, 3]
    sent = np.array(values, object if name == "string" else dtype.as_numpy_dtype)
    call = request(apis, tf, "dtypes")
    call.model_spec.signature_name = name
    proto = tf.make_tensor_proto(sent, dtype)
    if content != bool(proto.tensor_content):  # make_tensor_proto chooses by dtype: force the other one
        proto = tensor_proto(tf, sent, dtype, content=content)
    call.inputs["x"].CopyFrom(proto)
    answer = stub.Predict(call, timeout=20).outputs["y"]
    got = tf.make_ndarray(answer)
    assert got.dtype == sent.dtype
    assert got.tolist() == sent.tolist()
    assert not answer.tensor_content


def tensor_proto(tf: Any, value: Any, dtype: Any, *, content: bool) -> Any:
    """The encoding that make_tensor_proto does not choose."""
    if content:
        as_content = tf.make_tensor_proto(np.zeros(3, np.float32))
        as_content.dtype = dtype.as_datatype_enum
        packed = b"".join(bytes([len(v)]) for v in value) + b"".join(value) if dtype == tf.string else None
        as_content.tensor_content = packed if packed is not None else value.tobytes()
        return as_content
    typed = tf.make_tensor_proto(value[:1].reshape(()), dtype)
    for item in value[1:]:
        typed.MergeFrom(tf.make_tensor_proto(item, dtype))
    typed.tensor_shape.CopyFrom(tf.TensorShape([3]).as_proto())
    return typed


def http(pool: Pool, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{pool.rest_port}{path}", timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def counted(pool: Pool, model: str) -> float:
    """How many of a model's requests were answered OK, as /metrics has it."""
    status, metrics = http(pool, "/metrics")
    assert status == 200
    lines = (line for line in metrics.splitlines() if line.startswith("mpspool_requests_total{"))
    mine = [line for line in lines if f'model="{model}"' in line and '="OK"' in line]
    return sum(float(line.rpartition(" ")[2]) for line in mine)


def test_http_health_and_metrics(pool: Pool, stub: Any, apis: Any, tf: Any) -> None:
    """/healthz, /readyz and /metrics answer; the metrics count what was served. Predict by HTTP says where to go."""
    before = counted(pool, "half_plus_two")
    for _ in range(3):
        stub.Predict(request(apis, tf, x=X), timeout=10)
    assert counted(pool, "half_plus_two") == before + 3
    assert http(pool, "/healthz")[0] == 200
    assert http(pool, "/readyz")[0] == 200
    status, answer = http(pool, "/v1/models/half_plus_two/metadata")
    assert (status, json.loads(answer)["model_spec"]["version"]) == (200, "1")


def test_status_json_has_the_promised_shape(pool: Pool) -> None:
    """Scripts read these names and values."""
    status = until(lambda: (s := pool.status())["pool"]["state"] == "RUNNING" and s, 10)
    assert status["pool"] == {
        "state": "RUNNING", "pid": pool.pid, "run_dir": str(pool.run_dir), "grpc_port": pool.grpc_port,
        "rest_port": pool.rest_port, "mps": "off", "tls": "off", "grpc_socket_path": "",
        "slow_lane": 0, "fair_by": "none",
    }  # fmt: skip
    model = next(model for model in status["models"] if model["name"] == "half_plus_two")
    [version] = model["versions"]
    assert version.items() >= {"version": 1, "state": "AVAILABLE", "error": ""}.items()
    assert version["weights"]["private_variables"] == 2
    worker = next(worker for worker in status["workers"] if worker["id"] == "half_plus_two@1.cpu0.0")
    assert worker.keys() >= {
        "id", "model", "version", "device", "slot", "generation", "pid", "state", "restarts",
        "in_flight", "served", "cpus",
    }  # fmt: skip
    assert (worker["model"], worker["version"], worker["device"], worker["slot"]) == (
        "half_plus_two", 1, "cpu0", 0,
    )  # fmt: skip
    processes = {item["name"]: item for item in status["processes"]}
    assert {"router", "pool"} <= processes.keys()
    assert all(item["state"] == "RUNNING" and alive(item["pid"]) for item in processes.values())


def test_health_and_reflection(channel: grpc.Channel) -> None:
    """grpc.health.v1 says SERVING, of the whole and of each service; reflection lists what is served."""
    health = health_pb2_grpc.HealthStub(channel)
    for service in ("", "tensorflow.serving.PredictionService", "tensorflow.serving.ModelService"):
        asked = health_pb2.HealthCheckRequest(service=service)
        assert health.Check(asked, timeout=10).status == health_pb2.HealthCheckResponse.SERVING
    services = ProtoReflectionDescriptorDatabase(channel).get_services()
    assert {"tensorflow.serving.PredictionService", "tensorflow.serving.ModelService"} <= set(services)


def test_the_command_line_asks_for_what_it_is_told(pool: Pool) -> None:
    """Signature, version, and a document from standard input."""
    command = ("predict", "multi_signature", "--signature", "add", "--input", "-", "--address", pool.address)
    done = cli(*command, "--version", 1, input='{"a": [1, 2], "b": 3}')
    assert json.loads(done.stdout) == {"sum": [4.0, 5.0]}
    done = cli(*command, "--version", 7, input='{"a": [1, 2], "b": 3}')
    assert (
        done.returncode,
        "Servable not found for request: Specific(multi_signature, 7)" in done.stderr,
    ) == (
        1,
        True,
    )
