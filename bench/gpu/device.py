"""The GPU that is measured, or the stand-in that says so wherever it shows itself."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from bench.environments import BenchError
from mpspool.core.settings import MpsSettings
from mpspool.mps import devices
from mpspool.mps.simulated import state_file
from mpspool.mps.simulated.inventory import simulated
from mpspool.mps.simulated.nvml import Nvml
from mpspool.mps.telemetry import GpuReading, Telemetry

_PERIOD_S = 0.1
# The driver's figures are of up to a second past: what was before the load is left out by this share of it.
_SETTLING = 0.4


class NoGpuError(BenchError):
    """There is nothing to measure on; the text says why, and what can be done all the same."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """One device.

    Attributes:
        uuid: what CUDA_VISIBLE_DEVICES takes, so that a pool sees this one alone.
        driver: its version.
    """

    uuid: str
    name: str
    driver: str
    memory_bytes: int
    simulated: bool

    @property
    def label(self) -> str:
        if self.simulated:
            return "SIMULATED GPU (the models run on the CPU)"
        return f"{self.name}, driver {self.driver}"

    def environment(self) -> dict[str, str]:
        """For `mpspool start --gpus 0`."""
        return {devices.VISIBLE: self.uuid}

    def flags(self) -> list[str]:
        """The same, of `mpspool start`. A stand-in's models have a thread each, as there are few CPUs for many."""
        stand_in = ["--simulate-gpus", "1", "--intra-op-threads", "1", "--inter-op-threads", "1"]
        return ["--gpus", "0", *(stand_in if self.simulated else ())]

    def telemetry(self, daemon: MpsSettings | None) -> Telemetry:
        """A stand-in's is what its MPS daemon says: of nothing where there is none."""
        if not self.simulated:
            return Telemetry([self.uuid])
        if daemon is None:
            return Telemetry([], Nvml(1, lambda _: None))
        state = Path(daemon.log_dir) / state_file.NAME
        return Telemetry([self.uuid], Nvml(1, lambda _: state))


def find(number: int, *, simulate: bool) -> Gpu:
    """The GPU that CUDA_VISIBLE_DEVICES shows under this number. Raises NoGpuError."""
    if simulate:
        (stand_in,) = simulated(1)
        return Gpu(stand_in.uuid, stand_in.name, "", stand_in.memory_bytes, simulated=True)
    found = devices.inventory(os.environ)
    if not found.devices:
        raise NoGpuError(f"no GPU: {found.reason}; --simulate runs all of it on stand-ins")
    if number >= len(found.devices):
        raise NoGpuError(f"no GPU {number}: {len(found.devices)} visible; --simulate needs none")
    gpu = found.devices[number]
    return Gpu(gpu.uuid, gpu.name, found.driver, gpu.memory_bytes, simulated=False)


@dataclass(frozen=True, slots=True)
class Used:
    """Means over a load; None for what NVML does not tell.

    Attributes:
        utilisation: 0 to 1: the share of time in which any kernel ran.
        memory_bytes: of the whole device, by anyone.
        processes: device memory in bytes by pid; empty where NVML names other pids than we see.
    """

    utilisation: float | None
    power_w: float | None
    memory_bytes: float | None
    processes: Mapping[int, int]


class Watch:
    """Reads a GPU in a thread of its own while its block runs."""

    def __init__(self, gpu: Gpu, daemon: MpsSettings | None) -> None:
        self._uuid = gpu.uuid
        self._telemetry = gpu.telemetry(daemon)
        self._readings: list[GpuReading] = []
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._read_on, name="gpu-watch", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._end.set()
        self._thread.join()

    def _read_on(self) -> None:
        while not self._end.is_set():
            start = time.monotonic()
            if reading := self._telemetry.read().get(self._uuid):
                self._readings.append(reading)
            self._end.wait(max(0.0, _PERIOD_S - (time.monotonic() - start)))
        self._telemetry.close()

    def used(self) -> Used:
        """Once the block has ended."""
        return mean_of(self._readings[int(_SETTLING * len(self._readings)) :])


def mean_of(readings: list[GpuReading]) -> Used:
    """Pure."""

    def mean(value: Callable[[GpuReading], float | None]) -> float | None:
        known = [found for reading in readings if (found := value(reading)) is not None]
        return sum(known) / len(known) if known else None

    return Used(
        mean(lambda reading: reading.utilisation),
        mean(lambda reading: reading.power_w),
        mean(lambda reading: reading.memory_used_bytes),
        dict(readings[-1].processes or {}) if readings else {},
    )
