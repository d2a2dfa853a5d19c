"""How the GPUs fare while the pool runs: use, memory, heat, power, errors. Through NVML, without a CUDA context."""

from __future__ import annotations

import contextlib
import importlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from mpspool.mps.devices import text_of

RESET_XIDS: Mapping[int, str] = {
    46: "GPU stopped processing",
    62: "internal micro-controller halt",
    79: "GPU has fallen off the bus",
    95: "uncontained memory error",
    110: "security fault",
    119: "GSP RPC timeout",
    120: "GSP error",
    140: "unrecovered ECC error",
    143: "GPU initialisation error",
    158: "GPU fatal timeout",
}
"""Xids after which nothing runs on the GPU until it is reset or the machine restarted.

NVIDIA's Xid catalogue (docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html) has them as RESET_GPU, and 79 as
RESTART_BM, at once. All others are only counted:

- 8, 11, 13, 25, 31, 32, 39-41, 43-45, 68, 69: faults of an application, or that restarting it mends.
- 94: a memory error that hit one application. 48, a double-bit error, comes with 94 or with 95, which decides; 63, 64,
  156 and 157 tell of memory put out of use, and the GPU serves on until a reset is convenient.
- 74, 136, 144-150, 155: NVLink, which workers of one GPU each do not use.
- 109: a context switch that took too long, RESET_GPU in the catalogue, but NVIDIA's device plugin for Kubernetes takes it
  for a fault of the application: the driver's word decides.
- 154: the driver's word on what is to be done has changed. It is asked for that at every reading.
"""

# What nvml.h numbers so; NVML_FI_DEV_GET_GPU_RECOVERY_ACTION is known to drivers from R570 on.
_XID_EVENT = 0x8
_TEMPERATURE_GPU = 0
_UNCORRECTED, _VOLATILE = 1, 0
_RECOVERY_ACTION = 230
_RECOVERIES = {
    1: "a reset",
    2: "the node to be rebooted",
    6: "a reset of its bus",
    7: "the system to be rebooted",
}
_EVERY_INSTANCE = 0xFFFFFFFF

_MIG = "MIG-"
_GONE = ("NVMLError_GpuIsLost", "NVMLError_ResetRequired")
_SILENCE = ("NVMLError_Unknown", "NVMLError_NotFound", "NVMLError_GpuNotFound")
# One reading without any answer may be chance.
_SILENT_READS = 3
_MAX_EVENTS = 1000


@dataclass(frozen=True, slots=True)
class GpuReading:
    """What a GPU said last; None for what it does not tell, as most of a MIG device's.

    Attributes:
        uuid: as Telemetry was given it.
        name: the product's.
        utilisation: 0 to 1: the share of the driver's last sample period in which any kernel ran.
        memory_used_bytes: of the whole device, by anyone.
        power_limit_w: the one in force.
        ecc_uncorrected: errors since the driver was loaded.
        processes: the device memory of each process that has a context there, by pid as this process sees it; MPS
            clients too.
        xids: how often each Xid came since the Telemetry was made.
        lost: why nothing runs on it any more, for good; "" while it is not so.
    """

    uuid: str
    name: str = ""
    utilisation: float | None = None
    memory_used_bytes: int | None = None
    memory_total_bytes: int | None = None
    temperature_c: int | None = None
    power_w: float | None = None
    power_limit_w: float | None = None
    ecc_uncorrected: int | None = None
    processes: Mapping[int, int] | None = None
    xids: Mapping[int, int] = field(default_factory=dict)
    lost: str = ""


def as_message(
    device: str,
    reading: GpuReading,
    state: str,
    error: str = "",
    *,
    faults: int = 0,
    workers: Mapping[str, int] | None = None,
    simulated: bool = False,
) -> dict[str, Any]:
    """A device as the router and `status --json` have it; JSON can carry it as it is. Pure.

    Args:
        device: "gpu0".
        reading: GpuReading(uuid) where there is none.
        state: of the device, as DomainState has them.
        error: why it is in that state; "" for no reason.
        faults: how often it failed for all its workers, as far as is known.
        workers: pids by worker id, to find the workers' shares of the device's memory.
        simulated: it is a stand-in.
    """
    used = reading.processes or {}
    message: dict[str, Any] = {
        "device": device,
        "uuid": reading.uuid,
        "name": reading.name,
        "state": state,
        "faults": faults,
        "utilisation": reading.utilisation,
        "memory_used_bytes": reading.memory_used_bytes,
        "memory_total_bytes": reading.memory_total_bytes,
        "temperature_c": reading.temperature_c,
        "power_w": reading.power_w,
        "power_limit_w": reading.power_limit_w,
        "ecc_uncorrected": reading.ecc_uncorrected,
        "xids": {str(xid): count for xid, count in sorted(reading.xids.items())},
        "workers": {worker: used[pid] for worker, pid in (workers or {}).items() if pid in used},
    }
    if error:
        message["error"] = error
    if simulated:
        message["simulated"] = True
    return message


