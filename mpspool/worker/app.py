"""A worker process: prepare the device, load one model version, warm it, serve it, leave."""

from __future__ import annotations

import faulthandler
import functools
import gc
import os
import select
import signal
import sys
import threading
import time
from pathlib import Path

from mpspool.core import log, messages, process
from mpspool.core.ids import ModelVersion, WorkerId
from mpspool.core.messages import Dispatch, Hello, LoadReport
from mpspool.core.progress import ProgressWriter
from mpspool.core.rundir import RunDir
from mpspool.core.settings import WorkerSettings
from mpspool.core.states import WORKER_MOVES, Lifecycle, WorkerState
from mpspool.worker import device, device_failure, gpu, simulated_gpu
from mpspool.worker.device_failure import DeviceFailedError, OnGpu
from mpspool.worker.engine.base import Engine
from mpspool.worker.link import Link, Ran, RefusedError, wake_on_signals
from mpspool.worker.plan import Rules
from mpspool.worker.predict import Predictor
from mpspool.worker.runner import Runner
from mpspool.worker.without_keras import without_keras

logger = log.get("worker")

_BEAT_S = 0.1
# How long one whose device has failed waits for the pool to end it.
_WAIT_FOR_END_S = 30.0
_SAY_AGAIN_S = 0.25


