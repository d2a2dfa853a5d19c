"""Classify, Regress and MultiInference by the official client against a real pool: TensorFlow Serving's answers and errors."""

from __future__ import annotations

import urllib.request
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest

from mpspool.core import tfs
from tests.conftest import PoolStarter
from tests.pool import Pool, cli

NAMES = ["examples", "examples_tf1"]
INVALID, NOT_FOUND = grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.NOT_FOUND


@pytest.fixture(scope="module")
def apis() -> Any:
    """The stock client's modules."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from tensorflow_serving.apis import (
            classification_pb2,
            inference_pb2,
            prediction_service_pb2_grpc,
            regression_pb2,
        )

    class Apis:
        classify = classification_pb2.ClassificationRequest
        regress = regression_pb2.RegressionRequest
        multi = inference_pb2.MultiInferenceRequest
        service = prediction_service_pb2_grpc

    return Apis


def start(
    start_pool: PoolStarter,
    model_dir: Callable[[str], Path],
    folder: Path,
    names: Sequence[str],
    more: str = "",
) -> Pool:
    config = folder / "pool.yaml"
    lines = [f"  - {{name: {name}, base_path: {model_dir(name)}, cpu_slots: 1}}" for name in names]
    config.write_text("models:\n" + "\n".join(lines) + f"\n{more}")
    return start_pool(config).wait()


@pytest.fixture(scope="module")
def pool(
    start_module_pool: PoolStarter,
    model_dir: Callable[[str], Path],
    tmp_path_factory: pytest.TempPathFactory,
) -> Pool:
    return start(start_module_pool, model_dir, tmp_path_factory.mktemp("config"), NAMES)


@pytest.fixture(scope="module")
def stub(pool: Pool, apis: Any) -> Iterator[Any]:
    with grpc.insecure_channel(pool.address) as channel:
        yield apis.service.PredictionServiceStub(channel)


def fill(example: Any, x: float | None = None, x2: float | None = None, words: Sequence[bytes] = ()) -> None:
    features = example.features.feature
    if x is not None:
        features["x"].float_list.value.append(x)
    if x2 is not None:
        features["x2"].float_list.value.append(x2)
    if words:
        features["words"].bytes_list.value.extend(words)


def ask(kind: Any, signature: str, *xs: float, model: str = "examples") -> Any:
    """A request of examples with these x, and x2 ten times as much."""
    made = kind()
    made.model_spec.name = model
    made.model_spec.signature_name = signature
    for x in xs:
        fill(made.input.example_list.examples.add(), x, 10 * x)
    return made


def metrics(pool: Pool) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{pool.rest_port}/metrics", timeout=10) as answer:
        text: str = answer.read().decode()
    return text


def refused(call: Callable[..., Any], request: Any) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.RpcError) as caught:
        call(request, timeout=10)
    error: Any = caught.value
    return error.code(), error.details()


@pytest.mark.parametrize("model", NAMES)
def test_regress(stub: Any, apis: Any, model: str) -> None:
    """One value for each example, of an output of one dimension or with a second of size one; the model_spec that was used."""
    answer = stub.Regress(ask(apis.regress, "regress_x_to_y", 1, 2, 5, model=model), timeout=10)
    assert [one.value for one in answer.result.regressions] == [2.5, 3, 4.5]
    spec = answer.model_spec
    assert (spec.name, spec.version.value, spec.signature_name) == (model, 1, "regress_x_to_y")
    answer = stub.Regress(ask(apis.regress, "regress_x2_to_y3", 1, 2, model=model), timeout=10)
    assert [one.value for one in answer.result.regressions] == [8, 13]


@pytest.mark.parametrize("model", NAMES)
def test_classify(stub: Any, apis: Any, model: str) -> None:
    """Labels and scores, scores alone, labels alone."""

    def classes(signature: str) -> list[list[tuple[str, float]]]:
        answer = stub.Classify(ask(apis.classify, signature, 1, 2, model=model), timeout=10)
        assert answer.model_spec.signature_name == signature
        found = answer.result.classifications
        return [[(one.label, one.score) for one in entry.classes] for entry in found]

    assert classes("classify_both") == [[("low", 2.5), ("high", 8)], [("low", 3), ("high", 13)]]
    assert classes("classify_x_to_y") == [[("", 2.5)], [("", 3)]]
    assert classes("classify_words") == [[("low", 0), ("high", 0)]] * 2


@pytest.mark.parametrize("model", NAMES)
def test_a_context_goes_with_each_example(stub: Any, apis: Any, model: str) -> None:
    """A feature of the context holds for every example that has none of its own; there need be none."""
    made = apis.classify()
    made.model_spec.name, made.model_spec.signature_name = model, "classify_both"
    given = made.input.example_list_with_context
    fill(given.context, 1, 10, [b"no", b"yes"])
    fill(given.examples.add())
    fill(given.examples.add(), x=4)
    fill(given.examples.add(), words=[b"nein", b"ja"])
    answer = stub.Classify(made, timeout=10).result.classifications
    assert [[(one.label, one.score) for one in entry.classes] for entry in answer] == [
        [("no", 2.5), ("yes", 8)],
        [("no", 4), ("yes", 8)],
        [("nein", 2.5), ("ja", 8)],
    ]
    given.ClearField("context")
    del given.examples[2], given.examples[0]
    (entry,) = stub.Classify(made, timeout=10).result.classifications
    assert [(one.label, one.score) for one in entry.classes] == [("low", 4), ("high", 3)]


@pytest.mark.parametrize("model", NAMES)
def test_multi_inference(stub: Any, apis: Any, model: str) -> None:
    """Every task's result in the order asked, each with its own model_spec."""
    made = apis.multi()
    tasks = {"regress_x_to_y": "regress", "classify_both": "classify", "regress_x2_to_y3": "regress"}
    for signature, method in tasks.items():
        task = made.tasks.add(method_name=f"tensorflow/serving/{method}")
        task.model_spec.name, task.model_spec.signature_name = model, signature
    for x in (1, 2):
        fill(made.input.example_list.examples.add(), x, 10 * x)
    first, second, third = stub.MultiInference(made, timeout=10).results
    specs = [one.model_spec for one in (first, second, third)]
    assert [(one.name, one.version.value, one.signature_name) for one in specs] == [
        (model, 1, name) for name in tasks
    ]
    assert [one.value for one in first.regression_result.regressions] == [2.5, 3]
    found = second.classification_result.classifications
    assert [[(one.label, one.score) for one in entry.classes] for entry in found] == [
        [("low", 2.5), ("high", 8)],
        [("low", 3), ("high", 13)],
    ]
    assert [one.value for one in third.regression_result.regressions] == [8, 13]


