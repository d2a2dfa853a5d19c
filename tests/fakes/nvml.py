"""A pynvml module as an object: what the driver would answer, told beforehand. Names are pynvml's."""

# ruff: noqa: N801, N802, N818

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any


class NVMLError(Exception):
    """As pynvml's."""


class NVMLError_NotSupported(NVMLError):
    """As pynvml's."""


class NVMLError_NotFound(NVMLError):
    """As pynvml's."""


class NVMLError_GpuIsLost(NVMLError):
    """As pynvml's."""


class NVMLError_Unknown(NVMLError):
    """As pynvml's."""


class NVMLError_Timeout(NVMLError):
    """As pynvml's."""


class NVMLLibraryMismatchError(Exception):
    """As pynvml's: the driver is older than a function."""


@dataclass
class Gpu:
    """One device.

    Attributes:
        mig: None where the device knows no MIG, otherwise its instances (None: a free place).
        readings: by function; one that is missing is not supported, an exception is raised.
        fault: what every question about it raises.
        recovery: the action that the driver asks for; None where it does not know of such.
        instance: a MIG device's (GPU instance, compute instance).
    """

    uuid: str
    name: str = "NVIDIA H100"
    capability: tuple[int, int] = (9, 0)
    total: int | None = 80 * 2**30
    bus_id: str = "00000000:0A:00.0"
    mig: list[Gpu | None] | None = None
    mig_mode: int = 1
    readings: dict[str, Any] = field(default_factory=dict)
    fault: NVMLError | None = None
    recovery: int | None = None
    instance: tuple[int, int] = (0, 0)


@dataclass
class FakeNvml:
    """The functions of pynvml that mpspool calls."""

    gpus: list[Gpu] = field(default_factory=list)
    init_error: str = ""
    count_error: str = ""
    driver: str = "580.65.06"
    shutdowns: int = 0

    NVMLError = NVMLError
    NVMLError_NotSupported = NVMLError_NotSupported
    NVMLError_NotFound = NVMLError_NotFound
    NVMLLibraryMismatchError = NVMLLibraryMismatchError
    NVML_DEVICE_MIG_ENABLE = 1

    def nvmlInit(self) -> None:
        if self.init_error:
            raise NVMLError(self.init_error)

    def nvmlShutdown(self) -> None:
        self.shutdowns += 1

    def nvmlSystemGetDriverVersion(self) -> str:
        return self.driver

    def nvmlDeviceGetCount(self) -> int:
        if self.count_error:
            raise NVMLError(self.count_error)
        return len(self.gpus)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> Gpu:
        if error := self.gpus[index].fault:
            raise error
        return self.gpus[index]

    def nvmlDeviceGetUUID(self, handle: Gpu) -> bytes:
        return handle.uuid.encode()

    def nvmlDeviceGetName(self, handle: Gpu) -> str:
        return handle.name

    def nvmlDeviceGetCudaComputeCapability(self, handle: Gpu) -> list[int]:
        return list(handle.capability)

    def nvmlDeviceGetMemoryInfo(self, handle: Gpu) -> SimpleNamespace:
        if handle.total is None:
            raise NVMLError_NotSupported("Not Supported")
        return SimpleNamespace(total=handle.total)

    def nvmlDeviceGetPciInfo(self, handle: Gpu) -> SimpleNamespace:
        return SimpleNamespace(busId=handle.bus_id)

    def nvmlDeviceGetMigMode(self, handle: Gpu) -> list[int]:
        if handle.mig is None:
            raise NVMLError_NotSupported("Not Supported")
        return [handle.mig_mode, handle.mig_mode]

    def nvmlDeviceGetMaxMigDeviceCount(self, handle: Gpu) -> int:
        return len(handle.mig or [])

    def nvmlDeviceGetMigDeviceHandleByIndex(self, handle: Gpu, index: int) -> Gpu:
        part = (handle.mig or [])[index]
        if part is None:
            raise NVMLError_NotFound("Not Found")
        return part


