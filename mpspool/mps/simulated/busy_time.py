"""How much of the last second something ran, from when it began and ended. Pure: the clock is the caller's."""

from __future__ import annotations

from collections import deque

WINDOW_S = 1.0
_STEP_S = 0.05


class BusyTime:
    """Times are seconds of one clock and never go back."""

    def __init__(self, now: float) -> None:
        self._busy = False
        self._total_s = 0.0
        self._at = now
        # (time, busy seconds until then), so far apart that there are few of them.
        self._marks = deque([(now, 0.0)])

    def set(self, busy: bool, now: float) -> None:
        """From now on something runs, or nothing does."""
        self._advance(now)
        self._busy = busy

    def share(self, now: float) -> float:
        """From 0 to 1, over the last WINDOW_S."""
        self._advance(now)
        begin = now - WINDOW_S
        while len(self._marks) > 1 and self._marks[1][0] <= begin:
            self._marks.popleft()
        at, before = self._marks[0]
        after_at, after = self._marks[1] if len(self._marks) > 1 else (now, self._total_s)
        if at < begin and after_at > at:
            before += (after - before) * (begin - at) / (after_at - at)
        return min(1.0, max(0.0, (self._total_s - before) / WINDOW_S))

    def _advance(self, now: float) -> None:
        before = (self._at, self._total_s)
        if self._busy:
            self._total_s += now - self._at
        self._at = now
        if now - self._marks[-1][0] >= _STEP_S:
            self._marks += [before, (now, self._total_s)]


def later(share: float, busy: bool, passed_s: float) -> float:
    """What share() would say so much later, if nothing began or ended since."""
    passed = min(passed_s, WINDOW_S) / WINDOW_S
    return share * (1 - passed) + passed * busy