# By signature: what Regress and Classify say, cut to what stands first where a SignatureDef follows.
REFUSED = {
    ("Regress", "nope"): "No signature was found with the name: nope",
    ("Regress", "classify_x_to_y"): "No regression outputs found in SignatureDef: ",
    ("Regress", "classify_both"): "Expected one output Tensor.",
    ("Regress", ""): "No regression inputs found in SignatureDef: ",
    ("Regress", "wrong_type"): "Expected output Tensor of DT_FLOAT.  Got: DT_DOUBLE",
    ("Regress", "one_row_less"): "Input batch size did not match output batch size: 2 vs. 1",
    ("Regress", "floats"): "Expects arg[0] to be float but string is provided",
    ("Classify", "nope"): "No signature was found with the name: nope",
    ("Classify", "regress_x_to_y"): "Expected classification signature outputs to contain at least one of "
    '"classes" or "scores". Signature was: ',
    ("Classify", "other_outputs"): "Expected classification signature outputs to contain at least one of "
    '"classes" or "scores". Signature was: ',
    ("Classify", "three_outputs"): "Expected one or two output Tensors, found 3",
    ("Classify", ""): "No classification inputs found in SignatureDef: ",
    ("Classify", "wrong_rank"): "Expected Tensor shape: [batch_size num_classes] but got [2,2,1]",
    ("Classify", "wrong_classes"): "Expected classes Tensor of DT_STRING. Got: DT_FLOAT",
    ("Classify", "uneven"): "Tensors class and score should match in dim_size(1). Got 2 vs. 1",
}


