"""What requests see of a new version, as tables, as JSON and as a plot."""

from __future__ import annotations

import dataclasses
import itertools
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.processors import sentence
from bench.tables import table

_SLOWER, _GROWN = 1.5, 1.03


@dataclass(frozen=True, slots=True)
class Swap:
    """One swap: from the rename until nothing of the old version is left, and the steady time before it.

    Attributes:
        version: the new one.
        begin_s: the rename, since the load began.
        seconds: how long it took.
        steady_ms: p99 before it.
        during_ms: p99 in its time.
        late_ms: p99 of how late requests left in its time, which latencies contain.
        first_ms: of the first answer of the new version.
        failed: requests in the steady time, in its own and in the second after it.
        processes, pss_mb: all that the server has, once it is over.
        segments, segments_mb: those of them that hold weights, each counted once, and whole.
        foreign_cores: CPUs that others kept busy, from the begin of the steady time on.
        cpu_s: CPU seconds by role, beyond those of as long a steady time.
    """

    version: int
    begin_s: float
    seconds: float
    steady_ms: float
    during_ms: float
    late_ms: float
    first_ms: float
    failed: int
    processes: int
    pss_mb: float
    segments: int
    segments_mb: float
    foreign_cores: float
    cpu_s: Mapping[str, float]

    @property
    def ratio(self) -> float:
        return self.during_ms / self.steady_ms

    @property
    def first_ratio(self) -> float:
        return self.first_ms / self.steady_ms


@dataclass(frozen=True, slots=True)
class Bin:
    """Latencies of the requests that were due in a quarter of a second."""

    at_s: float
    p50_ms: float
    p99_ms: float
    max_ms: float


@dataclass(frozen=True, slots=True)
class Swaps:
    """One server's.

    Attributes:
        capacity: answers a second in a closed loop.
        rate: of the load, a second.
        sent, failed: requests, from its begin to its end.
        failures: how they failed.
        steady_ms, during_ms: p99 of all requests before the swaps, and of all in their times.
    """

    title: str
    capacity: float
    rate: float
    sent: int
    failed: int
    failures: Sequence[str]
    steady_ms: float
    during_ms: float
    swaps: Sequence[Swap]
    bins: Sequence[Bin]

    @property
    def ratio(self) -> float:
        """All swaps taken together."""
        return self.during_ms / self.steady_ms

    @property
    def wandering(self) -> Sequence[float]:
        """What the ratio is where nothing is swapped: of each steady time by the one before it."""
        steady = [swap.steady_ms for swap in self.swaps]
        return [later / earlier for earlier, later in itertools.pairwise(steady)]

    @property
    def grown(self) -> float:
        """PSS after the last swap by that after the first."""
        return self.swaps[-1].pss_mb / self.swaps[0].pss_mb

    @property
    def segments_grown(self) -> float:
        """The same of what holds weights; 1 where nothing does."""
        first = self.swaps[0].segments_mb
        return self.swaps[-1].segments_mb / first if first else 1.0


def head(facts: Mapping[str, Any]) -> Iterator[str]:
    """Of a report on nothing else, from what report.machine() says."""
    yield "# What requests see of a new version"
    yield ""
    yield f"{facts['cpus']} CPUs ({facts['cpu']}), {facts['system']}, Python {facts['python']}, TensorFlow"
    yield f"{facts['tensorflow']}, mpspool {facts['commit']}, {facts['time']}."
    yield f"{sentence(facts['load_cpus'])} What the figures mean: bench/README.md."


def tables(found: Sequence[Swaps]) -> Iterator[str]:
    """Markdown."""
    yield from ("", "## A new version under load", "")
    yield "The 1 GB model at 30 % of what each can; medians over the swaps, and the worst."
    yield ""
    header = (
        *(
            "",
            "requests/s",
            "swaps",
            "seconds",
            "failed",
            "p99 before, ms",
            "p99 in it, ms",
            "in it / before",
            "all in them / all before",
            "before / before the last",
            "sent late in it, ms",
            "others' cores",
        ),
        *("first answer, ms", "first / p99 before", "PSS MB after the first, last", "last / first"),
    )
    yield from table(header, [_row(one) for one in found])
    yield from ("", "CPU seconds of a swap beyond the load's own, median:", "")
    roles = sorted({role for one in found for role in _cpu(one)})
    yield from table(
        ("", *roles),
        [(one.title, *(f"{_cpu(one).get(role, 0.0):.2f}" for role in roles)) for one in found],
    )
    for one in found:
        if one.failures:
            yield from ("", f"{one.title}, failed: {'; '.join(one.failures)}")


