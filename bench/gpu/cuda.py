"""The driver's library, by ctypes."""

from __future__ import annotations

import ctypes
from typing import Any


class CudaError(Exception):
    """A call of the driver's failed; `number` is its CUresult."""

    def __init__(self, call: str, number: int) -> None:
        super().__init__(f"{call} failed with CUDA error {number}")
        self.number = number


class Cuda:
    """libcuda, and the first visible device. Raises OSError without the library, CudaError."""

    def __init__(self) -> None:
        self._cuda = ctypes.CDLL("libcuda.so.1")
        self.device = ctypes.c_int()
        self.call("cuInit", ctypes.c_uint(0))
        self.call("cuDeviceGet", ctypes.byref(self.device), ctypes.c_int(0))

    def call(self, name: str, *arguments: Any) -> None:
        """Raises CudaError."""
        if number := int(getattr(self._cuda, name)(*arguments)):
            raise CudaError(name, number)
