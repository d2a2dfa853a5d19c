"""Whether TensorFlow has the GPU of its slot. Where it has not, it would serve on the CPU in silence."""

from __future__ import annotations

import ctypes
import importlib.util
from contextlib import suppress
from pathlib import Path

from mpspool.core import log
from mpspool.core.settings import SlotSettings
from mpspool.worker import device

logger = log.get("gpu")

_DRIVER = "libcuda.so.1"
# The driver's kernel module and its library do not fit each other (CUDA_ERROR_SYSTEM_DRIVER_MISMATCH,
# CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE). Every other error may pass: MPS recovers from a fault, say.
_MISFITS = frozenset({803, 804})
# What TensorFlow 2.21 opens before it takes a GPU (tsl's dso_loader); lacking one, it goes on without a GPU.
_LIBRARIES = (
    "libcudart.so.12",
    "libcublas.so.12",
    "libcublasLt.so.12",
    "libcufft.so.11",
    "libcusolver.so.11",
    "libcusparse.so.12",
    "libcudnn.so.9",
)
# Of these, the wheel that TensorFlow 2.21 does not find by itself: the part of it that opens libraries looks
# into the folders of all the others (its RUNPATH), and only another part into this one's.
_NOT_FOUND = ("libcusolver.so.11", "cusolver")


class NoGpuError(Exception):
    """TensorFlow cannot use the slot's GPU. The text names it, the reason and the remedy.

    Attributes:
        never: starting the worker again could not help.
    """

    def __init__(self, slot: SlotSettings, reason: str, *, never: bool) -> None:
        super().__init__(
            f"{slot.device} ({slot.gpu_uuid}) cannot be used: {reason}; gpus: none for CPU slots"
        )
        self.never = never


def check(slot: SlotSettings) -> None:
    """Has TensorFlow find the slot's GPU. On CPU slots and stand-ins there is nothing to find.

    Call after device.prepare(), in the process that is to use the GPU, before TensorFlow runs anything. Asks
    for devices and makes no context on them.

    Raises:
        NoGpuError: TensorFlow sees no GPU, or more than this one.
    """
    if not device.on_gpu(slot):
        return
    import tensorflow as tf

    _start_driver(slot, tf.sysconfig.get_build_info().get("cuda_version", ""), tf.__version__)
    _open_what_is_not_found()
    seen = len(tf.config.list_physical_devices("GPU"))
    if seen == 1:
        return
    if seen:
        raise NoGpuError(slot, f"TensorFlow sees {seen} GPUs, and should see this one alone", never=False)
    if missing := [name for name in _LIBRARIES if not _opens(name)]:
        remedy = (
            f"pip install 'tensorflow[and-cuda]=={tf.__version__}' brings them, and so does make serve CUDA=1"
        )
        reason = f"TensorFlow's CUDA libraries are not there ({', '.join(missing)}); {remedy}"
        raise NoGpuError(slot, reason, never=True)
    raise NoGpuError(slot, "TensorFlow does not take it; its own words are in this worker's log", never=False)


def synchronise() -> str:
    """Waits for all that this process has on its GPU.

    Returns:
        The CUDA error that ended the wait, by name and number: "" when there was none.
    """
    try:
        cuda = ctypes.CDLL(_DRIVER)
    except OSError as error:
        return str(error)
    device_number, context = ctypes.c_int(), ctypes.c_void_p()
    code = (
        cuda.cuDeviceGet(ctypes.byref(device_number), 0)
        or cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device_number)  # TensorFlow's own
        or cuda.cuCtxPushCurrent_v2(context)
        or cuda.cuCtxSynchronize()
    )
    return f"{code}, {_error_text(cuda, code)}" if code else ""


def _start_driver(slot: SlotSettings, built_for: str, version: str) -> None:
    """Asks the driver itself, whose answer TensorFlow keeps to itself. `built_for` is a CUDA version."""
    try:
        cuda = ctypes.CDLL(_DRIVER)
    except OSError as error:
        remedy = "install the NVIDIA driver; in a container, have NVIDIA_DRIVER_CAPABILITIES hold compute"
        raise NoGpuError(
            slot, f"the driver's {_DRIVER} is not there ({error}); {remedy}", never=True
        ) from None
    if code := cuda.cuInit(0):
        never = code in _MISFITS
        remedy = "; after an update of the driver, reboot; in a container, use the host's" if never else ""
        raise NoGpuError(slot, f"cuInit fails with {code}, {_error_text(cuda, code)}{remedy}", never=never)
    supported = ctypes.c_int()
    cuda.cuDriverGetVersion(ctypes.byref(supported))
    if not built_for:
        reason = f"this TensorFlow {version} is built without CUDA; install the one from PyPI"
        raise NoGpuError(slot, reason, never=True)
    if supported.value // 1000 < int(built_for.partition(".")[0]):
        has = f"{supported.value // 1000}.{supported.value % 1000 // 10}"
        reason = (
            f"the driver is for CUDA {has} and TensorFlow {version} for CUDA {built_for}; update the driver"
        )
        raise NoGpuError(slot, reason, never=True)


def _error_text(cuda: ctypes.CDLL, code: int) -> str:
    text = ctypes.c_char_p()
    cuda.cuGetErrorString(code, ctypes.byref(text))
    return (text.value or b"an unknown error").decode(errors="replace")


def _open_what_is_not_found() -> None:
    """Once it is open, TensorFlow gets it by its name. One that the system has goes first, as for the others."""
    name, folder = _NOT_FOUND
    if _opens(name):
        return
    spec = importlib.util.find_spec("nvidia")
    for root in (spec and spec.submodule_search_locations) or []:
        with suppress(OSError):
            ctypes.CDLL(str(Path(root) / folder / "lib" / name))
            logger.info("opened for TensorFlow, which would not find it", library=name, root=root)
            return


def _opens(library: str) -> bool:
    """Also by name alone, where somebody in this process has opened it already."""
    try:
        ctypes.CDLL(library)
    except OSError:
        return False
    return True
