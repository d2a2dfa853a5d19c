"""What all scenarios share: their options, and how their tables and plots look."""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from bench.sim.cell import Key, Task
from bench.sim.setup import Setup


class OptionsError(Exception):
    """What was said does not fit what is to be run: what, and the remedy."""


@dataclass(frozen=True, slots=True)
class Options:
    """What the command line said; None and 0 where it said nothing.

    Attributes:
        policy: to be judged beside the scenario's own.
        trace: to be played.
        configs: pool files, to be judged on the trace beside the policies.
        gpus, slots: devices, and workers on each.
        slots_of: those of each model of the trace, in place of slots.
        seconds: of simulated time, for each cell.
        seed: of everything that is drawn.
        rate: requests a second, where policies are compared side by side.
        parallel, loss: of each device, as in Pool, there too.
    """

    policy: str = ""
    trace: Path | None = None
    configs: tuple[Path, ...] = ()
    gpus: int = 0
    slots: int = 0
    slots_of: Mapping[str, int] = field(default_factory=dict, hash=False)
    rate: float = 0.0
    seconds: float = 0.0
    seed: int = 1
    parallel: float = 0.0
    loss: float | None = None

    def setups(self, own: Sequence[Setup]) -> list[Setup]:
        """A scenario's own, and the one that was asked for, where clients share in some also with that.

        It has the usual rules: bounds of a scenario are set on all of these alike, by the scenario.
        """
        asked = [Setup(self.policy, policy=self.policy)] if self.policy else []
        if any(setup.fair for setup in own):
            asked += [sharing(setup) for setup in asked]
        return [*own, *(setup for setup in asked if setup not in own)]


def sharing(setup: Setup) -> Setup:
    """Where clients share besides."""
    return dataclasses.replace(setup, title=f"{setup.title}, clients share", fair=True)


class Scenario(Protocol):
    """A module of bench.sim.scenarios."""

    TITLE: str

    def tasks(self, options: Options) -> dict[Key, Task]:
        """What has to be run."""

    def lines(self, found: Mapping[Key, Any], options: Options) -> Iterator[str]:
        """The report, in Markdown."""

    def draw(self, found: Mapping[Key, Any], options: Options, figure: Any) -> None:
        """The plot."""


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """In Markdown, after an empty line."""
    yield ""
    yield _row(header)
    yield "|" + "---|" * len(header)
    yield from map(_row, rows)


def _row(cells: Sequence[str]) -> str:
    """Names may have the mark that ends a cell."""
    return "| " + " | ".join(cell.replace("|", r"\|") for cell in cells) + " |"


def shown(file: Path) -> str:
    """Its name may have bytes that are no text."""
    return os.fsencode(file).decode(errors="replace")


def ms(value: float) -> str:
    """Milliseconds, as many digits as are worth reading."""
    if math.isnan(value):
        return "none answered"
    return f"{value:.1f}" if value < 100 else f"{value:.0f}"


def percent(part: float) -> str:
    return f"{100 * part:.0f} %"


# Colours that are told apart by those who see few, and a mark for each.
_LOOKS = (
    ("#4477aa", "o"),
    ("#ee6677", "s"),
    ("#228833", "^"),
    ("#ccbb44", "D"),
    ("#66ccee", "v"),
    ("#aa3377", "P"),
    ("#777777", "X"),
    ("#000000", "*"),
)


LOOKS = len(_LOOKS)


def look(number: int) -> dict[str, Any]:
    """How the lines of one setup look in every plot of a scenario."""
    colour, mark = _LOOKS[number % len(_LOOKS)]
    return {"color": colour, "marker": mark, "markersize": 4, "linewidth": 1.4}


def logarithmic(axes: Any) -> None:
    """What it shows upwards, with plain numbers beside it."""
    from matplotlib.ticker import LogLocator, NullFormatter, ScalarFormatter

    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter(ScalarFormatter())
    axes.yaxis.set_minor_formatter(NullFormatter())


def legend(on: Any, handles: Sequence[Any], names: Sequence[str], **kind: Any) -> None:
    """On axes or a figure. Names are no labels: a leading "_", or "$", says nothing to matplotlib then."""
    drawn = on.legend(handles, [""] * len(names), **kind)
    for text, name in zip(drawn.get_texts(), names, strict=True):
        text.set_parse_math(False)
        text.set_text(name)
