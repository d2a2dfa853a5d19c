"""Requests that share a run: each gets the answer that it gets alone."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import structlog
from hypothesis import given, settings
from hypothesis import strategies as st

from mpspool.core import tfs
from mpspool.core.errors import Code, PoolError
from mpspool.core.ids import ModelVersion
from mpspool.core.join import join
from mpspool.core.messages import Dispatch, Outcome, Request
from mpspool.core.progress import WHOLE
from mpspool.core.settings import BatchingSettings
from mpspool.worker.device_failure import DeviceFailedError
from mpspool.worker.engine.base import Array, Signature, TensorSpec
from mpspool.worker.predict import Predictor
from mpspool.worker.runner import Runner
from tests import tensors
from tests.fakes.engine import FakeEngine

MODEL = ModelVersion("half", 7)
FLOAT, STRING, INT64 = 1, 7, 9
Shape = tuple[int | None, ...] | None
POISON = 13.0


class Page:
    """A progress page that keeps what it was told."""

    def __init__(self) -> None:
        self.told: list[tuple[int, int] | int] = []

    def start(self, dispatch: int, index: int) -> None:
        self.told.append((dispatch, index))

    def finish(self, count: int = 1) -> None:
        self.told.append(count)


def _signature(
    inputs: Mapping[str, tuple[int, Shape]],
    outputs: Mapping[str, tuple[int, Shape]],
    defaults: Mapping[str, Array] = {},
    name: str = tfs.DEFAULT_SIGNATURE,
) -> Signature:
    return Signature(
        name=name,
        method_name="tensorflow/serving/predict",
        inputs={alias: TensorSpec(*spec) for alias, spec in inputs.items()},
        outputs={alias: TensorSpec(*spec) for alias, spec in outputs.items()},
        defaults=defaults,
    )


class Bench:
    """A runner with an engine that answers as the test says."""

    def __init__(
        self,
        answer: Callable[[Mapping[str, Array]], Mapping[str, Array]],
        *signatures: Signature,
        **batching: Any,
    ) -> None:
        self.engine = FakeEngine(signatures or (HALF,), answer)
        self.page = Page()
        self.runner = Runner(Predictor(self.engine, MODEL), BatchingSettings(**batching), self.page)  # type: ignore[arg-type]
        self.frames: list[bytes] = []

    def run(self, *asked: Ask | bytes, together: bool = True) -> list[Outcome]:
        asks = [Ask(one) if isinstance(one, bytes) else one for one in asked]
        requests = [Request(None, one.deadline_ns, one.rows) for one in asks]
        dispatch = Dispatch(1, 5, requests, together)
        self.frames = []
        return self.runner.run(dispatch, [one.body for one in asks], self.frames)

    @property
    def fed(self) -> list[Any]:
        """What the engine was called with, for models of one input x."""
        return [inputs["x"].tolist() for _, inputs, _ in self.engine.calls]


@dataclass(frozen=True)
class Ask:
    """A request of a dispatch."""

    body: bytes
    rows: tuple[int, int] | None = None
    deadline_ns: int = 0


def _body(
    inputs: Mapping[str, Any], signature: str = "", outputs: Sequence[str] = (), *, content: bool = False
) -> bytes:
    request = tfs.PredictRequest(output_filter=outputs)
    request.model_spec.name = "half"
    request.model_spec.signature_name = signature
    for alias, array in inputs.items():
        number = tfs.number_of(np.asarray(array).dtype)
        encode = tensors.with_content if content else tensors.encode
        request.inputs[alias].ParseFromString(encode(np.asarray(array), number))
    return bytes(request.SerializeToString())


def _x(*values: float) -> bytes:
    return _body({"x": np.array(values, np.float32)})


def _y(outcome: Outcome, alias: str = "y") -> Any:
    assert outcome.code == Code.OK, outcome.message
    response = tfs.PredictResponse.FromString(outcome.body)
    return tensors.decode(response.outputs[alias].SerializeToString()).tolist()


def _told(outcome: Outcome) -> tuple[int, bytes | None, str]:
    return outcome.code, outcome.body, outcome.message


HALF = _signature({"x": (FLOAT, (None,))}, {"y": (FLOAT, None)})


def _half(inputs: Mapping[str, Array]) -> Mapping[str, Array]:
    _refuse_poison(inputs["x"])
    return {"y": inputs["x"] / 2 + 2}


def _refuse_poison(*arrays: Array) -> None:
    if any((array == POISON).any() for array in arrays):
        raise PoolError(Code.INVALID_ARGUMENT, "poison")


# Any mix of requests


MIXED = (
    _signature(
        {"a": (FLOAT, None), "b": (INT64, None)},
        {"y": (FLOAT, None), "s": (STRING, None), "n": (INT64, None)},
        defaults={"b": np.array([[4, 5]])},
    ),
    _signature({"a": (FLOAT, None)}, {"y": (FLOAT, None)}, name="one"),
    _signature({"a": (FLOAT, None)}, {"y": (FLOAT, None), "sum": (FLOAT, None)}, name="sum"),
    _signature({"a": (FLOAT, None)}, {"more": (FLOAT, None)}, name="more"),
    _signature({"a": (FLOAT, None)}, {"labels": (INT64, (3,))}, name="labels"),
)


def _mixed(inputs: Mapping[str, Array]) -> Mapping[str, Array]:
    a, b = inputs["a"], inputs.get("b", np.zeros((1, 1), np.int64))
    _refuse_poison(a)
    rows = a.reshape(len(a), -1).sum(axis=1) if a.ndim else a.sum()
    return {
        "y": a * 2,
        "s": np.array([b"%r" % value for value in np.atleast_1d(rows).tolist()], object),
        "n": b * 300,
        "sum": np.float32(a.sum()) + np.zeros((), np.float32),
        "more": np.concatenate([a.reshape(-1), [1, 2]]).astype(np.float32),
        "labels": np.array([7, 8, 9]),
    }


shapes = st.sampled_from(
    [(), (0,), (1,), (2,), (3,), (1, 2), (2, 2), (3, 2), (0, 2), (1, 3), (1, 2, 1), (1, 0)]
)


@st.composite
def _asks(draw: Any) -> Ask:
    if draw(st.integers(0, 12)) == 0:
        return Ask(draw(st.sampled_from([b"", b"\x0a\x00", b"\xff", _body({"a": [1.5]})])))
    shape = draw(shapes)
    a = np.array(draw(st.integers(0, 5)), np.float32) + np.arange(np.prod(shape), dtype=np.float32).reshape(
        shape
    )
    if draw(st.integers(0, 8)) == 0:
        a = np.where(a == draw(st.integers(0, 5)), np.float32(POISON), a)
    inputs: dict[str, Array] = {"a": a}
    signature = draw(st.sampled_from(["", "", "serving_default", "one", "sum", "more", "labels", "none"]))
    if draw(st.booleans()):
        inputs["b"] = np.full(
            draw(shapes), 7, draw(st.sampled_from([np.int64, np.int64, np.int64, np.int32]))
        )
    elif draw(st.booleans()):
        inputs["b"] = np.full(shape, 7)
    if signature in ("one", "sum", "more", "labels") and draw(st.integers(0, 5)):
        inputs.pop("b", None)
    outputs = draw(st.sampled_from([(), (), (), ("y",), ("s", "n"), ("n", "s"), ("y", "y")]))
    rows = draw(st.sampled_from([None, None, None, (0, 1), (1, 2), (0, 2), (1, 3), (2, 2)]))
    expired = draw(st.integers(0, 15)) == 0
    body = _body(inputs, signature, outputs, content=draw(st.booleans()))
    return Ask(body, rows, deadline_ns=1 if expired else 0)


@given(
    asks=st.lists(_asks(), max_size=12),
    earlier=st.lists(_asks(), max_size=6),
    run_rows=st.integers(1, 8),
    allowed=st.sampled_from([[], [2, 8], [1, 3, 4], [16]]),
)
@settings(max_examples=250, deadline=None)
def test_each_gets_the_answer_that_it_gets_alone(
    asks: list[Ask], earlier: list[Ask], run_rows: int, allowed: list[int]
) -> None:
    """Whatever is in a dispatch and was before it: the same response to the byte, or the same error."""
    bench = Bench(_mixed, *MIXED, max_batch_size=run_rows, allowed_batch_sizes=allowed)
    bench.run(*earlier)
    bench.run(*asks)
    bench.engine.calls.clear()
    outcomes = bench.run(*asks)
    for ask, outcome in zip(asks, outcomes, strict=True):
        (alone,) = Bench(_mixed, *MIXED).run(ask, together=False)
        assert _told(outcome) == _told(alone)
    assert sum(told for told in bench.page.told if isinstance(told, int)) == len(
        [ask for one in (earlier, asks, asks) for ask in one if not ask.deadline_ns]
    )


# What is joined


def test_alike_requests_share_one_run() -> None:
    """One call of the engine with the rows of all, in order, and to each request its own rows."""
    bench = Bench(_half)
    outcomes = bench.run(_x(1), _x(2, 4), _x(6))
    assert bench.fed == [[1, 2, 4, 6]]
    assert [_y(outcome) for outcome in outcomes] == [[2.5], [3, 4], [5]]


def test_lists_and_content_share_a_run() -> None:
    """How a client writes its tensors makes no difference, also where some are known by their bytes."""
    bench = Bench(_half)
    bodies = [_body({"x": np.array([value], np.float32)}, content=value % 2 == 0) for value in range(6)]
    for _ in range(3):
        bench.run(*bodies)
    assert bench.fed == [[0, 1, 2, 3, 4, 5]] * 3


def test_inputs_in_any_order_share_a_run() -> None:
    """A client's map has no order, so neither have inputs, also where requests are known by their bytes."""
    signature = _signature({"a": (FLOAT, None), "b": (FLOAT, None)}, {"y": (FLOAT, None)})
    bench = Bench(lambda inputs: {"y": inputs["a"] - inputs["b"]}, signature)
    a, b = ({alias: np.float32([value])} for alias, value in (("a", 7), ("b", 2)))
    bodies = [_body(a) + _body(b), _body(b) + _body(a)]
    for _ in range(4):
        assert [_y(outcome) for outcome in bench.run(*bodies)] == [[5], [5]]
    assert len(bench.engine.calls) == 4


