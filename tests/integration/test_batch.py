"""Requests that share a run of a real model: each gets the answer that it gets alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import structlog

from mpspool.core import tfs
from mpspool.core.errors import Code
from mpspool.core.ids import ModelVersion
from mpspool.core.join import join
from mpspool.core.messages import Dispatch, Outcome, Request
from mpspool.core.progress import ProgressWriter
from mpspool.core.settings import BatchingSettings, ModelSettings
from mpspool.worker.engine.base import Array, Engine
from mpspool.worker.engine.load import load
from mpspool.worker.predict import Predictor
from mpspool.worker.runner import Runner
from tests import models, tensors

Rows = tuple[int, int] | None
RANDOM = np.random.default_rng(3)


class Counting:
    """An engine whose calls are counted by the rows of each."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.rows: list[int] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def run(self, signature: str, inputs: Mapping[str, Array], outputs: Sequence[str]) -> list[Array]:
        self.rows.append(max(len(array) for array in inputs.values() if array.ndim))
        return self._engine.run(signature, inputs, outputs)


class Bench:
    """A runner on one of the test models."""

    def __init__(self, engine: Engine, page: ProgressWriter, **batching: Any) -> None:
        self.engine = Counting(engine)
        self._runner = Runner(
            Predictor(self.engine, ModelVersion("m", 1)), BatchingSettings(**batching), page
        )

    def run(
        self, bodies: Sequence[bytes], *, together: bool = True, rows: Sequence[Rows] | None = None
    ) -> list[Outcome]:
        requests = [
            Request(body, 0, part) for body, part in zip(bodies, rows or [None] * len(bodies), strict=True)
        ]
        frames: list[bytes] = []
        self.engine.rows.clear()
        self.ran = self._runner.run(Dispatch(1, 1, requests, together), bodies, frames)
        return self.ran.outcomes

    def compare(self, bodies: Sequence[bytes]) -> None:
        """The same bytes or the same error, together and alone, and known or met for the first time."""
        alone = self.run(bodies, together=False)
        for _ in range(3):
            found = self.run(bodies)
            assert [(one.code, one.body, one.message) for one in found] == [
                (one.code, one.body, one.message) for one in alone
            ]


Make = Callable[..., Bench]


@pytest.fixture(scope="module")
def loaded(model_dir: Callable[[str], Path]) -> Callable[[str, str], Engine]:
    """Loads a test model by name, each (name, engine) once."""

    def make(name: str, engine: str) -> Engine:
        return load(
            ModelSettings(name=name, version=1, path=str(model_dir(name) / "1"), slots=[], engine=engine)
        )

    return cache(make)


@pytest.fixture
def bench(loaded: Callable[[str, str], Engine], tmp_path: Path) -> Make:
    """Makes a runner for a test model."""
    page = ProgressWriter(tmp_path / "page")
    return lambda name, engine="auto", **batching: Bench(loaded(name, engine), page, **batching)


def body(
    inputs: Mapping[str, Any], signature: str = "", outputs: Sequence[str] = (), *, content: bool = True
) -> bytes:
    request = tfs.PredictRequest(output_filter=outputs)
    request.model_spec.name = "m"
    request.model_spec.signature_name = signature
    for alias, value in inputs.items():
        array = np.asarray(value)
        encode = tensors.with_content if content else tensors.encode
        request.inputs[alias].ParseFromString(encode(array, tfs.number_of(array.dtype)))
    return bytes(request.SerializeToString())


def output(outcome: Outcome, alias: str) -> Array:
    assert outcome.code == Code.OK, outcome.message
    response = tfs.PredictResponse.FromString(outcome.body)
    return tensors.decode(response.outputs[alias].SerializeToString())


def texts(*values: bytes) -> Array:
    array = np.empty(len(values), object)
    array[:] = values
    return array


@pytest.mark.parametrize("engine", ["session", "tf2"])
@pytest.mark.parametrize("name", ["half_plus_two", "half_plus_two_tf1"])
@pytest.mark.parametrize("content", [True, False])
def test_arithmetic(bench: Make, name: str, engine: str, content: bool) -> None:
    """Requests of several sizes in one run, to the byte as alone, through either engine."""
    model = bench(name, engine)
    rows = (1, 3, 2, 1)
    model.compare([body({"x": RANDOM.random(count, np.float32)}, content=content) for count in rows])
    assert model.engine.rows == [7]


