"""The picture: a panel for each device, with what ran on it at once, and the requests answered below."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from mpspool.supervisor.commands.errors import CommandError
from mpspool.supervisor.density import figures
from mpspool.supervisor.density.figures import DeviceFigures, Steps
from mpspool.supervisor.density.read import Integers
from mpspool.supervisor.density.window import Window

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FORMATS = ("png", "svg", "pdf")
# Inches.
_WIDTH, _LEFT, _RIGHT, _TOP, _FOOT = 12.0, 0.75, 0.2, 0.15, 0.1
_TITLE, _LINE = 0.32, 0.22
_HEADING = 0.32
# Of a device: what ran, a gap, the requests, and the clock and the next one's title.
_PANEL, _BETWEEN, _STRIP, _BELOW = 1.75, 0.1, 0.36, 0.55
_DEVICE = _PANEL + _BETWEEN + _STRIP + _BELOW
_DPI = 100
# Two pixels wide each.
_STEPS = 552
_RATES = 138
# Told apart by those, too, who do not tell red from green.
_COLOURS = (
    *("#4477aa", "#ee6677", "#ccbb44", "#228833", "#66ccee", "#aa3377"),
    *("#997700", "#004488", "#ee99aa", "#44aa99", "#882255", "#999933"),
)
_LONGEST_NAME = 60
# Of the legend's, in one line, and what the colour takes.
_LETTERS, _LETTERS_BETWEEN = 150, 8
_OTHERS = "#bbbbbb"
_DARK = "#333333"
# Below what ran: where little did, lines from none to one and back fill the panel.
_MOST, _THIN = "#b0b0b0", 0.6


def check_format(file: Path) -> None:
    """Raises CommandError for a name that says nothing of a format that we can write."""
    if file.suffix.removeprefix(".").lower() not in FORMATS:
        wanted = ", ".join(f".{one}" for one in FORMATS)
        raise CommandError(f"--output is {str(file)!r}; its name has to end with one of {wanted}", status=2)


def picture(devices: Sequence[DeviceFigures], window: Window, title: str, note: str = "") -> Figure:
    """Raises ImportError where there is no matplotlib.

    Args:
        devices: at least one.
        window: over which they were looked at.
        title: of the whole.
        note: a line below it; "" for none.
    """
    from matplotlib.figure import Figure

    colours = _colours(devices)
    courses = [figures.steps(device.course, _STEPS) for device in devices]
    lines = any(course.most is not None for course in courses)
    names, columns = _legend_names(colours, lines=lines)
    head = _TOP + _TITLE + bool(note) * _LINE + -(-len(names) // columns) * _LINE + _HEADING
    height = head + len(devices) * _DEVICE - _BELOW / 2 + _FOOT
    drawn = Figure(figsize=(_WIDTH, height), dpi=_DPI)
    panels = [_panel(drawn, head + number * _DEVICE) for number in range(len(devices))]
    for (above, below), device, course in zip(panels, devices, courses, strict=True):
        _draw_running(above, device, course, window, colours)
        _draw_rate(below, device, window)
    _same_height([above for above, _ in panels], 5)
    _same_height([below for _, below in panels], 2)
    _clock(panels, window)
    _write(drawn, _TOP, title, fontsize=13, weight="bold")
    _write(drawn, _TOP + _TITLE, note, fontsize=9)
    _legend(drawn, _TOP + _TITLE + bool(note) * _LINE, names, columns)
    return drawn


def _write(drawn: Figure, down: float, text: str, **kind: Any) -> None:
    """So far below the upper edge."""
    y = 1 - down / drawn.get_figheight()
    drawn.text(_LEFT / _WIDTH, y, text, va="top", color=_DARK, parse_math=False, **kind)


def save(drawn: Figure, file: Path) -> None:
    """Raises CommandError where it cannot be written."""
    try:
        drawn.savefig(file, dpi=_DPI)
    except OSError as error:
        raise CommandError(
            f"cannot write {str(file)!r}: {error.strerror or error}; name another file with --output"
        ) from error


def _colours(devices: Sequence[DeviceFigures]) -> dict[str, str]:
    """By model version, the busiest first; those beyond our colours share one."""
    busy_s: dict[str, float] = {}
    for device in devices:
        for model, totals in device.models.items():
            busy_s[model] = busy_s.get(model, 0.0) + totals.busy_s
    busiest = sorted(busy_s, key=lambda model: -busy_s[model])
    return dict(zip(busiest, itertools.chain(_COLOURS, itertools.repeat(_OTHERS)), strict=False))


def _panel(drawn: Figure, down: float) -> tuple[Axes, Axes]:
    """So far below the upper edge: for what ran, and below it for the requests."""
    height = drawn.get_figheight()
    top = height - down
    left, width = _LEFT / _WIDTH, (_WIDTH - _LEFT - _RIGHT) / _WIDTH
    above = drawn.add_axes((left, (top - _PANEL) / height, width, _PANEL / height))
    below = drawn.add_axes((left, (top - _PANEL - _BETWEEN - _STRIP) / height, width, _STRIP / height))
    for axes in (above, below):
        axes.spines[["top", "right"]].set_visible(False)
        axes.tick_params(labelsize=8, colors=_DARK)
        axes.grid(axis="y", color="#e5e5e5", linewidth=0.6)
        axes.set_axisbelow(True)
    above.tick_params(labelbottom=False, length=0)
    return above, below


def _draw_running(
    axes: Axes, device: DeviceFigures, drawn: Steps, window: Window, colours: dict[str, str]
) -> None:
    at_s = _since(drawn.at_ns, window)
    below = np.zeros(len(at_s))
    for model, running in zip(device.models, drawn.running, strict=True):
        above = below + np.append(running, running[-1])
        axes.fill_between(at_s, below, above, step="post", color=colours[model], linewidth=0)
        below = above
    if drawn.most is not None:
        axes.stairs(drawn.most, at_s, baseline=None, color=_MOST, linewidth=_THIN, zorder=0.9)
    axes.set_xlim(0, window.length_s)
    axes.set_ylabel("running at once", fontsize=8, color=_DARK)
    axes.set_title(device.name, loc="left", fontsize=12, weight="bold", color=_DARK, pad=4)
    axes.set_title(_in_words(device), loc="right", fontsize=8.5, color=_DARK, pad=4)
    if not device.models:
        axes.text(0.5, 0.5, "nothing ran", transform=axes.transAxes, ha="center", va="center", color=_DARK)


def _in_words(device: DeviceFigures) -> str:
    total = device.total
    if not device.models:
        return ""
    return (
        f"something ran {total.running_share:.0%} of the time; {total.mean_running:.2f} at once on average,"
        f" {total.max_running} at most; busy {_seconds(total.busy_s)} = effective {_seconds(total.effective_s)}"
        f" ({1 - total.waiting_share:.0%}) + waiting for each other {_seconds(total.waiting_s)}"
        f" ({total.waiting_share:.0%})"
    )


def _seconds(duration_s: float) -> str:
    digits = 0 if duration_s >= 1000 else 1 if duration_s >= 10 else 2
    return f"{duration_s:,.{digits}f} s" if duration_s >= 1 else f"{duration_s:.2g} s"


def _draw_rate(axes: Axes, device: DeviceFigures, window: Window) -> None:
    at_ns, rates = figures.rates(device, window.begin_ns, window.end_ns, _RATES)
    axes.stairs(rates, _since(at_ns, window), fill=True, color="#999999", linewidth=0)
    axes.set_xlim(0, window.length_s)
    axes.set_ylabel("req/s", fontsize=8, color=_DARK)


def _since(at_ns: Integers, window: Window) -> figures.Floats:
    """In seconds from the window's begin."""
    return np.asarray((at_ns - window.begin_ns) / 1e9, np.float64)


