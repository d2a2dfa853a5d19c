"""Memory that several processes map: on a GPU by CUDA's two ways of sharing it, or a memfd in the same part.

    owner:  memory = METHODS[name].make(bytes); memory.write(array); share, descriptor = memory.share()
    client: address = METHODS[name].open(share, descriptor, bytes)

Needs the driver alone, by ctypes; a client maps into the primary context of device 0, which its framework uses too.
Nothing is unmapped before a process ends: what a framework still reads must not go.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from typing import Any, Protocol, Self

import numpy as np

from bench.gpu.cuda import Cuda, CudaError

_POSIX_FD, _PINNED, _ON_DEVICE, _READ, _READ_WRITE, _MINIMUM = 1, 1, 1, 1, 3, 0
_LAZY_PEER_ACCESS = 1


class Memory(Protocol):
    """A place that others can map.

    Attributes:
        cuda: on a GPU, else in host memory.
    """

    cuda: bool

    @classmethod
    def make(cls, size: int) -> Self: ...
    def write(self, array: np.ndarray[Any, Any]) -> None: ...

    def share(self) -> tuple[bytes, int]:
        """What a client needs: bytes that it is told, and a descriptor that it inherits; -1 for none."""

    def let_go(self) -> None:
        """The owner's own mapping and handle; a descriptor that was shared stays."""

    @classmethod
    def open(cls, told: bytes, descriptor: int, size: int) -> tuple[int, str]:
        """Where it is mapped here, and with which rights."""


class _Location(ctypes.Structure):
    _fields_ = (("type", ctypes.c_int), ("id", ctypes.c_int))


class _Properties(ctypes.Structure):
    """CUmemAllocationProp."""

    _fields_ = (
        ("type", ctypes.c_int),
        ("handle_types", ctypes.c_int),
        ("location", _Location),
        ("windows", ctypes.c_void_p),
        ("flags", ctypes.c_ubyte * 8),
    )

    @classmethod
    def on_device(cls) -> Self:
        return cls(_PINNED, _POSIX_FD, _Location(_ON_DEVICE, 0))


class _Access(ctypes.Structure):
    """CUmemAccessDesc."""

    _fields_ = (("location", _Location), ("flags", ctypes.c_int))


class _IpcHandle(ctypes.Structure):
    _fields_ = (("bytes", ctypes.c_char * 64),)


