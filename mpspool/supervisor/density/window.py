"""The stretch of time that is looked at, and what it is on the clock on the wall."""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import datetime, timedelta

from mpspool.supervisor import durations
from mpspool.supervisor.density.read import Record

# From one mark of the clock to the next; above, whole hours.
_MARKS_S = (
    *(0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5),
    *(1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600),
)
# Below it fractions of seconds are told, too.
_COARSE_S = 10.0


@dataclass(frozen=True, slots=True)
class Window:
    """From when to when.

    Attributes:
        begin_ns, end_ns: CLOCK_MONOTONIC; the end is the time at which the router was asked.
        ended: the end, on the clock on the wall, with its time zone.
        asked_s: how long it should have been; longer than it is where the record begins later.
    """

    begin_ns: int
    end_ns: int
    ended: datetime
    asked_s: float

    @classmethod
    def of(cls, record: Record, last_s: float, ended: datetime) -> Window:
        """The last so many seconds, as far as they are on record."""
        begin_ns = max(record.now_ns - int(last_s * 1e9), record.begins_ns)
        return cls(min(begin_ns, record.now_ns - int(durations.LEAST_S * 1e9)), record.now_ns, ended, last_s)

    @property
    def length_s(self) -> float:
        return (self.end_ns - self.begin_ns) / 1e9

    @property
    def began(self) -> datetime:
        return self.ended - timedelta(seconds=self.length_s)

    @property
    def shortened(self) -> bool:
        """The record does not reach as far back as was asked for."""
        return self.length_s < self.asked_s - 1e-6

    def ticks(self, at_most: int) -> tuple[list[float], list[str]]:
        """Round times of the clock within it: in seconds from its begin, and as they are written."""
        apart_s = next((one for one in _MARKS_S if self.length_s / one <= at_most), 0.0)
        apart_s = apart_s or 3600.0 * math.ceil(self.length_s / 3600 / at_most)
        midnight = self.began.replace(hour=0, minute=0, second=0, microsecond=0)
        began_s = (self.began - midnight).total_seconds()
        first, last = math.ceil(began_s / apart_s), math.floor((began_s + self.length_s) / apart_s)
        at_s = [number * apart_s for number in range(first, last + 1)]
        written = "%H:%M:%S.%f" if apart_s < 1 else "%H:%M:%S"
        labels = [(midnight + timedelta(seconds=one)).strftime(written) for one in at_s]
        return [one - began_s for one in at_s], [label[:12] for label in labels]

    def __str__(self) -> str:
        """As "2026-11-22 14:02:11 to 14:02:41 UTC+0100 (30 s)"."""
        ended = self.ended.strftime("%Y-%m-%d " * (self.began.date() != self.ended.date()))
        length = f"{self.length_s:.0f}" if self.length_s >= _COARSE_S else f"{self.length_s:.3g}"
        until = f"{ended}{self._clock(self.ended)} {self.ended:UTC%z}"
        return f"{self.began:%Y-%m-%d} {self._clock(self.began)} to {until} ({length} s)"

    def _clock(self, time: datetime) -> str:
        milliseconds = f".{time.microsecond // 1000:03}" if self.length_s < _COARSE_S else ""
        return f"{time:%H:%M:%S}{milliseconds}"