@pytest.mark.parametrize(
    ("run_rows", "fed"),
    [
        ({"max_batch_size": 4}, [[1, 2, 3], [4, 5], [6] * 5, [7, 8]]),
        ({"max_batch_size": 100, "max_execution_batch_size": 2}, [[1], [2, 3], [4, 5], [6] * 5, [7, 8]]),
        ({"max_batch_size": 5}, [[1, 2, 3, 4, 5], [6] * 5, [7, 8]]),
    ],
)
def test_runs_have_so_many_rows_at_most(run_rows: dict[str, int], fed: list[list[int]]) -> None:
    """The group is cut in order, requests never; one that is too large by itself runs as it is."""
    bench = Bench(_half, **run_rows)
    bench.run(_x(1), _x(2, 3), _x(4, 5), _x(*[6] * 5), _x(7), _x(8))
    assert bench.fed == fed


def test_what_differs_does_not_share_a_run() -> None:
    """Other signatures, outputs, inputs, types and inner shapes are other runs; each is in the order of its first."""
    two = _signature({"a": (FLOAT, None), "b": (0, None)}, {"y": (FLOAT, None), "z": (FLOAT, None)})
    bench = Bench(lambda inputs: {"y": inputs["a"], "z": inputs["a"]}, two, _signature({"a": (FLOAT, None)}, {"y": (FLOAT, None)}, name="one"))  # fmt: skip
    a, flat, wide = np.ones(1, np.float32), np.ones(1, np.int64), np.ones((1, 2), np.float32)
    mixed = [
        _body({"a": a, "b": flat}),
        _body({"a": a, "b": flat}, outputs=("y",)),
        _body({"a": a}, "one"),
        _body({"a": a, "b": a}),
        _body({"a": wide, "b": flat}),
    ]
    bench.run(*mixed, *mixed)
    shared = [(name, [array.shape for array in inputs.values()]) for name, inputs, _ in bench.engine.calls]
    assert shared == [
        ("serving_default", [(2,), (2,)]),
        ("serving_default", [(2,), (2,)]),
        ("one", [(2,)]),
        ("serving_default", [(2,), (2,)]),
        ("serving_default", [(2, 2), (2,)]),
    ]


