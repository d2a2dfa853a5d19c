"""Whether a failed call means that this process can use its GPU no more.

Some CUDA errors are sticky: every later call of the process fails, and only its end clears them. Under MPS such an
error mostly hits every client of the GPU. TensorFlow raises them as INTERNAL errors, with CUDA's name or text in the
message, or aborts.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence

from mpspool.core.errors import Code, PoolError
from mpspool.core.settings import SlotSettings
from mpspool.core.weights import WeightsReport
from mpspool.worker import device, gpu
from mpspool.worker.engine.base import Array, Engine, Signature

# CUDA driver API, CUresult. Those that the documentation calls fatal for the context, and those of MPS.
STICKY = {
    "CUDA_ERROR_ECC_UNCORRECTABLE": 214,
    "CUDA_ERROR_NVLINK_UNCORRECTABLE": 220,
    "CUDA_ERROR_CONTAINED": 226,
    "CUDA_ERROR_ILLEGAL_ADDRESS": 700,
    "CUDA_ERROR_LAUNCH_TIMEOUT": 702,
    "CUDA_ERROR_CONTEXT_IS_DESTROYED": 709,
    "CUDA_ERROR_ASSERT": 710,
    "CUDA_ERROR_HARDWARE_STACK_ERROR": 714,
    "CUDA_ERROR_ILLEGAL_INSTRUCTION": 715,
    "CUDA_ERROR_MISALIGNED_ADDRESS": 716,
    "CUDA_ERROR_INVALID_ADDRESS_SPACE": 717,
    "CUDA_ERROR_INVALID_PC": 718,
    "CUDA_ERROR_LAUNCH_FAILED": 719,
    "CUDA_ERROR_TENSOR_MEMORY_LEAK": 721,
    "CUDA_ERROR_MPS_CONNECTION_FAILED": 805,
    "CUDA_ERROR_MPS_RPC_FAILURE": 806,
    "CUDA_ERROR_MPS_SERVER_NOT_READY": 807,
    "CUDA_ERROR_MPS_MAX_CLIENTS_REACHED": 808,
    "CUDA_ERROR_MPS_MAX_CONNECTIONS_REACHED": 809,
    "CUDA_ERROR_MPS_CLIENT_TERMINATED": 810,
    "CUDA_ERROR_UNKNOWN": 999,
}
# As cuGetErrorString words them: parts of TensorFlow give no name.
_TEXTS = {
    "uncorrectable ECC error encountered": "CUDA_ERROR_ECC_UNCORRECTABLE",
    "an illegal memory access was encountered": "CUDA_ERROR_ILLEGAL_ADDRESS",
    "the launch timed out and was terminated": "CUDA_ERROR_LAUNCH_TIMEOUT",
    "device-side assert triggered": "CUDA_ERROR_ASSERT",
    "hardware stack error": "CUDA_ERROR_HARDWARE_STACK_ERROR",
    "operation not supported on global/shared address space": "CUDA_ERROR_INVALID_ADDRESS_SPACE",
    "invalid program counter": "CUDA_ERROR_INVALID_PC",
    "MPS client failed to connect": "CUDA_ERROR_MPS_CONNECTION_FAILED",
    "the remote procedural call between the MPS server and the MPS client failed": "CUDA_ERROR_MPS_RPC_FAILURE",
    "MPS server is not ready": "CUDA_ERROR_MPS_SERVER_NOT_READY",
    "MPS client has been terminated": "CUDA_ERROR_MPS_CLIENT_TERMINATED",
    "an illegal instruction was encountered": "CUDA_ERROR_ILLEGAL_INSTRUCTION",
    "misaligned address": "CUDA_ERROR_MISALIGNED_ADDRESS",
    "unspecified launch failure": "CUDA_ERROR_LAUNCH_FAILED",
}
_NAME = re.compile(r"CUDA_ERROR_[A-Z_]+")
# Of an error that the CUDA library TensorFlow was built for does not know.
_NUMBER = re.compile(r"UNKNOWN ERROR \((\d+)\)")
_NAMES = {str(number): name for name, number in STICKY.items()}
# What MPS says to one that it gives no context, for now. None of its clients is hit by that.
_REFUSALS = frozenset(
    {
        "CUDA_ERROR_MPS_CONNECTION_FAILED",
        "CUDA_ERROR_MPS_SERVER_NOT_READY",
        "CUDA_ERROR_MPS_MAX_CLIENTS_REACHED",
        "CUDA_ERROR_MPS_MAX_CONNECTIONS_REACHED",
    }
)
# What a device's failure comes as. A client's own text stands in messages of other codes.
_CODES = frozenset({Code.INTERNAL, Code.UNKNOWN, Code.ABORTED, Code.UNAVAILABLE})


class DeviceFailedError(Exception):
    """This process can use its GPU no more."""


def named(text: str) -> str:
    """The name of the sticky CUDA error that a message is about, "" if it is about none."""
    for name in _NAME.findall(text):
        if name in STICKY:
            return str(name)
    for number in _NUMBER.findall(text):
        if number in _NAMES:
            return _NAMES[number]
    return next((name for words, name in _TEXTS.items() if words in text), "")


@contextlib.contextmanager
def loading(slot: SlotSettings, tell: Callable[[int], object] | None = None) -> Iterator[None]:
    """Around what is done before READY, which is work on the GPU too: not all that fails in it lies in the model.

    Args:
        slot: on a CPU slot nothing is changed.
        tell: is told CUDA's number of a sticky error.

    Raises:
        DeviceFailedError: in place of an error that shows that the GPU cannot be used any more.
        gpu.NoGpuError: in place of one with which MPS gives this process no context, for now.
    """
    try:
        yield
    except gpu.NoGpuError:
        raise
    except Exception as error:
        name = _behind(error) if slot.gpu_uuid else ""
        if name in _REFUSALS:
            raise gpu.NoGpuError(slot, f"CUDA fails with {name}", never=False) from error
        if isinstance(error, DeviceFailedError) or not (found := _confirmed(name, slot)):
            raise
        if tell is not None:
            tell(STICKY[name])
        raise DeviceFailedError(f"CUDA fails with {found}") from error


def _behind(error: BaseException) -> str:
    """The sticky CUDA error that led to this one, "" for none."""
    name = named(str(error))
    return name or (_behind(error.__cause__) if error.__cause__ else "")


def _confirmed(name: str, slot: SlotSettings) -> str:
    """The error that there is, "" for none. A text can say anything, so the driver is asked where there is one."""
    return gpu.synchronise() if name and device.on_gpu(slot) else name


class OnGpu:
    """An engine on a GPU: where a call shows that the GPU cannot be used any more, that is what it raises.

    As base.Engine otherwise.
    """

    def __init__(self, engine: Engine, slot: SlotSettings) -> None:
        self._engine = engine
        self._slot = slot

    @property
    def name(self) -> str:
        return self._engine.name

    def weights(self) -> WeightsReport:
        return self._engine.weights()

    @property
    def signatures(self) -> Mapping[str, Signature]:
        return self._engine.signatures

    @property
    def signature_def_map(self) -> bytes:
        return self._engine.signature_def_map

    def run(self, signature: str, inputs: Mapping[str, Array], outputs: Sequence[str]) -> list[Array]:
        """Raises DeviceFailedError too."""
        return self._watched(lambda: self._engine.run(signature, inputs, outputs))

    def run_all(self, wanted: Sequence[tuple[str, Sequence[str]]], value: Array) -> list[Array]:
        """Raises DeviceFailedError too."""
        return self._watched(lambda: self._engine.run_all(wanted, value))

    def _watched(self, run: Callable[[], list[Array]]) -> list[Array]:
        try:
            return run()
        except PoolError as error:
            if found := self._failure(error):
                raise DeviceFailedError(f"CUDA fails with {found}") from error
            raise

    def _failure(self, error: PoolError) -> str:
        """The sticky error behind it, "" where there is none."""
        return _confirmed(named(error.message) if error.code in _CODES else "", self._slot)
