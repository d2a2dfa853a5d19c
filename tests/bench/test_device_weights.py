"""The experiment with one copy of the weights on the device: all of it in host memory, and its calls of the driver."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.bench.commands import run
from tests.pool import ROOT

# A driver whose device memory is a memfd, and which, like some, grants no mapping that can only be read.
DRIVER = r"""
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
typedef unsigned long long u64;
typedef struct { int type, id; } Location;
typedef struct { int type, handles; Location location; void* windows; unsigned char flags[8]; } Properties;
typedef struct { Location location; int flags; } Access;
int cuInit(unsigned flags) { return flags; }
int cuDeviceGet(int* device, int ordinal) { *device = ordinal; return 0; }
int cuDevicePrimaryCtxRetain(void** context, int device) { *context = context; return device; }
int cuCtxSetCurrent(void* context) { return context == 0; }
int cuCtxSynchronize(void) { return 0; }
static int good(const Properties* p) {
  return p->type == 1 && p->handles == 1 && p->location.type == 1 && p->location.id == 0 && p->windows == 0;
}
int cuMemGetAllocationGranularity(size_t* grain, const Properties* p, int option) {
  *grain = 1 << 21;
  return good(p) && option == 0 ? 0 : 1;
}
int cuMemCreate(u64* handle, size_t size, const Properties* p, u64 flags) {
  int fd = memfd_create("device", 0);
  *handle = fd;
  return good(p) && size % (1 << 21) == 0 && flags == 0 ? ftruncate(fd, size) : 1;
}
int cuMemAddressReserve(u64* address, size_t size, size_t alignment, u64 wish, u64 flags) {
  *address = (u64)mmap(0, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  return alignment || wish || flags;
}
int cuMemMap(u64 address, size_t size, size_t offset, u64 handle, u64 flags) {
  return mmap((void*)address, size, PROT_NONE, MAP_SHARED | MAP_FIXED, handle, 0) == MAP_FAILED || offset || flags;
}
int cuMemSetAccess(u64 address, size_t size, const Access* access, size_t count) {
  if (access->location.type != 1 || count != 1) return 1;
  if (access->flags == 1 && getenv("NO_READ_ONLY")) return 801;
  return mprotect((void*)address, size, access->flags == 3 ? PROT_READ | PROT_WRITE : PROT_READ) != 0;
}
int cuMemcpyHtoD_v2(u64 address, const void* source, size_t size) { memcpy((void*)address, source, size); return 0; }
int cuMemExportToShareableHandle(void* out, u64 handle, int type, u64 flags) {
  *(int*)out = dup(handle);
  return type != 1 || flags != 0;
}
int cuMemImportFromShareableHandle(u64* handle, void* fd, int type) { *handle = dup((long)fd); return type != 1; }
int cuMemUnmap(u64 address, size_t size) { return munmap((void*)address, size) != 0; }
int cuMemAddressFree(u64 address, size_t size) { return address == 0 || size == 0; }
int cuMemRelease(u64 handle) { return close(handle) != 0; }
"""
# Prints the rights and the first and last value that another process sees after the owner has let go.
SHARE = """
import ctypes, subprocess, sys
import numpy as np
from bench.gpu.device_memory import Vmm
if len(sys.argv) > 1:
    address, rights = Vmm.open(b"", int(sys.argv[1]), 4000)
    values = (ctypes.c_float * 1000).from_address(address)
    sys.stdin.readline()
    print(rights, values[0], values[999], sep="|")
else:
    memory = Vmm.make(4000)
    memory.write(np.arange(1000, dtype=np.float32))
    _, descriptor = memory.share()
    command = [sys.executable, __file__, str(descriptor)]
    other = subprocess.Popen(command, stdin=subprocess.PIPE, pass_fds=[descriptor], text=True)
    memory.let_go()
    other.communicate("go")
    sys.exit(other.returncode)
"""


def test_several_processes_read_one_copy() -> None:
    """A variable made of foreign memory costs next to nothing, gathers right, and outlives its owner and its like."""
    shared = "--via", "memfd", "--clients", 2, "--rows", 262144, "--framework", "tensorflow"
    found = json.loads(run("bench.gpu.device_weights", *shared, timeout_s=120))
    assert found["right"] == [True, True]
    assert found["right after one client was killed"] == [True]
    assert found["right after the owner has let go"] == [True]
    assert found["table_bytes"] > 2**26
    assert all(cost < 2**24 for cost in found["a client's variable, bytes of its own"])


def test_what_it_asks_of_the_driver(tmp_path: Path) -> None:
    """An allocation goes to another process by its descriptor, and can be read there when its owner has let go."""
    source = tmp_path / "driver.c"
    source.write_text(DRIVER)
    library = ["-x", "c", "-shared", "-fPIC", "-o", str(tmp_path / "libcuda.so.1"), str(source)]
    subprocess.run(["g++", *library], check=True, timeout=60)
    script = tmp_path / "share.py"
    script.write_text(SHARE)

    def said(**environment: str) -> list[str]:
        done = subprocess.run(
            [sys.executable, str(script)],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
            cwd=ROOT,
            env=os.environ | {"LD_LIBRARY_PATH": str(tmp_path), "PYTHONPATH": str(ROOT), **environment},
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.strip().split("|")

    assert said() == ["read only", "0.0", "999.0"]
    rights, *values = said(NO_READ_ONLY="1")
    assert rights.startswith("read and write, for read only: cuMemSetAccess failed with CUDA error 801")
    assert values == ["0.0", "999.0"]