@pytest.mark.parametrize(
    "inputs",
    [
        {"x": np.float32(1), "k": np.float32(2)},
        {"x": np.ones(2, np.float32), "k": np.float32(2)},
        {"x": np.ones(2, np.float32), "k": np.ones(1, np.float32)},
        {"x": np.ones(0, np.float32), "k": np.ones(0, np.float32)},
        {"x": np.ones(2, np.float32)},
    ],
    ids=["no dimension", "one without", "unequal", "no rows", "a default of another size"],
)
def test_what_cannot_be_joined_runs_by_itself(inputs: dict[str, Array]) -> None:
    """It is not refused, as TensorFlow Serving does, nor padded."""
    signature = _signature(
        {"x": (FLOAT, None), "k": (FLOAT, None)}, {"y": (FLOAT, None)}, {"k": np.ones(3, np.float32)}
    )
    bench = Bench(lambda fed: {"y": fed["x"] * fed["k"].sum()}, signature, allowed_batch_sizes=[4])
    outcomes = bench.run(_body(inputs), _body(inputs))
    assert [outcome.code for outcome in outcomes] == [Code.OK] * 2
    assert [fed["x"].shape for _, fed, _ in bench.engine.calls] == [np.shape(inputs["x"])] * 2


def test_defaults_that_have_the_requests_rows_are_joined() -> None:
    """As in TensorFlow Serving, which fills them in first."""
    signature = _signature(
        {"x": (FLOAT, None), "k": (FLOAT, None)}, {"y": (FLOAT, None)}, {"k": np.array([5], np.float32)}
    )
    bench = Bench(lambda fed: {"y": fed["x"] + fed["k"]}, signature)
    for _ in range(3):
        outcomes = bench.run(_x(1), _body({"x": np.float32([2]), "k": np.float32([7])}), _x(3))
        assert [_y(outcome) for outcome in outcomes] == [[6], [9], [8]]
    assert bench.fed == [[1, 2, 3]] * 3


