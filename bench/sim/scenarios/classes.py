"""Two classes of requests: one in ten goes before the others."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

from bench.sim.arrivals import Open, Stream
from bench.sim.cell import Cell, Key, Task
from bench.sim.figures import part_of
from bench.sim.scenario import Options, legend, look, ms, percent, table
from bench.sim.service import Linear, Pool, Service
from bench.sim.setup import Setup

TITLE = "Two priorities"

_MODEL = Service("m", Linear(8), Linear(2), sigma=0.4)
_STREAMS = (Stream(_MODEL, 0.1, "urgent", priority=1), Stream(_MODEL, 0.9, "usual"))
SETUPS = (
    Setup("one class", priority_s=0.0),
    Setup("a step is 0.1 s", priority_s=0.1),
    Setup("a step is 1 s"),
    Setup("a step is 1 s, sjf", policy="sjf"),
    Setup("a step is 10 s", priority_s=10.0),
)
_LOADS = (0.7, 0.85, 0.95, 1.05, 1.2)


def tasks(options: Options) -> dict[Key, Task]:
    gpus, slots = options.gpus or 4, options.slots or 1
    pool = Pool(gpus, (_MODEL,), {"m": slots})
    capacity = gpus * 1e9 / (_MODEL.mean_ns() if slots == 1 else _MODEL.mean_ns(_MODEL.device))
    found: dict[Key, Task] = {}
    for load in _LOADS:
        # Bursts twice as high as the time between them.
        arrivals = Open(_STREAMS, load * capacity, burst=2.0, burst_s=0.2, between_s=0.8)
        for setup in options.setups(SETUPS):
            rules = dataclasses.replace(setup, max_requests=5000)
            found[setup.title, load] = Cell(pool, rules, arrivals, options.seconds or 15.0, options.seed)
    return found


def lines(found: Mapping[Key, Any], options: Options) -> Iterator[str]:
    del options
    yield "10 ms a request, in bursts; a tenth of the requests has priority 1, the others 0. p50 / p99 ms."
    titles = list(dict.fromkeys(key[0] for key in found))
    for name in ("urgent", "usual"):
        yield from table(
            (name.capitalize(), *(f"load {percent(load)}" for load in _LOADS)),
            [
                (title, *(_times(part_of(found[title, load].clients, name)) for load in _LOADS))
                for title in titles
            ],
        )


def _times(part: Any) -> str:
    return f"{ms(part.p50_ms)} / {ms(part.p99_ms)}"


def draw(found: Mapping[Key, Any], options: Options, figure: Any) -> None:
    del options
    figure.set_size_inches(10, 4)
    titles = list(dict.fromkeys(key[0] for key in found))
    for axis, name in zip(figure.subplots(1, 2, sharey=True), ("urgent", "usual"), strict=True):
        for number, title in enumerate(titles):
            heights = [found[title, load].clients[name].p99_ms for load in _LOADS]
            axis.plot([100 * load for load in _LOADS], heights, **look(number))
        axis.set(title=f"{name}: p99", xlabel="load, %", ylabel="ms", yscale="log")
        axis.grid(visible=True, which="both", alpha=0.2)
    legend(figure.axes[1], figure.axes[1].get_lines(), titles, fontsize=8)
    figure.tight_layout()