@pytest.mark.parametrize("model", NAMES)
@pytest.mark.parametrize(("method", "signature"), REFUSED)
def test_what_is_refused(stub: Any, apis: Any, model: str, method: str, signature: str) -> None:
    """INVALID_ARGUMENT in TensorFlow Serving's words."""
    request = ask(getattr(apis, method.lower()), signature, 1, 2, model=model)
    code, text = refused(getattr(stub, method), request)
    assert code is INVALID
    expected = REFUSED[method, signature]
    assert text.startswith(expected) if expected.endswith(": ") else text == expected


@pytest.mark.parametrize("method", ["Classify", "Regress"])
def test_requests_that_lack_something(stub: Any, apis: Any, method: str) -> None:
    """No model_spec, no name, no such model or version, no examples, an example without what it must have."""
    kind, call = getattr(apis, method.lower()), getattr(stub, method)
    signature = {"Classify": "classify_x_to_y", "Regress": "regress_x_to_y"}[method]
    assert refused(call, kind()) == (INVALID, "Missing ModelSpec")
    nameless = ask(kind, signature, 1, model="")
    assert refused(call, nameless) == (INVALID, "ModelSpec has no name specified.")
    unknown = ask(kind, signature, 1, model="nobody")
    assert refused(call, unknown) == (NOT_FOUND, "Servable not found for request: Latest(nobody)")
    old = ask(kind, signature, 1)
    old.model_spec.version.value = 7
    assert refused(call, old) == (NOT_FOUND, "Servable not found for request: Specific(examples, 7)")
    assert refused(call, ask(kind, signature)) == (INVALID, "Input is empty.")
    for which in ("example_list", "example_list_with_context"):
        empty = ask(kind, signature)
        getattr(empty.input, which).SetInParent()
        assert refused(call, empty) == (INVALID, "Input is empty.")
    fill(empty.input.example_list_with_context.context, 1)
    assert refused(call, empty) == (INVALID, "Input is empty.")
    partial = ask(kind, signature)
    fill(partial.input.example_list.examples.add(), x2=1)
    code, text = refused(call, partial)
    assert code is INVALID
    assert "x" in text


