"""Requests that share a run: each gets the answer that it gets alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mpspool.core import tfs
from mpspool.core.errors import Code
from mpspool.core.settings import BatchingSettings
from mpspool.worker import batch
from mpspool.worker.batch import Batching
from mpspool.worker.call import Call
from mpspool.worker.engine.base import Array
from tests.batches import (
    FLOAT,
    IDLE,
    INT64,
    POISON,
    STRING,
    Ask,
    Bench,
    answered,
    asking,
    half,
    make_body,
    make_signature,
    refuse_poison,
    told,
)

# Any mix of requests


MIXED = (
    make_signature(
        {"a": (FLOAT, None), "b": (INT64, None)},
        {"y": (FLOAT, None), "s": (STRING, None), "n": (INT64, None)},
        defaults={"b": np.array([[4, 5]])},
    ),
    make_signature({"a": (FLOAT, None)}, {"y": (FLOAT, None)}, name="one"),
    make_signature({"a": (FLOAT, None)}, {"y": (FLOAT, None), "sum": (FLOAT, None)}, name="sum"),
    make_signature({"a": (FLOAT, None)}, {"more": (FLOAT, None)}, name="more"),
    make_signature({"a": (FLOAT, None)}, {"labels": (INT64, (3,))}, name="labels"),
)


def _mixed(inputs: Mapping[str, Array]) -> Mapping[str, Array]:
    a, b = inputs["a"], inputs.get("b", np.zeros((1, 1), np.int64))
    refuse_poison(a)
    rows = a.sum(axis=tuple(range(1, a.ndim)))
    return {
        "y": a * 2,
        "s": np.array([b"%r" % value for value in np.atleast_1d(rows).tolist()], object),
        "n": b * 300,
        "sum": np.float32(a.sum()) + np.zeros((), np.float32),
        "more": np.concatenate([np.atleast_1d(rows), [1]]).astype(np.float32),
        "labels": np.array([7, 8, 9]),
    }


shapes = st.sampled_from(
    [(), (0,), (1,), (2,), (3,), (1, 2), (2, 2), (3, 2), (0, 2), (1, 3), (1, 2, 1), (1, 0)]
)


@st.composite
def _asks(draw: Any) -> Ask:
    if draw(st.integers(0, 12)) == 0:
        return Ask(draw(st.sampled_from([b"", b"\x0a\x00", b"\xff", make_body({"a": [1.5]})])))
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
    body = make_body(inputs, signature, outputs, content=draw(st.booleans()))
    return Ask(body, rows, deadline_ns=1 if expired else 0)


@given(
    asks=st.lists(_asks(), max_size=12),
    earlier=st.lists(_asks(), max_size=6),
    run_rows=st.integers(1, 8),
    allowed=st.sampled_from([[], [2, 8], [1, 3, 4], [16]]),
)
@settings(max_examples=400)
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
        assert told(outcome) == told(alone)
    assert bench.page.told[-1:] in ([], [IDLE])


# What is joined


def test_alike_requests_share_one_run() -> None:
    """One call of the engine with the rows of all, in order, and to each request its own rows."""
    bench = Bench(half)
    outcomes = bench.run(asking(1), asking(2, 4), asking(6))
    assert bench.fed == [[1, 2, 4, 6]]
    assert [answered(outcome) for outcome in outcomes] == [[2.5], [3, 4], [5]]


def test_lists_and_content_share_a_run() -> None:
    """How a client writes its tensors makes no difference, also where some are known by their bytes."""
    bench = Bench(half)
    bodies = [make_body({"x": np.array([value], np.float32)}, content=value % 2 == 0) for value in range(6)]
    for _ in range(3):
        bench.run(*bodies)
    assert bench.fed == [[0, 1, 2, 3, 4, 5]] * 3


def test_inputs_in_any_order_share_a_run() -> None:
    """A client's map has no order, so neither have inputs, also where requests are known by their bytes."""
    signature = make_signature({"a": (FLOAT, None), "b": (FLOAT, None)}, {"y": (FLOAT, None)})
    bench = Bench(lambda inputs: {"y": inputs["a"] - inputs["b"]}, signature)
    a, b = ({alias: np.float32([value])} for alias, value in (("a", 7), ("b", 2)))
    bodies = [make_body(a) + make_body(b), make_body(b) + make_body(a)]
    for _ in range(4):
        assert [answered(outcome) for outcome in bench.run(*bodies)] == [[5], [5]]
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
    bench = Bench(half, **run_rows)
    bench.run(asking(1), asking(2, 3), asking(4, 5), asking(*[6] * 5), asking(7), asking(8))
    assert bench.fed == fed


