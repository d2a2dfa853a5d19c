"""The GPUs a CUDA program started here would see, found through NVML without a CUDA context.

NVML lists devices in PCI bus order and knows nothing of CUDA_VISIBLE_DEVICES, so that is applied here.
CUDA itself numbers by CUDA_DEVICE_ORDER, whose default FASTEST_FIRST differs from bus order where a
machine mixes GPU models; which of them is fastest only CUDA knows. An index therefore means bus order
here, as with CUDA_DEVICE_ORDER=PCI_BUS_ID, and every process is given its device by UUID, so that an
inventory entry and the device used under its name are the same one in any case.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

VISIBLE = "CUDA_VISIBLE_DEVICES"
# What to do with a GPU that the driver cannot tell of.
RESET = "reset it (nvidia-smi --gpu-reset), or restart the machine"
SYSFS_PCI = Path("/sys/bus/pci/devices")
_MIG = "MIG-"
_GPU = "GPU-"
# Stands for the UUID of a GPU that does not tell its own.
_BROKEN = "broken-"


class NoNvmlError(Exception):
    """NVML cannot be asked; the text says why."""


@dataclass(frozen=True, slots=True)
class GpuDevice:
    """One device a worker can run on.

    Attributes:
        index: among the visible ones, the N of "gpuN".
        uuid: "GPU-..." or "MIG-...", what CUDA_VISIBLE_DEVICES takes.
        compute_capability: (major, minor).
        memory_bytes: in all, used or not.
        numa_node: the host memory it is attached to; None where the kernel does not know.
        simulated: a stand-in, without a device behind it.
    """

    index: int
    uuid: str
    name: str
    compute_capability: tuple[int, int]
    memory_bytes: int
    numa_node: int | None
    simulated: bool = False


@dataclass(frozen=True, slots=True)
class Inventory:
    """The visible devices.

    Attributes:
        devices: those that can be used.
        reason: why there are none.
        driver: its version where known.
        broken: by index, why the driver gives no others; their numbers stay free.
    """

    devices: list[GpuDevice]
    reason: str = ""
    driver: str = ""
    broken: Mapping[int, str] = field(default_factory=dict)


def visible(environ: Mapping[str, str]) -> list[GpuDevice]:
    """The devices of inventory(), for callers that need no reason."""
    return inventory(environ).devices


def inventory(environ: Mapping[str, str], *, nvml: Any = None, sysfs: Path = SYSFS_PCI) -> Inventory:
    """Finds the visible devices. Never raises for want of a driver, a library or a device.

    Args:
        environ: read for CUDA_VISIBLE_DEVICES.
        nvml: a module with pynvml's functions; imported where None.
        sysfs: the kernel's folder of PCI devices.
    """
    try:
        with session(nvml) as found:
            return _inventory(environ.get(VISIBLE), found, sysfs)
    except NoNvmlError as error:
        return Inventory([], str(error))


@contextmanager
def session(nvml: Any = None) -> Iterator[Any]:
    """NVML, ready to be asked until the end of the block: `nvml`, or pynvml where that is None.

    Raises:
        NoNvmlError: it does not start, or an error of its own left the block.
    """
    if nvml is None:
        try:
            nvml = importlib.import_module("pynvml")
        except ImportError:
            raise NoNvmlError("the Python package nvidia-ml-py is not installed") from None
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        raise NoNvmlError(f"NVML does not start: {error}") from error
    try:
        yield nvml
    except nvml.NVMLError as error:
        raise NoNvmlError(f"NVML fails: {error}") from error
    finally:
        nvml.nvmlShutdown()


def _inventory(mask: str | None, nvml: Any, sysfs: Path) -> Inventory:
    driver = text_of(nvml.nvmlSystemGetDriverVersion())
    found = [_look_at(nvml, index, sysfs) for index in range(nvml.nvmlDeviceGetCount())]
    if not found:
        return Inventory([], "the driver finds no GPU", driver)
    gpus = [gpu for gpu, _, _ in found]
    parts = {gpu.uuid: part for gpu, part, _ in found}
    errors = {gpu.uuid: error for gpu, _, error in found if error}
    seen = _seen_by_cuda(gpus, parts, mask)
    broken = {gpu.index: errors[gpu.uuid] for gpu in seen if gpu.uuid in errors}
    if errors and mask is not None and mask[:1].isalpha() and len(seen) < len(mask.split(",")):
        # The first UUID or MIG name that is nobody's may be that of one which does not say its name; CUDA takes none after it.
        broken = {len(seen): next(iter(errors.values()))}
    devices = [gpu for gpu in seen if gpu.uuid not in errors]
    return Inventory(devices, "" if devices else _why_none(gpus, parts, mask, broken), driver, broken)


def _look_at(nvml: Any, index: int, sysfs: Path) -> tuple[GpuDevice, list[GpuDevice] | None, str]:
    """A GPU, its MIG devices where it is in MIG mode, and why it cannot be used, as one that is lost; "" where it can."""
    try:
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
        gpu = _device(nvml, handle, sysfs)
        return gpu, _mig_devices(nvml, handle, gpu), ""
    except nvml.NVMLError as error:
        return GpuDevice(index, f"{_BROKEN}{index}", "", (0, 0), 0, None), None, str(error)


def _why_none(
    gpus: list[GpuDevice],
    parts: dict[str, list[GpuDevice] | None],
    mask: str | None,
    broken: Mapping[int, str],
) -> str:
    if broken:
        return "; ".join(f"NVML says of gpu{index}: {error}" for index, error in broken.items())
    if all(parts[gpu.uuid] == [] for gpu in gpus):
        return "no usable GPU: in MIG mode, and without a MIG instance"
    return f"{VISIBLE}={mask!r} hides every GPU"


def _seen_by_cuda(
    gpus: list[GpuDevice], parts: dict[str, list[GpuDevice] | None], mask: str | None
) -> list[GpuDevice]:
    """Applies the mask, and puts a MIG device in the place of each GPU in MIG mode.

    A GPU in MIG mode cannot be used whole: CUDA takes its first instance. A mask of several MIG names
    shows CUDA only the first of them in one process (NVIDIA's MIG guide); all are listed here, because
    each of our processes is given one.
    """
    if mask is not None and mask.startswith(_MIG):
        return renumber([part for found in parts.values() for part in found or []], mask)
    chosen = [(gpu, parts[gpu.uuid]) for gpu in renumber(gpus, mask)]
    return _numbered([gpu if found is None else found[0] for gpu, found in chosen if found != []])


def renumber(devices: list[GpuDevice], mask: str | None) -> list[GpuDevice]:
    """The devices that CUDA_VISIBLE_DEVICES=mask leaves, in its order, numbered from 0.

    None (not set) leaves all, an empty mask or "-1" none. An entry is an index (leading digits count,
    so "1gpu" is 1, and blanks before them do not) or, in a list that starts with one, a UUID, in capitals
    too but for its "GPU-", and with anything behind it, or enough of its beginning to be unique. An
    invalid entry hides itself and all after it; an entry twice hides everything.

    Sources: CUDA C++ Programming Guide, "CUDA Environment Variables" (order, prefixes, invalid entry);
    for leading digits, duplicates and lists of one kind only, what torch.cuda found out of the driver
    (torch/cuda/__init__.py, _parse_visible_devices, and its tests); for blanks, capitals and what stands
    behind a UUID, what driver 580 does with one GPU (docs/gpu-verification.md).
    """
    if mask is None:
        return _numbered(devices)
    entries = mask.split(",")
    prefix = next((kind for kind in (_GPU, _MIG) if entries[0].startswith(kind)), "")
    positions: list[int] = []
    for entry in entries:
        position = _by_uuid(devices, entry, prefix) if prefix else _by_index(entry)
        if position in positions:
            return []
        if position is None:
            break
        positions.append(position)
    return _numbered(_until_out_of_range(devices, positions))


def _by_index(entry: str) -> int | None:
    digits = re.match(r"\s*\+?\d+", entry)
    return int(digits[0]) if digits else None


def _by_uuid(devices: list[GpuDevice], entry: str, prefix: str) -> int | None:
    if not entry.startswith(prefix) or entry == prefix:
        return None
    asked = entry.lower()
    uuids = [device.uuid.lower() for device in devices]
    found = [position for position, uuid in enumerate(uuids) if uuid.startswith(asked[: len(uuid)])]
    return found[0] if len(found) == 1 else None


def _until_out_of_range(devices: list[GpuDevice], positions: list[int]) -> list[GpuDevice]:
    chosen: list[GpuDevice] = []
    for position in positions:
        if position >= len(devices):
            break
        chosen.append(devices[position])
    return chosen


def _numbered(devices: list[GpuDevice]) -> list[GpuDevice]:
    return [replace(device, index=index) for index, device in enumerate(devices)]


def _device(nvml: Any, handle: Any, sysfs: Path) -> GpuDevice:
    major, minor = nvml.nvmlDeviceGetCudaComputeCapability(handle)
    return GpuDevice(
        index=0,
        uuid=text_of(nvml.nvmlDeviceGetUUID(handle)),
        name=text_of(nvml.nvmlDeviceGetName(handle)),
        compute_capability=(int(major), int(minor)),
        memory_bytes=_memory_bytes(nvml, handle),
        numa_node=_numa_node(text_of(nvml.nvmlDeviceGetPciInfo(handle).busId), sysfs),
    )


def _memory_bytes(nvml: Any, handle: Any) -> int:
    """0 where the device shares the host's memory and NVML names no size of its own."""
    try:
        return int(nvml.nvmlDeviceGetMemoryInfo(handle).total)
    except nvml.NVMLError_NotSupported:
        return 0


def _mig_devices(nvml: Any, handle: Any, gpu: GpuDevice) -> list[GpuDevice] | None:
    """The GPU's MIG devices; None for a GPU that is not in MIG mode."""
    handles = mig_handles(nvml, handle)
    if handles is None:
        return None
    return [
        replace(
            gpu,
            uuid=text_of(nvml.nvmlDeviceGetUUID(part)),
            name=text_of(nvml.nvmlDeviceGetName(part)),
            memory_bytes=_memory_bytes(nvml, part),
        )
        for part in handles
    ]


def mig_handles(nvml: Any, handle: Any) -> list[Any] | None:
    """NVML's handles of the GPU's MIG devices; None for a GPU that is not in MIG mode."""
    try:
        mode, _ = nvml.nvmlDeviceGetMigMode(handle)
    except nvml.NVMLError_NotSupported:
        return None
    if mode != nvml.NVML_DEVICE_MIG_ENABLE:
        return None
    found = []
    for number in range(nvml.nvmlDeviceGetMaxMigDeviceCount(handle)):
        with suppress(nvml.NVMLError_NotFound):
            found.append(nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, number))
    return found


def _numa_node(bus_id: str, sysfs: Path) -> int | None:
    """NVML writes the PCI domain with eight digits and in capitals, sysfs with four and small."""
    try:
        node = int((sysfs / bus_id.lower()[-12:] / "numa_node").read_text())
    except (OSError, ValueError):
        return None
    return node if node >= 0 else None


def text_of(value: str | bytes) -> str:
    """Old versions of pynvml answer bytes."""
    return value.decode() if isinstance(value, bytes) else value