def _same_height(panels: Sequence[Axes], marks: int) -> None:
    """So that devices can be compared; at most so many whole numbers beside them."""
    from matplotlib.ticker import MaxNLocator

    tallest = max(axes.dataLim.y1 for axes in panels)
    for axes in panels:
        axes.set_ylim(0, max(1.0, tallest * 1.05))
        axes.yaxis.set_major_locator(MaxNLocator(marks, integer=True))


def _clock(panels: Sequence[tuple[Axes, Axes]], window: Window) -> None:
    """The time on the wall along every panel; written below the last."""
    at_s, labels = window.ticks(8)
    for above, below in panels:
        above.set_xticks(at_s)
        below.set_xticks(at_s, labels)


def _legend_names(colours: dict[str, str], *, lines: bool) -> tuple[dict[str, str], int]:
    """What is written beside each colour, that of lines too where there are some; and in how many columns."""
    shown = {model: _shortened(model) for model, colour in colours.items() if colour != _OTHERS}
    alike = Counter(shown.values())  # those in full: what tells them apart is what was left out
    names = {model if alike[short] > 1 else short: colours[model] for model, short in shown.items()}
    if others := len(colours) - len(names):
        names[f"{others} other{'s' * (others > 1)}"] = _OTHERS
    if lines:
        names["most at once"] = _MOST
    longest = max(map(len, names))
    return names, max(1, min(len(names), _LETTERS // (longest + _LETTERS_BETWEEN)))


def _shortened(name: str) -> str:
    """With its end, where the version is."""
    return (
        name
        if len(name) <= _LONGEST_NAME
        else f"{name[: _LONGEST_NAME // 2]}…{name[-_LONGEST_NAME // 2 + 1 :]}"
    )


def _legend(drawn: Figure, down: float, names: dict[str, str], columns: int) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    handles = [
        Line2D([], [], color=_MOST, linewidth=_THIN) if colour == _MOST else Patch(color=colour)
        for colour in names.values()
    ]
    legend = drawn.legend(
        handles,
        [""] * len(names),
        loc="upper left",
        bbox_to_anchor=(_LEFT / _WIDTH, 1 - down / drawn.get_figheight()),
        borderaxespad=0,
        borderpad=0.2,
        ncols=columns,
        frameon=False,
        fontsize=9,
        handlelength=1.2,
        columnspacing=1.6,
    )
    # Not as labels: a "$" or a leading "_" in the name of a model says nothing to matplotlib then.
    for text, name in zip(legend.get_texts(), names, strict=True):
        text.set_parse_math(False)
        text.set_text(name)