@pytest.mark.parametrize("filled", [False, True])
@pytest.mark.parametrize(
    ("columns", "pads", "fed"),
    [
        ([20, 4, 4, 4, 4, 4], False, [(1, 20), (4, 4), (1, 4)]),
        ([20, 4, 4, 4, 4, 4], True, [(1, 20), (4, 4), (1, 4)]),
        ([2, 8, 2], True, [(2, 8), (1, 2)]),
    ],
)
def test_runs_have_so_many_bytes_at_most(
    monkeypatch: pytest.MonkeyPatch, columns: list[int], pads: bool, fed: list[tuple[int, int]], filled: bool
) -> None:
    """As they are fed, however few were sent; one that is too large by itself runs as it is."""
    monkeypatch.setattr(batch, "_MOST_BYTES", 64)
    bench = Bench(
        lambda inputs: {"y": inputs["x"]},
        make_signature({"x": (FLOAT, None)}, {"y": (FLOAT, None)}),
        pad_variable_length_inputs=pads,
    )

    row = _filled if filled else lambda columns: make_body({"x": np.ones((1, columns), np.float32)})
    for _ in range(3):  # known from the third on
        bench.engine.calls.clear()
        outcomes = bench.run(*map(row, columns))
        assert [np.shape(x) for x in bench.fed] == fed
        assert [outcome.code for outcome in outcomes] == [Code.OK] * len(columns)


def _filled(columns: int) -> bytes:
    """A row for which one value was sent."""
    request = tfs.PredictRequest.FromString(make_body({"x": np.ones((1, 1), np.float32)}))
    request.inputs["x"].tensor_shape.dim[1].size = columns
    return bytes(request.SerializeToString())