class Worker:
    """One model version in one process.

    Args:
        config: the resolved settings of this worker.
    """

    def __init__(self, config: WorkerSettings) -> None:
        self._config = config
        self._model = ModelVersion(config.model.name, config.model.version)
        self._state = Lifecycle(config.worker, WORKER_MOVES, WorkerState.STARTING)
        self._stopping = False
        # As it began, although it is READY (begin.py): the kernel has to be told again.
        self._yields = False
        self._ended = threading.Event()
        self._beats = threading.Thread(target=self._beat, name="heartbeat", daemon=True)
        run_dir = RunDir(Path(config.run_dir))
        program = WorkerId.parse(config.worker).program
        self._set_last_words = functools.partial(run_dir.set_last_words, program)
        self._set_last_words("")
        progress = run_dir.progress_file(program, config.generation)
        self._progress = ProgressWriter(progress)
        hello = Hello(
            protocol=messages.PROTOCOL,
            epoch=0,
            worker=config.worker,
            generation=config.generation,
            pid=os.getpid(),
            state=self._state.state.value,
            credits=config.credits,
            progress=str(progress),
            domain=config.slot.device if config.slot.mps_pipe else "",
            loaded=LoadReport(path=config.model.path),
        )
        self._link = Link(run_dir.router_socket, hello, self._run)
        self._runner: Runner | None = None
        self._simulated: simulated_gpu.SimulatedGpu | None = None

    def serve(self) -> int:
        """Runs to the end and returns the exit status."""
        wakeup = wake_on_signals()
        signal.signal(signal.SIGTERM, self._on_stop)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        self._beats.start()
        try:
            self._load()
            self._link.serve(lambda: self._stopping, wakeup)
        except RefusedError as refusal:
            return self.fail(f"the router refused this worker: {refusal}", process.EXIT_NEVER)
        except DeviceFailedError as failure:
            return self._wait_for_end(str(failure), wakeup)
        if device.on_gpu(self._config.slot) and (failure_text := gpu.synchronise()):
            logger.warning("what was left on the GPU failed", error=failure_text)
        if self._simulated is not None:
            self._simulated.close()
        self._state.to(WorkerState.DRAINING, "asked to stop")
        self._link.close()
        self._ended.set()
        self._beats.join()
        self._progress.close()
        self._state.to(WorkerState.STOPPED, "drained")
        logger.info("stopped")
        return 0

    def _load(self) -> None:
        with without_keras():
            from mpspool.worker import warmup
            from mpspool.worker.engine.compiled_calls import COMPILED
            from mpspool.worker.engine.load import load
            from mpspool.worker.weights.attach import attach, checked
            from mpspool.worker.weights.memory import private_bytes

        start = time.monotonic()
        self._to(WorkerState.LOADING)
        slot, path = self._config.slot, Path(self._config.model.path)
        gpu.check(slot)
        self._simulated = simulated_gpu.attach(slot)
        before_bytes = private_bytes()
        segment, unshared = attach(self._config)
        with device_failure.loading(slot, self._simulated.fault if self._simulated else None):
            engine = load(self._config.model, device.session_config(self._config), segment, unshared)
            engine = self._on_device(engine)
            loaded = time.monotonic()
            self._to(WorkerState.WARMING)
            others = Path(self._config.model.warmup) if self._config.model.warmup else None
            iterations = self._config.model.warmup_iterations
            rules = Rules(self._config.model.tensor_content, self._config.model.check_method_names)
            predictor = Predictor(engine, self._model, rules)
            batching = self._config.model.batching
            runner = Runner(predictor, batching, self._progress, device.run_clock_ns(self._config))
            calls, recorded = warmup.warm_up(
                predictor,
                runner.answer,
                path,
                others,
                iterations,
                others_may_fail=self._config.model.allow_signature_changes,
                rows=min(batching.allowed_batch_sizes, default=1) if batching else 1,
            )
            warmed = time.monotonic()
        device.require_mps(self._config)
        self._runner = runner
        on_gpu = device.on_gpu(self._config.slot)
        weights = checked(engine.weights(), before_bytes, path, warm=calls > 0, on_gpu=on_gpu)
        logger.info(
            "ready",
            engine=engine.name,
            shared_bytes=weights.shared_bytes,
            private_bytes=weights.private_bytes,
            load_s=round(loaded - start, 2),
            warm_s=round(time.monotonic() - loaded, 2),
        )
        # What loading made stays: to go through it in search of garbage takes 0.14 s, and a request would wait for that.
        gc.freeze()
        self._yields = not process.set_session_nice(0)
        process.wake_first()
        self._state.to(WorkerState.READY, "warm")
        report = LoadReport(
            path=str(path),
            load_us=round((loaded - start) * 1e6),
            warmup_us=round((warmed - loaded) * 1e6),
            warmup_records=recorded,
            graphs=COMPILED.count,
            graphs_us=COMPILED.total_us,
        )
        self._link.announce(WorkerState.READY, engine.name, engine.signature_def_map, weights, report)

    def _on_device(self, engine: Engine) -> Engine:
        """The engine, of whose calls the failures of its device are told apart."""
        if self._simulated is not None:
            return simulated_gpu.loaded(engine, self._config.slot, self._simulated)
        return OnGpu(engine, self._config.slot) if device.on_gpu(self._config.slot) else engine

    def _to(self, state: WorkerState) -> None:
        self._state.to(state, "start")
        self._link.announce(state)

    def _run(self, dispatch: Dispatch, bodies: list[bytes], frames: list[bytes]) -> Ran:
        assert self._runner is not None
        return self._runner.run(dispatch, bodies, frames)

    def _wait_for_end(self, reason: str, wakeup: int) -> int:
        """The device has failed, perhaps for all workers on it: the pool ends us, together with those."""
        self._state.to(WorkerState.FAILED, reason)
        status = self.fail(reason, 1)
        end = time.monotonic() + _WAIT_FOR_END_S
        while not self._stopping and time.monotonic() < end:
            self._link.announce(WorkerState.FAILED, failed=reason)  # again: the router may have been away
            if select.select([wakeup], [], [], _SAY_AGAIN_S)[0]:
                os.read(wakeup, 4096)
        return status

    def _beat(self) -> None:
        while not self._ended.wait(_BEAT_S):
            self._progress.beat()
            if self._yields:
                self._yields = not process.set_session_nice(0)

    def _on_stop(self, _signum: int, _frame: object) -> None:
        self._stopping = True
        if self._runner is None:  # nothing was promised yet
            os._exit(0)

    def fail(self, reason: str, status: int) -> int:
        """Says why in the one place that outlives us, and returns the status."""
        logger.error("failed", reason=reason)
        self._set_last_words(reason)
        return status


def main(config: WorkerSettings) -> int:
    """Runs a worker in a process that device.prepare() has been called in."""
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    worker = Worker(config)
    try:
        return worker.serve()
    except device.NotAttachedError as error:
        return worker.fail(str(error), 1)
    except gpu.NoGpuError as error:
        return worker.fail(str(error), process.EXIT_NEVER if error.never else 1)
    except Exception as error:
        # Not imported here: it imports TensorFlow, which may be what has just failed.
        loading = sys.modules.get("mpspool.worker.engine.load")
        if loading is not None and isinstance(error, loading.LoadError):
            return worker.fail(str(error), process.EXIT_NEVER)
        logger.exception("crashed")
        return worker.fail(f"{type(error).__name__}: {error}", 1)
