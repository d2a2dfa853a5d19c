"""A load test as a picture: latency and throughput over the levels."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mpspool.loadtest.figures import Level
from mpspool.loadtest.options import Options

_SHOWN = ("p50", "p90", "p99", "p99.9")
_COLOURS = ("#4c9be8", "#2f6db5", "#e08a1e", "#b8312f")
_DPI = 130


class PlotError(Exception):
    """No picture can be drawn, and what to do."""


def check(path: Path) -> None:
    """Raises PlotError."""
    try:
        import matplotlib as mpl
    except ImportError as error:
        raise PlotError("--plot needs matplotlib: pip install 'matplotlib>=3.10'") from error
    mpl.use("Agg")
    from matplotlib.figure import Figure

    known = Figure().canvas.get_supported_filetypes()
    if path.suffix.removeprefix(".").lower() not in known:
        raise PlotError(
            f"--plot: {path.name} names no kind of picture; known are: {', '.join(sorted(known))}"
        )


def draw(options: Options, levels: Sequence[Level], path: Path) -> None:
    """Writes the picture, in the format that the name ends in."""
    from matplotlib import ticker
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4.6), layout="constrained")
    latency, throughput = figure.subplots(1, 2)
    what = "open loop" if options.is_open else "closed loop"
    figure.suptitle(
        f"{options.model}: {what}, median of {options.repeat} x {options.seconds:g} s, bands from least to most",
        fontsize=11,
    )
    for name, colour in zip(_SHOWN, _COLOURS, strict=True):
        _line(latency, levels, name, colour)
    latency.set_yscale("log")
    latency.yaxis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5)))
    latency.yaxis.set_major_formatter(ticker.FormatStrFormatter("%g"))
    latency.yaxis.set_minor_locator(ticker.NullLocator())
    latency.set_ylabel("latency, ms")
    latency.legend(frameon=False)
    _line(throughput, levels, "rate", _COLOURS[1], label="right answers")
    throughput.set_ylabel("requests/s")
    throughput.set_ylim(bottom=0)
    if options.is_open:
        wanted = [level.wanted for level in levels]
        throughput.plot(wanted, wanted, color="grey", linestyle=":", label="sent")
        throughput.legend(frameon=False)
    for axes in (latency, throughput):
        _axis(axes, options, levels)
    figure.savefig(path, dpi=_DPI)


def _line(axes: Any, levels: Sequence[Level], name: str, colour: str, label: str = "") -> None:
    known = [(level, median) for level in levels if (median := level.figure(name).median) is not None]
    if not known:
        return
    at = [level.wanted for level, _ in known]
    values = [[value for run in level.runs if (value := run.figures[name]) is not None] for level, _ in known]
    axes.plot(
        at, [median for _, median in known], color=colour, marker="o", markersize=4, label=label or name
    )
    axes.fill_between(
        at, list(map(min, values)), list(map(max, values)), color=colour, alpha=0.18, linewidth=0
    )
    limited = [(level.wanted, median) for level, median in known if level.limits()]
    if limited:
        axes.plot(*zip(*limited, strict=True), "o", markersize=9, markerfacecolor="none", color=colour)


def _axis(axes: Any, options: Options, levels: Sequence[Level]) -> None:
    from matplotlib import ticker

    wanted = [level.wanted for level in levels]
    if min(wanted) * 4 < max(wanted):
        axes.set_xscale("log")
    axes.set_xticks(wanted, [f"{each:g}" for each in wanted])
    axes.xaxis.set_minor_locator(ticker.NullLocator())
    limited = ", rings: the generator was the limit" if any(level.limits() for level in levels) else ""
    axes.set_xlabel(f"{'requests/s sent' if options.is_open else 'requests in flight'}{limited}")
    axes.grid(alpha=0.3)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