@pytest.mark.parametrize("shape", [(), (1,), (4, 2)])
def test_a_signature_for_one_batch_size_is_not_joined(shape: tuple[int, ...]) -> None:
    """The model says that it takes other rows than the sum."""
    signature = _signature({"x": (FLOAT, shape)}, {"y": (FLOAT, shape)})
    bench = Bench(_half, signature)
    body = _body({"x": np.ones(shape, np.float32)})
    bench.run(body, body)
    assert [np.shape(x) for x in bench.fed] == [shape, shape]


def test_a_signature_for_one_batch_size_that_is_allowed() -> None:
    """Runs are padded to the one size that the model takes."""
    signature = _signature({"x": (FLOAT, (4,))}, {"y": (FLOAT, (4,))})
    bench = Bench(_half, signature, max_batch_size=4, allowed_batch_sizes=[4])
    outcomes = bench.run(_x(1), _x(2), _x(3))
    assert bench.fed == [[1, 2, 3, 3]]
    assert [_y(outcome) for outcome in outcomes] == [[2.5], [3], [3.5]]


# Padding


@pytest.mark.parametrize("content", [True, False])
@pytest.mark.parametrize("known", [True, False])
def test_runs_are_padded_to_a_size_that_is_allowed(content: bool, known: bool) -> None:
    """With the first row of the last request, as TensorFlow Serving does; its rows are in nobody's answer."""
    bench = Bench(lambda inputs: {"y": inputs["x"] * 2}, allowed_batch_sizes=[2, 6, 8], max_batch_size=8)

    def body(*rows: list[int]) -> bytes:
        return _body({"x": np.array(rows, np.float32)}, content=content)

    asked = [body([1, 2]), body([3, 4], [5, 6]), body([7, 8], [9, 10])]
    for _ in range(3 if known else 0):
        bench.run(*asked)
    bench.engine.calls.clear()
    outcomes = bench.run(*asked)
    assert bench.fed == [[[1, 2], [3, 4], [5, 6], [7, 8], [9, 10], [7, 8]]]
    assert [_y(outcome) for outcome in outcomes] == [
        [[2, 4]],
        [[6, 8], [10, 12]],
        [[14, 16], [18, 20]],
    ]


