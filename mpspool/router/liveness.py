"""Whether a worker hangs: judged by its progress, its heartbeat and what the kernel says of it. Pure."""

from __future__ import annotations

from collections.abc import Callable

from mpspool.core.process import ProcessStat
from mpspool.core.progress import Progress

# The heartbeat thread beats ten times a second.
BEAT_TIMEOUT_NS = 1_000_000_000
# While a model is loaded the interpreter may be held for long, and nobody waits for an answer.
LOADING_BEAT_TIMEOUT_NS = 30 * BEAT_TIMEOUT_NS
STARVED_FACTOR = 10
COST_FACTOR = 10


def hung(
    progress: Progress,
    stat: Callable[[], ProcessStat | None],
    now_ns: int,
    predicted_us: float | None,
    hang_timeout_s: float,
    beat_timeout_ns: int = BEAT_TIMEOUT_NS,
) -> str:
    """The reason why the worker counts as hung, or "" while it does not.

    Args:
        progress: its page, just read.
        stat: gives its process' state, None for one that is gone, which is not ours to judge; asked
            only where the page looks bad.
        now_ns: CLOCK_MONOTONIC.
        predicted_us: what the running request was predicted to cost.
        hang_timeout_s: the least time a request may run before it counts as hung.
        beat_timeout_ns: how long it may be silent.
    """
    silent_ns = now_ns - progress.beat_ns
    if silent_ns > beat_timeout_ns:
        found = stat()
        if found is None:
            return ""
        if silent_ns > beat_timeout_ns * (STARVED_FACTOR if found.is_starved else 1):
            return f"no heartbeat for {silent_ns / 1e9:.1f} s (process state {found.state})"
    if not progress.dispatch:
        return ""
    running_s = (now_ns - progress.started_ns) / 1e9
    limit_s = max(hang_timeout_s, COST_FACTOR * (predicted_us or 0) / 1e6)
    if running_s > limit_s:
        return f"one request has been running for {running_s:.1f} s (limit {limit_s:.1f} s)"
    return ""
