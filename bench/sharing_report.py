"""What sharing is worth, as tables, as JSON and as a plot."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from bench.sharing import Sharing
from bench.variants import OURS, PER_REQUEST, PLAIN, VARIANTS, Variant

_MOST_WORKERS, _MOST_MB = 4, 1900.0
# Ratios of pairs of single answers move by so much.
_NOISE = 1.05


def tables(found: Sharing) -> Iterator[str]:
    """Markdown."""
    yield from ("", "## One copy of the weights, one copy of TensorFlow", "")
    yield f"A 1 GB embedding model, every row asked for, in requests of {PER_REQUEST:,}; PSS of nursery, launchers and"
    yield "workers together, with what TensorFlow keeps for the next such request."
    yield ""
    yield "| | workers | PSS MB in all | of private, exec | a further worker's, MB | a worker's private MB | all READY after s |"
    yield "|---|---|---|---|---|---|---|"
    for (variant, workers), held in sorted(found.held.items(), key=lambda item: item[0][1]):
        plain = found.held[PLAIN, workers].pss_mb
        further = further_mb(found, variant, workers)
        yield (
            f"| {variant.title} | {workers} | {held.pss_mb:.0f} | {held.pss_mb / plain:.2f} |"
            f" {f'{further:.0f}' if further is not None else ''} | {held.private_mb:.0f} | {held.ready_s:.1f} |"
        )
    yield from ("", "SIGKILL of a worker until its slot is READY again, median (worst):", "")
    yield "| | half_plus_two, s | of private, exec | 1 GB model, s | of private, exec | of it loading the GB, s | of private, exec |"
    yield "|---|---|---|---|---|---|---|"
    for variant in found.back_s:
        columns = (
            f" {_median_and_worst(times[variant])} | {statistics.median(times[variant]) / statistics.median(times[PLAIN]):.2f} |"
            for times in (found.back_s, found.back_big_s, found.load_big_s)
        )
        yield f"| {variant.title} |{''.join(columns)}"

    yield from (
        "",
        "Time of an answer, shared / private weights, one request after another, median of pairs:",
        "",
    )
    yield "| rows | shared / private |"
    yield "|---|---|"
    for count, ratios in found.slower.items():
        yield f"| {count} | {statistics.median(ratios):.2f} |"


def further_mb(found: Sharing, variant: Variant, workers: int) -> float | None:
    """What each of these workers takes in all beyond the next smaller pool; None for the smallest."""
    fewer = max((count for one, count in found.held if one == variant and count < workers), default=0)
    if not fewer:
        return None
    return (found.held[variant, workers].pss_mb - found.held[variant, fewer].pss_mb) / (workers - fewer)


def targets(found: Sharing) -> Iterator[tuple[str, str, str, str]]:
    """(what, asked, measured, whether it is reached) of what was measured of all that this was to reach."""
    asked: list[tuple[str, float, float | None]] = [
        ("half_plus_two: SIGKILL until READY, s, median", 1.0, _median(found.back_s.get(OURS))),
        ("1 GB model: a restarted worker's load, s", 0.3, _median(found.load_big_s.get(OURS))),
    ]
    if held := found.held.get((OURS, _MOST_WORKERS)):
        asked.append((f"1 GB model: {_MOST_WORKERS} workers, PSS MB", _MOST_MB, held.pss_mb))
        asked.append(("1 GB model: a further worker, PSS MB", 40.0, further_mb(found, OURS, _MOST_WORKERS)))
    for rows, ratios in found.slower.items():
        asked.append((f"an answer of {rows:,} rows, shared / private", _NOISE, _median(ratios)))
    for what, limit, measured in asked:
        if measured is not None:
            yield what, f"{limit:g}", f"{measured:.2f}", "reached" if measured <= limit else "not reached"


def _median(values: Sequence[float] | None) -> float | None:
    return statistics.median(values) if values else None


def _median_and_worst(times: Sequence[float]) -> str:
    return f"{statistics.median(times):.2f} ({max(times):.2f})"


def as_dict(found: Sharing) -> dict[str, Any]:
    """For the JSON file."""
    return {
        "held": [
            {
                "variant": variant.title,
                "workers": workers,
                "pss_mb": held.pss_mb,
                "private_mb": held.private_mb,
                "ready_s": held.ready_s,
            }
            for (variant, workers), held in found.held.items()
        ],
        "back_s": {variant.title: times for variant, times in found.back_s.items()},
        "back_big_s": {variant.title: times for variant, times in found.back_big_s.items()},
        "load_big_s": {variant.title: times for variant, times in found.load_big_s.items()},
        "slower": found.slower,
    }


def plot(found: Sharing, file: Path) -> None:
    """Memory by workers, and the time to be back."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, (memory, back) = plt.subplots(1, 2, figsize=(11, 4))
    for variant in VARIANTS:
        points = sorted(
            (workers, held.pss_mb) for (one, workers), held in found.held.items() if one == variant
        )
        memory.plot(*zip(*points, strict=True), marker="o", label=variant.title)
    memory.set(
        title="1 GB model: PSS of nursery, launchers, workers", xlabel="workers", ylabel="MB", ylim=(0, None)
    )
    memory.set_xticks(sorted({workers for _, workers in found.held}))
    memory.legend(fontsize=8)
    places = range(len(VARIANTS))
    for shift, title, times in ((-0.2, "half_plus_two", found.back_s), (0.2, "1 GB model", found.back_big_s)):
        heights = [statistics.median(times[variant]) for variant in VARIANTS]
        back.bar([place + shift for place in places], heights, 0.4, label=title)
    back.set_xticks(list(places), [variant.title for variant in VARIANTS], fontsize=8)
    back.set(title="SIGKILL of a worker until READY again, median", ylabel="s")
    back.legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(file, dpi=110)
    plt.close(figure)
