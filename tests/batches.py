"""A runner with an engine of the test's, and what it is asked and answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mpspool.core import tfs
from mpspool.core.errors import Code, PoolError
from mpspool.core.ids import ModelVersion
from mpspool.core.messages import Dispatch, Outcome, Request
from mpspool.core.methods import Method
from mpspool.core.settings import BatchingSettings
from mpspool.worker.engine.base import Array, Signature, TensorSpec
from mpspool.worker.predict import Predictor
from mpspool.worker.runner import Runner
from tests import tensors
from tests.fakes.engine import FakeEngine

MODEL = ModelVersion("half", 7)
FLOAT, STRING, INT64 = 1, 7, 9
Shape = tuple[int | None, ...] | None
POISON = 13.0


# What a page says between requests, as told.
IDLE = (0, 0)


class Page:
    """A progress page that keeps what it was told: dispatch and index, IDLE after each."""

    def __init__(self) -> None:
        self.told: list[tuple[int, int]] = []

    def start(self, dispatch: int, index: int) -> None:
        self.told.append((dispatch, index))

    def finish(self) -> None:
        self.told.append(IDLE)


def make_signature(
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
        clock_ns: Callable[[], int] | None = None,
        **batching: Any,
    ) -> None:
        self.engine = FakeEngine(signatures or (HALF,), answer)
        self.page = Page()
        self.runner = Runner(
            Predictor(self.engine, MODEL),
            BatchingSettings(**batching),
            self.page,  # type: ignore[arg-type]
            clock_ns,
        )
        self.frames: list[bytes] = []

    def run(self, *asked: Ask | bytes, together: bool = True) -> list[Outcome]:
        asks = [Ask(one) if isinstance(one, bytes) else one for one in asked]
        requests = [Request(None, one.deadline_ns, one.rows, method=one.method) for one in asks]
        dispatch = Dispatch(1, 5, requests, together)
        self.frames = []
        self.ran = self.runner.run(dispatch, [one.body for one in asks], self.frames)
        return self.ran.outcomes

    def runs(self) -> list[tuple[int, int]]:
        """Requests and rows of each run of the last dispatch."""
        return [(requests, rows) for requests, rows, _ in self.ran.runs]

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
    method: Method = Method.PREDICT


def make_body(
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


def asking(*values: float) -> bytes:
    return make_body({"x": np.array(values, np.float32)})


def answered(outcome: Outcome, alias: str = "y") -> Any:
    assert outcome.code == Code.OK, outcome.message
    response = tfs.PredictResponse.FromString(outcome.body)
    return tensors.decode(response.outputs[alias].SerializeToString()).tolist()


def told(outcome: Outcome) -> tuple[int, bytes | None, str]:
    return outcome.code, outcome.body, outcome.message


HALF = make_signature({"x": (FLOAT, (None,))}, {"y": (FLOAT, None)})


def half(inputs: Mapping[str, Array]) -> Mapping[str, Array]:
    refuse_poison(inputs["x"])
    return {"y": inputs["x"] / 2 + 2}


def refuse_poison(*arrays: Array) -> None:
    if any((array == POISON).any() for array in arrays):
        raise PoolError(Code.INVALID_ARGUMENT, "poison")
