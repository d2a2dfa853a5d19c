"""A Predict call from bytes to bytes, with an engine that answers what it is told to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from mpspool.core import tfs
from mpspool.core.errors import Code, PoolError
from mpspool.core.ids import ModelVersion
from mpspool.worker.engine.base import Array, Signature, TensorSpec
from mpspool.worker.plan import TENSORFLOW_SERVINGS, Rules
from mpspool.worker.predict import Predictor
from tests import tensors
from tests.fakes.engine import FakeEngine, predict

MODEL = ModelVersion("half", 7)
FLOAT, INT64, STRING, BOOL = 1, 9, 7, 10


def _signature(
    name: str = "serving_default",
    inputs: Mapping[str, int] = {"x": FLOAT},
    outputs: Mapping[str, int] = {"y": FLOAT},
    defaults: Mapping[str, Array] = {},
    method_name: str = "tensorflow/serving/predict",
) -> Signature:
    return Signature(
        name=name,
        method_name=method_name,
        inputs={alias: TensorSpec(number, None) for alias, number in inputs.items()},
        outputs={alias: TensorSpec(number, None) for alias, number in outputs.items()},
        defaults=defaults,
    )


def _half(inputs: Mapping[str, Array]) -> Mapping[str, Array]:
    return {"y": inputs["x"] / 2 + 2}


HALF = FakeEngine([_signature()], _half)


def _predict(engine: FakeEngine, body: bytes, rules: Rules = TENSORFLOW_SERVINGS) -> bytes:
    return predict(Predictor(engine, MODEL, rules), body)


def _body(
    inputs: Mapping[str, Any], *, signature: str = "", outputs: tuple[str, ...] = (), name: str = "half"
) -> bytes:
    request = tfs.PredictRequest(output_filter=outputs)
    request.model_spec.name = name
    request.model_spec.signature_name = signature
    for alias, array in inputs.items():
        request.inputs[alias].ParseFromString(tensors.encode(np.asarray(array)))
    return bytes(request.SerializeToString())


def _f32(*values: float) -> Array:
    return np.array(values, np.float32)


def _refused(engine: FakeEngine, body: bytes) -> tuple[Code, str]:
    calls = len(engine.calls)
    with pytest.raises(PoolError) as raised:
        _predict(engine, body)
    assert len(engine.calls) == calls, "a refused request reached the engine"
    return raised.value.code, raised.value.message


def test_answers_as_tensorflow_serving_does() -> None:
    """The response has the outputs in typed lists and the model_spec that was run."""
    body = _predict(HALF, _body({"x": _f32(1, 2)}))
    response = tfs.PredictResponse.FromString(body)
    assert list(response.outputs) == ["y"]
    output = response.outputs["y"]
    assert (output.dtype, [dim.size for dim in output.tensor_shape.dim]) == (FLOAT, [2])
    assert (list(output.float_val), output.tensor_content) == ([2.5, 3.0], b"")
    spec = response.model_spec
    assert (spec.name, spec.version.value, spec.signature_name) == ("half", 7, "serving_default")
    assert response.SerializeToString(deterministic=True) == body


@pytest.mark.parametrize("shape", [(), (0,), (0, 3), (1,), (2, 3), (300, 200)])
def test_shapes_pass_through(shape: tuple[int, ...]) -> None:
    """Scalars, zero batches, which are no error, and large tensors come back in their shape."""
    body = _predict(HALF, _body({"x": np.ones(shape, np.float32)}))
    output = tensors.decode(tfs.PredictResponse.FromString(body).outputs["y"].SerializeToString())
    assert output.shape == shape
    assert np.array_equal(output, np.full(shape, 2.5, np.float32))


def test_each_signature_is_served_by_name() -> None:
    """The empty name means serving_default; another is run under its own."""
    engine = FakeEngine([_signature(), _signature("sum")], lambda inputs: {"y": inputs["x"]})
    for name, run in (("", "serving_default"), ("serving_default", "serving_default"), ("sum", "sum")):
        body = _predict(engine, _body({"x": _f32(1)}, signature=name))
        assert engine.calls[-1][0] == run
        assert tfs.PredictResponse.FromString(body).model_spec.signature_name == run


def test_output_filter_chooses_the_outputs() -> None:
    """Only what is asked for is run and returned; nothing asked for is everything."""
    engine = FakeEngine(
        [_signature(outputs={"a": FLOAT, "b": STRING, "c": INT64})],
        lambda inputs: {"a": inputs["x"], "b": np.array([b"b"], object), "c": np.array([-3])},
    )
    for wanted in ((), ("b",), ("c", "a")):
        body = _predict(engine, _body({"x": _f32(1)}, outputs=wanted))
        assert set(tfs.PredictResponse.FromString(body).outputs) == set(wanted or ("a", "b", "c"))
        assert engine.calls[-1][2] == (wanted or ("a", "b", "c"))
    outputs = tfs.PredictResponse.FromString(_predict(engine, _body({"x": _f32(1)}))).outputs
    assert (list(outputs["b"].string_val), list(outputs["c"].int64_val)) == ([b"b"], [-3])


def test_outputs_have_the_type_of_the_signature() -> None:
    """A quantized output, which the engine hands over as integers, is sent as what it is."""
    engine = FakeEngine([_signature(outputs={"y": 11})], lambda _: {"y": np.array([-5], np.int8)})
    output = tfs.PredictResponse.FromString(_predict(engine, _body({"x": _f32(1)}))).outputs["y"]
    assert (output.dtype, list(output.int_val)) == (11, [-5])


def test_defaults_stand_in_for_what_is_left_out() -> None:
    """An input with a default may be left out, and may be given."""
    engine = FakeEngine(
        [_signature(inputs={"x": FLOAT, "k": FLOAT}, defaults={"k": _f32(10)})],
        lambda inputs: {"y": inputs["x"] * inputs["k"]},
    )
    for given, expected in (({"x": _f32(2)}, 20), ({"x": _f32(2), "k": _f32(3)}, 6)):
        response = tfs.PredictResponse.FromString(_predict(engine, _body(given)))
        assert list(response.outputs["y"].float_val) == [expected]


def test_values_in_tensor_content() -> None:
    """Where the pool says so, of every type."""
    outputs = {"a": np.array([1.5], np.float32), "b": np.array([b"b", b""], object), "c": np.array([-3])}
    engine = FakeEngine([_signature(outputs={"a": FLOAT, "b": STRING, "c": INT64})], lambda _: outputs)
    body = _predict(engine, _body({"x": _f32(1)}), Rules(tensor_content=True))
    found = tfs.PredictResponse.FromString(body).outputs
    assert {alias: found[alias].tensor_content for alias in outputs} == {
        "a": outputs["a"].tobytes(),
        "b": b"\x01\x00b",
        "c": outputs["c"].tobytes(),
    }
    assert not any((found["a"].float_val, found["b"].string_val, found["c"].int64_val))


def test_method_names() -> None:
    """Predict takes signatures of any method, and where method names are looked at only those of TensorFlow Serving's."""
    names = [f"tensorflow/serving/{method}" for method in ("predict", "classify", "regress")]
    for name in names:
        engine = FakeEngine([_signature(method_name=name)], _half)
        _predict(engine, _body({"x": _f32(1)}), Rules(check_method_names=True))
    odd = FakeEngine([_signature(method_name="odd")], _half)
    _predict(odd, _body({"x": _f32(1)}))
    with pytest.raises(PoolError) as raised:
        _predict(odd, _body({"x": _f32(1)}), Rules(check_method_names=True))
    assert (raised.value.code, raised.value.message) == (
        Code.INTERNAL,
        f"Expected prediction signature method_name to be one of {{{', '.join(names)}}}. Was: odd",
    )