@pytest.mark.parametrize(("rows", "fed"), [(1, 2), (2, 2), (3, 4), (5, 5)])
def test_one_request_is_padded_too(rows: int, fed: int) -> None:
    """To the next size; one that is larger than all sizes runs as it is."""
    bench = Bench(_half, allowed_batch_sizes=[2, 4])
    (outcome,) = bench.run(_x(*range(rows)))
    assert [len(x) for x in bench.fed] == [fed]
    assert _y(outcome) == [row / 2 + 2 for row in range(rows)]


def test_variable_lengths_are_padded_with_the_requests_own_first_value() -> None:
    """At the end of each dimension but the first up to the largest of the run, as TensorFlow Serving does."""
    spec = {"x": (FLOAT, None), "s": (STRING, None)}
    bench = Bench(
        lambda inputs: {"x": inputs["x"], "s": inputs["s"]},
        _signature(spec, spec),
        pad_variable_length_inputs=True,
        allowed_batch_sizes=[4],
    )
    outcomes = bench.run(
        _body({"x": np.array([[[1, 2, 3]]], np.float32), "s": np.array([[b"a"]], object)}),
        _body({"x": np.array([[[4], [5]], [[6], [7]]], np.float32), "s": np.array([[b"b", b"c"], [b"d", b"e"]], object)}),
    )  # fmt: skip
    (_, fed, _), *others = bench.engine.calls
    assert not others
    second = [[[4, 4, 4], [5, 4, 4]], [[6, 4, 4], [7, 4, 4]]]
    assert fed["x"].tolist() == [[[1, 2, 3], [1, 1, 1]], *second, second[0]]
    assert fed["s"].tolist() == [[b"a", b"a"], [b"b", b"c"], [b"d", b"e"], [b"b", b"c"]]
    assert _y(outcomes[1], "x") == second
    assert _y(outcomes[0], "s") == [[b"a", b"a"]]


def test_what_is_not_padded_with_its_neighbours() -> None:
    """Other ranks, and what has no element to be padded with, are in runs of their own."""
    bench = Bench(
        lambda inputs: {"y": inputs["x"]},
        _signature({"x": (FLOAT, None)}, {"y": (FLOAT, None)}),
        pad_variable_length_inputs=True,
    )
    shapes = [(1, 2), (1, 2, 1), (1,), (1, 0), (1, 3)]
    outcomes = bench.run(*[_body({"x": np.ones(shape, np.float32)}) for shape in shapes])
    assert [np.shape(x) for x in bench.fed] == [(2, 3), (1, 2, 1), (1,), (1, 0)]
    assert [np.shape(_y(outcome)) for outcome in outcomes] == [(1, 3), (1, 2, 1), (1,), (1, 0), (1, 3)]


