"""Three services on the same cards: short and frequent, medium, long and rare; every policy over the load.

The figures of the services are guesses with the proportions that such a site reports; what is looked for are the
shapes: who bends where, and what moves the knee.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from bench.sim.arrivals import Closed, Open, Stream
from bench.sim.cell import Capacity, Cell, Key, Task
from bench.sim.figures import Figures, part_of
from bench.sim.scenario import Options, legend, logarithmic, look, ms, percent, table
from bench.sim.service import Linear, Pool, Service
from bench.sim.setup import Setup

TITLE = "Short and long jobs of three services on the same cards"

_LINES = ((10, 1.0), (20, 2.0), (30, 1.0))
CNN = Service("cnn", Linear(7), Linear(3), Linear(2), sigma=0.3)
EN = Service("rnn_en", Linear(0, 1.25), Linear(3), Linear(2), sigma=0.2, rows=_LINES)
ZH = Service("rnn_zh", Linear(0, 2.5), Linear(6), Linear(4), sigma=0.2, rows=_LINES)
SERVICES = (CNN, EN, ZH)
# Lines of very different lengths in one service: what an order within a queue is worth.
_UNEVEN = dataclasses.replace(ZH, rows=((4, 4.0), (12, 2.0), (60, 1.0)))
STREAMS = (Stream(CNN, 0.8), Stream(EN, 0.12), Stream(ZH, 0.08))

# What the others are compared with.
FIFO = Setup("fifo")
LANE = Setup("sjf, slow lane 1", policy="sjf", long=1)
SETUPS = (
    Setup("fifo, round robin", dispatch="round_robin"),
    FIFO,
    Setup("fifo, at most 1", running=1),
    Setup("fifo, at most 2", running=2),
    Setup("sjf", policy="sjf"),
    Setup("fifo, slow lane 1", long=1),
    LANE,
)
_RATES = (150.0, 190.0, 220.0, 240.0, 260.0, 275.0, 290.0)
_CLIENTS = (4, 8, 16, 32)
_LOSSES = (0.0, 0.05, 0.1)
_AGINGS = (0.0, 0.3, 1.0, 3.0, 10.0, 30.0)
_LONG_MS = (15.0, 20.0, 27.0, 36.0, 54.0)
_LANES = (0, 1, 2, 3)
_WIDE = (
    (1.0, 1),
    (1.0, 3),
    (2.0, 2),
    (3.0, 3),
)  # jobs that a device runs at full speed, workers of each service
_NEAR_FULL = 270.0
# So many times what a mean job takes alone.
_PATIENCE = 8


def _pool(options: Options, *, loss: float = 0.0, slots: int = 1, parallel: float = 1.0) -> Pool:
    slots = options.slots or slots
    return Pool(
        options.gpus or 4, SERVICES, {one.name: slots for one in SERVICES}, parallel=parallel, loss=loss
    )


def tasks(options: Options) -> dict[Key, Task]:
    seconds, seed = options.seconds or 25.0, options.seed
    scale = (options.gpus or 4) / 4
    setups = options.setups(SETUPS)
    found: dict[Key, Task] = {}

    def cell(pool: Pool, setup: Setup, load: Open | Closed) -> Cell:
        return Cell(pool, setup, load, seconds, seed)

    for setup in setups:
        for loss in _LOSSES:
            highest = Open(STREAMS, 340 * scale)
            limits = {one.name: _PATIENCE * one.mean_ns() / 1e6 for one in SERVICES}
            found["capacity", setup.title, loss] = Capacity(
                cell(_pool(options, loss=loss), setup, highest), limits, 60 * scale
            )
    for setup in setups:
        for rate in _RATES:
            found["open", setup.title, rate * scale] = cell(
                _pool(options), setup, Open(STREAMS, rate * scale)
            )
        for clients in _CLIENTS:
            many = int(clients * scale)
            found["closed", setup.title, many] = cell(_pool(options), setup, Closed(STREAMS, many))
    near = Open(STREAMS, _NEAR_FULL * scale)
    for long_ms in _LONG_MS:
        setup = dataclasses.replace(LANE, long_us=1000 * long_ms)
        found["long", long_ms] = cell(_pool(options), setup, near)
    for parallel, slots in _WIDE:
        # Four fifths of what the devices can do.
        wider = Open(STREAMS, 254 * scale * parallel)
        for lane in _LANES:
            setup = dataclasses.replace(LANE, long=lane)
            pool = _pool(options, loss=0.05, slots=slots, parallel=parallel)
            found["lane", (parallel, slots), lane] = cell(pool, setup, wider)
    alone = (Stream(_UNEVEN, 1.0),)
    uneven = Pool(options.gpus or 4, (_UNEVEN,), {_UNEVEN.name: 1})
    for share in (0.85, 1.05):
        rate = share * (options.gpus or 4) * 1e9 / _UNEVEN.mean_ns()
        for aging in _AGINGS:
            setup = Setup("sjf", policy="sjf", aging=aging)
            found["aging", share, aging] = Cell(uneven, setup, Open(alone, rate), 4 * seconds, seed)
        found["aging", share, None] = Cell(uneven, Setup("fifo"), Open(alone, rate), 4 * seconds, seed)
    return found


def lines(found: Mapping[Key, Any], options: Options) -> Iterator[str]:
    titles = [setup.title for setup in options.setups(SETUPS)]
    yield "Per request, alone on a card: cnn 3 + 7 + 2 ms (CPU, device, CPU), 80 % of all; rnn_en 3 + 25 + 2, 12 %;"
    yield "rnn_zh 6 + 50 + 4, 8 %. One worker of each on each of 4 cards, which are time-sliced."
    yield ""
    yield f"## Capacity: requests/s while p99 of each service stays under {_PATIENCE} x its mean job alone; in brackets beside {FIFO.title}"
    base = {loss: found["capacity", FIFO.title, loss] for loss in _LOSSES}
    yield from table(
        ("", *(f"each overlap costs {percent(loss)}" for loss in _LOSSES)),
        [
            (
                title,
                *(
                    f"{found['capacity', title, loss]:.0f} ({found['capacity', title, loss] / base[loss] - 1:+.0%})"
                    for loss in _LOSSES
                ),
            )
            for title in titles
        ],
    )
    yield ""
    yield "## Open load: mean / p99 ms"
    rates = sorted({key[2] for key in found if key[0] == "open"})
    for name in ("cnn", "rnn_en", "rnn_zh"):
        yield from table(
            (name, *(f"{rate:.0f}/s" for rate in rates)),
            [(title, *(_times(found["open", title, rate], name) for rate in rates)) for title in titles],
        )
    yield ""
    yield "## Closed load: requests/s, mean ms of all"
    counts = sorted({key[2] for key in found if key[0] == "closed"})
    yield from table(
        ("", *(f"{count} clients" for count in counts)),
        [
            (
                title,
                *(
                    f"{found['closed', title, count].all.rate:.0f}, {ms(found['closed', title, count].all.mean_ms)}"
                    for count in counts
                ),
            )
            for title in titles
        ],
    )
    most = rates[-3]
    yield ""
    yield f"## Where the time goes at {most:.0f}/s"
    yield from table(
        ("", "alone ms", "overlap ms", "queue ms", "device: effective s/s", "waiting s/s", "in use"),
        [_where(title, found["open", title, most]) for title in titles],
    )
    yield from _tuning(found)


def _times(figures: Figures, name: str) -> str:
    part = part_of(figures.services, name)
    return f"{ms(part.mean_ms)} / {ms(part.p99_ms)}"


def _where(title: str, figures: Figures) -> tuple[str, ...]:
    part = figures.all
    effective = sum(device.effective for device in figures.devices) / len(figures.devices)
    waiting = sum(device.overlap for device in figures.devices) / len(figures.devices)
    return (
        title,
        ms(part.alone_ms),
        ms(max(0.0, part.overlap_ms)),
        ms(part.queue_ms),
        f"{effective:.2f}",
        f"{abs(waiting):.2f}",
        percent(figures.busy),
    )


def _tuning(found: Mapping[Key, Any]) -> Iterator[str]:
    yield ""
    yield f"## From which cost on a job is long: slow lane of 1, {_NEAR_FULL:.0f}/s for 4 cards, mean / p99 ms"
    names = ("cnn", "rnn_en", "rnn_zh")
    yield from table(
        ("long from", *names),
        [
            (f"{key[1]:g} ms", *(_times(found[key], name) for name in names))
            for key in found
            if key[0] == "long"
        ],
    )
    for parallel, slots in _WIDE:
        yield ""
        yield f"## Width of the slow lane: {parallel:g} jobs at full speed on a card, {slots} x 3 workers, load 80 %"
        yield from table(
            ("lane", *names, "all"),
            [
                (
                    str(key[2] or "none"),
                    *(_times(found[key], name) for name in names),
                    f"{ms(found[key].all.mean_ms)} / {ms(found[key].all.p99_ms)}",
                )
                for key in found
                if key[:2] == ("lane", (parallel, slots))
            ],
        )
    for share in sorted({key[1] for key in found if key[0] == "aging"}):
        yield ""
        yield f"## Aging of sjf: one service, jobs of 20, 40 and 160 ms (4 : 2 : 1), load {percent(share)}"
        yield from table(
            ("aging", "mean ms", "p50", "p95", "p99"),
            [
                (
                    "fifo" if key[2] is None else f"{key[2]:g}",
                    ms(found[key].all.mean_ms),
                    ms(found[key].all.p50_ms),
                    ms(found[key].all.p95_ms),
                    ms(found[key].all.p99_ms),
                )
                for key in found
                if key[:2] == ("aging", share)
            ],
        )


def draw(found: Mapping[Key, Any], options: Options, figure: Any) -> None:
    titles = [setup.title for setup in options.setups(SETUPS)]
    figure.set_size_inches(13, 8)
    axes = figure.subplots(2, 3)
    rates = sorted({key[2] for key in found if key[0] == "open"})
    counts = sorted({key[2] for key in found if key[0] == "closed"})
    panels: list[tuple[Any, str, Callable[[Figures], float]]] = [
        (axes[0][0], "cnn: mean", lambda f: f.services["cnn"].mean_ms),
        (axes[0][1], "cnn: p99", lambda f: f.services["cnn"].p99_ms),
        (axes[0][2], "rnn_zh: p99", lambda f: f.services["rnn_zh"].p99_ms),
        (axes[1][0], "all: mean", lambda f: f.all.mean_ms),
    ]
    for axis, name, value in panels:
        for number, title in enumerate(titles):
            heights = [value(found["open", title, rate]) for rate in rates]
            axis.plot(rates, heights, **look(number))
        axis.set(title=f"{name}, over the open load", xlabel="requests/s", ylabel="ms")
        logarithmic(axis)
        axis.grid(visible=True, which="both", alpha=0.2)
    for number, title in enumerate(titles):
        heights = [found["closed", title, count].all.rate for count in counts]
        axes[1][1].plot(counts, heights, **look(number))
    axes[1][1].set(title="closed load", xlabel="clients", ylabel="requests/s", xscale="log")
    axes[1][1].set_xticks(counts, [str(count) for count in counts])
    axes[1][1].minorticks_off()
    axes[1][1].grid(visible=True, alpha=0.2)
    capacity = axes[1][2]
    width = 0.8 / len(titles)
    for number, title in enumerate(titles):
        places = [place + number * width for place in range(len(_LOSSES))]
        heights = [found["capacity", title, loss] for loss in _LOSSES]
        capacity.bar(places, heights, width, color=look(number)["color"])
    capacity.set_xticks(
        [place + 0.4 - width / 2 for place in range(len(_LOSSES))],
        [f"overlap costs {percent(loss)}" for loss in _LOSSES],
        fontsize=8,
    )
    capacity.set(title=f"capacity: p99 within {_PATIENCE} x a job alone", ylabel="requests/s")
    legend(figure, axes[0][0].get_lines(), titles, loc="lower center", ncols=len(titles), fontsize=8)
    figure.tight_layout(rect=(0, 0.04, 1, 1))
