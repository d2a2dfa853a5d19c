"""The results of Classify and Regress, made of outputs of any kind (servables/tensorflow/classifier_test.cc, regressor_test.cc)."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpspool.core import tfs
from mpspool.core.errors import Code, PoolError
from mpspool.core.ids import ModelVersion
from mpspool.core.methods import Method
from mpspool.worker import varints
from mpspool.worker.engine.base import Array, Signature, TensorSpec
from mpspool.worker.examples.tasks import CLASSIFY, REGRESS, Classification, Regression
from mpspool.worker.plan import Rules
from mpspool.worker.predict import Predictor
from tests.fakes.engine import FakeEngine, predict

LABELS = np.array([[b"dos", b"uno"], [b"cuatro", b"tres"]], object)
SCORES = np.float32([[2, 1], [4, 0]])


def definition(*outputs: str, inputs: tuple[str, ...] = ("inputs",)) -> Any:
    made = tfs.SignatureDef()
    for alias in inputs:
        made.inputs[alias].name = f"{alias}:0"
    for alias in outputs:
        made.outputs[alias].name = f"{alias}:0"
    return made


def classified(outputs: dict[str, Array], count: int = 2) -> list[list[tuple[str, float]]]:
    task = Classification(definition(*outputs))
    result = b"".join(task.entries([outputs[alias] for alias in task.aliases], count))
    found = tfs.ClassificationResult.FromString(result).classifications
    return [[(one.label, one.score) for one in entry.classes] for entry in found]


def test_labels_and_scores() -> None:
    """Both, or one of them, in the signature's own order or not; a score of 0 is one."""
    both = [[("dos", 2), ("uno", 1)], [("cuatro", 4), ("tres", 0)]]
    assert classified({"scores": SCORES, "classes": LABELS}) == both
    assert classified({"classes": LABELS}) == [[(name, 0) for name, _ in row] for row in both]
    assert classified({"scores": SCORES}) == [[("", score) for _, score in row] for row in both]
    assert classified({"scores": np.zeros((2, 0), np.float32)}) == [[], []]


