"""A pynvml module as an object: what the driver would answer, told beforehand. Names are pynvml's."""

# ruff: noqa: N801, N802, N818

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace


class NVMLError(Exception):
    """As pynvml's."""


class NVMLError_NotSupported(NVMLError):
    """As pynvml's."""


class NVMLError_NotFound(NVMLError):
    """As pynvml's."""


@dataclass
class Gpu:
    """One device; `mig` is None where the device knows no MIG, otherwise its instances (None: a free place)."""

    uuid: str
    name: str = "NVIDIA H100"
    capability: tuple[int, int] = (9, 0)
    total: int | None = 80 * 2**30
    bus_id: str = "00000000:0A:00.0"
    mig: list[Gpu | None] | None = None
    mig_mode: int = 1


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