@pytest.mark.parametrize("name", ["strings", "strings_tf1"])
@pytest.mark.parametrize("allowed", [[], [8]])
def test_strings_and_tables(bench: Make, name: str, allowed: list[int]) -> None:
    """Text is looked up, joined and split as alone; padding is in nobody's answer."""
    model = bench(name, allowed_batch_sizes=allowed, max_batch_size=8)
    words = [texts(b"plum"), texts(b"apple", b"\xff\x00", b""), texts(b"no such word" * 40)]
    model.compare([body({"word": word}, content=index != 1) for index, word in enumerate(words)])
    assert model.engine.rows == [8 if allowed else 5]


def test_several_signatures(bench: Make) -> None:
    """Each signature and choice of outputs is a run; a signature with an input without rows runs one by one."""
    model = bench("multi_signature")
    rows = np.arange(6, dtype=np.float32).reshape(2, 3)
    model.compare(
        [
            body({"x": rows}),
            body({"inputs": texts(b"a", b"abcdef")}, "classify"),
            body({"a": rows[0], "b": np.float32(2)}, "add"),
            body({"x": rows + 1}),
            body({"x": rows}, outputs=["total"]),
            body({"inputs": texts(b"abc")}, "classify"),
            body({"a": rows[1], "b": np.float32(3)}, "add"),
            body({"x": np.arange(3, dtype=np.int32).reshape(3, 1)}, "transpose"),
            body({"x": np.arange(4, dtype=np.int32).reshape(4, 1)}, "transpose"),
        ]
    )


def test_a_recommender(bench: Make) -> None:
    """Sums may be blocked otherwise in a larger product, and are equal but for that."""
    model = bench("widedeep")
    asked = [
        {"cat": RANDOM.integers(0, 1000, (rows, 26)), "dense": RANDOM.random((rows, 13), np.float32)}
        for rows in (1, 2, 1, 5)
    ]
    bodies = [body(inputs) for inputs in asked]
    alone = model.run(bodies, together=False)
    together = model.run(bodies)
    assert model.engine.rows == [9]
    for one, other in zip(alone, together, strict=True):
        np.testing.assert_allclose(output(other, "score"), output(one, "score"), rtol=1e-5)


@pytest.mark.parametrize("engine", ["session", "tf2"])
def test_a_row_that_a_kernel_refuses(bench: Make, engine: str) -> None:
    """An id out of range is its own request's error; the others are answered."""
    model = bench("widedeep", engine)
    inputs = {"cat": RANDOM.integers(0, 1000, (1, 26)), "dense": RANDOM.random((1, 13), np.float32)}
    bad = {**inputs, "cat": np.full((1, 26), 1_000_000)}
    with structlog.testing.capture_logs() as logs:
        outcomes = model.run([body(inputs), body(bad), body(inputs)])
    assert model.engine.rows == [3, 1, 1, 1]
    assert [outcome.code for outcome in outcomes] == [Code.OK, Code.INVALID_ARGUMENT, Code.OK]
    assert "1000000 is not in [0, " in outcomes[1].message  # which of two tables is first is left to chance
    assert outcomes[0].body == outcomes[2].body == model.run([body(inputs)])[0].body
    assert [entry["log_level"] for entry in logs] == ["warning"]


@pytest.mark.parametrize("dtype", models.DTYPES)
def test_every_type(bench: Make, dtype: str) -> None:
    """Tensors of each type are joined, padded and split without a change of a bit."""
    model = bench("dtypes", allowed_batch_sizes=[8], max_batch_size=8)
    if dtype == "string":
        arrays = [np.full((rows, 2), b"\x00\xfe", object) for rows in (1, 3, 2)]
    else:
        numbers = [RANDOM.integers(0, 2 if dtype == "bool" else 100, (rows, 2)) for rows in (1, 3, 2)]
        arrays = [array.astype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype) for array in numbers]
    model.compare([body({"x": array}, dtype, content=index != 1) for index, array in enumerate(arrays)])
    assert model.engine.rows == [8]


