"""What a generator counts while it sends."""

from __future__ import annotations

import re
import time
from array import array
from pathlib import Path

from mpspool.core.errors import Code
from mpspool.loadtest.messages import Failure
from mpspool.loadtest.wire import Call

WRONG = "WRONG"
_KINDS = 20
_TEXT_CHARS = 300
_NUMBER = re.compile(r"\d+")
_SCHEDSTAT = Path("/proc/thread-self/schedstat")


class Tally:
    """Of one phase. Times are CLOCK_MONOTONIC in seconds.

    Args:
        lengths: of the answers by request, what they must be: the first of each adds its own.
        any_answer: they need not.
    """

    def __init__(self, lengths: dict[int, int], *, any_answer: bool) -> None:
        self.sent = 0
        self.right = 0
        self.failed = 0
        self.stream_waits = 0
        self.latencies = array("f")
        self.lateness = array("f")
        self._lengths = lengths
        self._any_answer = any_answer
        self._failures: dict[tuple[str, str], tuple[str, int]] = {}

    def over(self, call: Call, now: float) -> None:
        """It is answered, or never will be."""
        self.stream_waits += call.waited
        number = call.request.number
        if call.code:
            self._fail(_name(call.code), call.text)
        elif not call.length:
            self._fail(WRONG, "status OK and no answer")
        elif self._any_answer or self._lengths.setdefault(number, call.length) == call.length:
            self.right += 1
            self.latencies.append(now - call.due)
        else:
            expected = self._lengths[number]
            self._fail(WRONG, f"{call.length} bytes, where the first answer to this request had {expected}")

    def lost(self, text: str) -> None:
        """One that never had a connection."""
        self.sent += 1
        self._fail(Code.UNAVAILABLE.name, text)

    def _fail(self, code: str, text: str) -> None:
        self.failed += 1
        key = code, pattern(text)
        if key not in self._failures and len(self._failures) >= _KINDS:
            key, text = (code, ""), "other texts"
        first, count = self._failures.get(key, (text[:_TEXT_CHARS], 0))
        self._failures[key] = first, count + 1

    def failures(self) -> list[Failure]:
        return [Failure(code, text, count) for (code, _), (text, count) in self._failures.items()]


def pattern(text: str) -> str:
    """What texts have in common that differ in their numbers."""
    return _NUMBER.sub("0", text[:_TEXT_CHARS])


def _name(code: int) -> str:
    try:
        return Code(code).name
    except ValueError:
        return f"CODE {code}"


class Use:
    """What this thread has taken of a CPU since then, and how long it could have run and had none."""

    def __init__(self) -> None:
        self._began = _used()

    def so_far(self) -> tuple[float, float | None]:
        """Seconds of both; None for the second where the kernel does not tell."""
        (cpu_s, waited_s), (cpu_before_s, waited_before_s) = _used(), self._began
        return cpu_s - cpu_before_s, None if waited_s is None else waited_s - (waited_before_s or 0.0)


def _used() -> tuple[float, float | None]:
    cpu_s = time.process_time()
    try:
        waited_ns = int(_SCHEDSTAT.read_text().split()[1])
    except (OSError, IndexError, ValueError):
        return cpu_s, None
    return cpu_s, waited_ns / 1e9
