"""A worker without TensorFlow: it joins the router for real, and answers y = x / 2 + 2.

Each run is a line of <run folder>/runs, and lasts as long as there is a file <run folder>/hold/<the first of its values>.
What a request is said to have cost is in COST_US by its signature; y of those in TOTALS is one number for all rows, and
the signature "pair" has an input z beside x.

What it does otherwise stands in <run folder>/behave/<worker id>: "never" (exit 78 with a reason),
"crash" (exit 3 before it is READY), "deaf" (SIGTERM is ignored), "slow" (not READY for a minute, this once),
"mute" (never says anything), "warming" (never gets further than that).
"""

from __future__ import annotations

import faulthandler
import json
import os
import signal
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
import numpy as np

from mpspool.core import messages, process, tfs
from mpspool.core.envelope import peek
from mpspool.core.errors import Code
from mpspool.core.ids import ModelVersion, WorkerId
from mpspool.core.messages import Dispatch, Hello
from mpspool.core.progress import ProgressWriter
from mpspool.core.rundir import RunDir
from mpspool.core.settings import WorkerSettings
from mpspool.core.states import WorkerState
from mpspool.core.weights import WeightsReport
from mpspool.worker import simulated_gpu
from mpspool.worker.engine.base import Array, Signature, TensorSpec
from mpspool.worker.link import Link, Ran, wake_on_signals
from mpspool.worker.predict import Predictor
from mpspool.worker.runner import Runner

# By signature; of one that costs 0 nothing is learned.
COST_US = {
    tfs.DEFAULT_SIGNATURE: 1_000,
    "slow": 10_000_000,
    "unknown": 0,
    "total": 1_000,
    "slow_total": 10_000_000,
    "pair": 1_000,
}
TOTALS = ("total", "slow_total")


class _Engine:
    """The model. Its signatures take tensors of floats, of any shape."""

    name = "light"

    def __init__(self, worker: str, root: Path) -> None:
        any_shape = TensorSpec(1, None)
        self.signatures = {
            name: Signature(
                name,
                "tensorflow/serving/predict",
                dict.fromkeys("xz" if name == "pair" else "x", any_shape),
                {"y": any_shape},
                {},
            )
            for name in COST_US
        }
        self._worker = worker
        self._root = root

    def weights(self) -> WeightsReport:
        return WeightsReport()

    @property
    def signature_def_map(self) -> bytes:
        definitions = tfs.SignatureDefMap()
        for name in self.signatures:
            definitions.signature_def[name].inputs["x"].name = "x:0"
        return bytes(definitions.SerializeToString())

    def run(self, signature: str, inputs: Mapping[str, Array], _outputs: Sequence[str]) -> list[Array]:
        x = inputs["x"]
        values = x.reshape(-1).tolist()
        line = {"worker": self._worker, "signature": signature, "shape": x.shape, "values": values}
        with (self._root / "runs").open("a") as runs:
            runs.write(f"{json.dumps(line)}\n")
        hold = self._root / "hold" / f"{values[0]:g}"
        while hold.exists():
            time.sleep(0.005)
        return [np.asarray(x.sum() if signature in TOTALS else x / 2 + 2)]


class _Light:
    """Runs dispatches as a worker does, and says that they took what COST_US has."""

    def __init__(self, config: WorkerSettings, engine: _Engine, progress: ProgressWriter) -> None:
        model = ModelVersion(config.model.name, config.model.version)
        self._runner = Runner(Predictor(engine, model), config.model.batching, progress)

    def run(self, dispatch: Dispatch, bodies: list[bytes], frames: list[bytes]) -> Ran:
        ran = self._runner.run(dispatch, bodies, frames)
        outcomes = [
            msgspec.structs.replace(
                outcome, run_us=COST_US[peek(body).signature_name or tfs.DEFAULT_SIGNATURE]
            )
            if outcome.code == Code.OK
            else outcome
            for outcome, body in zip(ran.outcomes, bodies, strict=True)
        ]
        return ran._replace(outcomes=outcomes)


def _beat(progress: ProgressWriter) -> None:
    while True:
        progress.beat()
        time.sleep(0.1)


def main(config: WorkerSettings) -> int:
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    run_dir = RunDir(Path(config.run_dir))
    program = WorkerId.parse(config.worker).program
    behave = run_dir.root / "behave" / config.worker
    behaviour = behave.read_text() if behave.exists() else ""
    if behaviour == "never":
        run_dir.set_last_words(program, "this can never work")
        os._exit(process.EXIT_NEVER)
    if behaviour == "crash":
        os._exit(3)
    if behaviour == "slow":
        behave.unlink()
        time.sleep(60)
    if behaviour == "mute":
        threading.Event().wait()
    attachment = simulated_gpu.attach(config.slot)
    stopping = threading.Event()
    wakeup = wake_on_signals()
    signal.signal(signal.SIGTERM, lambda *_: None if behaviour == "deaf" else stopping.set())
    page = run_dir.progress_file(program, config.generation)
    progress = ProgressWriter(page)
    threading.Thread(target=_beat, args=(progress,), daemon=True).start()
    state = WorkerState.STARTING.value
    hello = Hello(messages.PROTOCOL, 0, config.worker, config.generation, os.getpid(), state, 2, str(page))
    engine = _Engine(config.worker, run_dir.root)
    link = Link(run_dir.router_socket, hello, _Light(config, engine, progress).run)
    link.announce(WorkerState.LOADING)
    link.announce(WorkerState.WARMING)
    if behaviour == "warming":
        threading.Event().wait()
    link.announce(WorkerState.READY, engine.name, engine.signature_def_map)
    print("light worker", config.worker, "of generation", config.generation, flush=True)
    link.serve(stopping.is_set, wakeup)
    link.close()
    if attachment is not None:
        attachment.close()
    progress.close()
    return 0
