"""What a worker does around its engine's call for one request."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import pytest

from mpspool.core import tfs
from mpspool.core.errors import Code
from mpspool.core.messages import Outcome, Request
from mpspool.core.rundir import RunDir
from mpspool.core.settings import ModelSettings, SlotSettings, WorkerSettings
from mpspool.worker import codec
from mpspool.worker.app import Worker
from mpspool.worker.engine.base import Array, Signature, TensorSpec
from tests.fakes.engine import FakeEngine

FLOAT = 1
SIGNATURE = Signature(
    name=tfs.DEFAULT_SIGNATURE,
    method_name="tensorflow/serving/predict",
    inputs={"x": TensorSpec(FLOAT, None)},
    outputs={"y": TensorSpec(FLOAT, None)},
    defaults={},
)


def _half(inputs: Mapping[str, Array]) -> Mapping[str, Array]:
    return {"y": inputs["x"] / 2 + 2}


class Bench:
    """A worker that has its model, and whose router is not there."""

    def __init__(self, root: Path) -> None:
        run_dir = RunDir(root)
        run_dir.progress.mkdir()
        self.engine = FakeEngine([SIGNATURE], _half)
        self.worker = Worker(
            WorkerSettings(
                run_dir=str(root),
                worker="half@7.cpu0.0",
                generation=1,
                credits=2,
                model=ModelSettings(name="half", version=7, path="", slots=[]),
                slot=SlotSettings(device="cpu0", slot=0),
            )
        )
        self.worker._engine = self.engine

    def run(self, deadline_ns: int) -> Outcome:
        request = tfs.PredictRequest()
        request.model_spec.name = "half"
        request.inputs["x"].ParseFromString(codec.encode_bytes(np.array([1.0], np.float32)))
        return self.worker._run(1, 0, Request(None, deadline_ns), request.SerializeToString(), [])

    def close(self) -> None:
        self.worker._link.close()
        self.worker._progress.close()


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path)
    yield made
    made.close()


def test_a_request_whose_deadline_has_passed_is_not_run(bench: Bench) -> None:
    """The worker looks once more, for it may have waited behind another request of its dispatch."""
    assert bench.run(time.monotonic_ns() - 1).code == Code.DEADLINE_EXCEEDED
    assert bench.engine.calls == []


@pytest.mark.parametrize("given_s", [None, 60])
def test_a_request_with_time_left_is_run(bench: Bench, given_s: int | None) -> None:
    """A deadline of 0 is none."""
    deadline_ns = 0 if given_s is None else time.monotonic_ns() + given_s * 10**9
    assert bench.run(deadline_ns).code == Code.OK
    assert len(bench.engine.calls) == 1
