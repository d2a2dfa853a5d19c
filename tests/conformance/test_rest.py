"""TensorFlow Serving's REST API over real HTTP: its documented requests and answers, and the cases of its own tests."""

from __future__ import annotations

import concurrent.futures
import gzip
import http.client
import json
import os
import socket
import subprocess
import sys
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.conftest import PoolStarter
from tests.pool import Pool

NAMES = ["half_plus_two", "multi_signature", "examples_tf1", "strings", "defaults"]
LIMIT = 2**20


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> str:
        """Of an error, which has to be TensorFlow Serving's kind of document."""
        assert self.headers["content-type"].startswith("application/json")
        (text,) = self.json.values()
        assert list(self.json) == ["error"]
        return str(text)


def ask(pool: Pool, verb: str, path: str, body: Any = None, **headers: str) -> Answer:
    connection = http.client.HTTPConnection("127.0.0.1", pool.rest_port, timeout=30)
    given = body if isinstance(body, bytes | None) else json.dumps(body).encode()
    try:
        connection.request(
            verb, path, given, {name.replace("_", "-"): value for name, value in headers.items()}
        )
        found = connection.getresponse()
        return Answer(found.status, {k.lower(): v for k, v in found.getheaders()}, found.read())
    finally:
        connection.close()


def start(
    starter: PoolStarter,
    model_dir: Callable[[str], Path],
    folder: Path,
    names: list[str],
    more: str = "",
) -> Pool:
    config = folder / "pool.yaml"
    lines = [
        f"  - {{name: {name}, base_path: {model_dir(name)}, cpu_slots: 1, version_labels: {{stable: 1}}}}"
        for name in names
    ]
    config.write_text("models:\n" + "\n".join(lines) + f"\nmax_message_bytes: {LIMIT}\n{more}")
    return starter(config).wait()


