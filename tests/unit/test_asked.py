"""What the router sees of a request before a worker does: its method, model, signature and rows."""

from __future__ import annotations

import math
from typing import Any

import pytest

from mpspool.core import tfs
from mpspool.core.envelope import ModelSpecPeek
from mpspool.core.methods import Method
from mpspool.core.settings import BatchingSettings
from mpspool.router.asked import Asked, rows_of

BATCHING = BatchingSettings(max_batch_size=16, max_execution_batch_size=4)
SPEC = ModelSpecPeek("half", 3, None, "sum")
PREDICT = Asked(Method.PREDICT)


def examples(kind: Any, count: int) -> bytes:
    request = kind()
    target = request.tasks.add() if kind is tfs.MultiInferenceRequest else request
    target.model_spec.name, target.model_spec.signature_name = "half", "sum"
    target.model_spec.version.value = 3
    for _ in range(count):
        request.input.example_list.examples.add()
    return bytes(request.SerializeToString())


KINDS = {
    Method.CLASSIFY: tfs.ClassificationRequest,
    Method.REGRESS: tfs.ClassificationRequest,  # with the same fields as a RegressionRequest
    Method.MULTI_INFERENCE: tfs.MultiInferenceRequest,
}


@pytest.mark.parametrize("method", KINDS)
def test_examples_are_rows(method: Method) -> None:
    """Of gRPC's other methods each example is a row; only what can be put together again goes in parts."""
    body = examples(KINDS[method], 7)
    asked = Asked(method)
    assert asked.spec(body) == asked.spec_at_start(body) == SPEC
    assert asked.examples(body) == rows_of(method, body, 7) == 7
    rows, kind = asked.rows(body, asked.signature(SPEC), BATCHING, 7)
    assert rows == 7
    assert asked.goes_in_parts is (method is not Method.MULTI_INFERENCE)
    assert kind == (f"{method.api} sum", b"", b"")


def _predict(shape: tuple[int, ...], name: str) -> bytes:
    dims = [{"size": size} for size in shape]
    tensor = tfs.TensorProto(dtype=1, tensor_shape={"dim": dims}, tensor_content=bytes(4 * math.prod(shape)))
    return bytes(tfs.PredictRequest(inputs={name: tensor}).SerializeToString())


@pytest.mark.parametrize(("first", "second"), [(5, 7), (7, 5), (5, 5)])
def test_an_input_that_comes_twice_runs_whole(first: int, second: int) -> None:
    """The last one is meant, whatever the first one's rows: by these, the answer would lack some."""
    body = _predict((first,), "x") + _predict((second,), "x")
    assert PREDICT.rows(body, "sum", BATCHING, 0) == (0, ("sum", b"", b""))
    body = _predict((5,), "x") + _predict((5,), "y")
    assert PREDICT.rows(body, "sum", BATCHING, 0)[0] == 5


@pytest.mark.parametrize("other", [(1,), (3,), (4,), (9,), (20,), ()])
def test_what_has_inputs_of_unequal_rows_runs_whole(other: tuple[int, ...]) -> None:
    """Whichever of them a client's map has first: of more rows than are cut, and than a request may have, too."""
    for rows in (5, 17):
        parts = [_predict((rows,), "x"), _predict(other, "y")]
        for body in (b"".join(parts), b"".join(parts[::-1])):
            found, kind = PREDICT.rows(body, "sum", BATCHING, 0)
            assert found <= BATCHING.run_rows
            assert kind == ("sum", b"", b"")


def test_rest_says_whose_it_is_beside_the_body() -> None:
    """In the body its rows are looked at, and its signature; more than run at once stay together, and its worker takes them apart."""
    told = SPEC._replace(signature_name="")
    asked = Asked(Method.REST_PREDICT, told)
    assert asked.spec(b"{") == asked.spec_at_start(b"") == told
    for body in (
        b'{"signature_name": "sum", "instances": [1]}',
        b'{"instances": [1],\n"signature_name" :"sum"}',
    ):
        assert asked.spec(body) == SPEC
    assert asked.rows(b"{", asked.signature(SPEC), BATCHING, 0) == (1, ("REST Predict sum", b"", b""))
    assert asked.rows(b'{"instances": [1, 2, 3]}', asked.signature(SPEC), BATCHING, 0)[0] == 3
    assert asked.rows(b'{"instances": [1, 2, 3, 4, 5]}', asked.signature(SPEC), BATCHING, 0)[0] == 5
    assert not asked.goes_in_parts


def test_a_multi_inference_is_told_apart_by_all_its_tasks() -> None:
    """What cannot be joined with others for its second task keeps none apart that has but the first."""
    asked = Asked(Method.MULTI_INFERENCE)
    request = tfs.MultiInferenceRequest.FromString(examples(tfs.MultiInferenceRequest, 2))
    one = asked.signature(asked.spec(bytes(request.SerializeToString())))
    request.tasks.add().model_spec.name = "half"
    two = asked.signature(asked.spec(bytes(request.SerializeToString())))
    assert (one, two) == ("MultiInference sum", "MultiInference sum, serving_default")
    cut = bytes(request.SerializeToString()) + b"\x0a\x02\x0a\x05"  # a third task that ends too soon
    assert asked.spec(cut) == asked.spec(bytes(request.SerializeToString()))


def test_requests_that_cost_alike_are_told_apart_from_others() -> None:
    """By method and signature: Predict has the plain name of its signature."""
    assert PREDICT.signature(SPEC) == "sum"
    assert PREDICT.signature(SPEC._replace(signature_name="")) == tfs.DEFAULT_SIGNATURE
    names = {Asked(method, SPEC).signature(SPEC) for method in Method}
    assert len(names) == len(Method)


@pytest.mark.parametrize("text", ["s", "\N{GRINNING FACE}"])
def test_what_a_client_makes_up_is_kept_short(text: str) -> None:
    """It is kept for longer than the request's bytes, and told apart all the same."""
    found = set()
    for letter in "ab":
        request = tfs.PredictRequest(output_filter=[letter + 100_000 * text])
        request.model_spec.name, request.model_spec.signature_name = "m", letter + 100_000 * text
        request.inputs["x"].dtype = 1
        request.inputs["x"].tensor_shape.dim.add(size=2)
        body = request.SerializeToString()
        signature = PREDICT.signature(PREDICT.spec(body))
        rows, kind = PREDICT.rows(body, signature, BATCHING, 0)
        assert rows == 2
        assert len(signature) < 1000
        assert all(len(part) < 1000 for part in kind)
        found.add(kind)
    assert len(found) == 2


@pytest.mark.parametrize("method", list(Method))
def test_any_bytes_have_some_rows(method: Method) -> None:
    """What is no request has none, and raises nothing."""
    for body in (b"", b"\xff" * 20, b"\x12\x05"):
        assert rows_of(method, body, Asked(method).examples(body)) in (0, 1)
