"""What sharing is worth, as tables, as JSON and as a plot."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from bench.sharing import Sharing
from bench.variants import PER_REQUEST, PLAIN, VARIANTS


def tables(found: Sharing) -> Iterator[str]:
    """Markdown."""
    yield from ("", "## One copy of the weights, one copy of TensorFlow", "")
    yield f"A 1 GB embedding model, every row asked for, in requests of {PER_REQUEST:,}; PSS of nursery, launchers and"
    yield "workers together, with what TensorFlow keeps for the next such request."
    yield ""
    yield "| | workers | PSS MB in all | of private, exec | a worker's private MB | all READY after s |"
    yield "|---|---|---|---|---|---|"
    for (variant, workers), held in sorted(found.held.items(), key=lambda item: item[0][1]):
        plain = found.held[PLAIN, workers].pss_mb
        yield (
            f"| {variant.title} | {workers} | {held.pss_mb:.0f} | {held.pss_mb / plain:.2f} |"
            f" {held.private_mb:.0f} | {held.ready_s:.1f} |"
        )
    yield from ("", "SIGKILL of a worker until its slot is READY again, median (worst):", "")
    yield "| | half_plus_two, s | 1 GB model, s | of it loading the 1 GB, s | half_plus_two, of private, exec |"
    yield "|---|---|---|---|---|"
    plain_s = statistics.median(found.back_s[PLAIN])
    for variant, times in found.back_s.items():
        big, loading = found.back_big_s[variant], found.load_big_s[variant]
        yield (
            f"| {variant.title} | {_median_and_worst(times)} | {_median_and_worst(big)} | {_median_and_worst(loading)} |"
            f" {statistics.median(times) / plain_s:.2f} |"
        )

    yield from (
        "",
        "Time of an answer, shared / private weights, one request after another, median of pairs:",
        "",
    )
    yield "| rows | shared / private |"
    yield "|---|---|"
    for count, ratios in found.slower.items():
        yield f"| {count} | {statistics.median(ratios):.2f} |"


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
