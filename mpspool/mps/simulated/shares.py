"""What a client may take of the GPU: the values, how they are written, and who may lower them. Pure.

Source: NVIDIA's "Multi-Process Service", nvidia-cuda-mps-control and "Environment Variables". A client's own
environment only lowers the daemon's limits; its priority it chooses itself.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

_MIB = 2**20
_UNITS = {"M": _MIB, "G": 2**30}
_PRIORITIES = {"0": 0, "1": 1}


@dataclass(frozen=True, slots=True)
class Share:
    """What one client has.

    Attributes:
        thread_percentage: of the multiprocessors, above 0 and at most 100; a cap, no reservation.
        pinned_mem_bytes: the most device memory it can allocate; None for no limit.
        priority: 0 for normal, 1 for below normal.
    """

    thread_percentage: float = 100.0
    pinned_mem_bytes: int | None = None
    priority: int = 0

    def lowered(self, wish: Wish) -> Share:
        """What a client with this wish gets."""
        limits = [limit for limit in (self.pinned_mem_bytes, wish.pinned_mem_bytes) if limit is not None]
        return Share(
            min(self.thread_percentage, wish.thread_percentage),
            min(limits, default=None),
            self.priority if wish.priority is None else wish.priority,
        )


@dataclass(frozen=True, slots=True)
class Wish:
    """What a client asks for itself; None for what it leaves to the daemon."""

    thread_percentage: float = 100.0
    pinned_mem_bytes: int | None = None
    priority: int | None = None


@dataclass(slots=True)
class Defaults:
    """What the daemon gives.

    Attributes:
        thread_percentage: to each client of a server that is started from now on.
        limits: the same, in bytes by device as it was named, the last one set last; a name that is no device's
            counts for nothing.
        priority: to each client that comes from now on.
    """

    thread_percentage: float = 100.0
    limits: dict[str, int] = field(default_factory=dict)
    priority: int = 0

    def limit(self, device: str, limit_bytes: int) -> None:
        self.limits.pop(device, None)
        self.limits[device] = limit_bytes

    def share(self, uuid: str) -> Share:
        """Of a server that is started now, for the daemon's device."""
        named = [limit for device, limit in self.limits.items() if is_device(device, uuid)]
        return Share(self.thread_percentage, named[-1] if named else None, self.priority)


def percentage(text: str) -> float:
    """Raises ValueError."""
    if not re.fullmatch(r"\d+(\.\d*)?|\.\d+", text) or not 0 < float(text) <= 100:
        raise ValueError(f"{text!r} is no percentage: it must be above 0 and at most 100")
    return float(text)


def memory_bytes(text: str) -> int:
    """An integer and G or M, as "2G", "512M" or "512MB". Raises ValueError."""
    found = re.fullmatch(r"(\d+)([GM])B?", text)
    if not found:
        raise ValueError(f"{text!r} is no memory limit: it must be an integer followed by G or M")
    return int(found[1]) * _UNITS[found[2]]


def memory_text(limit_bytes: int | None) -> str:
    """As memory_bytes() reads it; "" for no limit."""
    if limit_bytes is None:
        return ""
    gib, rest = divmod(limit_bytes, _UNITS["G"])
    return f"{limit_bytes // _MIB}M" if rest or not gib else f"{gib}G"


def priority(text: str) -> int:
    """Raises ValueError."""
    if text not in _PRIORITIES:
        raise ValueError(f"{text!r} is no client priority: it must be 0 (normal) or 1 (below normal)")
    return _PRIORITIES[text]


def is_device(name: str, uuid: str) -> bool:
    """Whether a command or variable means the daemon's only device: by index, or by UUID."""
    return name in ("0", uuid)


def of_environment(environ: Mapping[str, str]) -> Defaults:
    """What a daemon that is started with these variables begins with. Raises ValueError."""
    found = Defaults()
    if text := environ.get("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"):
        found.thread_percentage = percentage(text)
    for entry in filter(None, environ.get("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "").split(",")):
        device, _, limit = entry.strip().partition("=")
        found.limit(device, memory_bytes(limit))
    if text := environ.get("CUDA_MPS_CLIENT_PRIORITY"):
        found.priority = priority(text)
    return found


def wish(words: list[str]) -> Wish:
    """Of words like thread_percentage=50 pinned_mem=1G priority=1, each at most once. Raises ValueError."""
    values = dict(word.partition("=")[::2] for word in words)
    if unknown := set(values) - {"thread_percentage", "pinned_mem", "priority"}:
        raise ValueError(f"{unknown.pop()!r} is nothing a client can want")
    threads, limit, level = (values.get(name) for name in ("thread_percentage", "pinned_mem", "priority"))
    return Wish(
        100.0 if threads is None else percentage(threads),
        None if limit is None else memory_bytes(limit.removeprefix("0=")),
        None if level is None else priority(level),
    )
