"""What tensorflow_model_server_test.py does, by the command installed under that name: its flags, models and answers."""

from __future__ import annotations

import gzip
import json
import shutil
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from tests.conftest import PoolStarter, short_dir
from tests.pool import ModelServer, Pool, free_port

ModelDir = Callable[[str], Path]
# Of each model, and how many digits its folder has there.
VERSION, FOLDER = 123, "00000123"
INSTALLED = str(Path(sys.executable).with_name("tensorflow_model_server"))
SAVED = ["half_plus_two", "half_plus_three", "unknown_rank", "constants", "sequential", "mirrored"]


class Installed(ModelServer):
    """The command as it is installed."""

    def _command(self) -> list[str]:
        words = super()._command()
        return [
            INSTALLED,
            *words[words.index("tensorflow_model_server") + 1 :],
        ]


@pytest.fixture(scope="module")
def root(model_dir: ModelDir) -> Iterator[Path]:
    """The models, in folders named as there, and files; its paths are short enough for a socket."""
    with short_dir() as folder:
        for name in [*SAVED, "examples_tf1"]:
            shutil.copytree(model_dir(name) / "1", folder / name / FOLDER)
        (folder / "monitoring.config").write_text("prometheus_config { enable: true }")
        listed = [
            f'config: {{ name: "{name}", base_path: "{folder / name}", model_platform: "tensorflow" }}'
            for name in SAVED
        ]
        (folder / "models.config").write_text(f"model_config_list: {{ {' '.join(listed)} }}")
        yield folder


@pytest.fixture(scope="module")
def server(start_module_pool: PoolStarter, root: Path) -> Pool:
    """One model, by all flags that are given there."""
    return start_module_pool(
        "--rest_api_timeout_in_ms=30000",
        f"--grpc_socket_path={root}/socket",
        "--model_name=default",
        f"--model_base_path={root}/examples_tf1",
        f"--monitoring_config_file={root}/monitoring.config",
        "--grpc_channel_arguments=grpc.max_connection_age_ms=2000,grpc.lb_policy_name=grpclb,grpc.so_reuseaddr=1",
        "--cpu_slots=1",
        kind=Installed,
    ).wait()


@pytest.fixture(scope="module")
def several(start_module_pool: PoolStarter, root: Path) -> Pool:
    """Several models, by a file."""
    flags = ("--cpu_slots=1", "--cpusets=none", "--tensorflow_session_parallelism=1")
    return start_module_pool(f"--model_config_file={root}/models.config", *flags, kind=Installed).wait()


def verify(apis: Any, address: str, model: str, wanted: float, **asked: Any) -> None:
    """Predict of x = 2 is answered by that one number, in a list, by the version and signature that were meant.

    Args:
        apis: the stock client's modules.
        address: of the server.
        model: its name.
        wanted: the number.
        asked: "signature", "filtered" for one output alone, "shape" of the input, and the names "x" and "y".
    """
    signature = asked.get("signature", "serving_default")
    x, y = asked.get("x", "x"), asked.get("y", "y")
    request = apis.predict.PredictRequest()
    request.model_spec.name, request.model_spec.signature_name = model, signature
    request.inputs[x].dtype = 1
    request.inputs[x].float_val.append(2.0)
    for size in asked.get("shape", [1]):
        request.inputs[x].tensor_shape.dim.add(size=size)
    if asked.get("filtered"):
        request.output_filter.append(y)
    with grpc.insecure_channel(address) as channel:
        answer = apis.service.PredictionServiceStub(channel).Predict(request, timeout=30)
    assert list(answer.outputs) == [y]
    assert (answer.outputs[y].dtype, list(answer.outputs[y].float_val)) == (1, [wanted])
    spec = answer.model_spec
    assert (spec.name, spec.version.value, spec.signature_name) == (model, VERSION, signature)


def test_a_file_that_is_no_configuration(root: Path) -> None:
    """The start says of which message its text is none, and ends."""
    file = root / "bad.config"
    file.write_text("improperly formatted file")
    command = [INSTALLED, f"--port={free_port()}", f"--model_config_file={file}", f"--run_dir={root}/run"]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert "Error parsing text-format tensorflow.serving.ModelServerConfig" in done.stderr


