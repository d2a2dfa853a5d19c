"""What a worker gets of its GPU under MPS: how it is written, what holds where nobody says, and what fits. Pure.

A share holds for a worker from its start to its end: MPS changes nothing for a client that lives.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

import msgspec

from mpspool.core.settings import ModelSettings, Share, SlotSettings
from mpspool.mps.environment import Inherited

MIB = 2**20
# What a CUDA context with TensorFlow's libraries takes of a client's pinned memory limit beside TensorFlow's own pool. On an
# H200, driver 580: 513 MiB a bare context that may use all multiprocessors, 141 one that may use a quarter of them, and
# 650 MiB and 406 (half of them) a worker of widedeep in all.
CONTEXT_BYTES = 768 * MIB
_MAX_BYTES = 2**63
PRIORITIES = {"normal": 0, "below_normal": 1}
_UNITS = {"": 1, "b": 1} | {
    f"{letter}{suffix}": base ** (power + 1)
    for power, letter in enumerate("kmgt")
    for suffix, base in (("", 1000), ("b", 1000), ("i", 1024), ("ib", 1024))
}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]*)", re.IGNORECASE)

T = TypeVar("T")


class Override(Share, frozen=True, kw_only=True):
    """What `mpspool mps set` has changed for one worker's next generations; None for what stays as configured."""

    def over(self, slot: SlotSettings) -> SlotSettings:
        """The slot with what this changes."""
        return msgspec.structs.replace(slot, share=msgspec.structs.replace(slot.share, **self._given()))

    def but_for(self, slot: SlotSettings, running: SlotSettings) -> SlotSettings:
        """The slot, with what this changes as `running` has it: it holds from the next generation on, and no sooner."""
        as_it_runs = {name: getattr(running.share, name) for name in self._given()}
        return msgspec.structs.replace(slot, share=msgspec.structs.replace(slot.share, **as_it_runs))

    def upon(self, earlier: Override) -> Override:
        """Both; where they differ, this one."""
        return msgspec.structs.replace(earlier, **self._given())

    def _given(self) -> dict[str, int]:
        return {name: value for name, value in msgspec.structs.asdict(self).items() if value is not None}


def read_percentages(value: object) -> tuple[int, ...]:
    """Of 50, "50", "50,100" or [50, 100]. Raises ValueError."""
    return _read(value, _percentage, "expected a whole percentage from 1 to 100 (100 for no cap)")


def read_sizes(value: object) -> tuple[int, ...]:
    """In bytes, of 2147483648, "2GiB", "2GiB,4GiB" or a list. Raises ValueError."""
    return _read(value, _size, 'expected bytes, or text such as "2GiB", of at least 1 MiB (0 for no limit)')


def read_priorities(value: object) -> tuple[int, ...]:
    """Of "normal", "normal,below_normal" or a list: 0 or 1. Raises ValueError."""
    return _read(value, _priority, f"expected {' or '.join(PRIORITIES)}")


def _read(value: object, read: Callable[[str], int | None], expected: str) -> tuple[int, ...]:
    items = (
        value.split(",") if isinstance(value, str) else value if isinstance(value, list | tuple) else [value]
    )
    found = [None if isinstance(item, bool) else read(str(item).strip()) for item in items]
    if not found or None in found:
        raise ValueError(f"{expected}, or a list of them, one for each slot of a GPU")
    return tuple(one for one in found if one is not None)


def _percentage(text: str) -> int | None:
    return int(text) if text.isdecimal() and 1 <= int(text) <= 100 else None


def _size(text: str) -> int | None:
    """MPS counts in whole MiB."""
    found = _SIZE.fullmatch(text)
    if found is None or found[2].lower() not in _UNITS:
        return None
    count = float(found[1]) * _UNITS[found[2].lower()]
    if count >= _MAX_BYTES:  # infinity, too
        return None
    size = int(count)
    return size // MIB * MIB if size >= MIB or not size else None


def _priority(text: str) -> int | None:
    return PRIORITIES.get(text)


def in_turn(values: Sequence[T], slot: int) -> T:
    """What a slot gets of a list that is shorter than a GPU has slots, or longer."""
    return values[slot % len(values)]


def default_percentage(workers: int) -> int | None:
    """The cap where nobody gives one, for so many workers on a GPU; None for none.

    Twice an equal part: NVIDIA advises 100/n where clients must not touch each other, and 100/(n/2) where they should
    be able to fill the GPU while others are idle. It keeps one worker from starving all others.
    """
    return None if workers <= 2 else math.ceil(200 / workers)


