"""Stand-in of pynvml (nvidia-ml-py): the GPUs of inventory.simulated(), as their daemons say they are.

What NVML keeps from a GPU's start (count, handles, names, bus ids) is answered of a lost GPU, too; all else fails.
"""

# ruff: noqa: N801, N802, N815, N818, ARG002 - the names and arguments are pynvml's

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

from mpspool.mps.devices import GpuDevice
from mpspool.mps.simulated import state_file
from mpspool.mps.simulated.busy_time import later
from mpspool.mps.simulated.inventory import simulated
from mpspool.mps.simulated.state_file import GpuState

_IDLE_MEMORY_BYTES = 600 * 2**20
_IDLE_C, _BUSY_C = 31, 67
_IDLE_MW, _BUSY_MW, _LIMIT_MW = 70_000, 650_000, 700_000
_POLL_S = 0.05


class NVMLError(Exception):
    """As pynvml's; `value` is nvml.h's number."""

    value = 999
    text = "Unknown Error"

    def __str__(self) -> str:
        return f"{self.text} (SIMULATED)"


class NVMLError_Uninitialized(NVMLError):
    value, text = 1, "Uninitialized"


class NVMLError_InvalidArgument(NVMLError):
    value, text = 2, "Invalid Argument"


class NVMLError_NotSupported(NVMLError):
    value, text = 3, "Not Supported"


class NVMLError_NotFound(NVMLError):
    value, text = 6, "Not Found"


class NVMLError_Timeout(NVMLError):
    value, text = 10, "Timeout"


class NVMLError_GpuIsLost(NVMLError):
    value, text = 15, "GPU is lost"


class NVMLError_ResetRequired(NVMLError):
    value, text = 16, "GPU requires restart"


class NVMLError_Unknown(NVMLError):
    pass


