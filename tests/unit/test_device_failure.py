"""Which of TensorFlow's errors mean that a worker can use its GPU no more."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from mpspool.core.errors import Code, PoolError
from mpspool.core.settings import SlotSettings
from mpspool.worker.device_failure import DeviceFailedError, OnGpu, named
from mpspool.worker.engine.base import Array
from tests.fakes.engine import FakeEngine

STAND_IN = SlotSettings(device="gpu0", slot=0, gpu_uuid="GPU-1", simulated=True)


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