@dataclass
class LiveNvml(FakeNvml):
    """The functions that are called while a pool runs.

    Attributes:
        events: what is about to be delivered: (device, Xid) or (device, Xid, (GPU instance, compute instance)).
        registered: the uuids whose events are.
        calls: how often any device was asked for anything.
    """

    events: list[Any] = field(default_factory=list)
    registered: list[str] = field(default_factory=list)
    calls: int = 0

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> Gpu:
        parts = [part for gpu in self.gpus for part in gpu.mig or [] if part is not None]
        for gpu in [*self.gpus, *parts]:
            if gpu.uuid == uuid:
                return self._about(gpu)
        raise NVMLError_NotFound("Not Found")

    def nvmlDeviceGetDeviceHandleFromMigDeviceHandle(self, handle: Gpu) -> Gpu:
        return next(gpu for gpu in self.gpus if handle in (gpu.mig or []))

    def nvmlDeviceGetGpuInstanceId(self, handle: Gpu) -> int:
        return handle.instance[0]

    def nvmlDeviceGetComputeInstanceId(self, handle: Gpu) -> int:
        return handle.instance[1]

    def nvmlDeviceGetUtilizationRates(self, handle: Gpu) -> SimpleNamespace:
        return SimpleNamespace(gpu=self._read(handle, "utilisation"))

    def nvmlDeviceGetMemoryInfo(self, handle: Gpu) -> SimpleNamespace:
        self._about(handle)
        found = super().nvmlDeviceGetMemoryInfo(handle)
        found.used = handle.readings.get("used", 0)
        return found

    def nvmlDeviceGetTemperature(self, handle: Gpu, sensor: int) -> int:
        assert sensor == 0
        return int(self._read(handle, "temperature"))

    def nvmlDeviceGetPowerUsage(self, handle: Gpu) -> int:
        return int(self._read(handle, "power"))

    def nvmlDeviceGetEnforcedPowerLimit(self, handle: Gpu) -> int:
        return int(self._read(handle, "limit"))

    def nvmlDeviceGetTotalEccErrors(self, handle: Gpu, kind: int, counter: int) -> int:
        assert (kind, counter) == (1, 0)
        return int(self._read(handle, "ecc"))

    def nvmlDeviceGetComputeRunningProcesses(self, handle: Gpu) -> list[SimpleNamespace]:
        return _processes(self._read(handle, "processes"))

    def nvmlDeviceGetMPSComputeRunningProcesses(self, handle: Gpu) -> list[SimpleNamespace]:
        return _processes(self._read(handle, "clients"))

    def nvmlDeviceGetFieldValues(self, handle: Gpu, fields: list[int]) -> list[SimpleNamespace]:
        self._about(handle)
        assert fields == [230]
        if handle.recovery is None:
            return [SimpleNamespace(nvmlReturn=3)]
        return [SimpleNamespace(nvmlReturn=0, value=SimpleNamespace(uiVal=handle.recovery))]

    def nvmlEventSetCreate(self) -> str:
        return "events"

    def nvmlEventSetFree(self, events: str) -> None:
        assert events == "events"
        self.registered.clear()

    def nvmlDeviceRegisterEvents(self, handle: Gpu, kinds: int, events: str) -> None:
        assert (kinds, events) == (8, "events")
        assert not handle.uuid.startswith("MIG-")
        self.registered.append(handle.uuid)

    def nvmlEventSetWait(self, events: str, timeout_ms: int) -> SimpleNamespace:
        assert (events, timeout_ms) == ("events", 0)
        if not self.events:
            raise NVMLError_Timeout("Timeout")
        device, xid, *rest = self.events.pop(0)
        instance = rest[0] if rest else (0xFFFFFFFF, 0xFFFFFFFF)
        return SimpleNamespace(
            device=device,
            eventType=8,
            eventData=xid,
            gpuInstanceId=instance[0],
            computeInstanceId=instance[1],
        )

    def _read(self, handle: Gpu, what: str) -> Any:
        found = self._about(handle).readings.get(what, NVMLError_NotSupported("Not Supported"))
        if isinstance(found, Exception):
            raise found
        return found

    def _about(self, handle: Gpu) -> Gpu:
        self.calls += 1
        if handle.fault is not None:
            raise handle.fault
        return handle


def _processes(used: dict[int, int | None]) -> list[SimpleNamespace]:
    return [SimpleNamespace(pid=pid, usedGpuMemory=size) for pid, size in used.items()]