class Driver(Cuda):
    """With the device's primary context current. Raises OSError, CudaError."""

    def __init__(self) -> None:
        super().__init__()
        context = ctypes.c_void_p()
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), self.device)
        self.call("cuCtxSetCurrent", context)

    def upload(self, address: int, array: np.ndarray[Any, Any]) -> None:
        """Returns when it is there."""
        source = ctypes.c_void_p(array.ctypes.data)
        self.call("cuMemcpyHtoD_v2", ctypes.c_uint64(address), source, ctypes.c_size_t(array.nbytes))
        self.call("cuCtxSynchronize")

    def free_bytes(self) -> int:
        """Of the whole device."""
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        self.call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        return free.value

    def rounded(self, size: int) -> int:
        """Up to what can be mapped."""
        grain = ctypes.c_size_t()
        properties = _Properties.on_device()
        self.call("cuMemGetAllocationGranularity", ctypes.byref(grain), ctypes.byref(properties), _MINIMUM)
        return -(-size // grain.value) * grain.value

    def map(self, handle: ctypes.c_uint64, size: int, rights: int) -> int:
        """The address of an allocation of this rounded size."""
        address, nothing = ctypes.c_uint64(), ctypes.c_uint64(0)
        length = ctypes.c_size_t(size)
        self.call("cuMemAddressReserve", ctypes.byref(address), length, ctypes.c_size_t(0), nothing, nothing)
        self.call("cuMemMap", address, length, ctypes.c_size_t(0), handle, nothing)
        access = _Access(_Location(_ON_DEVICE, 0), rights)
        self.call("cuMemSetAccess", address, length, ctypes.byref(access), ctypes.c_size_t(1))
        return address.value


class Vmm:
    """CUDA's virtual memory management: an allocation that a file descriptor stands for."""

    cuda = True

    def __init__(self, driver: Driver, handle: ctypes.c_uint64, address: int, size: int) -> None:
        self._driver, self._handle, self._address, self._size = driver, handle, address, size

    @classmethod
    def make(cls, size: int) -> Self:
        driver, handle = Driver(), ctypes.c_uint64()
        size = driver.rounded(size)
        properties, flags = _Properties.on_device(), ctypes.c_uint64(0)
        driver.call(
            "cuMemCreate", ctypes.byref(handle), ctypes.c_size_t(size), ctypes.byref(properties), flags
        )
        return cls(driver, handle, driver.map(handle, size, _READ_WRITE), size)

    def write(self, array: np.ndarray[Any, Any]) -> None:
        self._driver.upload(self._address, array)

    def share(self) -> tuple[bytes, int]:
        descriptor, flags = ctypes.c_int(-1), ctypes.c_uint64(0)
        self._driver.call(
            "cuMemExportToShareableHandle", ctypes.byref(descriptor), self._handle, _POSIX_FD, flags
        )
        return b"", descriptor.value

    def let_go(self) -> None:
        address, length = ctypes.c_uint64(self._address), ctypes.c_size_t(self._size)
        self._driver.call("cuMemUnmap", address, length)
        self._driver.call("cuMemAddressFree", address, length)
        self._driver.call("cuMemRelease", self._handle)

    @classmethod
    def open(cls, told: bytes, descriptor: int, size: int) -> tuple[int, str]:
        del told
        driver, handle = Driver(), ctypes.c_uint64()
        size = driver.rounded(size)
        driver.call(
            "cuMemImportFromShareableHandle", ctypes.byref(handle), ctypes.c_void_p(descriptor), _POSIX_FD
        )
        try:
            return driver.map(handle, size, _READ), "read only"
        except CudaError as error:
            return driver.map(handle, size, _READ_WRITE), f"read and write, for read only: {error}"


class Ipc:
    """CUDA's legacy IPC: an allocation that 64 bytes stand for, as long as its owner lives."""

    cuda = True

    def __init__(self, driver: Driver, address: ctypes.c_uint64) -> None:
        self._driver, self._address = driver, address

    @classmethod
    def make(cls, size: int) -> Self:
        driver, address = Driver(), ctypes.c_uint64()
        driver.call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(size))
        return cls(driver, address)

    def write(self, array: np.ndarray[Any, Any]) -> None:
        self._driver.upload(self._address.value, array)

    def share(self) -> tuple[bytes, int]:
        handle = _IpcHandle()
        self._driver.call("cuIpcGetMemHandle", ctypes.byref(handle), self._address)
        return bytes(handle), -1

    def let_go(self) -> None:
        """Not while a client has it open: what happens then is not defined."""

    @classmethod
    def open(cls, told: bytes, descriptor: int, size: int) -> tuple[int, str]:
        del descriptor, size
        driver, address = Driver(), ctypes.c_uint64()
        handle = _IpcHandle.from_buffer_copy(told)
        driver.call("cuIpcOpenMemHandle_v2", ctypes.byref(address), handle, _LAZY_PEER_ACCESS)
        return address.value, "read and write"


class Memfd:
    """Host memory, to see what a framework does with a place that is not its own."""

    cuda = False

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    @classmethod
    def make(cls, size: int) -> Self:
        descriptor = os.memfd_create("device-weights")
        os.ftruncate(descriptor, size)
        return cls(descriptor)

    def write(self, array: np.ndarray[Any, Any]) -> None:
        with mmap.mmap(self._descriptor, 0) as place:
            place[: array.nbytes] = array.tobytes()

    def share(self) -> tuple[bytes, int]:
        return b"", os.dup(self._descriptor)

    def let_go(self) -> None:
        os.close(self._descriptor)

    @classmethod
    def open(cls, told: bytes, descriptor: int, size: int) -> tuple[int, str]:
        del told
        place = mmap.mmap(descriptor, size, flags=mmap.MAP_PRIVATE)
        _mapped.append(place)
        return ctypes.addressof(ctypes.c_char.from_buffer(place)), "read, and write for oneself"


_mapped: list[mmap.mmap] = []
METHODS: dict[str, type[Memory]] = {"vmm": Vmm, "ipc": Ipc, "memfd": Memfd}


class _Tensor(ctypes.Structure):
    """DLTensor."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device", ctypes.c_int32 * 2),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class _ManagedTensor(ctypes.Structure):
    """DLManagedTensor, whose memory is not its own: no deleter."""

    _fields_ = (("tensor", _Tensor), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p))


_FLOAT, _ON_CPU, _ON_CUDA = 2, 1, 2
_capsules: list[Any] = []


def capsule(address: int, shape: tuple[int, ...], *, cuda: bool) -> Any:
    """A DLPack capsule of float32 at that address, for any framework's from_dlpack()."""
    sizes = (ctypes.c_int64 * len(shape))(*shape)
    device = (ctypes.c_int32 * 2)(_ON_CUDA if cuda else _ON_CPU, 0)
    tensor = _Tensor(address, device, len(shape), _FLOAT, 32, 1, sizes, None, 0)
    managed = _ManagedTensor(tensor, None, None)
    _capsules.append((managed, sizes))
    new = ctypes.pythonapi.PyCapsule_New
    new.restype, new.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
    return new(ctypes.addressof(managed), b"dltensor", None)
