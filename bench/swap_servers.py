"""The two that swap a version under load: our pool, and one process that loads it in itself; and their base path."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, Self

from bench import embedding, measure, swap_load
from bench.environments import REPOSITORY, BenchError
from bench.guard import Run
from bench.peers import THREADS, WORKERS
from bench.server import free_ports
from bench.variants import OURS, Pool
from mpspool.core import control, process, tfs
from mpspool.core.tfrecord import framed

_WARMUP = Path("assets.extra") / "tf_serving_warmup_requests"
_IN_PROCESS = Path(__file__).resolve().parent / "servers" / "swap_in_process.py"
_GONE_POLL_S = 0.01
_GONE_S = 60.0


class BasePath:
    """Versions of the 1 GB model: the first in place, the others beside it, to be renamed when their time comes.

    Args:
        exported: the version folder that they are links to.
        folder: made here; on another file system it holds one copy.
        versions: how many.
    """

    def __init__(self, exported: Path, folder: Path, versions: int) -> None:
        self.path = folder
        first = folder / "1"
        shutil.copytree(exported, first, copy_function=_link)
        _write_warmup(first / _WARMUP)
        for number in range(2, versions + 1):
            shutil.copytree(first, self._prepared(number), copy_function=_link)

    def _prepared(self, number: int) -> Path:
        return self.path / f"next-{number}"

    def publish(self, number: int) -> None:
        """Gives a version its number."""
        self._prepared(number).rename(self.path / str(number))


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


def _write_warmup(file: Path) -> None:
    """Some of the load's own requests, as a TFRecord."""
    file.parent.mkdir(exist_ok=True)
    with file.open("wb") as records:
        for body in swap_load.bodies()[:16]:
            log = tfs.PredictionLog()
            log.predict_log.request.ParseFromString(body)
            records.write(framed(log.SerializeToString()))


@dataclass(frozen=True, slots=True)
class Seen:
    """A swap as it went. Times are CLOCK_MONOTONIC in seconds."""

    number: int
    steady: float
    begin: float
    end: float
    memory: measure.Memory
    segments: measure.Segments


class Swapping(Protocol):
    """A server that takes up new versions by itself. A context manager.

    Attributes:
        title: what the tables call it.
        port: of its gRPC front.
        mark: of its processes, see measure.MARK.
    """

    title: str
    port: int
    mark: str

    def __enter__(self) -> Self: ...
    def __exit__(self, *exception: object) -> None: ...
    def prepare_swap(self) -> None:
        """A version is about to be published."""

    def wait_swapped(self, number: int) -> None:
        """Returns once this version alone is there, and nothing is left of the one before. Raises BenchError."""


class SwappingPool(Pool):
    """Our pool with its two workers. Implements Swapping."""

    title = "mpspool"

    def __init__(self, run: Run, base_path: Path) -> None:
        super().__init__(run, embedding.NAME, base_path, OURS, WORKERS)
        self._old: list[int] = []

    def prepare_swap(self) -> None:
        """See Swapping.prepare_swap."""
        self._old = [worker["pid"] for worker in self.until(lambda _: True)["workers"]]

    def wait_swapped(self, number: int) -> None:
        """See Swapping.wait_swapped."""
        self.until(lambda status: _alone(status, number))
        end = time.monotonic() + _GONE_S
        while left := [pid for pid in self._old if process.alive(pid)]:
            if time.monotonic() > end:
                raise BenchError(f"workers of the version before {number} are still there: {left}")
            time.sleep(_GONE_POLL_S)


def _alone(status: control.Message, number: int) -> bool:
    """Whether all workers are this version's, READY, and no other is there. Raises BenchError where it is refused."""
    versions = next(model["versions"] for model in status["models"] if model["name"] == embedding.NAME)
    for version in versions:
        if version["version"] == number and version["state"] == "END":
            raise BenchError(f"version {number} is not served: {version['error']}")
    return (
        [(version["version"], version["state"]) for version in versions] == [(number, "AVAILABLE")]
        and all(worker["version"] == number for worker in status["workers"])
        and all(worker["state"] == "READY" for worker in status["workers"])
    )


class SwappingProcess:
    """One process with as many threads as the pool has workers. Implements Swapping."""

    title = "one process"

    def __init__(self, run: Run, base_path: Path) -> None:
        self.port = free_ports()
        self.mark = f"{run.mark}.swap."
        self._log = run.folder / "swap.log"
        threads = str(WORKERS * THREADS)
        self._command = [sys.executable, str(_IN_PROCESS), str(self.port), str(base_path)]
        self._command += [embedding.NAME, threads]

    def __enter__(self) -> Self:
        """Raises BenchError."""
        environment = {measure.MARK: self.mark, "PYTHONPATH": str(REPOSITORY)}
        with self._log.open("w") as log:
            self._process = subprocess.Popen(
                self._command,
                env=os.environ | environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        self._expect("served")
        return self

    def __exit__(self, *exception: object) -> None:
        measure.end_marked(self.mark)
        self._process.wait(timeout=10)
        assert self._process.stdout is not None
        self._process.stdout.close()

    def prepare_swap(self) -> None:
        """See Swapping.prepare_swap."""

    def wait_swapped(self, number: int) -> None:
        """See Swapping.wait_swapped."""
        self._expect(f"{number} served")
        self._expect("gone")

    def _expect(self, words: str) -> None:
        assert self._process.stdout is not None
        line = self._process.stdout.readline().strip()
        if not line.endswith(words):
            raise BenchError(f"the process said {line!r}: {self._log.read_text(errors='replace')[-2000:]}")
