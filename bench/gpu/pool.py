"""A pool of one setting, started as a user starts it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from bench.cell import Sample
from bench.environments import BenchError
from bench.gpu.device import Gpu, Used, Watch
from bench.guard import Run
from bench.peers import Peer, Place, mpspool
from bench.protocols import Tfs
from bench.server import Server
from mpspool.core import control, settings
from mpspool.core.rundir import RunDir
from mpspool.core.settings import MpsSettings
from mpspool.mps.control import Control, ControlError

DEVICE = "gpu0"
_WAIT_S = 110


@dataclass(frozen=True, slots=True, order=True)
class Setting:
    """How many workers share the GPU, whether under MPS, and whether each copies on the stream that computes."""

    contexts: int
    mps: bool
    merged: bool = False

    @property
    def title(self) -> str:
        what = "one process" if self.contexts == 1 else f"{self.contexts} contexts"
        return f"{what}, {'MPS' if self.mps else 'no MPS'}{', merged streams' if self.merged else ''}"


ONE = Setting(1, mps=False)


@dataclass(frozen=True, slots=True)
class GpuSample:
    """One load, from outside and from the GPU's side.

    Attributes:
        worker_bytes: device memory of a worker, the mean; None where NVML does not tell it by our pids.
    """

    served: Sample
    used: Used
    worker_bytes: float | None


def _peer(setting: Setting, gpu: Gpu) -> Peer:
    def start(place: Place) -> list[str]:
        return mpspool(
            *("start", "--model", f"{place.model}={place.models / place.model}", *gpu.flags()),
            *("--contexts-per-gpu", str(setting.contexts), "--mps", "on" if setting.mps else "off"),
            *("--grpc-port", str(place.port), "--rest-port", "0", "--run-dir", str(place.folder / "run")),
        )

    def wait(place: Place) -> list[str]:
        return mpspool("wait", "--run-dir", str(place.folder / "run"), "--timeout", str(_WAIT_S))

    def stop(place: Place) -> list[str]:
        return mpspool("stop", "--run-dir", str(place.folder / "run"), "--timeout", "10")

    # What a slot waits after losses in a row is a choice of the user's; here each loss stands for itself.
    environment = {
        **gpu.environment(),
        "MPSPOOL_RESTART_BACKOFF_S": "0",
        "MERGE_COMPUTE_COPY_STREAM": str(int(setting.merged)),
    }
    name = f"{setting.contexts}.{'mps' if setting.mps else 'off'}{'.merged' if setting.merged else ''}"
    return Peer(name, setting.title, Tfs(), start, environment, wait, stop)


class Pool(Server):
    """`mpspool start` with one model on one GPU. A context manager; on exit nothing of it is left."""

    def __init__(self, setting: Setting, model: str, gpu: Gpu, run: Run) -> None:
        super().__init__(_peer(setting, gpu), model, run)
        self.setting, self.gpu, self.model = setting, gpu, model
        self.run = RunDir(self._place.folder / "run")

    @property
    def daemon(self) -> MpsSettings | None:
        """Its MPS daemon; None without MPS."""
        if not self.setting.mps:
            return None
        return settings.load(self.run.settings_file(f"mps.{DEVICE}"), MpsSettings)

    def status(self) -> dict[str, Any]:
        """As `mpspool status --json` has it. Raises control.ControlError."""
        return control.call(self.run.pool_control, "status")

    def workers(self) -> dict[str, dict[str, Any]]:
        return {worker["id"]: worker for worker in self.status()["workers"]}

    def control(self) -> Control:
        """Of its MPS daemon."""
        daemon = self.daemon
        assert daemon is not None
        return Control.of(daemon, os.environ)

    def attached(self) -> int | None:
        """How many of its workers are in the MPS daemon's client list; None without MPS.

        Raises:
            BenchError: the daemon does not say.
        """
        if not self.setting.mps:
            return None
        ours = {worker["pid"] for worker in self.workers().values()}
        try:
            daemon = self.control()
            clients = {pid for server in daemon.server_list() for pid in daemon.client_list(server)}
        except ControlError as error:
            raise BenchError(f"{self.title}: {error}") from error
        return len(ours & clients)

    def warm(self, batch: int, concurrency: int, seconds: float) -> None:
        """Has every worker see a batch's shape, once the answer to it was found right."""
        self.check(batch)
        self.load(self.write_body(batch), concurrency, seconds)

    def sample(self, batch: int, concurrency: int, seconds: float) -> GpuSample:
        """One load, of a shape that is warm. Raises BenchError, AssertionError: it answered wrong, or not at all."""
        frame_bytes = self.check(batch)
        pids = [worker["pid"] for worker in self.workers().values()]
        with Watch(self.gpu, self.daemon) as watch:
            served = self.load(self.write_body(batch), concurrency, seconds, frame_bytes)
        used = watch.used()
        own = [used.processes[pid] for pid in pids if pid in used.processes]
        return GpuSample(served, used, sum(own) / len(own) if own else None)

    def until(self, holds: Callable[[dict[str, Any]], bool], limit_s: float) -> bool:
        """Whether `holds(status)` became true in time."""
        end = time.monotonic() + limit_s
        while time.monotonic() < end:
            try:
                if holds(self.status()):
                    return True
            except control.ControlError:
                pass
            time.sleep(0.05)
        return False