WRONG = {
    "scores of fewer examples": ({"scores": SCORES[:1]}, "Expected scores output batch size of 2. Got: 1"),
    "classes of more examples": (
        {"classes": np.concatenate([LABELS, LABELS])},
        "Expected classes output batch size of 2. Got: 4",
    ),
    "scores of another type": (
        {"scores": SCORES.astype(np.float64)},
        "Expected scores Tensor of DT_FLOAT. Got: DT_DOUBLE",
    ),
    "classes of another type": ({"classes": SCORES}, "Expected classes Tensor of DT_STRING. Got: DT_FLOAT"),
    "scores without classes": (
        {"scores": SCORES[:, 0]},
        "Expected Tensor shape: [batch_size num_classes] but got [2]",
    ),
    "as many scores as labels": (
        {"classes": LABELS, "scores": SCORES[:, :1]},
        "Tensors class and score should match in dim_size(1). Got 2 vs. 1",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_outputs_that_are_not_as_they_have_to_be(case: str) -> None:
    """INVALID_ARGUMENT, in TensorFlow Serving's words."""
    outputs, text = WRONG[case]
    with pytest.raises(PoolError) as caught:
        classified(outputs)
    assert (caught.value.code, caught.value.message) == (Code.INVALID_ARGUMENT, text)


@given(
    st.lists(
        st.lists(
            st.tuples(st.text(max_size=300), st.floats(width=32, allow_nan=False)), min_size=2, max_size=2
        )
    )
)
def test_what_is_written_is_what_protobuf_reads(rows: list[list[tuple[str, float]]]) -> None:
    """Labels of any length, scores of any size."""
    labels = np.empty((len(rows), 2), object)
    labels[:] = [[name.encode("utf-8", "replace") for name, _ in row] for row in rows] or np.empty((0, 2))
    scores = np.array([[score for _, score in row] for row in rows], np.float32).reshape(-1, 2)
    expected = [[(name.encode("utf-8", "replace").decode(), score) for name, score in row] for row in rows]
    assert classified({"classes": labels, "scores": scores}, len(rows)) == expected


@given(st.lists(st.floats(width=32, allow_nan=False)))
def test_regressions(values: list[float]) -> None:
    """A value for each example, of a vector or a column."""
    task = Regression(definition("outputs"))
    for shape in ((-1,), (-1, 1)):
        array = np.array(values, np.float32).reshape(shape)
        found = tfs.RegressionResponse.FromString(
            b"\x0a" + _size(len(values) * 7) + b"".join(task.entries([array], len(values)))
        )
        assert [one.value for one in found.result.regressions] == values


def _size(number: int) -> bytes:
    return varints.one(number)


@pytest.mark.parametrize(
    ("array", "text"),
    [
        (np.zeros((2, 2), np.float32), "either [batch_size] or [batch_size, 1] but got [2,2]"),
        (np.float32(1), "either [batch_size] or [batch_size, 1] but got []"),
        (np.zeros(3, np.float32), "Input batch size did not match output batch size: 2 vs. 3"),
        (np.zeros(2, np.int32), "Expected output Tensor of DT_FLOAT.  Got: DT_INT32"),
    ],
)
def test_regressions_that_are_none(array: Any, text: str) -> None:
    """INVALID_ARGUMENT, in TensorFlow Serving's words."""
    with pytest.raises(PoolError) as caught:
        Regression(definition("outputs")).entries([np.asarray(array)], 2)
    assert caught.value.message.endswith(text)


@pytest.mark.parametrize(
    ("kind", "made", "text"),
    [
        (Classification, definition("scores", inputs=("a", "b")), "Expected one input Tensor."),
        (
            Classification,
            definition("scores", inputs=("x",)),
            "No classification inputs found in SignatureDef",
        ),
        (Classification, definition(), "Expected one or two output Tensors, found 0"),
        (
            Classification,
            definition("y"),
            "Expected classification signature outputs to contain at least one",
        ),
        (Regression, definition("outputs", inputs=()), "Expected one input Tensor."),
        (Regression, definition("outputs", inputs=("x",)), "No regression inputs found in SignatureDef"),
        (Regression, definition("outputs", "more"), "Expected one output Tensor."),
        (Regression, definition("y"), "No regression outputs found in SignatureDef"),
    ],
)
def test_signatures_for_something_else(kind: Any, made: Any, text: str) -> None:
    """Each is told what it lacks, in TensorFlow Serving's words and order."""
    with pytest.raises(PoolError) as caught:
        kind(made)
    assert caught.value.message.startswith(text)


NATIVE = "tensorflow/serving/predict"
SIGNATURES = {CLASSIFY: {"scores": np.float32([[1, 2]])}, REGRESS: {"outputs": np.float32([3])}}
STRING, FLOAT = 7, 1


def asked(method: str, method_name: str, *, check: bool, multi: bool = False) -> PoolError | None:
    """How a signature with such a method_name takes a request by this method."""
    outputs = SIGNATURES[method]
    signature = Signature(
        name="serving_default",
        method_name=method_name,
        inputs={"inputs": TensorSpec(STRING, None)},
        outputs={alias: TensorSpec(FLOAT, None) for alias in outputs},
        defaults={},
    )
    engine = FakeEngine([signature], lambda _: outputs)
    predictor = Predictor(engine, ModelVersion("m", 1), Rules(check_method_names=check))
    if multi:
        by, request = Method.MULTI_INFERENCE, tfs.MultiInferenceRequest()
        request.tasks.add(method_name=method).model_spec.name = "m"
    else:
        by, request = Method.CLASSIFY if method == CLASSIFY else Method.REGRESS, tfs.ClassificationRequest()
        request.model_spec.name = "m"
    request.input.example_list.examples.add()
    try:
        predict(predictor, request.SerializeToString(), by)
    except PoolError as error:
        return error
    return None


@pytest.mark.parametrize("multi", [False, True])
@pytest.mark.parametrize(("method", "kind"), [(CLASSIFY, "classification"), (REGRESS, "regression")])
def test_method_names(method: str, kind: str, multi: bool) -> None:
    """A signature of any method may be asked, and where method names are looked at only one of the request's own."""
    assert asked(method, NATIVE, check=False, multi=multi) is None
    assert asked(method, method, check=True, multi=multi) is None
    error = asked(method, NATIVE, check=True, multi=multi)
    assert error is not None
    assert (error.code, error.message) == (
        Code.INVALID_ARGUMENT,
        f"Expected {kind} signature method_name to be {method}. Was: {NATIVE}",
    )


def test_a_long_context_before_many_examples_is_refused() -> None:
    """A hundred kilobytes would be hundreds of megabytes; by gRPC and by REST."""
    outputs = {"scores": TensorSpec(1, (None, None))}
    signature = Signature("serving_default", "", {"inputs": TensorSpec(7, (None,))}, outputs, {})
    predictor = Predictor(FakeEngine([signature], lambda _: {}), ModelVersion("m", 1))
    request = tfs.ClassificationRequest()
    request.model_spec.name = "m"
    given = request.input.example_list_with_context
    given.context.features.feature["a"].bytes_list.value.append(bytes(50_000))
    for _ in range(10_000):
        given.examples.add()
    context = {"a": "x" * 50_000}
    rest = json.dumps({"context": context, "examples": [{}] * 10_000}).encode()
    for method, body in ((Method.CLASSIFY, request.SerializeToString()), (Method.REST_CLASSIFY, rest)):
        with pytest.raises(PoolError, match="bytes before each of 10000 examples") as caught:
            predictor.read(body, method)
        assert caught.value.code is Code.RESOURCE_EXHAUSTED
