"""A load test as a picture: latency and throughput over the levels."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mpspool.loadtest.figures import Level, Run, digits
from mpspool.loadtest.options import Options, Trial

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_SHOWN = ("p50", "p90", "p99", "p99.9")
_COLOURS = ("#4c9be8", "#2f6db5", "#e08a1e", "#b8312f")
_FAILED = "#b8312f"
_DPI = 130
# Of an axis, above what is highest; of latency's below what is lowest, too.
_ROOM = 1.05
# A repeat that has had so much of its time has had all of it.
_WHOLE = 0.95
# So many levels have room for words beside each other.
_ROOMY = 4
# The axis of latency has marks at so many times each power of ten; above that range, at these alone.
_STEPS, _DECADES = (1, 2, 3, 5), 3
# What matplotlib does not write by itself: this takes xelatex.
_NEED_MORE = {"pgf"}


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

    known = set(Figure().canvas.get_supported_filetypes()) - _NEED_MORE
    if path.suffix.removeprefix(".").lower() not in known:
        raise PlotError(
            f"--plot: {path.name} names no kind of picture; known are: {', '.join(sorted(known))}"
        )


def draw(options: Options, trial: Trial, levels: Sequence[Level], path: Path) -> None:
    """Writes the picture, in the format that the name ends in."""
    picture(options, trial, levels).savefig(path, dpi=_DPI)


def picture(options: Options, trial: Trial, levels: Sequence[Level]) -> Figure:
    """Latency on the left, and right answers a second on the right."""
    from matplotlib.figure import Figure

    levels = sorted(levels, key=lambda level: level.wanted)
    figure = Figure(figsize=(11, 4.8), layout="constrained")
    latency, throughput = figure.subplots(1, 2, sharex=True, gridspec_kw={"wspace": 0.08})
    what = "open loop" if options.is_open else "closed loop"
    figure.suptitle(
        f"{options.model}: {what}, {_repeats(options, levels)}\n"
        f"{_asked(options)}; deadline {options.deadline_s:g} s; {trial.began:%Y-%m-%d %H:%M:%S UTC%z}",
        fontsize=11,
        parse_math=False,
    )
    for name, colour in zip(_SHOWN, _COLOURS, strict=True):
        _line(latency, levels, name, colour)
    latency.set_ylabel("latency, ms (log scale)", labelpad=8)
    _latency_axis(latency, levels)
    _line(throughput, levels, "rate", _COLOURS[1], label="right answers")
    throughput.set_ylabel("requests/s", labelpad=8)
    if options.is_open:
        # A generator that does not keep up sends less than was asked for, and by chance more or less is due.
        sent = [level.of(_sent_a_second).median or 0.0 for level in levels]
        wanted = [level.wanted for level in levels]
        throughput.plot(wanted, sent, ":s", color="#b8b8b8", markersize=7, zorder=1, label="sent")
        throughput.legend(frameon=False)
    throughput.set_ylim(0, max(0.0, throughput.dataLim.y1) * _ROOM or 1)
    for axes in (latency, throughput):
        _axis(axes, options, levels)
    return figure


def _sent_a_second(run: Run) -> float | None:
    return run.sent / run.seconds if run.seconds else None


def _repeats(options: Options, levels: Sequence[Level]) -> str:
    """What was measured, which is less than what was asked for where it was interrupted, and what is drawn of it."""
    told = f"{options.repeat} x {options.seconds:g} s"
    counts = [len(level.runs) for level in levels]
    shortest_s = min(run.seconds for level in levels for run in level.runs)
    least, most = min(counts), max(counts)
    if least < options.repeat or shortest_s < _WHOLE * options.seconds:
        repeats = f"{most}" if least == most else f"{least} to {most}"
        told = f"{repeats} of {told}, cut short"
    return f"median of {told}, bands from least to most" if most > 1 else told


def _asked(options: Options) -> str:
    if options.made_up:
        return f"made up, {options.rows:,} row{'s' * (options.rows > 1)}"
    return "requests of files" if options.request_files else "the request of --input"


def _latency_axis(axes: Any, levels: Sequence[Level]) -> None:
    """Logarithmic, from mark to mark around all that is drawn."""
    if not axes.lines:
        right = any(run.right for level in levels for run in level.runs)
        why = "too few right answers for a percentile" if right else "no right answers"
        axes.text(0.5, 0.5, why, transform=axes.transAxes, ha="center", va="center")
        axes.set_yticks([])
        return
    at = marks(axes.dataLim.y0, axes.dataLim.y1)
    axes.set_yscale("log")
    axes.set_yticks(at, [f"{mark:.12g}" for mark in at])
    axes.minorticks_off()
    axes.set_ylim(at[0], at[-1])
    axes.legend(frameon=False)


def marks(least: float, most: float) -> list[float]:
    """Round numbers, ascending: the first below the least, the last above the most, with room for a point."""
    first, last = math.floor(math.log10(least)), math.floor(math.log10(most))
    steps = _STEPS if last - first < _DECADES else _STEPS[:1]
    found = [float(f"{step}e{power}") for power in range(first - 1, last + 3) for step in steps]
    below = max(number for number, mark in enumerate(found) if mark * _ROOM <= least)
    above = min(number for number, mark in enumerate(found) if mark >= most * _ROOM)
    return found[below : above + 1]


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
    crowded = len(levels) > _ROOMY
    names = [_named(level, crowded=crowded) for level in levels]
    axes.set_xticks(wanted, names, fontsize=8 if crowded else None)
    for level, label in zip(levels, axes.get_xticklabels(), strict=True):
        label.set_color(_FAILED if level.failed else "black")
    axes.xaxis.set_minor_locator(ticker.NullLocator())
    limited = (
        ", rings: the generator was late, or the limit" if any(level.limits() for level in levels) else ""
    )
    axes.set_xlabel(f"{'requests/s asked for' if options.is_open else 'requests in flight'}{limited}")
    axes.grid(alpha=0.3)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def _named(level: Level, *, crowded: bool) -> str:
    """A level, and below it how many requests failed at it."""
    name, failed, sent = digits(level.wanted), sum(level.failed.values()), level.sum(lambda run: run.sent)
    if not failed:
        return name
    return f"{name}\n{f'{failed / sent * 100:.3g}%' if crowded else f'{failed:,} of {sent:,}'}\nfailed"