def rest(pool: Pool, path: str, body: Any = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    with urllib.request.urlopen(f"http://127.0.0.1:{pool.rest_port}{path}", data, timeout=30) as answer:
        text = answer.read().decode()
    return json.loads(text) if path.startswith("/v1/") else text


@pytest.mark.parametrize("filtered", [False, True])
def test_predict(server: Pool, apis: Any, root: Path, *, filtered: bool) -> None:
    """By the port and by the socket, with the output named and without; channel arguments are no obstacle."""
    for address in (server.address, f"unix:{root}/socket"):
        verify(apis, address, "default", 3.0, filtered=filtered)


def test_a_client_that_waits_for_the_server(server: Pool, apis: Any) -> None:
    """It asks for a model that is not there until the text is about a servable."""
    request = apis.predict.PredictRequest()
    request.model_spec.name = "intentionally_missing_model"
    with grpc.insecure_channel(server.address) as channel, pytest.raises(grpc.RpcError) as caught:
        apis.service.PredictionServiceStub(channel).Predict(request, timeout=10)
    error: Any = caught.value
    assert "Servable" in error.details()


def test_status_and_metadata(server: Pool, apis: Any) -> None:
    """One version, whose folder has leading zeros, without an error; its signatures under the one field there is."""
    status, metadata = (
        apis.status.GetModelStatusRequest(),
        apis.metadata.GetModelMetadataRequest(metadata_field=["signature_def"]),
    )
    status.model_spec.name = metadata.model_spec.name = "default"
    with grpc.insecure_channel(server.address) as channel:
        (version,) = (
            apis.model_service.ModelServiceStub(channel)
            .GetModelStatus(status, timeout=10)
            .model_version_status
        )
        answer = apis.service.PredictionServiceStub(channel).GetModelMetadata(metadata, timeout=10)
    assert (version.version, version.status.error_code) == (VERSION, 0)
    assert (answer.model_spec.name, answer.model_spec.version.value) == ("default", VERSION)
    assert list(answer.metadata) == ["signature_def"]


@pytest.mark.parametrize(
    ("call", "body", "answer"),
    [
        (
            "classify",
            {"signature_name": "classify_x_to_y", "examples": [{"x": 2.0}]},
            {"results": [[["", 3.0]]]},
        ),
        ("regress", {"signature_name": "regress_x_to_y", "examples": [{"x": 2.0}]}, {"results": [3.0]}),
        ("predict", {"instances": [2.0, 3.0, 4.0]}, {"predictions": [3.0, 3.5, 4.0]}),
        ("predict", {"inputs": [2.0, 3.0, 4.0]}, {"outputs": [3.0, 3.5, 4.0]}),
    ],
)
def test_rest(server: Pool, call: str, body: Any, answer: Any) -> None:
    """The four requests that it makes by REST."""
    assert rest(server, f"/v1/models/default:{call}", body) == answer


def test_what_is_told_by_rest(server: Pool) -> None:
    """The status, to the letter, whatever query follows the path; metrics at their path, with their types."""
    status = {"error_code": "OK", "error_message": ""}
    version = {"version": str(VERSION), "state": "AVAILABLE", "status": status}
    for path in ("/v1/models/default", "/v1/models/default?a=foo"):
        assert rest(server, path) == {"model_version_status": [version]}
    assert "# TYPE" in rest(server, "/monitoring/prometheus/metrics")


@pytest.mark.parametrize(
    ("model", "wanted", "asked"),
    [
        ("half_plus_two", 3.0, {}),
        ("half_plus_two", 3.0, {"filtered": True}),
        ("half_plus_three", 4.0, {}),
        ("unknown_rank", 12.0, {}),
        ("constants", 1.0, {"filtered": True}),
        ("constants", 2.0, {"filtered": True, "signature": "custom_signature_key"}),
        ("sequential", 2.0, {"shape": [1, 1], "x": "inputs", "y": "output_0"}),
        ("mirrored", 2.0, {"shape": [1, 1], "x": "inputs", "y": "output_0"}),
    ],
)
def test_saved_models(several: Pool, apis: Any, model: str, wanted: float, asked: dict[str, Any]) -> None:
    """Of a function of any shape, of constants, of Keras as such and over two devices, all in one file."""
    verify(apis, several.address, model, wanted, **asked)


NOT_FOUND = {"error": "Could not find any versions of model half_plus_four"}
STATUS = {
    "model_version_status": [
        {"version": str(VERSION), "state": "AVAILABLE", "status": {"error_code": "OK", "error_message": ""}}
    ]
}


@pytest.mark.parametrize(
    ("path", "options", "code", "answer"),
    [
        ("half_plus_three", [], 200, STATUS),
        (f"half_plus_three/versions/{VERSION}", [], 200, STATUS),
        ("half_plus_four", [], 404, NOT_FOUND),
        (
            "half_plus_three:predict",
            ["-X", "POST", "-d", '{"instances": [1.0, 2.0, 5.0]}'],
            200,
            {"predictions": [3.5, 4.0, 5.5]},
        ),
        (
            f"half_plus_three/versions/{VERSION}:predict",
            ["-H", "Content-Type: application/json", "-d", '{"inputs": {"x": [1.0, 2.0, 5.0]}}'],
            200,
            {"outputs": [3.5, 4.0, 5.5]},
        ),
        (
            "half_plus_three:predict",
            ["-H", "Content-Encoding: gzip", "--compressed", "--data-binary", "@request.gz"],
            200,
            {"predictions": [3.5]},
        ),
        ("half_plus_three:predict", ["-d", '{"instances": "x"}'], 400, None),
    ],
)
def test_curl(
    several: Pool, tmp_path: Path, path: str, options: list[str], code: int, answer: dict[str, Any] | None
) -> None:
    """The commands of TensorFlow Serving's own pages."""
    (tmp_path / "request.gz").write_bytes(gzip.compress(b'{"instances": [1.0]}'))
    url = f"http://127.0.0.1:{several.rest_port}/v1/models/{path}"
    command = ["curl", "-s", "-S", "-m", "30", "-w", "\n%{http_code}", *options, url]
    done = subprocess.run(command, check=True, cwd=tmp_path, capture_output=True, text=True)
    body, _, status = done.stdout.rpartition("\n")
    assert int(status) == code
    assert json.loads(body) == answer or (answer is None and "error" in json.loads(body))