@pytest.fixture(scope="module")
def pool(
    start_module_pool: PoolStarter, model_dir: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> Pool:
    return start(start_module_pool, model_dir, tmp_path_factory.mktemp("config"), NAMES)


HALF = "/v1/models/half_plus_two"
EXAMPLES = "/v1/models/examples_tf1"
X = [{"x": 1.0, "x2": 10.0}, {"x": 2.0, "x2": 20.0}]
DOCUMENTED: dict[str, tuple[str, Any, Any]] = {
    "rows": (f"{HALF}:predict", {"instances": [1.0, 2.0, 5.0]}, {"predictions": [2.5, 3.0, 4.5]}),
    "named rows": (f"{HALF}:predict", {"instances": [{"x": 1.0}, {"x": 2.0}]}, {"predictions": [2.5, 3.0]}),
    "columns": (f"{HALF}:predict", {"inputs": [1.0, 2.0]}, {"outputs": [2.5, 3.0]}),
    "named columns": (f"{HALF}:predict", {"inputs": {"x": [1.0]}}, {"outputs": [2.5]}),
    "a signature": (f"{HALF}:predict", {"signature_name": "serving_default", "instances": [1]}, {"predictions": [2.5]}),
    "a version": (f"{HALF}/versions/1:predict", {"instances": [1]}, {"predictions": [2.5]}),
    "a label": (f"{HALF}/labels/stable:predict", {"instances": [1]}, {"predictions": [2.5]}),
    "an escaped name": ("/v1/models/half%5Fplus_two:predict", {"instances": [1]}, {"predictions": [2.5]}),
    "other letters": ("/V1/MODELS/half_plus_two:predict", {"instances": [1]}, {"predictions": [2.5]}),
    "several outputs": ("/v1/models/multi_signature:predict", {"instances": [[1, 1, 1], [2, 2, 2]]},
        {"predictions": [{"scaled": [1, 2, 3], "total": 6}, {"scaled": [2, 4, 6], "total": 12}]}),
    "several outputs by column": ("/v1/models/multi_signature:predict", {"inputs": [[1, 1, 1]]},
        {"outputs": {"scaled": [[1, 2, 3]], "total": [6]}}),
    "several inputs": ("/v1/models/multi_signature:predict",
        {"signature_name": "add", "inputs": {"a": [1, 2], "b": 5}}, {"outputs": [6, 7]}),
    "text": ("/v1/models/strings:predict", {"instances": ["pear", {"b64": "cGx1bQ=="}]},
        {"predictions": [{"id": 1, "twice": "pearpear"}, {"id": 2, "twice": "plumplum"}]}),
    "regress": (f"{EXAMPLES}:regress", {"signature_name": "regress_x_to_y", "examples": X}, {"results": [2.5, 3.0]}),
    "classify": (f"{EXAMPLES}:classify", {"signature_name": "classify_both", "examples": X},
        {"results": [[["low", 2.5], ["high", 8.0]], [["low", 3.0], ["high", 13.0]]]}),
    "scores": (f"{EXAMPLES}:classify", {"signature_name": "classify_x_to_y", "examples": X}, {"results": [[["", 2.5]], [["", 3.0]]]}),
    "a context": (f"{EXAMPLES}/versions/1:classify",
        {"signature_name": "classify_both", "context": {"x": 1.0, "words": ["no", {"b64": "eWVz"}]}, "examples": [{}, {"x": [4.0]}]},
        {"results": [[["no", 2.5], ["yes", 3.0]], [["no", 4.0], ["yes", 3.0]]]}),
}  # fmt: skip


@pytest.mark.parametrize("form", DOCUMENTED)
def test_documented_requests(pool: Pool, form: str) -> None:
    """Each form of g3doc/api_rest.md gives the answer that it says there."""
    path, request, expected = DOCUMENTED[form]
    answer = ask(pool, "POST", path, request)
    assert (answer.status, answer.json) == (200, expected)
    assert answer.headers["content-type"].startswith("application/json")
    assert "access-control-allow-origin" not in answer.headers


MALFORMED = [
    ("GET", "/v1/foo"), ("POST", "/v1/foo"), ("GET", "/v1/models/debug/model_name"), ("POST", "/v1/models"),
    ("GET", "/v1/models/foo:predict"), ("GET", "/v1/models/foo/version/50:predict"),
    ("POST", "/v1/models/foo/version/50:regress"), ("POST", "/v1/models/foo/versions/HELLO:regress"),
    ("POST", "/v1/models/foo/metadata"), ("POST", "/v1/models/foo/label/some_label:regress"),
    ("POST", "/v1/models/foo/versions/50/labels/some_label:regress"),
    ("POST", "/v1/models/foo/versions/some_label:regress"), ("POST", f"{HALF}:PREDICT"), ("PUT", f"{HALF}:predict"),
    ("DELETE", HALF), ("POST", "/v1/"),
]  # fmt: skip


@pytest.mark.parametrize(("verb", "path"), MALFORMED)
def test_malformed_requests(pool: Pool, verb: str, path: str) -> None:
    """400, with the request in the text."""
    answer = ask(pool, verb, path, b"" if verb != "GET" else None)
    assert (answer.status, answer.error) == (400, f"Malformed request: {verb} {path}")


REFUSED: dict[str, tuple[str, str, Any, int, str]] = {
    "no name": ("GET", "/v1/models", None, 400, "Missing model name in request."),
    "a long version": ("POST", f"/v1/models/foo/versions/{'9' * 30}:regress", {}, 400, f"Failed to convert version: {'9' * 30} to numeric."),
    "no such model": ("POST", "/v1/models/foo:predict", {"instances": [1]}, 404, "Servable not found for request: Latest(foo)"),
    "no such version": ("POST", f"{HALF}/versions/50:predict", {"instances": [1]}, 404, "Servable not found for request: Specific(half_plus_two, 50)"),
    "no such label": ("POST", f"{HALF}/labels/x:predict", {"instances": [1]}, 400, "Unrecognized servable version label: x"),
    "no body": ("POST", f"{HALF}:predict", b"", 400, "JSON Parse error: The document is empty"),
    "no JSON": ("POST", f"{HALF}:predict", b"this is not json", 400, "JSON Parse error: Invalid value. at offset: 0"),
    "half a character": ("POST", f"{HALF}:predict", b'{"instances": ["\\ud800"]}', 400, "JSON Parse error: The surrogate pair in string is invalid. at offset: 16"),
    "bytes that are not UTF-8": ("POST", f"{HALF}:predict", b'{"instances": ["\xff"]}', 400, 'JSON Value: "?" Type: String is not of expected type: float'),
    "a name that is not UTF-8": ("POST", f"{EXAMPLES}:classify", b'{"examples": [{"\xff": 1}]}', 400, "Feature: ? has a name that is not UTF-8"),
    "too many dimensions": ("POST", f"{HALF}:predict", b'{"instances": ' + b"[" * 1000 + b"1" + b"]" * 1000 + b"}", 400, "A tensor of 999 dimensions is not supported, only of up to 31"),
    "another type": ("POST", f"{HALF}:predict", {"instances": ["x"]}, 400, "not of expected type: float"),
    "no such signature": ("POST", f"{HALF}:predict", {"signature_name": "s", "instances": [1]}, 400, 'Serving signature name: "s" not found in signature def'),
    "a kernel's refusal": ("POST", "/v1/models/multi_signature:predict", {"instances": [[1, 1]]}, 400, ""),
    "not for regress": ("POST", f"{HALF}:regress", {"examples": X}, 400, "No regression inputs found in SignatureDef: "),
    "no such signature to classify": ("POST", f"{EXAMPLES}:classify", {"signature_name": "s", "examples": X}, 400, "No signature was found with the name: s"),
    "no examples": ("POST", f"{EXAMPLES}:classify", {"context": {}}, 400, "When method is classify, key 'examples' is expected and was not found"),
    "examples are no list": ("POST", f"{EXAMPLES}:classify", {"examples": {}}, 400, "Expecting 'examples' value to be an list/array"),
    "examples are none": ("POST", f"{EXAMPLES}:classify", {"examples": []}, 400, "'examples' value is an empty array"),
    "an example is no object": ("POST", f"{EXAMPLES}:classify", {"examples": [5]}, 400, "Example must be JSON object but got JSON Number"),
    "null in an example": ("POST", f"{EXAMPLES}:classify", {"examples": [{"x": None}]}, 400, "Feature: x has element with unexpected JSON type: Null"),
    "a list in a list": ("POST", f"{EXAMPLES}:classify", {"examples": [{"x": [[1]]}]}, 400, "Feature: x has element with unexpected JSON type: Array"),
    "two types": ("POST", f"{EXAMPLES}:classify", {"examples": [{"x": [1.5, 1]}]}, 400, "Unexpected element type in feature: x expecting type: float"),
    "a large integer": ("POST", f"{EXAMPLES}:classify", {"examples": [{"x": 2**63}]}, 400, "Feature: x has uint64_t element. Only int64_t is supported."),
    "status of none": ("GET", "/v1/models/foo", None, 404, "Could not find any versions of model foo"),
    "status of no version": ("GET", f"{HALF}/versions/7", None, 404, "Could not find version 7 of model half_plus_two"),
    "metadata of none": ("GET", "/v1/models/foo/metadata", None, 404, "Servable not found for request: Latest(foo)"),
    "too large": ("POST", f"{HALF}:predict", b" " * (LIMIT + 1), 429, f"SERVER: Received message larger than max ({LIMIT + 1} vs. {LIMIT})"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_refusals(pool: Pool, case: str) -> None:
    """The status and the text of TensorFlow Serving, as {"error": ...}."""
    verb, path, body, status, text = REFUSED[case]
    answer = ask(pool, verb, path, body)
    assert answer.status == status, answer
    assert text in answer.error


def test_no_refusal_ends_a_worker(pool: Pool) -> None:
    """What clients send wrong is their answer alone: every worker is the one that was started."""
    for case in REFUSED:
        test_refusals(pool, case)
    assert {worker["generation"] for worker in pool.workers().values()} == {1}


@pytest.mark.parametrize("path", [HALF, f"{HALF}/versions/1", f"{HALF}/labels/stable"])
def test_status(pool: Pool, path: str) -> None:
    """As TensorFlow Serving prints GetModelStatus."""
    answer = ask(pool, "GET", path)
    status = {"error_code": "OK", "error_message": ""}
    expected = {"model_version_status": [{"version": "1", "state": "AVAILABLE", "status": status}]}
    assert (answer.status, answer.json) == (200, expected)


def test_metadata(pool: Pool) -> None:
    """As TensorFlow Serving prints GetModelMetadata: every field, under the names of the proto."""
    found = ask(pool, "GET", f"{EXAMPLES}/metadata").json
    assert found["model_spec"] == {"name": "examples_tf1", "signature_name": "", "version": "1"}
    signature = found["metadata"]["signature_def"]["signature_def"]["regress_x_to_y"]
    size = [{"size": "-1", "name": ""}, {"size": "1", "name": ""}]
    output = signature["outputs"]["outputs"]
    assert output["tensor_shape"] == {"dim": size, "unknown_rank": False}
    assert output["dtype"] == "DT_FLOAT"
    assert signature["inputs"]["inputs"]["name"] == "examples:0"
    assert signature["method_name"] == "tensorflow/serving/regress"
    assert signature["defaults"] == {}
    assert ask(pool, "GET", f"{EXAMPLES}/labels/stable/metadata").json == found


@pytest.mark.parametrize(
    ("encoding", "compress"), [("gzip", gzip.compress), ("x-gzip", gzip.compress), ("deflate", zlib.compress)]
)
def test_compressed_requests(pool: Pool, encoding: str, compress: Callable[[bytes], bytes]) -> None:
    """A body may be compressed; one that inflates to more than is allowed, or that is not of the format, is refused."""
    body = json.dumps({"instances": [1.0] * 1000}).encode()
    answer = ask(pool, "POST", f"{HALF}:predict", compress(body), Content_Encoding=encoding)
    assert answer.json == {"predictions": [2.5] * 1000}
    large = compress(b" " * (LIMIT + 1))
    assert ask(pool, "POST", f"{HALF}:predict", large, Content_Encoding=encoding).status == 429
    assert ask(pool, "POST", f"{HALF}:predict", b"not that", Content_Encoding=encoding).status == 400
    assert ask(pool, "POST", f"{HALF}:predict", body, Content_Encoding="br").status == 400


def test_a_body_in_chunks(pool: Pool) -> None:
    """Its length need not be said; it is bounded all the same."""
    connection = http.client.HTTPConnection("127.0.0.1", pool.rest_port, timeout=30)
    pieces = (b'{"instances": [', b"1.0, 2.0", b"]}")
    connection.request("POST", f"{HALF}:predict", iter(pieces), encode_chunked=True)
    assert json.loads(connection.getresponse().read()) == {"predictions": [2.5, 3.0]}
    connection.request("POST", f"{HALF}:predict", (b" " * 65536 for _ in range(20)), encode_chunked=True)
    assert connection.getresponse().status == 429
    connection.close()


def test_one_connection_for_many(pool: Pool) -> None:
    """It is kept open, also after an error."""
    connection = http.client.HTTPConnection("127.0.0.1", pool.rest_port, timeout=30)
    for number in range(20):
        document: Any = {"instances": [number]} if number % 3 else {"instances": "x"}
        connection.request("POST", f"{HALF}:predict", json.dumps(document))
        found = connection.getresponse()
        assert found.status == (200 if number % 3 else 400)
        assert found.read()
    connection.close()


def test_preflight_without_cors(pool: Pool) -> None:
    """OPTIONS is answered by whether there is an Origin; nothing is allowed where it was not asked for."""
    assert ask(pool, "OPTIONS", f"{HALF}:predict", Origin="http://example.com").status == 200
    found = ask(pool, "OPTIONS", f"{HALF}:predict")
    assert found.status == 400
    assert "access-control-allow-origin" not in found.headers


def test_a_client_that_has_gone(pool: Pool) -> None:
    """It is counted as cancelled, and the pool serves on."""
    with socket.create_connection(("127.0.0.1", pool.rest_port)) as client:
        head = f"POST {HALF}:predict HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n"
        client.sendall(head.encode() + b'{"instances": ')
    assert ask(pool, "POST", f"{HALF}:predict", {"instances": [1]}).json == {"predictions": [2.5]}


def test_counted_as_the_same_methods(pool: Pool) -> None:
    """Requests by REST are counted with those by gRPC."""
    ask(pool, "POST", f"{HALF}:predict", {"instances": [1]})
    page = ask(pool, "GET", "/metrics").body.decode()
    assert 'mpspool_requests_total{code="OK",method="Predict",model="half_plus_two",version="1"}' in page


def test_with_batching_and_cors(
    start_pool: PoolStarter, model_dir: Callable[[str], Path], tmp_path: Path
) -> None:
    """Requests by REST share batches, each with its own answer; large ones are run in parts; CORS."""
    more = (
        "batching: {max_batch_size: 64, max_execution_batch_size: 8, enable_large_batch_splitting: true, "
        "batch_timeout_micros: 2000, max_enqueued_batches: 1000}\nrest_cors: true\n"
    )
    pool = start(start_pool, model_dir, tmp_path, ["multi_signature", "examples_tf1"], more)

    def predict(first: int) -> None:
        xs = [[x, x, x] for x in range(first, first + 1 + first % 20)]
        if first % 2:
            found = ask(pool, "POST", "/v1/models/multi_signature:predict", {"instances": xs}).json
            assert found == {"predictions": [{"scaled": [x, 2 * x, 3 * x], "total": 6 * x} for x, _, _ in xs]}
        else:
            found = ask(pool, "POST", "/v1/models/multi_signature:predict", {"inputs": xs}).json
            expected = {"scaled": [[x, 2 * x, 3 * x] for x, _, _ in xs], "total": [6 * x for x, _, _ in xs]}
            assert found == {"outputs": expected}

    def regress(first: int) -> None:
        xs = [float(x) for x in range(first, first + 1 + first % 20)]
        request = {"signature_name": "regress_x_to_y", "examples": [{"x": x} for x in xs]}
        assert ask(pool, "POST", f"{EXAMPLES}:regress", request).json == {"results": [x / 2 + 2 for x in xs]}

    with concurrent.futures.ThreadPoolExecutor(16) as clients:
        for one in [clients.submit(kind, n) for n in range(60) for kind in (predict, regress)]:
            one.result()
    too_many = ask(pool, "POST", "/v1/models/multi_signature:predict", {"instances": [[1, 1, 1]] * 65})
    assert too_many.error == "Task size 65 is larger than maximum input batch size 64"
    assert too_many.headers["access-control-allow-origin"] == "*"
    found = ask(pool, "OPTIONS", "/v1/models/multi_signature:predict", Origin="https://example.com")
    assert found.headers["access-control-allow-methods"] == "POST, GET"
    assert found.headers["access-control-allow-headers"] == "Content-Type"


def test_openapi_promises(pool: Pool, tmp_path: Path) -> None:
    """Schemathesis sends what the document allows and what it does not: no 500, and only what the document promises."""
    document = ask(pool, "GET", "/openapi.json").json
    choices = {"model": [*NAMES, "nobody"], "version": [1, 7], "label": ["stable", "unstable"]}
    for path in document["paths"].values():
        for parameter in path["parameters"]:  # what is here, so that more than names is tried
            parameter["schema"] = {"enum": choices[parameter["name"]]}
        for parameter in path.get("post", {}).get("parameters", ()):
            parameter["schema"]["minimum"] = 30_000  # a 504 would be an error of the server's
    file = tmp_path / "openapi.json"
    file.write_text(json.dumps(document))
    # One thread: of several Python 3.11's own parser may fail with a mismatch of depths.
    options = ["--url", f"http://127.0.0.1:{pool.rest_port}", "--workers", "1", "--max-examples", "10"]
    checks = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance"
    run = subprocess.run(
        [sys.executable, "-m", "schemathesis.cli", "run", file, *options, "--checks", checks, "--seed", "7"],
        check=False,
        capture_output=True,
        text=True,
        timeout=240,
        cwd=tmp_path,
        env={**os.environ, "NO_PROXY": "*"},
    )
    assert run.returncode == 0, run.stdout[-5000:]