def test_unknown_signature() -> None:
    """A signature that is not there is FAILED_PRECONDITION, in TensorFlow Serving's words."""
    assert _refused(HALF, _body({"x": _f32(1)}, signature="nope")) == (
        Code.FAILED_PRECONDITION,
        'Serving signature key "nope" not found.',
    )


TWO = FakeEngine([_signature(inputs={"b": FLOAT, "a": FLOAT})], lambda inputs: {"y": inputs["a"]})
WITH_DEFAULT = FakeEngine(
    [_signature(inputs={"x": FLOAT, "k": FLOAT, "m": FLOAT}, defaults={"k": _f32(1), "m": _f32(1)})],
    lambda inputs: {"y": inputs["x"]},
)


@pytest.mark.parametrize(
    ("engine", "aliases", "message"),
    [
        (
            HALF,
            [],
            (
                "input size does not match signature: 0!=1 len({}) != len({x}). "
                "Sent extra: {}. Missing but required: {x}."
            ),
        ),
        (
            HALF,
            ["z", "x"],
            (
                "input size does not match signature: 2!=1 len({x,z}) != len({x}). "
                "Sent extra: {z}. Missing but required: {}."
            ),
        ),
        (
            TWO,
            ["z"],
            (
                "input size does not match signature: 1!=2 len({z}) != len({a,b}). "
                "Sent extra: {z}. Missing but required: {a,b}."
            ),
        ),
        (
            HALF,
            ["z"],
            (
                "Signature input alias: x(feed name: x:0) not found in request and no default value provided. "
                "Inputs expected to be in the request {z}, or default input alias set: "
            ),
        ),
        (
            WITH_DEFAULT,
            ["k"],
            (
                "Signature input alias: x(feed name: x:0) not found in request and no default value provided. "
                "Inputs expected to be in the request {k}, or default input alias set: k,m"
            ),
        ),
        (
            WITH_DEFAULT,
            ["z", "x"],
            "Inputs contains invalid name. Used request inputs: x, request input: x,z",
        ),
    ],
)
def test_missing_extra_and_misnamed_inputs(engine: FakeEngine, aliases: list[str], message: str) -> None:
    """Inputs that do not fit the signature are refused in TensorFlow Serving's words, names sorted."""
    assert _refused(engine, _body(dict.fromkeys(aliases, _f32(1)))) == (Code.INVALID_ARGUMENT, message)