@dataclass(slots=True, eq=False)
class _Watched:
    """A device that is read.

    Attributes:
        handle: NVML's; None until it was found.
        whole: the GPU that a MIG device is part of, else the same; what events are about.
        instance: a MIG device's (GPU instance, compute instance).
        silent: readings in a row without any answer.
    """

    uuid: str
    name: str = ""
    handle: Any = None
    whole: Any = None
    whole_uuid: str = ""
    instance: tuple[int, int] | None = None
    silent: int = 0
    xids: Counter[int] = field(default_factory=Counter)
    lost: str = ""


class Telemetry:
    """Reads some devices over and over. Not for several threads at once.

    Args:
        uuids: of GPUs or MIG devices.
        nvml: a module with pynvml's functions; imported where None. What it does not have is unknown.
    """

    def __init__(self, uuids: Sequence[str], nvml: Any = None) -> None:
        self._nvml = nvml
        self._watched = [_Watched(uuid) for uuid in uuids]
        self._started = False
        self._events: Any = None
        self._registered: set[str] = set()

    def read(self) -> dict[str, GpuReading]:
        """Reads every device, by uuid; nothing where there is no NVML (yet).

        Blocks for milliseconds, or for as long as the driver does. Never raises for what a device does. A device
        that was lost is not asked again.
        """
        if not self._start():
            return {}
        for watched in self._watched:
            if watched.handle is None and not watched.lost:
                self._find(watched)
        self._take_events()
        return {watched.uuid: self._reading(watched) for watched in self._watched}

    def close(self) -> None:
        """Lets go of NVML. read() starts anew."""
        if not self._started:
            return
        if self._events is not None:
            with contextlib.suppress(self._nvml.NVMLError):
                self._nvml.nvmlEventSetFree(self._events)
        with contextlib.suppress(self._nvml.NVMLError):
            self._nvml.nvmlShutdown()
        self._events, self._started = None, False
        self._registered.clear()
        for watched in self._watched:
            watched.handle = watched.whole = None

    def _start(self) -> bool:
        if self._started:
            return True
        if self._nvml is None:
            try:
                self._nvml = importlib.import_module("pynvml")
            except ImportError:
                return False
        try:
            self._nvml.nvmlInit()
        except self._nvml.NVMLError:
            return False
        self._started = True
        self._events = _Asking(self._nvml)("nvmlEventSetCreate")
        return True

    def _find(self, watched: _Watched) -> None:
        ask = _Asking(self._nvml)
        handle = whole = ask("nvmlDeviceGetHandleByUUID", watched.uuid)
        watched.lost = ask.gone
        if handle is None:
            return
        if watched.uuid.startswith(_MIG):
            whole = ask("nvmlDeviceGetDeviceHandleFromMigDeviceHandle", handle)
            watched.instance = (
                ask("nvmlDeviceGetGpuInstanceId", handle),
                ask("nvmlDeviceGetComputeInstanceId", handle),
            )
        watched.handle, watched.whole = handle, whole
        watched.name = text_of(ask("nvmlDeviceGetName", handle) or "")
        watched.whole_uuid = text_of(ask("nvmlDeviceGetUUID", whole) or "") if whole is not None else ""
        if self._events is not None and watched.whole_uuid not in {"", *self._registered}:
            ask("nvmlDeviceRegisterEvents", whole, _XID_EVENT, self._events)
            self._registered.add(watched.whole_uuid)

    # -- Xids -------------------------------------------------------------------------------------

    def _take_events(self) -> None:
        """Those that came since the last reading, without waiting for more."""
        if self._events is None:
            return
        for _ in range(_MAX_EVENTS):
            event = _Asking(self._nvml)("nvmlEventSetWait", self._events, 0)
            if event is None:  # Timeout: there is none
                return
            if event.eventType == _XID_EVENT:
                self._note(event)

    def _note(self, event: Any) -> None:
        uuid = text_of(_Asking(self._nvml)("nvmlDeviceGetUUID", event.device) or "")
        xid = int(event.eventData)
        for watched in self._watched:
            if uuid and watched.whole_uuid == uuid and _concerns(event, watched.instance):
                watched.xids[xid] += 1
                if xid in RESET_XIDS:
                    watched.lost = watched.lost or f"Xid {xid}, {RESET_XIDS[xid]}"

    # -- one device -------------------------------------------------------------------------------

    def _reading(self, watched: _Watched) -> GpuReading:
        if watched.handle is None or watched.lost:
            return self._what_is_left(watched)
        ask, handle = _Asking(self._nvml), watched.handle
        rates = ask("nvmlDeviceGetUtilizationRates", handle)
        memory = ask("nvmlDeviceGetMemoryInfo", handle)
        power_mw = ask("nvmlDeviceGetPowerUsage", handle)
        limit_mw = ask("nvmlDeviceGetEnforcedPowerLimit", handle)
        reading = GpuReading(
            watched.uuid,
            watched.name,
            utilisation=None if rates is None else rates.gpu / 100,
            memory_used_bytes=None if memory is None else int(memory.used),
            memory_total_bytes=None if memory is None else int(memory.total),
            temperature_c=ask("nvmlDeviceGetTemperature", handle, _TEMPERATURE_GPU),
            power_w=None if power_mw is None else power_mw / 1000,
            power_limit_w=None if limit_mw is None else limit_mw / 1000,
            ecc_uncorrected=ask("nvmlDeviceGetTotalEccErrors", handle, _UNCORRECTED, _VOLATILE),
            processes=_processes(ask, handle),
            xids=dict(watched.xids),
        )
        watched.lost = ask.gone or self._silence(watched, ask) or _recovery(ask, watched.whole)
        return self._what_is_left(watched) if watched.lost else reading

    def _what_is_left(self, watched: _Watched) -> GpuReading:
        return GpuReading(watched.uuid, watched.name, xids=dict(watched.xids), lost=watched.lost)

    def _silence(self, watched: _Watched, ask: _Asking) -> str:
        """Why it is gone, where it has answered nothing at all for some readings."""
        watched.silent = 0 if ask.answers or not ask.silence else watched.silent + 1
        return f"NVML does not find it any more: {ask.silence}" if watched.silent >= _SILENT_READS else ""


