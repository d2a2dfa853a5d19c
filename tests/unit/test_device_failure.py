"""Which of TensorFlow's errors mean that a worker can use its GPU no more."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
import tensorflow as tf

from mpspool.core.errors import Code, PoolError
from mpspool.core.settings import SlotSettings
from mpspool.worker import gpu
from mpspool.worker.device_failure import STICKY, DeviceFailedError, OnGpu, loading, named
from mpspool.worker.engine import load
from mpspool.worker.engine.base import Array
from mpspool.worker.engine.saved_model import LoadError
from tests.fakes.engine import FakeEngine

STAND_IN = SlotSettings(device="gpu0", slot=0, gpu_uuid="GPU-1", simulated=True)
GPU = SlotSettings(device="gpu0", slot=0, gpu_uuid="GPU-1")
ILLEGAL = "CUDA_ERROR_ILLEGAL_ADDRESS: an illegal memory access was encountered"


@pytest.mark.parametrize(
    ("text", "name"),
    [
        (
            "failed to enqueue async memcpy from host to device: CUDA_ERROR_LAUNCH_FAILED: unspecified launch",
            "CUDA_ERROR_LAUNCH_FAILED",
        ),
        ("CUDA error: Could not synchronize: CUDA_ERROR_ILLEGAL_ADDRESS: x", "CUDA_ERROR_ILLEGAL_ADDRESS"),
        ("could not synchronize: an illegal memory access was encountered", "CUDA_ERROR_ILLEGAL_ADDRESS"),
        ("Error recording CUDA event: UNKNOWN ERROR (805)", "CUDA_ERROR_MPS_CONNECTION_FAILED"),
        ("failed to allocate 1.5G: CUDA_ERROR_OUT_OF_MEMORY: out of memory", ""),
        ("Blas GEMM launch failed : a.shape=(1, 2)", ""),
        ("UNKNOWN ERROR (303)", ""),
        ("", ""),
    ],
)
def test_named(text: str, name: str) -> None:
    assert named(text) == name


class _Failing(FakeEngine):
    def __init__(self, error: PoolError) -> None:
        super().__init__([], lambda _: {})
        self.error = error

    def run(self, signature: str, inputs: Mapping[str, Array], outputs: Sequence[str]) -> list[Array]:
        raise self.error


def test_a_sticky_error_is_not_the_requests_own() -> None:
    engine = OnGpu(_Failing(PoolError(Code.INTERNAL, "CUDA_ERROR_ILLEGAL_ADDRESS: x")), STAND_IN)
    with pytest.raises(DeviceFailedError, match="CUDA_ERROR_ILLEGAL_ADDRESS"):
        engine.run("serving_default", {}, [])


@pytest.mark.parametrize(
    "error",
    [
        PoolError(Code.INTERNAL, "something else"),
        # A client's own text is in what TensorFlow says of bad input.
        PoolError(Code.INVALID_ARGUMENT, "StringToNumberOp could not convert: CUDA_ERROR_ILLEGAL_ADDRESS"),
        PoolError(Code.RESOURCE_EXHAUSTED, "CUDA_ERROR_ILLEGAL_ADDRESS"),
    ],
)
def test_any_other_error_is(error: PoolError) -> None:
    with pytest.raises(PoolError) as raised:
        OnGpu(_Failing(error), STAND_IN).run("serving_default", {}, [])
    assert raised.value is error


def fails(slot: SlotSettings, error: Exception, told: list[int] | None = None) -> Exception:
    """What becomes of an error while a model is loaded."""
    with pytest.raises(type(error) if slot.gpu_uuid == "" else Exception) as raised:  # noqa: SIM117
        with loading(slot, told.append if told is not None else None):
            raise error
    return raised.value


def caused(error: Exception, cause: Exception) -> Exception:
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    "error",
    [
        PoolError(Code.FAILED_PRECONDITION, ILLEGAL),
        RuntimeError(f"CUDA runtime implicit initialization on GPU:0 failed. Status: {ILLEGAL}"),
        caused(LoadError("warm-up record 1 failed"), PoolError(Code.UNKNOWN, ILLEGAL)),
    ],
)
def test_a_sticky_error_while_loading_is_the_devices(error: Exception) -> None:
    """In whatever it comes, also as the cause of another; the device is told its number."""
    told: list[int] = []
    found = fails(STAND_IN, error, told)
    assert isinstance(found, DeviceFailedError)
    assert "CUDA_ERROR_ILLEGAL_ADDRESS" in str(found)
    assert told == [700]
    assert fails(SlotSettings(device="cpu0", slot=0), error) is error, "there is no GPU"


def test_whatever_else_fails_while_loading_is_as_it_was() -> None:
    """So is what was found out already: it is not told twice."""
    told: list[int] = []
    for error in (
        LoadError("no SavedModel"),
        DeviceFailedError(ILLEGAL),
        gpu.NoGpuError(GPU, "x", never=True),
    ):
        assert fails(STAND_IN, error, told) is error
    assert told == []


@pytest.mark.parametrize("says", ["", "700, illegal"])
def test_the_driver_has_the_last_word_while_loading(monkeypatch: pytest.MonkeyPatch, says: str) -> None:
    """Where there is a GPU: a text can say anything."""
    monkeypatch.setattr(gpu, "synchronise", lambda: says)
    error = RuntimeError(ILLEGAL)
    found = fails(GPU, error)
    assert (str(found) if says else found) == ("CUDA fails with 700, illegal" if says else error)


@pytest.mark.parametrize("number", [805, 807, 808, 809])
def test_a_client_that_is_refused_may_come_again(number: int) -> None:
    """It has no context yet, so nobody has to be ended for it."""
    name = next(name for name, found in STICKY.items() if found == number)
    found = fails(STAND_IN, tf.errors.InternalError(None, None, f"failed call: {name}"))
    assert isinstance(found, gpu.NoGpuError)
    assert (found.never, name in str(found)) == (False, True)
    warming = fails(STAND_IN, DeviceFailedError(f"CUDA fails with {name}"))
    assert isinstance(warming, gpu.NoGpuError), "a warm-up call says it in its own way"


@pytest.mark.parametrize(
    "error",
    [
        tf.errors.UnknownError(None, None, ILLEGAL),
        tf.errors.FailedPreconditionError(None, None, ILLEGAL),
        RuntimeError(ILLEGAL),
    ],
)
def test_a_gpu_that_fails_does_not_lie_in_the_model(error: Exception) -> None:
    """The loader passes it on as it is; the same without CUDA's word is the model's for good."""

    def make(error: Exception) -> None:
        raise error

    with pytest.raises(type(error)) as raised:
        load._never(Path("/m"), lambda: make(error))
    assert raised.value is error
    other = RuntimeError("no") if isinstance(error, RuntimeError) else type(error)(None, None, "no")
    with pytest.raises(LoadError):
        load._never(Path("/m"), lambda: make(other))
