"""When a worker counts as hung."""

from __future__ import annotations

import pytest

from mpspool.core.process import ProcessStat
from mpspool.core.progress import Progress
from mpspool.router.liveness import hung

S = 10**9
NOW = 1000 * S


def stat(state: str) -> ProcessStat:
    return ProcessStat(state, 1, 0.0, 0)


@pytest.mark.parametrize(
    ("state", "silent_s", "is_hung"),
    [
        ("S", 0.5, False),
        ("S", 1.5, True),
        ("T", 1.5, True),
        ("R", 1.5, False),  # starved of CPU, not hung
        ("D", 1.5, False),
        ("R", 11, True),
    ],
)
def test_silence_is_judged_by_what_the_kernel_says(state: str, silent_s: float, is_hung: bool) -> None:
    """No heartbeat for a second condemns a process that could have run, not one that was not let."""
    page = Progress(0, 0, 0, NOW - int(silent_s * S))
    assert bool(hung(page, lambda: stat(state), NOW, None, 30)) is is_hung


@pytest.mark.parametrize(
    ("running_s", "predicted_us", "timeout_s", "is_hung"),
    [(29, None, 30, False), (31, None, 30, True), (31, 5e6, 30, False), (51, 5e6, 30, True)],
)
def test_lack_of_progress_condemns_a_beating_worker(
    running_s: float, predicted_us: float | None, timeout_s: float, is_hung: bool
) -> None:
    """A request may run for max(10 x its predicted cost, hang_timeout_s), however well the worker beats."""
    page = Progress(7, 0, NOW - int(running_s * S), NOW)
    assert bool(hung(page, lambda: stat("S"), NOW, predicted_us, timeout_s)) is is_hung


def test_an_idle_or_dead_worker_does_not_hang() -> None:
    """Idle is not stuck, and a process that is gone is for the pidfd to report."""
    assert not hung(Progress(0, 0, 0, NOW), lambda: stat("S"), NOW, None, 1)
    assert not hung(Progress(0, 0, 0, 0), lambda: None, NOW, None, 1)
