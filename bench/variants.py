"""Our own pool in each of its variants: weights shared or private, workers forked or started by exec."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import statistics
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import grpc
import numpy as np

from bench import embedding, measure
from bench.environments import REPOSITORY, BenchError
from bench.guard import Run
from bench.peers import mpspool
from bench.server import free_ports
from mpspool.core import control, process
from mpspool.core.rundir import RunDir

PER_REQUEST = 20_000
_READY_S = 300.0
_DEADLINE_S = 60.0


@dataclass(frozen=True, slots=True)
class Variant:
    """One way to run the pool."""

    shared: bool
    fork: bool

    @property
    def title(self) -> str:
        return f"{'shared' if self.shared else 'private'}, {'fork' if self.fork else 'exec'}"


OURS, PLAIN = Variant(shared=True, fork=True), Variant(shared=False, fork=False)
VARIANTS: Sequence[Variant] = (
    PLAIN,
    Variant(shared=True, fork=False),
    Variant(shared=False, fork=True),
    OURS,
)


@dataclass(frozen=True, slots=True)
class Held:
    """Memory of nursery, launchers and workers together, every page of the table touched.

    Attributes:
        workers: how many.
        pss_mb: summed, so that a shared page counts once.
        private_mb: of one worker, the median.
        ready_s: from the start of the pool to all workers READY.
    """

    workers: int
    pss_mb: float
    private_mb: float
    ready_s: float


class Pool:
    """A pool of one variant, as its user would start it. A context manager.

    Attributes:
        port: of its gRPC front.
        mark: of its processes, see measure.MARK.
    """

    def __init__(self, run: Run, model: str, base_path: Path, variant: Variant, workers: int) -> None:
        self._folder = run.folder / f"s{time.monotonic_ns() % 10**9}"
        self._run = RunDir(self._folder / "run")
        self._workers = workers
        self.port = free_ports()
        self._ready_s = 0.0
        self._channel: grpc.Channel | None = None
        self.mark = f"{run.mark}.sharing."
        self._environment = {
            measure.MARK: self.mark,
            "PYTHONPATH": str(REPOSITORY),
            "CUDA_VISIBLE_DEVICES": "-1",
            "MPSPOOL_WEIGHTS_SHARED": ("on" if model == embedding.NAME else "auto")
            if variant.shared
            else "off",
            # A slot that loses worker after worker is filled again at once, all the same.
            "MPSPOOL_RESTART_BACKOFF_S": "0",
            "MPSPOOL_WORKERS_START": "fork" if variant.fork else "exec",
        }
        self._command = mpspool(
            "start",
            *("--cpu-slots", str(workers), "--intra-op-threads", "1", "--model", f"{model}={base_path}"),
            *("--grpc-port", str(self.port), "--rest-port", "0", "--run-dir", str(self._run.root)),
        )

    def __enter__(self) -> Self:
        self._folder.mkdir()
        start = time.monotonic()
        with (self._folder / "log").open("wb") as log:
            self._process = subprocess.Popen(
                self._command,
                env=os.environ | self._environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        try:
            self._until(lambda workers: all(one["state"] == "READY" for one in workers.values()))
        except BaseException:
            self.__exit__()
            raise
        self._ready_s = time.monotonic() - start
        return self

    def __exit__(self, *_exception: object) -> None:
        if self._channel is not None:
            self._channel.close()
        self._process.send_signal(signal.SIGTERM)
        self._process.wait(60)
        shutil.rmtree(self._folder, ignore_errors=True)

    def _until(self, holds: Any) -> Mapping[str, Any]:
        """The workers by id, once they are as wanted. Raises BenchError."""
        return _workers(self.until(lambda status: holds(_workers(status))))

    def until(self, holds: Callable[[control.Message], bool]) -> control.Message:
        """The pool's status, once it is as wanted. Raises BenchError."""
        end = time.monotonic() + _READY_S
        while time.monotonic() < end:
            if self._process.poll() is not None:
                raise BenchError(f"the pool ended: {(self._folder / 'log').read_text()[-2000:]}")
            with contextlib.suppress(control.ControlError):
                for status in control.stream(self._run.pool_control, "watch"):
                    if holds(status):
                        return status
                    if time.monotonic() > end:
                        break
            time.sleep(0.02)
        raise BenchError(f"not as wanted in {_READY_S:g} s: {(self._folder / 'log').read_text()[-2000:]}")

    def touch_all(self) -> None:
        """Asks for every row often enough that each worker has seen all of them."""
        with grpc.insecure_channel(f"127.0.0.1:{self.port}") as channel:
            call = channel.unary_unary("/tensorflow.serving.PredictionService/Predict")
            for first in range(0, embedding.ROWS, PER_REQUEST):
                ids = np.arange(first, min(embedding.ROWS, first + PER_REQUEST), dtype=np.int64)
                body = embedding.request(ids)
                # Idle workers take turns, so each gets its own.
                answers = [call.future(body, timeout=_DEADLINE_S) for _ in range(2 * self._workers)]
                for answer in answers:
                    answer.result()

    def answer_s(self, count: int, seed: int) -> float:
        """One request of `count` random rows."""
        ids = np.random.default_rng(seed).integers(0, embedding.ROWS, count, dtype=np.int64)
        body = embedding.request(ids)
        if self._channel is None:
            self._channel = grpc.insecure_channel(f"127.0.0.1:{self.port}")
        call = self._channel.unary_unary("/tensorflow.serving.PredictionService/Predict")
        start = time.perf_counter()
        call(body, timeout=_DEADLINE_S)
        return time.perf_counter() - start

    def held(self) -> Held:
        """What all processes of the pool's workers hold now."""
        found = self._until(lambda _: True)
        pids = [pid for pid in measure.marked(self.mark) if _counts(pid)]
        memories = [memory for pid in pids if (memory := process.memory(pid))]
        own = [memory.private for one in found.values() if (memory := process.memory(one["pid"]))]
        return Held(
            self._workers,
            sum(memory.pss for memory in memories) / 2**20,
            statistics.median(own) / 2**20,
            self._ready_s,
        )

    def back_s(self, times: int) -> list[float]:
        """SIGKILL of one worker, `times` times, each until the slot is READY at its next generation."""
        taken = []
        for _ in range(times):
            workers = self._until(lambda found: all(one["state"] == "READY" for one in found.values()))
            name, worker = next(iter(workers.items()))
            start = time.monotonic()
            os.kill(worker["pid"], signal.SIGKILL)
            generation = worker["generation"]
            self._until(
                lambda found, name=name, generation=generation: (
                    found[name]["generation"] > generation and found[name]["state"] == "READY"
                )
            )
            taken.append(time.monotonic() - start)
        return taken

    def load_s(self) -> list[float]:
        """What each restarted worker took to load the model and bind its weights, by its own log: no import is in it."""
        taken: list[float] = []
        for log in self._run.logs.glob("worker.*.log"):
            lines = log.read_text(errors="replace").splitlines()
            loads = [json.loads(line)["load_s"] for line in lines if '"load_s"' in line]
            taken += loads[1:]
        return taken


def _workers(status: control.Message) -> Mapping[str, Any]:
    return {one["id"]: one for one in status["workers"]}


def _counts(pid: int) -> bool:
    """Is it a nursery, a launcher or a worker?"""
    return measure.role(pid) in {"nursery", "launcher.py", "worker"}
