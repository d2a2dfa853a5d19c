"""When a router counts as hung."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from mpspool.core.process import ProcessStat
from mpspool.supervisor.pool.router_watch import Silence


def in_state(state: str) -> Callable[[int], ProcessStat | None]:
    """Of a process that is in it; "" for one that is gone."""
    return lambda _: ProcessStat(state, 1, 0.0, 0) if state else None


def until_hung(silence: Silence, heard_at: float, state: str, most: int = 1000) -> int | None:
    """After how many periods of silence it counts as hung; None for never."""
    return next((n for n in range(1, most) if silence.hung(7, heard_at, in_state(state))), None)


def _spoken() -> Silence:
    silence = Silence()
    for heard_at in (0.0, 5.0):
        assert not silence.hung(7, heard_at, _nobody)
    return silence


def _nobody(_pid: int) -> ProcessStat:
    raise AssertionError("asked of one that is not silent")


@pytest.mark.parametrize(("state", "periods"), [("S", 10), ("T", 10), ("R", 60), ("D", 60), ("", None)])
def test_one_that_falls_silent(state: str, periods: int | None) -> None:
    """Sooner where it waits than where it wants to run; one that is gone hangs no more."""
    assert until_hung(_spoken(), 5.0, state) == periods


def test_one_that_starts_has_longer() -> None:
    silence = Silence()
    assert not silence.hung(7, 0.0, _nobody)
    assert until_hung(silence, 0.0, "S") == 60


@pytest.mark.parametrize(("pid", "heard_at"), [(7, 6.0), (8, 5.0), (0, 5.0)])
def test_a_word_or_another_process_begins_it_anew(pid: int, heard_at: float) -> None:
    """Nothing is expected of none at all."""
    silence = _spoken()
    for _ in range(9):
        assert not silence.hung(7, 5.0, _nobody)
    assert not silence.hung(pid, heard_at, _nobody)
    assert not silence.hung(pid, heard_at, in_state("S"))


def test_the_reason_says_for_how_long() -> None:
    silence = _spoken()
    found = [silence.hung(7, 5.0, in_state("T")) for _ in range(10)]
    assert found[-1] == "it has said nothing for 10 s (process state T)"
