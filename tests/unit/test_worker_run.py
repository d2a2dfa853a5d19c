"""What a worker does around its engine's call for one request."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import pytest

from mpspool.core import messages, tfs
from mpspool.core.errors import Code
from mpspool.core.ids import ModelVersion
from mpspool.core.messages import Dispatch, Outcome, Request, Result
from mpspool.core.rundir import RunDir
from mpspool.core.settings import ModelSettings, SlotSettings, WeightsSettings, WorkerSettings
from mpspool.worker.app import Worker
from mpspool.worker.device_failure import DeviceFailedError
from mpspool.worker.engine import load
from mpspool.worker.engine.base import Array, Signature, TensorSpec
from mpspool.worker.predict import Predictor
from mpspool.worker.runner import Runner
from tests import tensors
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


def _body(x: Array) -> bytes:
    request = tfs.PredictRequest()
    request.model_spec.name = "half"
    request.inputs["x"].ParseFromString(tensors.encode(x))
    return bytes(request.SerializeToString())


class Bench:
    """A worker that has its model, and whose router is not there."""

    def __init__(self, root: Path, slot: SlotSettings | None = None) -> None:
        run_dir = RunDir(root)
        run_dir.progress.mkdir()
        self.engine = FakeEngine([SIGNATURE], _half)
        self.worker = Worker(
            WorkerSettings(
                run_dir=str(root),
                worker="half@7.cpu0.0",
                generation=1,
                credits=2,
                model=ModelSettings(
                    name="half", version=7, path="", slots=[], weights=WeightsSettings(shared="off")
                ),
                slot=slot or SlotSettings(device="cpu0", slot=0),
            )
        )
        self.worker._runner = Runner(
            Predictor(self.engine, ModelVersion("half", 7)), None, self.worker._progress
        )

    def run(self, deadline_ns: int) -> Outcome:
        dispatch = Dispatch(1, 1, [Request(None, deadline_ns)])
        (outcome,) = self.worker._run(dispatch, [_body(np.array([1.0], np.float32))], []).outcomes
        return outcome

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


@pytest.mark.parametrize("together", [True, False])
def test_what_is_sent_for_a_dispatch(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, *, together: bool
) -> None:
    """Outcomes in order, long bodies from and to frames, when it was begun and how long it took."""
    sent: list[tuple[Result, list[bytes]]] = []
    monkeypatch.setattr(bench.worker._link, "_send", lambda *message: sent.append(message))
    short, long = (_body(np.full(rows, rows, np.float32)) for rows in (1, 10_000))
    before_ns = time.monotonic_ns()
    requests = [Request(None), Request(short), Request(None)]
    bench.worker._link._on_dispatch(Dispatch(3, 8, requests, together), [long, long])
    after_ns = time.monotonic_ns()
    ((result, frames),) = sent
    assert (result.epoch, result.dispatch) == (3, 8)
    assert before_ns <= result.began_ns
    assert result.began_ns + result.busy_us * 1000 <= after_ns
    assert [run[:2] for run in result.runs] == ([(1, 10_000), (1, 1), (1, 10_000)] if together else [])
    assert messages.decode_from_worker(messages.encode(result)) == result
    assert [outcome.code for outcome in result.outcomes] == [Code.OK] * 3
    assert [outcome.body is None for outcome in result.outcomes] == [True, False, True]
    for body in frames:
        assert list(tfs.PredictResponse.FromString(body).outputs["y"].float_val) == [5002] * 10_000


class StandIn:
    """A stand-in MPS server for one client."""

    def __init__(self, pipe: Path) -> None:
        pipe.mkdir()
        self._door = socket.socket(socket.AF_UNIX)
        self._door.bind(str(pipe / "clients"))
        self._door.listen()
        self.client: socket.socket | None = None
        self._taking = threading.Thread(target=self._take)
        self._taking.start()

    def _take(self) -> None:
        self._door.settimeout(20)
        self.client, _ = self._door.accept()
        self.client.settimeout(None)
        self.say("CONNECTED 1")

    def say(self, line: str) -> None:
        assert self.client is not None
        self.client.sendall(f"{line}\n".encode())

    def heard(self) -> list[str]:
        """All that it was told."""
        assert self.client is not None
        return self.client.recv(4096, socket.MSG_DONTWAIT).decode().splitlines()

    def close(self) -> None:
        self._taking.join()
        self._door.close()
        if self.client is not None:
            self.client.close()


@pytest.fixture
def stand_in(tmp_path: Path) -> Iterator[StandIn]:
    made = StandIn(tmp_path / "pipe")
    yield made
    made.close()


@pytest.fixture
def on_stand_in(tmp_path: Path, stand_in: StandIn) -> Iterator[Worker]:
    slot = SlotSettings(
        device="gpu0", slot=0, gpu_uuid="GPU-1", mps_pipe=str(tmp_path / "pipe"), simulated=True
    )
    made = Bench(tmp_path, slot)
    yield made.worker
    if made.worker._simulated is not None:
        made.worker._simulated.close()
    made.close()


def test_a_fault_that_hits_a_worker_while_it_loads(
    on_stand_in: Worker, stand_in: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is found out although nothing is run to warm it: a model whose shapes are open is never called."""

    def hit(*_: object) -> FakeEngine:
        stand_in.say("FAULT 719 SIMULATED unspecified launch failure")
        return FakeEngine([], _half)

    monkeypatch.setattr(load, "load", hit)
    with pytest.raises(DeviceFailedError, match="CUDA_ERROR_LAUNCH_FAILED"):
        on_stand_in._load()


def test_a_model_that_faults_its_gpu_while_it_loads(
    on_stand_in: Worker, stand_in: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server hears of it, as the hardware tells the real one."""

    def fault(*_: object) -> FakeEngine:
        raise RuntimeError("CUDA_ERROR_ILLEGAL_ADDRESS: an illegal memory access was encountered")

    monkeypatch.setattr(load, "load", fault)
    with pytest.raises(DeviceFailedError, match="CUDA_ERROR_ILLEGAL_ADDRESS"):
        on_stand_in._load()
    assert stand_in.heard() == ["FAULT 700"]
