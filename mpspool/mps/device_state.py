"""How the machine's GPUs are set and how they are: what NVML says beside the inventory, without a CUDA context."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from mpspool.mps.devices import NoNvmlError, mig_handles, session, text_of

DEFAULT = "DEFAULT"
EXCLUSIVE_THREAD = "EXCLUSIVE_THREAD"
EXCLUSIVE_PROCESS = "EXCLUSIVE_PROCESS"
PROHIBITED = "PROHIBITED"
# As nvml.h numbers them.
_MODES = {0: DEFAULT, 1: EXCLUSIVE_THREAD, 2: PROHIBITED, 3: EXCLUSIVE_PROCESS}
_UNCORRECTED, _VOLATILE = 1, 0


@dataclass(frozen=True, slots=True)
class GpuState:
    """One GPU of the machine, visible or not. None is what NVML does not say of it.

    Attributes:
        compute_mode: who may have a context on it, as nvidia-smi -c names it.
        mig: the UUIDs of its MIG instances; None for a GPU that is not in MIG mode.
        persistent: the driver stays loaded where nobody uses the GPU.
        uncorrected_errors: of its memory, since the driver was loaded.
    """

    uuid: str
    compute_mode: str | None = None
    mig: tuple[str, ...] | None = None
    persistent: bool | None = None
    uncorrected_errors: int | None = None


@dataclass(frozen=True, slots=True)
class Survey:
    """Every GPU of the machine; `cuda` is the newest version (major, minor) that the driver runs."""

    gpus: tuple[GpuState, ...] = ()
    cuda: tuple[int, int] | None = None


def survey(*, nvml: Any = None) -> Survey:
    """Looks at every GPU. Never raises for want of a driver, a library or a device.

    Args:
        nvml: a module with pynvml's functions; imported where None. What it does not have is not known.
    """
    try:
        with session(nvml) as found:
            states = [_state(found, index) for index in range(found.nvmlDeviceGetCount())]
            return Survey(tuple(filter(None, states)), _cuda(found))
    except NoNvmlError:
        return Survey()


def _state(nvml: Any, index: int) -> GpuState | None:
    """None for a GPU that cannot be asked, as one that is lost."""
    try:
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
        uuid, parts = text_of(nvml.nvmlDeviceGetUUID(handle)), mig_handles(nvml, handle)
        mig = None if parts is None else tuple(text_of(nvml.nvmlDeviceGetUUID(part)) for part in parts)
    except nvml.NVMLError:
        return None
    mode = _said(nvml, "nvmlDeviceGetComputeMode", handle)
    persistent = _said(nvml, "nvmlDeviceGetPersistenceMode", handle)
    return GpuState(
        uuid=uuid,
        compute_mode=None if mode is None else _MODES.get(mode, str(mode)),
        mig=mig,
        persistent=None if persistent is None else bool(persistent),
        uncorrected_errors=_said(nvml, "nvmlDeviceGetTotalEccErrors", handle, _UNCORRECTED, _VOLATILE),
    )


def _cuda(nvml: Any) -> tuple[int, int] | None:
    version = _said(nvml, "nvmlSystemGetCudaDriverVersion")
    return None if version is None else (version // 1000, version % 1000 // 10)


def _said(nvml: Any, function: str, *arguments: Any) -> int | None:
    """None where this GPU, this driver or `nvml` does not know the question."""
    ask = getattr(nvml, function, None)
    if ask is None:
        return None
    try:
        return int(ask(*arguments))
    except (nvml.NVMLError, getattr(nvml, "NVMLLibraryMismatchError", nvml.NVMLError)):
        return None
