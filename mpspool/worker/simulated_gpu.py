"""A worker's side of the stand-in for a GPU under MPS: the model runs on the CPU, the device fails as it is told.

The connection to the stand-in's server is what a CUDA context is to the real one. The server hears when this client is
busy and when its own kernel has faulted, and says when a fault has hit it; a real client learns that from its next
call, and so does this one.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable
from pathlib import Path

from mpspool.core import log
from mpspool.core.errors import PoolError
from mpspool.core.settings import SlotSettings
from mpspool.worker.device_failure import STICKY, DeviceFailedError, OnGpu
from mpspool.worker.engine.base import Array, Engine
from mpspool.worker.gpu import NoGpuError

logger = log.get("simulated_gpu")

# Where the stand-in takes its clients, in the pipe folder.
_CLIENTS = "clients"
# How long it may take to start its server.
_CONNECT_S = 20.0
_MAX_BYTES = 4096
# What a client wants for itself, as its environment says it to CUDA.
_WANTS = {
    "thread_percentage": "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE",
    "pinned_mem": "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT",
    "priority": "CUDA_MPS_CLIENT_PRIORITY",
}
_NAMES = {number: name for name, number in STICKY.items()}


class SimulatedGpu:
    """A context on the stand-in of one GPU."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._heard = b""
        self._error = 0

    def close(self) -> None:
        self._connection.close()

    def want(self, wants: str) -> None:
        """Asks for less than the daemon gives; only the first that is said can be that."""
        self._say(f"WANTS {wants}")

    def begin(self) -> None:
        """Work is handed to the device. Raises DeviceFailedError."""
        self._say("BUSY")
        self._hear()

    def end(self) -> None:
        """The device has done it. Raises DeviceFailedError where it has not."""
        self._hear()
        self._say("IDLE")

    def fault(self, error: int) -> None:
        """Our own kernel has failed, which the hardware tells the server."""
        self._say(f"FAULT {error}")
        self._error = error

    def _say(self, line: str) -> None:
        try:
            self._connection.sendall(f"{line}\n".encode())
        except OSError:
            self._error = self._error or STICKY["CUDA_ERROR_MPS_RPC_FAILURE"]

    def _hear(self) -> None:
        try:
            while data := self._connection.recv(_MAX_BYTES, socket.MSG_DONTWAIT):
                self._heard += data
            self._error = self._error or STICKY["CUDA_ERROR_MPS_RPC_FAILURE"]
        except BlockingIOError:
            pass
        except OSError:
            self._error = self._error or STICKY["CUDA_ERROR_MPS_RPC_FAILURE"]
        *lines, self._heard = self._heard.split(b"\n")
        for line in lines:
            self._take(line.decode(errors="replace"))
        if self._error:
            name = _NAMES.get(self._error, "CUDA_ERROR_UNKNOWN")
            raise DeviceFailedError(f"CUDA fails with {name}, {self._error} (SIMULATED)")

    def _take(self, line: str) -> None:
        word, _, rest = line.partition(" ")
        if word == "FAULT" and not self._error:
            self._error = int(rest.split()[0])
        elif word == "WEDGED":
            logger.warning("SIMULATED: what is on the GPU never returns")
            while True:
                time.sleep(1)


class OnSimulatedGpu(OnGpu):
    """An engine whose calls are work of the stand-in's."""

    def __init__(self, engine: Engine, slot: SlotSettings, gpu: SimulatedGpu) -> None:
        super().__init__(engine, slot)
        self._gpu = gpu

    def _watched(self, run: Callable[[], list[Array]]) -> list[Array]:
        self._gpu.begin()
        try:
            found = super()._watched(run)
        except PoolError:
            self._gpu.end()
            raise
        self._gpu.end()
        return found

    def _failure(self, error: PoolError) -> str:
        name = super()._failure(error)
        if name:
            self._gpu.fault(STICKY[name])
        return name


def loaded(engine: Engine, slot: SlotSettings, gpu: SimulatedGpu) -> Engine:
    """The engine on the stand-in, to which its weights are copied at once.

    All of a load may be work on a real GPU. Here the GPU is not busy with it until then, for a worker that is to stop
    while it loads ends at once, and would end a server that it keeps busy.

    Raises:
        DeviceFailedError: the stand-in has failed while the model was loaded.
    """
    gpu.begin()
    gpu.end()
    return OnSimulatedGpu(engine, slot, gpu)


def attach(slot: SlotSettings) -> SimulatedGpu | None:
    """Makes us a client of the stand-in MPS daemon until the context is closed.

    As with CUDA, a daemon that cannot be reached is no error here: device.require_mps() finds out.

    Raises:
        NoGpuError: it refuses us, for now.
    """
    if not (slot.simulated and slot.mps_pipe):
        return None
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    path = Path(slot.mps_pipe) / _CLIENTS
    connection.settimeout(_CONNECT_S)
    try:
        connection.connect(str(path))
        word, _, text = connection.recv(_MAX_BYTES).decode(errors="replace").partition(" ")
    except OSError as error:
        connection.close()
        logger.warning("not attached to the simulated MPS daemon", socket=str(path), error=str(error))
        return None
    connection.settimeout(None)
    if word == "REFUSED":
        connection.close()
        raise NoGpuError(slot, f"cuInit fails with {text.strip()}", never=False)
    gpu = SimulatedGpu(connection)
    if wants := " ".join(f"{name}={os.environ[key]}" for name, key in _WANTS.items() if os.environ.get(key)):
        gpu.want(wants)
    return gpu