def test_multi_inference_refuses(stub: Any, apis: Any) -> None:
    """What TensorFlow Serving refuses of tasks, in its words."""

    def asked(*tasks: tuple[str, str, str], xs: Sequence[float] = (1,)) -> tuple[grpc.StatusCode, str]:
        made = apis.multi()
        for model, signature, method in tasks:
            task = made.tasks.add(method_name=method)
            task.model_spec.name, task.model_spec.signature_name = model, signature
        for x in xs:
            fill(made.input.example_list.examples.add(), x)
        return refused(stub.MultiInference, made)

    regress, classify = "tensorflow/serving/regress", "tensorflow/serving/classify"
    right = ("examples", "regress_x_to_y", regress)
    assert asked() == (INVALID, "ModelSpec has no name specified.")
    assert asked(("", "x", regress)) == (INVALID, "ModelSpec has no name specified.")
    assert asked(right, ("", "x", regress)) == (INVALID, "Found ModelSpec with an empty model name.")
    other = ("examples_tf1", "regress_x_to_y", regress)
    text = "All ModelSpecs in a MultiInferenceRequest must access the same model name."
    assert asked(right, other) == (INVALID, text)
    assert asked(right, right) == (INVALID, "Duplicate evaluation of signature: regress_x_to_y")
    text = "Requested signature not found in model graph: nope"
    assert asked(right, ("examples", "nope", regress)) == (INVALID, text)
    text = "Unsupported signature method_name: tensorflow/serving/predict"
    unsupported = ("examples", "classify_both", "tensorflow/serving/predict")
    assert asked(right, unsupported) == (grpc.StatusCode.UNIMPLEMENTED, text)
    wrong = ("examples", "classify_both", regress)
    assert asked(right, wrong) == (INVALID, "Expected one output Tensor.")
    assert asked(right, xs=()) == (INVALID, "Input is empty.")
    assert asked(("nobody", "x", classify))[0] is NOT_FOUND
    # Task by task: of several that are wrong the first is told, and the examples are looked at last.
    nameless, nowhere = ("", "regress_x_to_y", regress), ("examples", "nope", regress)
    assert asked(right, nowhere, nameless)[1] == "Requested signature not found in model graph: nope"
    assert asked(right, nameless, nowhere)[1] == "Found ModelSpec with an empty model name."
    assert asked(right, right, other)[1] == "Duplicate evaluation of signature: regress_x_to_y"
    assert asked(unsupported, other)[0] is grpc.StatusCode.UNIMPLEMENTED
    assert asked(wrong, nowhere, xs=())[1] == "Expected one output Tensor."
    assert asked(right, nowhere, xs=())[1] == "Requested signature not found in model graph: nope"
    assert asked(right, (*right[:2], ""))[1] == "Duplicate evaluation of signature: regress_x_to_y"


@pytest.mark.parametrize("model", NAMES)
def test_batches(
    start_pool: PoolStarter, model_dir: Callable[[str], Path], tmp_path: Path, apis: Any, model: str
) -> None:
    """With batching each gets its own answer: of one example or many, of more than run at once, beside others' Predict."""
    batching = (
        "batching: {max_batch_size: 64, max_execution_batch_size: 8, enable_large_batch_splitting: true, "
        "batch_timeout_micros: 2000, max_enqueued_batches: 1000}\n"
    )
    pool = start(start_pool, model_dir, tmp_path, [model], batching)
    with grpc.insecure_channel(pool.address) as channel, ThreadPoolExecutor(16) as clients:
        stub = apis.service.PredictionServiceStub(channel)

        def regress(first: int) -> None:
            xs = range(first, first + 1 + first % 20)
            answer = stub.Regress(ask(apis.regress, "regress_x_to_y", *xs, model=model), timeout=30)
            assert [one.value for one in answer.result.regressions] == [x / 2 + 2 for x in xs]

        def classify(first: int) -> None:
            xs = range(first, first + 1 + first % 20)
            answer = stub.Classify(ask(apis.classify, "classify_both", *xs, model=model), timeout=30)
            found = [[one.score for one in entry.classes] for entry in answer.result.classifications]
            assert found == [[x / 2 + 2, x * 5 + 3] for x in xs]

        def multi(first: int) -> None:
            made = apis.multi()
            signatures = ["regress_x_to_y", "regress_x2_to_y3"][: 1 + first % 2]
            for signature in signatures:
                task = made.tasks.add(method_name="tensorflow/serving/regress")
                task.model_spec.name, task.model_spec.signature_name = model, signature
            xs = range(first, first + 1 + first % 20)
            for x in xs:
                fill(made.input.example_list.examples.add(), x, 10 * x)
            results = stub.MultiInference(made, timeout=30).results
            found = [[entry.value for entry in one.regression_result.regressions] for one in results]
            assert found == [[x / 2 + 2 for x in xs], [x * 5 + 3 for x in xs]][: len(signatures)]

        def both(first: int) -> None:
            made = apis.multi()
            for method, signature in (("classify", "classify_both"), ("regress", "regress_x_to_y")):
                task = made.tasks.add(method_name=f"tensorflow/serving/{method}")
                task.model_spec.name, task.model_spec.signature_name = model, signature
            xs = range(first, first + 1 + first % 20)
            for x in xs:
                fill(made.input.example_list.examples.add(), x, 10 * x)
            classified, regressed = stub.MultiInference(made, timeout=30).results
            scores = [entry.classes[0].score for entry in classified.classification_result.classifications]
            assert scores == [x / 2 + 2 for x in xs]
            assert [one.value for one in regressed.regression_result.regressions] == [x / 2 + 2 for x in xs]

        kinds = (regress, classify, multi, both)
        waiting = [clients.submit(kind, n) for n in range(60) for kind in kinds]
        for one in waiting:
            one.result()
        too_many = ask(apis.regress, "regress_x_to_y", *range(65), model=model)
        text = "Task size 65 is larger than maximum input batch size 64"
        assert refused(stub.Regress, too_many) == (INVALID, text)
    joined, runs = (
        float(line.rpartition(" ")[2])
        for name in ("sum", "count")
        for line in metrics(pool).splitlines()
        if line.startswith(f"mpspool_batch_requests_{name}")
    )
    assert joined > runs