@dataclass(frozen=True, slots=True)
class Utilization:
    """Per cent of the last second."""

    gpu: int
    memory: int


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes."""

    total: int
    free: int
    used: int


@dataclass(frozen=True, slots=True)
class ProcessInfo:
    pid: int
    usedGpuMemory: int


@dataclass(frozen=True, slots=True)
class PciInfo:
    busId: str


@dataclass(frozen=True, slots=True)
class EventData:
    """`eventData` is the Xid."""

    device: GpuDevice
    eventType: int
    eventData: int
    gpuInstanceId: int = 0xFFFFFFFF
    computeInstanceId: int = 0xFFFFFFFF


@dataclass(slots=True)
class EventSet:
    """Devices and the time up to which their events have been delivered."""

    seen_s: dict[GpuDevice, float] = field(default_factory=dict)


class Nvml:
    """pynvml as an object. Handles are GpuDevices.

    Args:
        count: GPUs of the machine.
        state_of: where the daemon of the GPU with this UUID writes its state file, which need not be there; None
            for a GPU without a daemon.
    """

    NVMLError = NVMLError
    NVMLError_Uninitialized = NVMLError_Uninitialized
    NVMLError_InvalidArgument = NVMLError_InvalidArgument
    NVMLError_NotSupported = NVMLError_NotSupported
    NVMLError_NotFound = NVMLError_NotFound
    NVMLError_Timeout = NVMLError_Timeout
    NVMLError_GpuIsLost = NVMLError_GpuIsLost
    NVMLError_ResetRequired = NVMLError_ResetRequired
    NVMLError_Unknown = NVMLError_Unknown

    NVML_TEMPERATURE_GPU = 0
    NVML_COMPUTEMODE_DEFAULT = 0
    NVML_COMPUTEMODE_EXCLUSIVE_THREAD = 1
    NVML_COMPUTEMODE_PROHIBITED = 2
    NVML_COMPUTEMODE_EXCLUSIVE_PROCESS = 3
    NVML_DEVICE_MIG_DISABLE = 0
    NVML_DEVICE_MIG_ENABLE = 1
    NVML_FEATURE_DISABLED = 0
    NVML_FEATURE_ENABLED = 1
    NVML_MEMORY_ERROR_TYPE_CORRECTED = 0
    NVML_MEMORY_ERROR_TYPE_UNCORRECTED = 1
    NVML_VOLATILE_ECC = 0
    NVML_AGGREGATE_ECC = 1
    nvmlEventTypeXidCriticalError = 0x8

    def __init__(self, count: int, state_of: Callable[[str], Path | None]) -> None:
        self._devices = simulated(count)
        self._state_of = state_of

    def nvmlInit(self) -> None:
        """Always there."""

    def nvmlShutdown(self) -> None:
        """Nothing to let go of."""

    def nvmlSystemGetDriverVersion(self) -> str:
        return "580.65.06 SIMULATED"

    def nvmlSystemGetCudaDriverVersion(self) -> int:
        return 13000

    # -- which devices there are ------------------------------------------------------------------

    def nvmlDeviceGetCount(self) -> int:
        return len(self._devices)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> GpuDevice:
        if not 0 <= index < len(self._devices):
            raise NVMLError_InvalidArgument
        return self._devices[index]

    def nvmlDeviceGetHandleByUUID(self, uuid: str | bytes) -> GpuDevice:
        wanted = uuid.decode() if isinstance(uuid, bytes) else uuid
        for device in self._devices:
            if device.uuid == wanted:
                return device
        raise NVMLError_NotFound

    def nvmlDeviceGetUUID(self, handle: GpuDevice) -> str:
        return handle.uuid

    def nvmlDeviceGetName(self, handle: GpuDevice) -> str:
        return handle.name

    def nvmlDeviceGetCudaComputeCapability(self, handle: GpuDevice) -> tuple[int, int]:
        return handle.compute_capability

    def nvmlDeviceGetPciInfo(self, handle: GpuDevice) -> PciInfo:
        """In a PCI domain that no machine has."""
        return PciInfo(f"FFFFFFFF:{handle.index:02X}:00.0")

    def nvmlDeviceGetMigMode(self, handle: GpuDevice) -> tuple[int, int]:
        return self.NVML_DEVICE_MIG_DISABLE, self.NVML_DEVICE_MIG_DISABLE

    def nvmlDeviceGetMaxMigDeviceCount(self, handle: GpuDevice) -> int:
        return 0

    def nvmlDeviceGetMigDeviceHandleByIndex(self, handle: GpuDevice, index: int) -> NoReturn:
        raise NVMLError_NotFound

    # -- how a device is --------------------------------------------------------------------------

    def nvmlDeviceGetComputeMode(self, handle: GpuDevice) -> int:
        self._state(handle)
        return self.NVML_COMPUTEMODE_DEFAULT

    def nvmlDeviceGetPersistenceMode(self, handle: GpuDevice) -> int:
        self._state(handle)
        return self.NVML_FEATURE_ENABLED

    def nvmlDeviceGetUtilizationRates(self, handle: GpuDevice) -> Utilization:
        share = self._utilisation(handle)
        return Utilization(gpu=round(100 * share), memory=round(50 * share))

    def nvmlDeviceGetMemoryInfo(self, handle: GpuDevice) -> Memory:
        state = self._state(handle)
        used = _IDLE_MEMORY_BYTES + (sum(state.clients.values()) if state else 0)
        used = min(used, handle.memory_bytes)
        return Memory(total=handle.memory_bytes, free=handle.memory_bytes - used, used=used)

    def nvmlDeviceGetTemperature(self, handle: GpuDevice, sensor: int) -> int:
        return round(_IDLE_C + (_BUSY_C - _IDLE_C) * self._utilisation(handle))

    def nvmlDeviceGetPowerUsage(self, handle: GpuDevice) -> int:
        return round(_IDLE_MW + (_BUSY_MW - _IDLE_MW) * self._utilisation(handle))

    def nvmlDeviceGetEnforcedPowerLimit(self, handle: GpuDevice) -> int:
        self._state(handle)
        return _LIMIT_MW

    def nvmlDeviceGetTotalEccErrors(self, handle: GpuDevice, error_type: int, counter_type: int) -> int:
        self._state(handle)
        told = self._read(handle) if error_type == self.NVML_MEMORY_ERROR_TYPE_UNCORRECTED else None
        return told.uncorrected_errors if told else 0

    def nvmlDeviceGetComputeRunningProcesses(self, handle: GpuDevice) -> list[ProcessInfo]:
        state = self._state(handle)
        return [ProcessInfo(pid, used) for pid, used in (state.clients.items() if state else ())]

    def _utilisation(self, handle: GpuDevice) -> float:
        state = self._state(handle)
        return later(state.utilisation, state.busy, time.monotonic() - state.at_s) if state else 0.0

    def _state(self, handle: GpuDevice) -> GpuState | None:
        """What its daemon says; None where none runs. Raises NVMLError_GpuIsLost."""
        state = self._read(handle)
        if state is not None and state.lost:
            raise NVMLError_GpuIsLost
        return state if state is not None and state.daemon.alive else None

    def _read(self, handle: GpuDevice) -> GpuState | None:
        path = self._state_of(handle.uuid)
        return state_file.read(path) if path is not None else None

    # -- events -----------------------------------------------------------------------------------

    def nvmlEventSetCreate(self) -> EventSet:
        return EventSet()

    def nvmlDeviceRegisterEvents(self, handle: GpuDevice, types: int, events: EventSet) -> None:
        """Xids are all there is; those that came before are not delivered."""
        if types & self.nvmlEventTypeXidCriticalError:
            events.seen_s[handle] = time.monotonic()

    def nvmlEventSetWait_v2(self, events: EventSet, timeoutms: int) -> EventData:
        """Raises NVMLError_Timeout."""
        end = time.monotonic() + timeoutms / 1000
        while True:
            for device in events.seen_s:
                if event := self._next(events, device):
                    return event
            left_s = end - time.monotonic()
            if left_s <= 0:
                raise NVMLError_Timeout
            time.sleep(min(_POLL_S, left_s))

    nvmlEventSetWait = nvmlEventSetWait_v2

    def nvmlEventSetFree(self, events: EventSet) -> None:
        events.seen_s.clear()

    def _next(self, events: EventSet, device: GpuDevice) -> EventData | None:
        state = self._read(device)
        for event in state.events if state else []:
            if event.at_s > events.seen_s[device]:
                events.seen_s[device] = event.at_s
                return EventData(device, self.nvmlEventTypeXidCriticalError, event.xid)
        return None
