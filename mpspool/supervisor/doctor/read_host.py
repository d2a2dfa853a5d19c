"""Looks at the machine, or the container, around the GPUs. Nothing is changed."""

from __future__ import annotations

import os
import resource
from collections.abc import Mapping
from pathlib import Path

from mpspool import compiled
from mpspool.supervisor.doctor.facts import Host, SharedMemory
from mpspool.supervisor.doctor.host import CUDA_LIBRARY, SHM

_VARIABLES = ("CUDA_", "NVIDIA_")
_NVIDIA_VENDOR = "0x10de"
_DISPLAY_CLASS = "0x03"
# capabilities(7): CAP_SYS_RESOURCE, by its number.
_SYS_RESOURCE = 24


def read_host(environ: Mapping[str, str], root: Path = Path("/")) -> Host:
    """The machine around the GPUs; proc, sys, dev and etc are looked for below `root`."""
    soft, hard = map(_limit, resource.getrlimit(resource.RLIMIT_NOFILE))
    return Host(
        uid=os.geteuid(),
        open_files=(soft, hard),
        locked_memory=_limit(resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]),
        memory_bytes=_memory_bytes(root),
        shared_memory=_shared_memory(root),
        container=_container(environ, root),
        first_process=_text(root / "proc/1/comm").strip(),
        nvidia_devices=_nvidia_devices(root),
        cuda_library=_cuda_library(environ, root),
        environ={name: value for name, value in environ.items() if name.startswith(_VARIABLES)},
        not_compiled=compiled.why_not(),
        raises_limits=_is_capable(_SYS_RESOURCE, root),
    )


def _limit(value: int) -> int | None:
    return None if value == resource.RLIM_INFINITY else value


def _is_capable(capability: int, root: Path) -> bool:
    """Of our own process, by its effective set."""
    for line in _text(root / "proc/self/status").splitlines():
        name, _, value = line.partition(":")
        if name == "CapEff":
            return bool(int(value, 16) >> capability & 1)
    return False


def _memory_bytes(root: Path) -> int:
    for line in _text(root / "proc/meminfo").splitlines():
        name, _, value = line.partition(":")
        if name == "MemTotal":
            return int(value.split()[0]) * 1024
    return 0


def _shared_memory(root: Path) -> SharedMemory | None:
    """Of mounts on top of one another the last is seen."""
    folder = root / SHM.lstrip("/")
    try:
        found = os.statvfs(folder)
    except OSError:
        return None
    kind, source = "folder", ""
    for line in _text(root / "proc/self/mountinfo").splitlines():
        before, _, after = line.partition(" - ")
        if before.split()[4] == SHM:  # proc(5): the mount point
            kind, source = after.split()[:2]
    size, free = found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize
    return SharedMemory(kind, source, size, free, os.access(folder, os.W_OK))


def _container(environ: Mapping[str, str], root: Path) -> str:
    if "KUBERNETES_SERVICE_HOST" in environ:
        return "kubernetes"
    for mark, name in ((".dockerenv", "docker"), ("run/.containerenv", "podman")):
        if (root / mark).exists():
            return name
    groups = _text(root / "proc/1/cgroup")
    for name, words in (
        ("kubernetes", "kubepods"),
        ("docker", "docker"),
        ("containerd", "containerd"),
        ("lxc", "lxc"),
    ):
        if words in groups:
            return name
    return environ.get("container", "")


def _nvidia_devices(root: Path) -> int:
    return sum(
        _text(device / "vendor").strip() == _NVIDIA_VENDOR
        and _text(device / "class").startswith(_DISPLAY_CLASS)
        for device in (root / "sys/bus/pci/devices").glob("*")
    )


def _cuda_library(environ: Mapping[str, str], root: Path) -> bool:
    """As the linker looks for it: in the folders named to it, and in its cache."""
    folders = environ.get("LD_LIBRARY_PATH", "").split(":")
    named = any((root / folder.lstrip("/") / CUDA_LIBRARY).exists() for folder in folders if folder)
    return named or f"{CUDA_LIBRARY}\0" in _text(root / "etc/ld.so.cache")


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
