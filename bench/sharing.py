"""What one copy of the weights and of TensorFlow is worth: memory by workers, and the time to be back.

Our own pool against itself: weights shared or private, workers forked or started by exec. The model for
memory is one embedding table of 1 GB under a small tower; every row of it is asked for before memory is read.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import grpc
import numpy as np

from bench import measure
from bench.environments import REPOSITORY, BenchError
from bench.guard import Run
from bench.peers import mpspool
from bench.server import free_ports
from mpspool.core import control, process
from mpspool.core.rundir import RunDir

ROWS, WIDTH = 2_500_000, 100
_PER_REQUEST = 100_000
_READY_S = 300.0
_RESTARTS = 20
_DEADLINE_S = 60.0
_ROWS_ASKED = (1, 512, 20_000)


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


@dataclass(slots=True)
class Sharing:
    """All that was measured here.

    Attributes:
        held: by variant and number of workers.
        back_s: by variant, the times from a worker's SIGKILL until its slot is READY again.
        back_big_s: the same for a worker with the 1 GB model.
        slower: by rows asked for, the time of an answer from shared weights by that from private ones,
            one pair of requests after another.
    """

    held: dict[tuple[Variant, int], Held]
    back_s: dict[Variant, list[float]]
    back_big_s: dict[Variant, list[float]]
    slower: dict[int, list[float]]


def measure_sharing(run: Run, *, quick: bool) -> Sharing:
    """Raises BenchError: a pool did not come up or answered wrong."""
    big = _ensure_big(run.models)
    small = run.models / "half_plus_two"
    found = Sharing({}, {}, {}, {})
    for variant in VARIANTS:
        for workers in (2,) if quick else (1, 2, 4):
            with _Pool(run, "embedding", big, variant, workers) as pool:
                pool.touch_all()
                found.held[variant, workers] = pool.held()
                if workers != 1:
                    found.back_big_s[variant] = pool.back_s(2 if quick else 5)
                print(f"{variant.title:14} {workers} workers {found.held[variant, workers]}", flush=True)
        with _Pool(run, "half_plus_two", small, variant, 2) as pool:
            found.back_s[variant] = pool.back_s(3 if quick else _RESTARTS)
            print(
                f"{variant.title:14} back after {statistics.median(found.back_s[variant]):.2f} s", flush=True
            )
    found.slower.update(_compare_answers(run, big, 20 if quick else 200))
    return found


def _compare_answers(run: Run, big: Path, pairs: int) -> Iterator[tuple[int, list[float]]]:
    """Rows asked for, and the ratios of shared to private of that many pairs of requests."""
    with (
        _Pool(run, "embedding", big, OURS, 1) as shared,
        _Pool(run, "embedding", big, Variant(shared=False, fork=True), 1) as private,
    ):
        for pool in (shared, private):
            pool.touch_all()
        for count in _ROWS_ASKED:
            yield (
                count,
                [shared.answer_s(count, seed) / private.answer_s(count, seed) for seed in range(pairs)],
            )


def tables(found: Sharing) -> Iterator[str]:
    """Markdown."""
    yield from ("", "## One copy of the weights, one copy of TensorFlow", "")
    yield "A 1 GB embedding model, every row asked for; PSS of nursery, launchers and workers together."
    yield ""
    yield "| | workers | PSS MB in all | of private, exec | a worker's private MB | all READY after s |"
    yield "|---|---|---|---|---|---|"
    for (variant, workers), held in sorted(found.held.items(), key=lambda item: item[0][1]):
        plain = found.held[PLAIN, workers].pss_mb
        yield (
            f"| {variant.title} | {workers} | {held.pss_mb:.0f} | {held.pss_mb / plain:.2f} |"
            f" {held.private_mb:.0f} | {held.ready_s:.1f} |"
        )
    yield from ("", "SIGKILL of a worker until its slot is READY again, median (worst):", "")
    yield "| | half_plus_two, s | 1 GB model, s | half_plus_two, of private, exec |"
    yield "|---|---|---|---|"
    plain_s = statistics.median(found.back_s[PLAIN])
    for variant, times in found.back_s.items():
        big = found.back_big_s[variant]
        yield (
            f"| {variant.title} | {_median_and_worst(times)} | {_median_and_worst(big)} |"
            f" {statistics.median(times) / plain_s:.2f} |"
        )

    yield from (
        "",
        "Time of an answer, shared / private weights, one request after another, median of pairs:",
        "",
    )
    yield "| rows | shared / private |"
    yield "|---|---|"
    for count, ratios in found.slower.items():
        yield f"| {count} | {statistics.median(ratios):.2f} |"


def _median_and_worst(times: Sequence[float]) -> str:
    return f"{statistics.median(times):.2f} ({max(times):.2f})"


def as_dict(found: Sharing) -> dict[str, Any]:
    """For the JSON file."""
    return {
        "held": [
            {
                "variant": variant.title,
                "workers": workers,
                "pss_mb": held.pss_mb,
                "private_mb": held.private_mb,
                "ready_s": held.ready_s,
            }
            for (variant, workers), held in found.held.items()
        ],
        "back_s": {variant.title: times for variant, times in found.back_s.items()},
        "back_big_s": {variant.title: times for variant, times in found.back_big_s.items()},
        "slower": found.slower,
    }


def plot(found: Sharing, file: Path) -> None:
    """Memory by workers, and the time to be back."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, (memory, back) = plt.subplots(1, 2, figsize=(11, 4))
    for variant in VARIANTS:
        points = sorted(
            (workers, held.pss_mb) for (one, workers), held in found.held.items() if one == variant
        )
        memory.plot(*zip(*points, strict=True), marker="o", label=variant.title)
    memory.set(
        title="1 GB model: PSS of nursery, launchers, workers", xlabel="workers", ylabel="MB", ylim=(0, None)
    )
    memory.legend(fontsize=8)
    places = range(len(VARIANTS))
    for shift, title, times in ((-0.2, "half_plus_two", found.back_s), (0.2, "1 GB model", found.back_big_s)):
        heights = [statistics.median(times[variant]) for variant in VARIANTS]
        back.bar([place + shift for place in places], heights, 0.4, label=title)
    back.set_xticks(list(places), [variant.title for variant in VARIANTS], fontsize=8)
    back.set(title="SIGKILL of a worker until READY again, median", ylabel="s")
    back.legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(file, dpi=110)
    plt.close(figure)


