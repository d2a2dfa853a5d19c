"""Rests between pieces of work."""

from __future__ import annotations

import pytest

from mpspool.worker.weights import rests
from mpspool.worker.weights.rests import Rests


class Clock:
    """Time as the test has it pass: this thread's work, and its sleep."""

    def __init__(self) -> None:
        self.worked_s = 100.0
        self.slept: list[float] = []

    def thread_time(self) -> float:
        return self.worked_s

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    monkeypatch.setattr(rests, "time", found)
    return found


def test_it_rests_as_it_has_worked(clock: Clock) -> None:
    """Twice as long as the piece before took of a processor."""
    mine = Rests(60.0)
    for worked_s in (1.0, 3.0):
        clock.worked_s += worked_s
        mine.rest()
    assert clock.slept == [2.0, 6.0]


def test_it_has_rested_enough(clock: Clock) -> None:
    """A model of any size is published in the time that it takes and the limit."""
    mine = Rests(3.0)
    for _ in range(4):
        clock.worked_s += 1.0
        mine.rest()
    assert clock.slept == [2.0, 1.0]


def test_who_is_waited_for_does_not_rest(clock: Clock) -> None:
    mine = Rests(0.0)
    clock.worked_s += 1.0
    mine.rest()
    assert not clock.slept