# Outputs that cannot be told apart


def _summed(inputs: Mapping[str, Array]) -> Mapping[str, Array]:
    return {"y": np.array(inputs["x"].sum(), np.float32), "z": inputs["x"]}


SUMMED = _signature({"x": (FLOAT, (None,))}, {"y": (FLOAT, None), "z": (FLOAT, None)})


def test_outputs_without_the_rows_are_run_one_by_one() -> None:
    """The answers are right, one warning names the output, and from then on nothing is run in vain."""
    bench = Bench(_summed, SUMMED)
    with structlog.testing.capture_logs() as logs:
        for _ in range(2):
            outcomes = bench.run(_x(1, 2), _x(3))
            assert [_y(outcome) for outcome in outcomes] == [3, 3]
    assert bench.fed == [[1, 2, 3], [1, 2], [3], [1, 2], [3]]
    (warning,) = logs
    assert (warning["model"], warning["signature"], warning["output"], warning["shape"]) == (
        "half@7",
        "serving_default",
        "y",
        [],
    )
    bench.engine.calls.clear()
    bench.run(_body({"x": np.float32([1, 2])}, outputs=("z",)), _body({"x": np.float32([3])}, outputs=("z",)))
    assert bench.fed == [[1, 2, 3]], "another choice of outputs is another matter"


def test_one_padded_request_with_such_an_output() -> None:
    """It is run again without the padding, whose rows were summed up, and not padded again."""
    bench = Bench(_summed, SUMMED, allowed_batch_sizes=[4])
    assert [_y(bench.run(_x(1, 2))[0]) for _ in range(2)] == [3, 3]
    assert bench.fed == [[1, 2, 1, 1], [1, 2], [1, 2]]


def test_outputs_of_one_size_are_never_taken_for_rows() -> None:
    """Three labels are no rows, although three requests ran: the signature says so."""
    signature = _signature({"x": (FLOAT, None)}, {"labels": (INT64, (3,))})
    bench = Bench(lambda _: {"labels": np.array([1, 2, 3])}, signature)
    assert [_y(outcome, "labels") for outcome in bench.run(_x(1), _x(2), _x(3))] == [[1, 2, 3]] * 3


# Runs that fail


def test_a_refused_run_is_repeated_one_by_one() -> None:
    """Only the request at fault gets the error."""
    bench = Bench(_half)
    with structlog.testing.capture_logs() as logs:
        for _ in range(2):
            outcomes = bench.run(_x(1), _x(POISON), _x(2))
            assert _told(outcomes[1]) == (Code.INVALID_ARGUMENT, b"", "poison")
            assert [_y(outcomes[0]), _y(outcomes[2])] == [[2.5], [3]]
    assert bench.fed == [[1, POISON, 2], [1], [POISON], [2]] * 2
    assert [entry["error"] for entry in logs] == ["poison"], "once"


def test_a_run_that_fails_otherwise_is_repeated_too() -> None:
    """A fault of ours in one request is not the others'."""

    def fail(inputs: Mapping[str, Array]) -> Mapping[str, Array]:
        if (inputs["x"] == POISON).any():
            raise RuntimeError("a bug")
        return {"y": inputs["x"]}

    with structlog.testing.capture_logs() as logs:
        outcomes = Bench(fail).run(_x(1), _x(POISON))
    assert [outcome.code for outcome in outcomes] == [Code.OK, Code.INTERNAL]
    assert [entry["log_level"] for entry in logs] == ["error"] * 2


def test_a_device_that_failed_ends_it() -> None:
    """Nothing is repeated, and the page still tells what was running."""

    def fail(_: Mapping[str, Array]) -> Mapping[str, Array]:
        raise DeviceFailedError("gone")

    bench = Bench(fail)
    with pytest.raises(DeviceFailedError):
        bench.run(_x(1), _x(2))
    assert len(bench.engine.calls) == 1
    assert bench.page.told[-1] == (5, WHOLE)


