"""Whether a worker hangs: judged by its progress, its heartbeat and what the kernel says of it. Pure."""

from __future__ import annotations

from mpspool.core.process import ProcessStat
from mpspool.core.progress import Progress

# The heartbeat thread beats ten times a second.
BEAT_TIMEOUT_NS = 1_000_000_000
# A process that wants to run but is not let (state R), or waits for a disk (D), is slow, not hung.
STARVED_TIMEOUT_NS = 10 * BEAT_TIMEOUT_NS
COST_FACTOR = 10


def hung(
    progress: Progress,
    stat: ProcessStat | None,
    now_ns: int,
    predicted_us: float | None,
    hang_timeout_s: float,
) -> str:
    """The reason why the worker counts as hung, or "" while it does not.

    Args:
        progress: its page, just read.
        now_ns: CLOCK_MONOTONIC.
        stat: of its process; None for one that is gone, which is not ours to judge.
        predicted_us: what the running request was predicted to cost.
        hang_timeout_s: the least time a request may run before it counts as hung.
    """
    if stat is None:
        return ""
    silent_ns = now_ns - progress.beat_ns
    patience_ns = STARVED_TIMEOUT_NS if stat.state in "RD" else BEAT_TIMEOUT_NS
    if silent_ns > patience_ns:
        return f"no heartbeat for {silent_ns / 1e9:.1f} s (process state {stat.state})"
    if not progress.dispatch:
        return ""
    running_s = (now_ns - progress.started_ns) / 1e9
    limit_s = max(hang_timeout_s, COST_FACTOR * (predicted_us or 0) / 1e6)
    if running_s > limit_s:
        return f"one request has been running for {running_s:.1f} s (limit {limit_s:.1f} s)"
    return ""
