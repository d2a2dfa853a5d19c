"""A CUDA program that faults on purpose: its one kernel writes to an address that is not mapped.

    CUDA_VISIBLE_DEVICES=GPU-... CUDA_MPS_PIPE_DIRECTORY=... python -m bench.gpu.faulter

Needs the driver alone: the kernel is PTX, which the driver compiles. It is a client of the MPS daemon that its
environment names, waits for a line on stdin once it is attached, faults, prints one line of JSON and ends at once, as
a client that was hit by a fault has to. Exit status: 0 where CUDA reported the fault, 1 where it did not.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
import time

from bench.gpu.cuda import Cuda, CudaError

# MPS isolates clients from Volta (7.0) on; the driver compiles this for whatever comes later.
PTX = b"""
.version 6.0
.target sm_70
.address_size 64

.visible .entry fault()
{
    .reg .b64 %address;
    .reg .b32 %value;
    mov.b64 %address, 16;
    mov.b32 %value, 1;
    st.global.u32 [%address], %value;
    ret;
}
"""


class Driver(Cuda):
    """With a context of its own. Raises OSError, CudaError."""

    def __init__(self) -> None:
        super().__init__()
        self._context = ctypes.c_void_p()
        self.call("cuCtxCreate_v2", ctypes.byref(self._context), ctypes.c_uint(0), self.device)
        module, self._kernel = ctypes.c_void_p(), ctypes.c_void_p()
        self.call("cuModuleLoadData", ctypes.byref(module), ctypes.c_char_p(PTX))
        self.call("cuModuleGetFunction", ctypes.byref(self._kernel), module, ctypes.c_char_p(b"fault"))

    def fault(self) -> int:
        """Runs the kernel; the CUDA error that it ends with, 0 for none."""
        one, zero, none = ctypes.c_uint(1), ctypes.c_uint(0), ctypes.c_void_p()
        try:
            self.call("cuLaunchKernel", self._kernel, one, one, one, one, one, one, zero, none, none, none)
            self.call("cuCtxSynchronize")
        except CudaError as error:
            return error.number
        return 0


def main() -> int:
    try:
        driver = Driver()
    except (OSError, CudaError) as error:
        print(json.dumps({"failed": str(error)}), flush=True)
        return 1
    print(json.dumps({"attached": os.getpid()}), flush=True)
    sys.stdin.readline()
    at = time.time()
    number = driver.fault()
    print(json.dumps({"at": at, "cuda_error": number}), flush=True)
    return 0 if number else 1


if __name__ == "__main__":
    status = main()
    sys.stdout.flush()
    # Nothing of CUDA's is to be tidied up after a fault.
    os._exit(status)
