"""More load than the pool bears, and a deadline for each request: how many answers are in time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from bench.sim.arrivals import Open, Stream
from bench.sim.cell import Cell, Key, Task
from bench.sim.figures import Figures
from bench.sim.scenario import Options, look, ms, percent, table
from bench.sim.service import Linear, Pool, Service
from bench.sim.setup import Setup

TITLE = "Overload with deadlines"

_MODEL = Service("m", Linear(0, 1), Linear(1), sigma=0.3, rows=((2, 3.0), (8, 2.0), (30, 1.0)))
_STREAMS = (Stream(_MODEL, 0.5, "hasty", deadline_ms=80), Stream(_MODEL, 0.5, "patient", deadline_ms=400))
SETUPS = (
    Setup("fifo"),
    Setup("fifo, late ones kept", refuse_late=False),
    Setup("edf", policy="edf"),
    Setup("edf, late ones kept", policy="edf", refuse_late=False),
    Setup("sjf", policy="sjf"),
    Setup("sjf, late ones kept", policy="sjf", refuse_late=False),
)
_LOADS = (0.7, 0.9, 1.0, 1.15, 1.3, 1.6)
_OVERLOAD = 1.3


def tasks(options: Options) -> dict[Key, Task]:
    gpus, slots = options.gpus or 4, options.slots or 1
    pool = Pool(gpus, (_MODEL,), {"m": slots})
    # One worker on a device alternates between its core and the device; several keep the device busy.
    capacity = gpus * 1e9 / (_MODEL.mean_ns() if slots == 1 else _MODEL.mean_ns(_MODEL.device))
    return {
        (setup.title, load): Cell(
            pool,
            setup,
            Open(_STREAMS, options.rate or load * capacity),
            options.seconds or 15.0,
            options.seed,
        )
        for setup in options.setups(SETUPS)
        for load in _LOADS
    }


def lines(found: Mapping[Key, Any], options: Options) -> Iterator[str]:
    del options
    yield "Jobs of 3, 9 and 31 ms (3 : 2 : 1); half of the requests have 80 ms, half 400 ms. Load is given by what the"
    yield "workers can do. `Late ones kept`: refuse_late is off."
    for load in (_OVERLOAD, 1.0):
        yield ""
        yield f"## Load {percent(load)}"
        yield from table(
            (
                "",
                "in time/s",
                "those with 80 ms",
                "those with 400 ms",
                "refused on arrival",
                "expired",
                "mean ms",
                "p99",
            ),
            [_row(key[0], figures) for key, figures in found.items() if key[1] == load],
        )


def _row(title: str, figures: Figures) -> tuple[str, ...]:
    part = figures.all
    hasty, patient = figures.clients["hasty"], figures.clients["patient"]
    return (
        title,
        f"{part.good:.0f}",
        f"{hasty.good:.0f}",
        f"{patient.good:.0f}",
        percent(part.refused_late + part.refused_full),
        percent(part.expired),
        ms(part.mean_ms),
        ms(part.p99_ms),
    )


def draw(found: Mapping[Key, Any], options: Options, figure: Any) -> None:
    del options
    figure.set_size_inches(11, 4)
    good, late = figure.subplots(1, 2)
    for number, title in enumerate(dict.fromkeys(key[0] for key in found)):
        results = [found[title, load] for load in _LOADS]
        # Two at a time may be the same line.
        style = look(number) | ({"linestyle": ":", "markersize": 7} if "kept" in title else {})
        good.plot([100 * load for load in _LOADS], [f.all.good for f in results], label=title, **style)
        late.plot([100 * load for load in _LOADS], [100 * f.all.expired for f in results], **style)
    good.set(title="answers in time", xlabel="load, %", ylabel="per second", ylim=(0, None))
    late.set(title="expired while they waited or ran", xlabel="load, %", ylabel="% of the requests")
    good.legend(fontsize=8)
    for axis in (good, late):
        axis.grid(visible=True, alpha=0.2)
    figure.tight_layout()