@pytest.mark.parametrize("count", [1, 2])
def test_rows_that_nobody_sent_are_no_padding(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    """Of a few bytes that stand for a large row there would be a thousand; what was sent is padded, however large."""
    monkeypatch.setattr(batch, "_MOST_BYTES", 2**16)
    bench = Bench(
        lambda inputs: {"y": inputs["x"][:, 0]},
        make_signature({"x": (FLOAT, None)}, {"y": (FLOAT, None)}),
        allowed_batch_sizes=[8],
    )
    sent = make_body({"x": np.ones((1, 2**12), np.float32)})
    for row, rows in ((_filled(2**10), 8), (_filled(2**12), count), (sent, 8)):
        bench.engine.calls.clear()
        outcomes = bench.run(*[row] * count)
        assert [len(x) for x in bench.fed] == [rows]
        assert [answered(outcome) for outcome in outcomes] == [[1]] * count


def test_what_differs_does_not_share_a_run() -> None:
    """Other signatures, outputs, inputs, types and inner shapes are other runs; each is in the order of its first."""
    two = make_signature({"a": (FLOAT, None), "b": (0, None)}, {"y": (FLOAT, None), "z": (FLOAT, None)})
    bench = Bench(lambda inputs: {"y": inputs["a"], "z": inputs["a"]}, two, make_signature({"a": (FLOAT, None)}, {"y": (FLOAT, None)}, name="one"))  # fmt: skip
    a, flat, wide = np.ones(1, np.float32), np.ones(1, np.int64), np.ones((1, 2), np.float32)
    mixed = [
        make_body({"a": a, "b": flat}),
        make_body({"a": a, "b": flat}, outputs=("y",)),
        make_body({"a": a}, "one"),
        make_body({"a": a, "b": a}),
        make_body({"a": wide, "b": flat}),
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
    signature = make_signature(
        {"x": (FLOAT, None), "k": (FLOAT, None)}, {"y": (FLOAT, None)}, {"k": np.ones(3, np.float32)}
    )
    bench = Bench(lambda fed: {"y": fed["x"] * fed["k"].sum()}, signature, allowed_batch_sizes=[4])
    outcomes = bench.run(make_body(inputs), make_body(inputs))
    assert [outcome.code for outcome in outcomes] == [Code.OK] * 2
    assert [fed["x"].shape for _, fed, _ in bench.engine.calls] == [np.shape(inputs["x"])] * 2


def test_defaults_that_have_the_requests_rows_are_joined() -> None:
    """As in TensorFlow Serving, which fills them in first."""
    signature = make_signature(
        {"x": (FLOAT, None), "k": (FLOAT, None)}, {"y": (FLOAT, None)}, {"k": np.array([5], np.float32)}
    )
    bench = Bench(lambda fed: {"y": fed["x"] + fed["k"]}, signature)
    for _ in range(3):
        outcomes = bench.run(asking(1), make_body({"x": np.float32([2]), "k": np.float32([7])}), asking(3))
        assert [answered(outcome) for outcome in outcomes] == [[6], [9], [8]]
    assert bench.fed == [[1, 2, 3]] * 3


@pytest.mark.parametrize("shape", [(), (1,), (4, 2)])
def test_a_signature_for_one_batch_size_is_not_joined(shape: tuple[int, ...]) -> None:
    """The model says that it takes other rows than the sum."""
    signature = make_signature({"x": (FLOAT, shape)}, {"y": (FLOAT, shape)})
    bench = Bench(half, signature)
    body = make_body({"x": np.ones(shape, np.float32)})
    bench.run(body, body)
    assert [np.shape(x) for x in bench.fed] == [shape, shape]


def test_a_signature_for_one_batch_size_that_is_allowed() -> None:
    """Runs are padded to the one size that the model takes."""
    signature = make_signature({"x": (FLOAT, (4,))}, {"y": (FLOAT, (4,))})
    bench = Bench(half, signature, max_batch_size=4, allowed_batch_sizes=[4])
    outcomes = bench.run(asking(1), asking(2), asking(3))
    assert bench.fed == [[1, 2, 3, 3]]
    assert [answered(outcome) for outcome in outcomes] == [[2.5], [3], [3.5]]


# Padding


@pytest.mark.parametrize("content", [True, False])
@pytest.mark.parametrize("known", [True, False])
def test_runs_are_padded_to_a_size_that_is_allowed(content: bool, known: bool) -> None:
    """With the first row of the last request, as TensorFlow Serving does; its rows are in nobody's answer."""
    bench = Bench(lambda inputs: {"y": inputs["x"] * 2}, allowed_batch_sizes=[2, 6, 8], max_batch_size=8)

    def body(*rows: list[int]) -> bytes:
        return make_body({"x": np.array(rows, np.float32)}, content=content)

    asked = [body([1, 2]), body([3, 4], [5, 6]), body([7, 8], [9, 10])]
    for _ in range(3 if known else 0):
        bench.run(*asked)
    bench.engine.calls.clear()
    outcomes = bench.run(*asked)
    assert bench.fed == [[[1, 2], [3, 4], [5, 6], [7, 8], [9, 10], [7, 8]]]
    assert [answered(outcome) for outcome in outcomes] == [
        [[2, 4]],
        [[6, 8], [10, 12]],
        [[14, 16], [18, 20]],
    ]


@pytest.mark.parametrize(("rows", "fed"), [(1, 2), (2, 2), (3, 4), (5, 5)])
def test_one_request_is_padded_too(rows: int, fed: int) -> None:
    """To the next size; one that is larger than all sizes runs as it is."""
    bench = Bench(half, allowed_batch_sizes=[2, 4])
    (outcome,) = bench.run(asking(*range(rows)))
    assert [len(x) for x in bench.fed] == [fed]
    assert answered(outcome) == [row / 2 + 2 for row in range(rows)]


def test_variable_lengths_are_padded_with_the_requests_own_first_value() -> None:
    """At the end of each dimension but the first up to the largest of the run, as TensorFlow Serving does."""
    spec = {"x": (FLOAT, None), "s": (STRING, None)}
    bench = Bench(
        lambda inputs: {"x": inputs["x"], "s": inputs["s"]},
        make_signature(spec, spec),
        pad_variable_length_inputs=True,
        allowed_batch_sizes=[4],
    )
    outcomes = bench.run(
        make_body({"x": np.array([[[1, 2, 3]]], np.float32), "s": np.array([[b"a"]], object)}),
        make_body({"x": np.array([[[4], [5]], [[6], [7]]], np.float32), "s": np.array([[b"b", b"c"], [b"d", b"e"]], object)}),
    )  # fmt: skip
    (_, fed, _), *others = bench.engine.calls
    assert not others
    second = [[[4, 4, 4], [5, 4, 4]], [[6, 4, 4], [7, 4, 4]]]
    assert fed["x"].tolist() == [[[1, 2, 3], [1, 1, 1]], *second, second[0]]
    assert fed["s"].tolist() == [[b"a", b"a"], [b"b", b"c"], [b"d", b"e"], [b"b", b"c"]]
    assert answered(outcomes[1], "x") == second
    assert answered(outcomes[0], "s") == [[b"a", b"a"]]


def test_what_is_not_padded_with_its_neighbours() -> None:
    """Other ranks, and what has no element to be padded with, are in runs of their own."""
    bench = Bench(
        lambda inputs: {"y": inputs["x"]},
        make_signature({"x": (FLOAT, None)}, {"y": (FLOAT, None)}),
        pad_variable_length_inputs=True,
    )
    shapes = [(1, 2), (1, 2, 1), (1,), (1, 0), (1, 3)]
    outcomes = bench.run(*[make_body({"x": np.ones(shape, np.float32)}) for shape in shapes])
    assert [np.shape(x) for x in bench.fed] == [(2, 3), (1, 2, 1), (1,), (1, 0)]
    assert [np.shape(answered(outcome)) for outcome in outcomes] == [(1, 3), (1, 2, 1), (1,), (1, 0), (1, 3)]


def test_what_would_be_padded_to_much_more_than_was_sent_runs_alone() -> None:
    """Two requests of some kilobytes each, long the one way and the other, make no run of gigabytes."""
    bench = Bench(
        lambda inputs: {"y": inputs["x"]},
        make_signature({"x": (FLOAT, None)}, {"y": (FLOAT, None)}),
        pad_variable_length_inputs=True,
    )
    shapes = [(1, 4000, 1), (1, 1, 4000)]
    outcomes = bench.run(*[make_body({"x": np.ones(shape, np.float32)}) for shape in shapes])
    assert [np.shape(x) for x in bench.fed] == shapes
    assert [np.shape(answered(outcome)) for outcome in outcomes] == shapes


def test_a_run_that_is_padded_is_not_gone_through_for_each_of_its_requests(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The inputs of each are asked for a few times, however many share the run."""
    asked: Counter[int] = Counter()
    inputs = Call.inputs

    def counted(call: Call) -> Any:
        asked[id(call)] += 1
        return inputs(call)

    monkeypatch.setattr(Call, "inputs", counted)
    bench = Bench(
        lambda inputs: {"y": inputs["x"]},
        make_signature({"x": (FLOAT, None)}, {"y": (FLOAT, None)}),
        pad_variable_length_inputs=True,
    )
    outcomes = bench.run(*[make_body({"x": np.ones((1, 1 + n % 7), np.float32)}) for n in range(200)])
    assert [np.shape(answered(outcome)) for outcome in outcomes] == [(1, 7)] * 200
    assert len(bench.engine.calls) == 1
    assert max(asked.values()) <= 5


@pytest.mark.parametrize("sizes", [[], [16]])
def test_large_requests_that_are_known_are_joined_in_order(sizes: list[int]) -> None:
    """With their padding, at an address where TensorFlow uses them as they lie."""
    bench = Bench(
        lambda inputs: {"y": inputs["x"][:, :1]},
        make_signature({"x": (FLOAT, None)}, {"y": (FLOAT, None)}),
        allowed_batch_sizes=sizes,
    )
    given = [np.random.default_rng(seed).random((3, 5001), np.float32) for seed in range(3)]
    for _ in range(3):  # known from the third on
        outcomes = bench.run(*[make_body({"x": array}) for array in given])
        for array, outcome in zip(given, outcomes, strict=True):
            assert np.array_equal(answered(outcome), array[:, :1])
    (_, fed, _) = bench.engine.calls[-1]
    joined = np.concatenate(given)
    assert np.array_equal(fed["x"][:9], joined)
    assert all(np.array_equal(row, given[-1][0]) for row in fed["x"][9:])
    assert len(fed["x"]) == (16 if sizes else 9)
    assert fed["x"].ctypes.data % 64 == 0


def test_large_joined_feeds_are_aligned() -> None:
    """TensorFlow uses them as they lie; strings it copies in any case."""
    bench = Bench(
        lambda inputs: {"y": inputs["x"]}, make_signature({"x": (FLOAT, None)}, {"y": (FLOAT, None)})
    )
    bench.run(*[make_body({"x": np.ones((3, 5001), np.float32)})] * 3)
    (_, fed, _) = bench.engine.calls[0]
    assert fed["x"].shape == (9, 5001)
    assert fed["x"].ctypes.data % 64 == 0


# Two runs in place of one


@given(st.lists(st.integers(1, 50), min_size=2, max_size=12))
def test_two_runs_are_as_equal_as_they_can_be(rows: list[int]) -> None:
    """Without cutting a request; and there are none where the larger had three quarters or more."""
    at = Batching(BatchingSettings()).middle(rows)
    larger = [max(sum(rows[:position]), sum(rows[position:])) for position in range(1, len(rows))]
    if min(larger) < 0.75 * sum(rows):
        assert larger[at - 1] == min(larger)
    else:
        assert at == 0


@pytest.mark.parametrize(("allowed", "at"), [([], 2), ([4], 2), ([8], 0), ([2, 4, 8], 2), ([5, 6], 0)])
def test_two_runs_are_no_larger_than_one_by_their_padding(allowed: list[int], at: int) -> None:
    """Of four requests of two rows, or three of five in all, where both would be padded to what one is."""
    batching = Batching(BatchingSettings(max_batch_size=max([*allowed, 8]), allowed_batch_sizes=allowed))
    rows = [1, 2, 2] if allowed == [5, 6] else [2, 2, 2, 2]
    assert batching.middle(rows) == at