def test_an_output_that_is_an_input(bench: Make) -> None:
    """It lies in the memory that was fed, and is each request's own all the same."""
    model = bench("alias", allowed_batch_sizes=[8], max_batch_size=8)
    model.compare([body({"x": np.arange(rows, dtype=np.float32) + rows}) for rows in (1, 2, 3)])
    model.compare(
        [body({"x": np.arange(rows, dtype=np.float32) + rows}, outputs=["x"]) for rows in (1, 2, 3)]
    )


def test_a_default_without_rows(bench: Make) -> None:
    """Requests that leave an input to a default without rows run one by one."""
    model = bench("defaults")
    model.compare([body({"a": np.float32([1, 2])}), body({"a": np.float32([3])})])
    assert model.engine.rows == [2, 1]


def test_an_output_without_rows(bench: Make) -> None:
    """It is found out by a run, told in the log once, and the answers are right from the first one on."""
    model = bench("sequences", allowed_batch_sizes=[4], max_batch_size=4)
    bodies = [body({"x": np.ones((rows, 5), np.float32)}, "length") for rows in (1, 2)]
    with structlog.testing.capture_logs() as logs:
        outcomes = model.run(bodies)
        assert model.engine.rows == [4, 1, 2]
        model.compare(bodies)
    assert model.engine.rows == [1, 2]
    assert [output(outcome, "length").tolist() for outcome in outcomes] == [5, 5]
    (warning,) = logs
    assert (warning["signature"], warning["output"], warning["shape"]) == ("length", "length", [])


def test_rows_of_any_length(bench: Make) -> None:
    """Padded to the longest with each request's own first value; without it, lengths are runs of their own."""
    asked = [np.array(rows, np.float32) for rows in ([[1, 2, 3]], [[4], [5]], [[6, 7]])]
    bodies = [body({"x": array}) for array in asked]
    padded = bench("sequences", pad_variable_length_inputs=True)
    outcomes = padded.run(bodies)
    assert padded.engine.rows == [4]
    assert [output(outcome, "same").tolist() for outcome in outcomes] == [
        [[1, 2, 3]],
        [[4, 4, 4], [5, 4, 4]],
        [[6, 7, 6]],
    ]
    plain = bench("sequences")
    plain.compare(bodies)
    assert plain.engine.rows == [1, 2, 1]


@pytest.mark.parametrize("together", [True, False])
def test_parts_of_a_request(bench: Make, together: bool) -> None:
    """A large request in parts, beside others, and joined again is the answer to the whole."""
    model = bench("strings", max_batch_size=4)
    words = texts(*[[b"plum", b"apple", b"none"][index % 3] for index in range(10)])
    for content in (True, False):
        whole = body({"word": words}, content=content)
        other = body({"word": texts(b"plum")})
        found = model.run(
            [whole, other, whole, whole], together=together, rows=[(0, 3), None, (3, 7), (7, 10)]
        )
        assert model.engine.rows == ([4, 4, 3] if together else [3, 1, 4, 3])
        (expected,) = model.run([whole], together=False)
        joined = join([found[index].body or b"" for index in (0, 2, 3)])
        assert tfs.PredictResponse.FromString(joined) == tfs.PredictResponse.FromString(expected.body)


def test_parts_of_what_cannot_be_split(bench: Make) -> None:
    """Refused by the output's name, and by the input's."""
    model = bench("sequences")
    outcomes = model.run([body({"x": np.ones((4, 2), np.float32)}, "length")], rows=[(0, 2)])
    assert (outcomes[0].code, 'the output "length", of shape []' in outcomes[0].message) == (
        Code.FAILED_PRECONDITION,
        True,
    )
    several = bench("multi_signature")
    asked = body({"a": np.ones(4, np.float32), "b": np.float32(1)}, "add")
    outcomes = several.run([asked], rows=[(0, 2)])
    assert (outcomes[0].code, 'input "b" has no dimension 0' in outcomes[0].message) == (
        Code.INVALID_ARGUMENT,
        True,
    )