def settings_for(model: ModelSettings, slot: SlotSettings) -> ModelSettings:
    """The model as a worker of this slot reads it: TensorFlow's memory fits the pinned limit."""
    limit_bytes = tensorflow_limit_bytes(model, slot)
    return msgspec.structs.replace(model, slots=[], gpu_memory_limit_bytes=limit_bytes)


def tensorflow_limit_bytes(model: ModelSettings, slot: SlotSettings) -> int:
    """The model's own limit, else what the pinned limit leaves beside the CUDA context; 0 for none."""
    if model.gpu_memory_limit_bytes or model.gpu_memory_fraction or not slot.pinned_bytes:
        return model.gpu_memory_limit_bytes
    return max(0, slot.pinned_bytes - CONTEXT_BYTES)


def misfit(model: ModelSettings, slot: SlotSettings) -> str:
    """Why the pinned limit cannot hold what TensorFlow may take, and the CUDA context beside it; "" where it can.

    A fraction of a device whose memory is not known is taken to fit.
    """
    pinned = slot.pinned_bytes
    if not pinned:
        return ""
    own, of_what = model.gpu_memory_limit_bytes, "gpu_memory.limit_bytes"
    if model.gpu_memory_fraction:
        own, of_what = int(model.gpu_memory_fraction * slot.memory_bytes), "gpu_memory.fraction"
    if own and pinned < own + CONTEXT_BYTES:
        return (
            f"pinned_memory {size_text(pinned)} is less than {model.name}'s {of_what}, {size_text(own)}, and about"
            f" {size_text(CONTEXT_BYTES)} for its CUDA context; raise pinned_memory, or lower {of_what}"
        )
    if pinned <= CONTEXT_BYTES:
        return (
            f"pinned_memory {size_text(pinned)} leaves {model.name} nothing: a CUDA context takes about"
            f" {size_text(CONTEXT_BYTES)} of it; give more, or 0 for no limit"
        )
    return ""


def overcommitted(slots: Iterable[SlotSettings]) -> list[str]:
    """A line for each GPU whose workers may take more than it has. One whose memory is not known has enough."""
    on: dict[str, list[SlotSettings]] = {}
    for slot in slots:
        on.setdefault(slot.device, []).append(slot)
    return [
        f"{device}: pinned_memory gives its {'worker' if len(here) == 1 else f'{len(here)} workers'}"
        f" {pinned / here[0].memory_bytes:.0%} of its memory in all; lower pinned_memory, or ask for fewer workers"
        for device, here in on.items()
        if 0 < here[0].memory_bytes < (pinned := sum(slot.pinned_bytes for slot in here))
    ]


def size_text(size_bytes: int) -> str:
    """Exact: 2GiB, 1536MiB; 0 for none."""
    for unit, name in ((2**30, "GiB"), (MIB, "MiB")):
        if size_bytes and size_bytes % unit == 0:
            return f"{size_bytes // unit}{name}"
    return str(size_bytes)


def as_message(slot: SlotSettings, inherited: Inherited, *, own_daemon: bool) -> dict[str, object]:
    """What a worker of this slot runs with, for scripts: 100 is no cap, 0 bytes no limit.

    "inherited" names what it has from CUDA's variables: what nobody gave it and, as a daemon of ours inherits them, too,
    what is below what was given. What an external daemon gives is not known here.
    """
    share, pinned = slot.share, slot.share.pinned_bytes
    percentage, of_percentage = _lower(
        share.active_thread_percentage, inherited.active_thread_percentage, own_daemon=own_daemon
    )
    limit, of_limit = _lower(
        math.inf if pinned == 0 else pinned, inherited.pinned_bytes, own_daemon=own_daemon
    )
    # A client's own priority wins over its daemon's.
    priority, of_priority = _lower(share.priority, inherited.priority, own_daemon=False)
    percentage = 100 if percentage is None else percentage
    names = {
        "active_thread_percentage": of_percentage,
        "pinned_memory_bytes": of_limit,
        "priority": of_priority,
    }
    return {
        "active_thread_percentage": percentage if percentage % 1 else int(percentage),
        "pinned_memory_bytes": 0 if limit in (None, math.inf) else limit,
        "priority": next(word for word, number in PRIORITIES.items() if number == (priority or 0)),
        "inherited": [name for name, is_inherited in names.items() if is_inherited],
    }


def _lower(given: float | None, inherited: float | None, *, own_daemon: bool) -> tuple[float | None, bool]:
    """What holds, and whether it is the inherited value; None for neither."""
    if inherited is None or (given is not None and not (own_daemon and inherited < given)):
        return given, False
    return inherited, True