def test_deadlines() -> None:
    """What has expired is not run, also where it expires while others are repeated before it."""
    soon_ns = 0

    def slow(inputs: Mapping[str, Array]) -> Mapping[str, Array]:
        if len(inputs["x"]) > 1:
            raise PoolError(Code.INVALID_ARGUMENT, "one at a time")
        while time.monotonic_ns() < soon_ns:
            pass
        return {"y": inputs["x"]}

    bench = Bench(slow)
    soon_ns = time.monotonic_ns() + 10**8
    outcomes = bench.run(Ask(_x(1)), Ask(_x(2), deadline_ns=1), Ask(_x(3), deadline_ns=soon_ns))
    assert [outcome.code for outcome in outcomes] == [Code.OK, *[Code.DEADLINE_EXCEEDED] * 2]
    assert bench.fed == [[1, 3], [1]]


# The page, the times, the frames


def test_what_the_page_tells() -> None:
    """WHOLE while requests run together, a request's index while it runs alone."""
    bench = Bench(_half, max_batch_size=2)
    bench.run(_x(1), b"\xff", _x(2), _x(3))
    assert bench.page.told == [(5, WHOLE), 1, (5, WHOLE), 2, (5, 3), 1]
    bench.page.told.clear()
    bench.run(_x(1), _x(POISON))
    assert bench.page.told == [(5, WHOLE), 0, (5, WHOLE), (5, 0), 1, (5, 1), 1]
    bench.page.told.clear()
    bench.run(_x(1))
    bench.run(_x(1), _x(2), together=False)
    assert bench.page.told == [(5, 0), 1, (5, 0), 1, (5, 1), 1]


def test_times() -> None:
    """run_us is that of the shared run; the other times are each request's part."""

    def slow(inputs: Mapping[str, Array]) -> Mapping[str, Array]:
        time.sleep(0.01)
        return {"y": inputs["x"]}

    first, second = Bench(slow).run(_x(1), _x(2))
    assert first.run_us == second.run_us >= 10_000
    assert first.parse_us < 10_000 > first.encode_us


