"""The in-process limit: the engine's call in two processes, numpy in, numpy out, no server at all."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Self

import numpy as np

from bench import measure
from bench.cell import Sample, quietest
from bench.drive import Driven
from bench.environments import BenchError
from bench.guard import Run
from bench.models import MODELS, Array, Arrays, check, inputs_for
from bench.peers import THREADS, WORKERS

_LOOP = Path(__file__).resolve().parent / "servers" / "call_loop.py"
# The loops start together, this long after they are told to: time enough to read the inputs.
_LEAD_S = 0.5


class InProcess:
    """Measured like a server. A context manager; on exit nothing of it is left."""

    name, title = "inprocess", "in-process limit"

    def __init__(self, model: str, run: Run) -> None:
        self.ready_s = 0.0
        self._model = MODELS[model]
        self._mark = f"{run.mark}.inprocess-{model}."
        self._folder = run.folder / f"inprocess-{model}"
        self._models = run.models
        self._processes: list[subprocess.Popen[str]] = []

    def __enter__(self) -> Self:
        """Starts the processes and waits for the model. Raises BenchError."""
        self._folder.mkdir()
        environment = os.environ | {
            measure.MARK: self._mark,
            "BENCH_MODEL": self._model.name,
            "BENCH_MODELS": str(self._models),
            "BENCH_THREADS": str(THREADS),
            "BENCH_CALL": "session",
        }
        start = time.monotonic()
        try:
            with (self._folder / "log").open("w") as log:
                for _ in range(WORKERS):
                    self._processes.append(
                        subprocess.Popen(
                            [sys.executable, str(_LOOP)],
                            env=environment,
                            stdin=subprocess.PIPE,
                            stdout=subprocess.PIPE,
                            stderr=log,
                            text=True,
                            start_new_session=True,
                        )
                    )
            self._expect("ready")
        except BaseException:
            self._end()
            raise
        self.ready_s = time.monotonic() - start
        return self

    def __exit__(self, *exception: object) -> None:
        self._end()

    def memory(self) -> measure.Memory:
        return measure.memory(measure.marked(self._mark))

    def measure(self, batch: int, concurrency: int, seconds: float, rate: float = 0.0) -> Sample:  # noqa: ARG002
        """One cell; whatever the load, one call at a time in each process.

        Raises:
            BenchError, AssertionError: a process ended, or its answer is wrong.
        """
        return quietest(lambda: self.load(batch, seconds))

    def load(self, batch: int, seconds: float) -> Sample:
        """As measure(), whoever disturbs it. The calls begin half a second from now."""
        inputs = inputs_for(self._model, batch)
        np.savez(self._folder / "inputs.npz", **inputs)  # type: ignore[arg-type]
        answers = [self._folder / f"answer{number}.npz" for number in range(len(self._processes))]
        start = time.monotonic() + _LEAD_S
        for process, answer in zip(self._processes, answers, strict=True):
            assert process.stdin is not None
            process.stdin.write(f"{self._folder}/inputs.npz {answer} {start} {seconds}\n")
            process.stdin.flush()
        time.sleep(max(0.0, start - time.monotonic()))
        pids = [process.pid for process in self._processes]
        before, machine = measure.cpu_by_pid(pids), measure.machine_busy_s()
        time.sleep(seconds)
        used = measure.by_role(before, measure.cpu_by_pid(pids))
        busy = measure.machine_busy_s() - machine
        self._expect("done")
        latencies = np.concatenate([self._checked(inputs, answer) for answer in answers])
        driven = Driven(len(latencies), len(latencies), 0, latencies, client_cpu_s=0.0)
        return Sample.of(driven, seconds, seconds, used, busy)

    def _checked(self, inputs: Arrays, file: Path) -> Array:
        with np.load(file) as answer:
            check(self._model, inputs, answer)
            latencies: Array = answer["latencies_ms"]
        return latencies

    def _expect(self, word: str) -> None:
        for process in self._processes:
            assert process.stdout is not None
            if process.stdout.readline().strip() != word:
                log = (self._folder / "log").read_text(errors="replace")
                raise BenchError(f"a process of the in-process limit ended: {log[-2000:]}")

    def _end(self) -> None:
        measure.end_marked(self._mark)
        for process in self._processes:
            process.wait(timeout=10)
            for pipe in (process.stdin, process.stdout):
                with contextlib.suppress(BrokenPipeError):
                    assert pipe is not None
                    pipe.close()