@pytest.mark.parametrize("method", ["Classify", "Regress", "MultiInference"])
def test_counted_by_method(pool: Pool, stub: Any, apis: Any, method: str) -> None:
    """Each method's answers are counted under its name."""
    if method == "MultiInference":
        made = apis.multi()
        task = made.tasks.add(method_name="tensorflow/serving/regress")
        task.model_spec.name, task.model_spec.signature_name = "examples", "regress_x_to_y"
        fill(made.input.example_list.examples.add(), 1)
    else:
        signature = {"Classify": "classify_x_to_y", "Regress": "regress_x_to_y"}[method]
        made = ask(getattr(apis, method.lower()), signature, 1)
    getattr(stub, method)(made, timeout=10)
    labels = f'code="OK",method="{method}",model="examples",version="1"'
    assert f"mpspool_requests_total{{{labels}}}" in metrics(pool)


def test_captured(pool: Pool, stub: Any, apis: Any, tmp_path: Path) -> None:
    """`mpspool capture` keeps requests of every method, as TensorFlow Serving's warm-up file has them."""
    file = tmp_path / "requests"
    command = ("capture", "examples_tf1", "--count", 6, "--output", file, "--run-dir", pool.run_dir)
    multi = apis.multi()
    task = multi.tasks.add(method_name="tensorflow/serving/regress")
    task.model_spec.name, task.model_spec.signature_name = "examples_tf1", "regress_x_to_y"
    task.model_spec.version.value = 1
    fill(multi.input.example_list.examples.add(), 1)
    with ThreadPoolExecutor(1) as beside:
        done = beside.submit(cli, *command)
        while not done.done():
            stub.Classify(ask(apis.classify, "classify_both", 1, model="examples_tf1"), timeout=10)
            stub.Regress(ask(apis.regress, "regress_x_to_y", 1, model="examples_tf1"), timeout=10)
            stub.MultiInference(multi, timeout=10)
    assert done.result().returncode == 0, done.result().stderr
    entries = [tfs.PredictionLog.FromString(record) for record in records(file.read_bytes())]
    kinds = [entry.WhichOneof("log_type") for entry in entries]
    assert {kind: kinds.count(kind) for kind in kinds} == {
        "classify_log": 2,
        "regress_log": 2,
        "multi_inference_log": 2,
    }
    (found, *_) = [entry for entry in entries if entry.WhichOneof("log_type") == "multi_inference_log"]
    assert not found.multi_inference_log.request.tasks[0].model_spec.HasField("version")


def records(data: bytes) -> Iterator[bytes]:
    """Of a TFRecord file: length, its checksum, the record, its checksum."""
    while data:
        size = int.from_bytes(data[:8], "little")
        yield data[12 : 12 + size]
        data = data[16 + size :]