class _Pool:
    """A pool of one variant, as its user would start it. A context manager."""

    def __init__(self, run: Run, model: str, base_path: Path, variant: Variant, workers: int) -> None:
        self._model = model
        self._folder = run.folder / f"s{time.monotonic_ns() % 10**9}"
        self._run = RunDir(self._folder / "run")
        self._workers = workers
        self._fork = variant.fork
        self._port = free_ports()
        self._ready_s = 0.0
        self._channel: grpc.Channel | None = None
        self._environment = {
            measure.MARK: f"{run.mark}.sharing.",
            "PYTHONPATH": str(REPOSITORY),
            "CUDA_VISIBLE_DEVICES": "-1",
            "MPSPOOL_WEIGHTS_SHARED": "on"
            if variant.shared and model == "embedding"
            else "auto"
            if variant.shared
            else "off",
            # A slot that loses worker after worker is filled again at once, all the same.
            "MPSPOOL_RESTART_BACKOFF_S": "0",
            "MPSPOOL_WORKERS_START": "fork" if variant.fork else "exec",
        }
        self._command = mpspool(
            "start",
            *("--cpu-slots", str(workers), "--intra-op-threads", "1", "--model", f"{model}={base_path}"),
            *("--grpc-port", str(self._port), "--rest-port", "0", "--run-dir", str(self._run.root)),
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
        end = time.monotonic() + _READY_S
        while time.monotonic() < end:
            if self._process.poll() is not None:
                raise BenchError(f"the pool ended: {(self._folder / 'log').read_text()[-2000:]}")
            with contextlib.suppress(control.ControlError):
                for status in control.stream(self._run.pool_control, "watch"):
                    workers = {one["id"]: one for one in status["workers"]}
                    if holds(workers):
                        return workers
                    if time.monotonic() > end:
                        break
            time.sleep(0.02)
        raise BenchError(f"not as wanted in {_READY_S:g} s: {(self._folder / 'log').read_text()[-2000:]}")

    def touch_all(self) -> None:
        """Asks for every row often enough that each worker has seen all of them."""
        with grpc.insecure_channel(f"127.0.0.1:{self._port}") as channel:
            call = channel.unary_unary("/tensorflow.serving.PredictionService/Predict")
            for first in range(0, ROWS, _PER_REQUEST):
                ids = np.arange(first, min(ROWS, first + _PER_REQUEST), dtype=np.int64)
                body = _request(self._model, ids)
                # Idle workers take turns, so each gets its own.
                answers = [call.future(body, timeout=_DEADLINE_S) for _ in range(2 * self._workers)]
                for answer in answers:
                    answer.result()

    def answer_s(self, count: int, seed: int) -> float:
        """One request of `count` random rows."""
        ids = np.random.default_rng(seed).integers(0, ROWS, count, dtype=np.int64)
        body = _request(self._model, ids)
        if self._channel is None:
            self._channel = grpc.insecure_channel(f"127.0.0.1:{self._port}")
        call = self._channel.unary_unary("/tensorflow.serving.PredictionService/Predict")
        start = time.perf_counter()
        call(body, timeout=_DEADLINE_S)
        return time.perf_counter() - start

    def held(self) -> Held:
        found = self._until(lambda _: True)
        pids = [pid for pid in measure.marked(self._environment[measure.MARK]) if _counts(pid)]
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


def _counts(pid: int) -> bool:
    words = b" ".join(process.strings(pid, "cmdline"))
    return b"mpspool.worker" in words or b"launcher.py" in words


def _request(model: str, ids: Any) -> bytes:
    from mpspool.core import tfs

    request = tfs.PredictRequest()
    request.model_spec.name = model
    tensor = request.inputs["ids"]
    tensor.dtype = tfs.DATA_TYPES_BY_NAME["DT_INT64"].number
    tensor.tensor_shape.dim.add().size = len(ids)
    tensor.tensor_content = ids.tobytes()
    body: bytes = request.SerializeToString()
    return body


def _ensure_big(models: Path) -> Path:
    """Exports the 1 GB model if it is not there; returns its base path. Raises BenchError."""
    base_path = models / "embedding"
    if not (base_path / "1" / "saved_model.pb").exists():
        shutil.rmtree(base_path, ignore_errors=True)
        environment = os.environ | {"CUDA_VISIBLE_DEVICES": "-1", "TF_CPP_MIN_LOG_LEVEL": "2"}
        command = [sys.executable, "-m", "bench.sharing", str(base_path / "1")]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            raise BenchError(f"the 1 GB model could not be exported:\n{done.stderr[-2000:]}")
    return base_path


def _export(path: str) -> None:
    import tensorflow as tf

    class Embedding(tf.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            random = np.random.default_rng(11)
            self.table = tf.Variable(random.random((ROWS, WIDTH), dtype=np.float32))
            self.kernel = tf.Variable(random.random((WIDTH, 1), dtype=np.float32))

        @tf.function(input_signature=[tf.TensorSpec([None], tf.int64, name="ids")])  # type: ignore[untyped-decorator]
        def __call__(self, ids: Any) -> dict[str, Any]:
            return {"sum": tf.reduce_sum(tf.gather(self.table, ids) @ self.kernel)}

    module = Embedding()
    tf.saved_model.save(module, path, signatures={"serving_default": module.__call__})


if __name__ == "__main__":
    _export(sys.argv[1])