class _Asking:
    """Calls NVML; None is the answer where there is none.

    Attributes:
        answers: how many there were.
        gone: an error that says that the device is lost, "" without one.
        silence: an error that may mean the same.
    """

    def __init__(self, nvml: Any) -> None:
        self._nvml = nvml
        self._errors = (nvml.NVMLError, getattr(nvml, "NVMLLibraryMismatchError", nvml.NVMLError))
        self.answers = 0
        self.gone = ""
        self.silence = ""

    def __call__(self, function: str, *arguments: Any) -> Any:
        call = getattr(self._nvml, function, None)
        if call is None:
            return None
        try:
            answer = call(*arguments)
        except self._errors as error:
            kind = type(error).__name__
            if kind in _GONE:
                self.gone = f"NVML says: {error}"
            elif kind in _SILENCE:
                self.silence = str(error)
            return None
        self.answers += 1
        return answer


def _concerns(event: Any, instance: tuple[int, int] | None) -> bool:
    """Whether it is about the whole GPU or about this part of it."""
    told = (
        getattr(event, "gpuInstanceId", _EVERY_INSTANCE),
        getattr(event, "computeInstanceId", _EVERY_INSTANCE),
    )
    return instance is None or all(
        one in (_EVERY_INSTANCE, own) for one, own in zip(told, instance, strict=True)
    )


def _processes(ask: _Asking, handle: Any) -> dict[int, int] | None:
    """MPS clients stand in a list of their own; who is in both has one context, not two."""
    lists = [
        ask("nvmlDeviceGetComputeRunningProcesses", handle),
        ask("nvmlDeviceGetMPSComputeRunningProcesses", handle),
    ]
    if lists == [None, None]:
        return None
    used: dict[int, int] = {}
    for found in lists:
        for process in found or []:
            if process.usedGpuMemory is not None:
                used[process.pid] = max(used.get(process.pid, 0), int(process.usedGpuMemory))
    return used


def _recovery(ask: _Asking, whole: Any) -> str:
    """What the driver says has to be done before the GPU can be used again, "" for nothing."""
    values = ask("nvmlDeviceGetFieldValues", whole, [_RECOVERY_ACTION]) if whole is not None else None
    if not values or values[0].nvmlReturn != 0:
        return ""
    needed = _RECOVERIES.get(int(values[0].value.uiVal), "")
    return f"the driver says that it needs {needed}" if needed else ""