def test_output_filter_that_does_not_fit() -> None:
    """An output that is not there, or asked for twice, is refused in TensorFlow Serving's words."""
    assert _refused(HALF, _body({"x": _f32(1)}, outputs=("nope",))) == (
        Code.INVALID_ARGUMENT,
        "output tensor alias not found in signature: nope Outputs expected to be in the set {y}.",
    )
    assert _refused(HALF, _body({"x": _f32(1)}, outputs=("y", "y"))) == (
        Code.INVALID_ARGUMENT,
        "duplicate output tensor alias: y",
    )


def test_wrong_type() -> None:
    """A tensor of another type is refused, the argument counted by the sorted names of the fed tensors."""
    assert _refused(HALF, _body({"x": [True]})) == (
        Code.INVALID_ARGUMENT,
        "Expects arg[0] to be float but bool is provided",
    )
    engine = FakeEngine(
        [_signature(inputs={"a": FLOAT, "b": 19})],
        lambda _: {"y": _f32(1)},
        feed_names={"a": "z:0", "b": "c:0"},
    )
    both = _body({"a": np.array([1.0]), "b": [b"text"]})
    assert _refused(engine, both)[1] == "Expects arg[0] to be half but string is provided"
    one = _body({"a": np.array([1.0]), "b": np.array([1], np.float16)})
    assert _refused(engine, one)[1] == "Expects arg[1] to be float but double is provided"


@pytest.mark.parametrize("number", [0, 20])
def test_inputs_whose_type_says_nothing(number: int) -> None:
    """A type that no array has is not compared: what is fed is the kernels' to refuse."""
    engine = FakeEngine([_signature(inputs={"x": number})], lambda inputs: {"y": inputs["x"]})
    _predict(engine, _body({"x": _f32(1)}))


@pytest.mark.parametrize(
    "tensor",
    [
        tfs.TensorProto(dtype=FLOAT, tensor_content=b"abc"),
        tfs.TensorProto(dtype=FLOAT, tensor_shape={"dim": [{"size": -1}]}, float_val=[1]),
        tfs.TensorProto(dtype=FLOAT, tensor_shape={"dim": [{"size": 2**40}]}, float_val=[1]),
        tfs.TensorProto(dtype=20),
        tfs.TensorProto(),
    ],
)
def test_tensors_that_are_none(tensor: Any) -> None:
    """Content of the wrong size, impossible shapes and types are refused by the input's name."""
    request = tfs.PredictRequest(inputs={"x": tensor})
    request.model_spec.name = "half"
    assert _refused(HALF, request.SerializeToString()) == (Code.INVALID_ARGUMENT, "tensor parsing error: x")


def test_lists_sent_unpacked() -> None:
    """A list sent one value at a time is a list all the same."""
    tensor = b"\x08\x01\x12\x04\x12\x02\x08\x02" + b"".join(
        b"\x2d" + _f32(value).tobytes() for value in (2, 4)
    )
    entry = b"\x0a\x01x\x12" + bytes([len(tensor)]) + tensor
    body = _body({}) + b"\x12" + bytes([len(entry)]) + entry
    response = tfs.PredictResponse.FromString(_predict(HALF, body))
    assert list(response.outputs["y"].float_val) == [3, 4]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "Missing ModelSpec"),
        (b"\x0a\x00", "ModelSpec has no name specified."),
        (
            _body({"x": _f32(1)})[:-1],
            "The 28 bytes received are not a tensorflow.serving.PredictRequest: truncated or malformed",
        ),
        (_body({}, name="other"), 'The request is for model "other", but "half" was asked to run it.'),
    ],
)
def test_requests_for_no_model_or_another(body: bytes, message: str) -> None:
    """What the router would have refused, and what it sent to the wrong worker, is refused here too."""
    assert _refused(HALF, body) == (Code.INVALID_ARGUMENT, message)


def test_what_the_engine_raises_passes_through() -> None:
    """A kernel's own refusal keeps its code and text."""

    def refuse(_: Mapping[str, Array]) -> Mapping[str, Array]:
        raise PoolError(Code.INVALID_ARGUMENT, "Incompatible shapes")

    with pytest.raises(PoolError, match="Incompatible shapes") as raised:
        _predict(FakeEngine([_signature()], refuse), _body({"x": _f32(1)}))
    assert raised.value.code is Code.INVALID_ARGUMENT


def test_a_list_that_is_cut_off_is_the_clients_error() -> None:
    """One that the tensor's type does not use, beside a field that makes the whole be looked at again."""
    tensor = (
        b"\x08\x01" + b"\x1a\x00" + b"\x52\x01\xf9"
    )  # DT_FLOAT, an unknown field, int64_val without its end
    entry = b"\x0a\x01x" + b"\x12" + bytes([len(tensor)]) + tensor
    body = b"\x0a\x06\x0a\x04half" + b"\x12" + bytes([len(entry)]) + entry
    with pytest.raises(PoolError, match=r"are not a tensorflow\.serving\.PredictRequest") as refused:
        _predict(FakeEngine([_signature()], _half), body)
    assert refused.value.code is Code.INVALID_ARGUMENT