def _row(found: Swaps) -> tuple[str, ...]:
    swaps = found.swaps
    return (
        found.title,
        f"{found.rate:.0f} of {found.capacity:.0f}",
        str(len(swaps)),
        _both([swap.seconds for swap in swaps], 1),
        f"{found.failed} of {found.sent}",
        _both([swap.steady_ms for swap in swaps], 2),
        _both([swap.during_ms for swap in swaps], 2),
        _both([swap.ratio for swap in swaps], 2),
        f"{found.ratio:.2f}",
        _both(found.wandering, 2) if found.wandering else "",
        _both([swap.late_ms for swap in swaps], 2),
        _both([swap.foreign_cores for swap in swaps], 2),
        _both([swap.first_ms for swap in swaps], 2),
        _both([swap.first_ratio for swap in swaps], 2),
        f"{swaps[0].pss_mb:.0f}, {swaps[-1].pss_mb:.0f}",
        f"{found.grown:.3f}",
    )


def _both(values: Sequence[float], digits: int) -> str:
    return f"{statistics.median(values):.{digits}f} ({max(values):.{digits}f})"


def _cpu(found: Swaps) -> dict[str, float]:
    """By role, the median; what is next to nothing left out."""
    roles = {role for swap in found.swaps for role in swap.cpu_s}
    medians = {role: statistics.median(swap.cpu_s.get(role, 0.0) for swap in found.swaps) for role in roles}
    return {role: seconds for role, seconds in medians.items() if abs(seconds) >= 0.02}


def target_lines(found: Sequence[Swaps]) -> Iterator[str]:
    """The targets, and whether each is reached."""
    yield from ("", "## Targets, a new version", "")
    yield from table(("", "at most", "measured", ""), list(targets(found)))


def targets(found: Sequence[Swaps]) -> Iterator[tuple[str, str, str, str]]:
    """(what, at most, measured, whether it is reached), of our own pool."""
    ours = found[0]
    ratios, firsts = [[getattr(swap, name) for swap in ours.swaps] for name in ("ratio", "first_ratio")]
    asked = [
        (f"failed requests in {len(ratios)} swaps", 0, ours.failed),
        ("p99 in a swap / before it, median", _SLOWER, statistics.median(ratios)),
        ("p99 in a swap / before it, worst", _SLOWER, max(ratios)),
        ("p99 in all swaps / before all of them", _SLOWER, ours.ratio),
        ("a version's first answer / p99 before it, median", 1, statistics.median(firsts)),
        ("a version's first answer / p99 before it, worst", 1, max(firsts)),
        ("PSS after the last swap / the first", _GROWN, ours.grown),
        ("weights held after the last swap / the first", _GROWN, ours.segments_grown),
    ]
    for what, limit, measured in asked:
        yield what, f"{limit:g}", f"{measured:.3g}", "reached" if measured <= limit else "not reached"


def as_dict(found: Sequence[Swaps]) -> list[dict[str, Any]]:
    """For the JSON file."""
    return [dataclasses.asdict(one) for one in found]


def plot(found: Sequence[Swaps], file: Path) -> None:
    """Latency over time, the swaps shaded."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(len(found), 1, figsize=(14, 4 * len(found)), squeeze=False)
    for axis, one in zip(axes.flat, found, strict=True):
        times = [each.at_s for each in one.bins]
        for swap in one.swaps:
            axis.axvspan(swap.begin_s, swap.begin_s + swap.seconds, color="0.88")
        axis.plot(times, [each.max_ms for each in one.bins], ".", markersize=2, color="C3", label="slowest")
        axis.plot(times, [each.p99_ms for each in one.bins], linewidth=1, color="C0", label="p99")
        axis.plot(times, [each.p50_ms for each in one.bins], linewidth=1, color="C2", label="p50")
        axis.set_yscale("log")
        axis.set(title=f"{one.title}: {one.rate:.0f} requests/s, {one.failed} failed", ylabel="ms")
        axis.set(xlabel="s; shaded: from the rename until nothing of the old version is left")
        axis.legend(loc="upper right", fontsize=8)
    figure.tight_layout()
    figure.savefig(file, dpi=110)
    plt.close(figure)