@pytest.mark.parametrize("together", [True, False])
def test_long_responses_are_frames(together: bool) -> None:
    """In the order of the requests, short ones in their struct."""
    bench = Bench(_half)
    outcomes = bench.run(_x(1), _x(*range(20, 10_000)), _x(2), _x(*range(20, 20_000)), together=together)
    assert [outcome.body is None for outcome in outcomes] == [False, True, False, True]
    assert [len(frame) // 39_000 for frame in bench.frames] == [1, 2]


# Parts of a request


@pytest.mark.parametrize("together", [True, False])
def test_parts_are_their_rows_and_joined_are_the_whole(together: bool) -> None:
    """The parts of a request, run with others or alone, give the answer to the whole."""
    bench = Bench(_half)
    whole = _x(*range(7))
    for _ in range(3):
        parts = [Ask(whole, rows) for rows in ((0, 3), (3, 6), (6, 7))]
        outcomes = bench.run(*parts, Ask(_x(50)), together=together)
        assert [_y(outcome) for outcome in outcomes] == [[2, 2.5, 3], [3.5, 4, 4.5], [5], [27]]
        bodies = [outcome.body or b"" for outcome in outcomes[:3]]
        assert join(bodies) == bench.run(whole, together=False)[0].body
    assert bench.fed[0] == ([0, 1, 2, 3, 4, 5, 6, 50] if together else [0, 1, 2])


TWO = _signature(
    {"x": (FLOAT, None), "k": (FLOAT, None)}, {"y": (FLOAT, None)}, {"k": np.ones(3, np.float32)}
)


@pytest.mark.parametrize(
    ("inputs", "rows", "reason"),
    [
        ({"x": np.float32(1), "k": np.float32(1)}, (0, 1), 'its input "k" has no dimension 0'),
        (
            {"x": np.ones(2, np.float32), "k": np.ones(4, np.float32)},
            (0, 1),
            'its input "x" has 2 rows (dimension 0), and "k" has 4',
        ),
        ({"x": np.ones(2, np.float32)}, (0, 1), 'its input "x" has 2 rows (dimension 0), and "k" has 3'),
        ({"x": np.ones(3, np.float32)}, (2, 4), 'rows 2 to 4 are asked for, and its input "x" has 3'),
        ({"x": np.ones(3, np.float32)}, (2, 2), 'rows 2 to 2 are asked for, and its input "x" has 3'),
    ],
)
@pytest.mark.parametrize("together", [True, False])
def test_inputs_that_cannot_be_split(
    inputs: dict[str, Array], rows: tuple[int, int], reason: str, together: bool
) -> None:
    """The request is refused by the input's name."""
    bench = Bench(lambda fed: {"y": fed["x"]}, TWO)
    outcomes = bench.run(
        Ask(_body(inputs), rows), Ask(_body({"x": np.ones(3, np.float32)})), together=together
    )
    assert outcomes[0].code == Code.INVALID_ARGUMENT
    assert "cannot be split" in outcomes[0].message
    assert outcomes[0].message.endswith(reason)
    assert outcomes[1].code == Code.OK


@pytest.mark.parametrize("shape", [None, ()])
@pytest.mark.parametrize("others", [0, 1])
def test_outputs_that_cannot_be_split(shape: Shape, others: int) -> None:
    """The request is refused by the output's name, with what to do; its neighbour is answered."""
    bench = Bench(_summed, _signature({"x": (FLOAT, None)}, {"y": (FLOAT, shape)}))
    outcomes = bench.run(Ask(_x(1, 2, 3), (0, 2)), *[Ask(_x(4))] * others)
    assert outcomes[0].code == Code.FAILED_PRECONDITION
    assert 'the output "y", of shape [], does not have a row' in outcomes[0].message
    assert "enable_large_batch_splitting off" in outcomes[0].message
    assert [_y(outcome) for outcome in outcomes[1:]] == [4] * others


def test_parts_are_not_padded_with_their_neighbours() -> None:
    """Of variable length or not: the parts' answers have one shape, whoever they run beside."""
    bench = Bench(
        lambda inputs: {"y": inputs["x"]},
        _signature({"x": (FLOAT, None)}, {"y": (FLOAT, None)}),
        pad_variable_length_inputs=True,
    )
    whole = _body({"x": np.ones((4, 2), np.float32)})
    wide = _body({"x": np.ones((1, 5), np.float32)})
    outcomes = bench.run(Ask(whole, (0, 2)), Ask(wide), Ask(whole, (2, 4)))
    assert [np.shape(_y(outcome)) for outcome in outcomes] == [(2, 2), (1, 5), (2, 2)]
    assert [np.shape(x) for x in bench.fed] == [(4, 2), (1, 5)]


@pytest.fixture(autouse=True)
def _any_level() -> Iterator[None]:
    """Logs are captured whatever another test has set up."""
    before = structlog.get_config()
    structlog.reset_defaults()
    yield
    structlog.configure(**before)


def test_large_joined_feeds_are_aligned() -> None:
    """TensorFlow uses them as they lie; strings it copies in any case."""
    bench = Bench(lambda inputs: {"y": inputs["x"]}, _signature({"x": (FLOAT, None)}, {"y": (FLOAT, None)}))
    bench.run(*[_body({"x": np.ones((3, 5001), np.float32)})] * 3)
    (_, fed, _) = bench.engine.calls[0]
    assert fed["x"].shape == (9, 5001)
    assert fed["x"].ctypes.data % 64 == 0
