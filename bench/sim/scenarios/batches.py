"""Batches of the whole pool against batches of each worker behind a load balancer."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

from bench.sim.arrivals import Closed, Open, Stream
from bench.sim.cell import Capacity, Cell, Key, Task
from bench.sim.figures import Figures
from bench.sim.scenario import Options, legend, look, ms, table
from bench.sim.service import Linear, Pool, Service
from bench.sim.setup import Setup
from mpspool.core.settings import BatchingSettings

TITLE = "Batches: of the whole pool, or of each worker behind a load balancer"

# Alone 100 images/s on a device, in batches of 32 nearly five times as many.
_IMAGE = Service("image", Linear(8, 1.7), Linear(0, 0.1), sigma=0.1, rows=((1, 6.0), (4, 2.0), (12, 1.0)))
_MEAN_ROWS = 26 / 9
_MOST = 32
_WAITS: dict[str, dict[str, Any]] = {
    "timeout 0": {},
    "timeout 2 ms": {"batch_timeout_us": 2000},
    "adaptive": {"adaptive": True},
}
_WORKERS = (1, 2, 4, 8)
_LOADS = (0.3, 0.7, 0.9)
_LIMIT_MS = 200.0
_CLIENTS = 32
SETUPS = (
    Setup("pool"),
    Setup("each worker", apart=True),
    Setup("no batches", batching=False),
)


def _pool(workers: int, waits: str) -> Pool:
    batching = BatchingSettings(max_batch_size=_MOST, max_enqueued_batches=1000, **_WAITS[waits])
    return Pool(workers, (dataclasses.replace(_IMAGE, batching=batching),))


def tasks(options: Options) -> dict[Key, Task]:
    full = 1e9 * _MOST / _IMAGE.alone_ns(_MOST) / _MEAN_ROWS
    seconds = options.seconds or 10.0
    found: dict[Key, Task] = {}
    for setup in options.setups(SETUPS):
        for waits in _WAITS if setup.batching else ("timeout 0",):
            for workers in (options.gpus,) if options.gpus else _WORKERS:
                pool = _pool(workers, waits)
                streams = (Stream(pool.services[0], 1.0),)
                found["capacity", setup.title, waits, workers] = Capacity(
                    Cell(pool, setup, Open(streams, full * workers), seconds / 2, options.seed),
                    {"image": _LIMIT_MS},
                    10.0 * workers,
                )
                found["closed", setup.title, waits, workers] = Cell(
                    pool, setup, Closed(streams, _CLIENTS), seconds, options.seed
                )
                for load in _LOADS:
                    rate = load * full * workers
                    if setup.batching:
                        found["open", setup.title, waits, workers, load] = Cell(
                            pool, setup, Open(streams, rate), seconds, options.seed
                        )
    return found


def lines(found: Mapping[Key, Any], options: Options) -> Iterator[str]:
    del options
    yield f"8 ms a batch and 1.8 ms a row of it, {_MOST} rows at most, one worker on each device. Requests of 1, 4 and 12"
    yield "rows (6 : 2 : 1). Load is given by what the workers do in full batches. Adaptive: a batch waits only while"
    yield "every worker is busy."
    for load in _LOADS:
        yield ""
        yield f"## Load {load:.0%}: rows a batch, mean / p99 ms"
        yield from _by_workers(
            found,
            [key for key in found if key[0] == "open" and key[4] == load],
            lambda figures: (
                f"{figures.batch_rows['image']:.1f}, {ms(figures.all.mean_ms)} / {ms(figures.all.p99_ms)}"
            ),
        )
    yield ""
    yield f"## {_CLIENTS} clients, however many workers: requests/s, rows a batch, mean ms"
    yield from _by_workers(
        found,
        [key for key in found if key[0] == "closed"],
        lambda figures: (
            f"{figures.all.rate:.0f}, {figures.batch_rows.get('image', 0):.1f}, {ms(figures.all.mean_ms)}"
        ),
    )
    yield ""
    yield f"## Capacity: requests/s and worker while p99 stays under {_LIMIT_MS:g} ms"
    yield from _by_workers(found, [key for key in found if key[0] == "capacity"], None)


def _by_workers(found: Mapping[Key, Any], keys: list[Key], text: Any) -> Iterator[str]:
    workers = sorted({key[3] for key in keys})
    kinds = dict.fromkeys(key[1:3] for key in keys)
    cells: dict[tuple[Key, int], str] = {}
    for key in keys:
        figures: Figures | float = found[key]
        cells[key[1:3], key[3]] = text(figures) if text else f"{figures / key[3]:.0f}"
    yield from table(
        ("", *(f"{count} workers" for count in workers)),
        [(", ".join(kind), *(cells[kind, count] for count in workers)) for kind in kinds],
    )


def draw(found: Mapping[Key, Any], options: Options, figure: Any) -> None:
    del options
    figure.set_size_inches(13, 4.4)
    axes = figure.subplots(1, 4)
    workers = sorted({key[3] for key in found})
    # Adaptive does as no timeout does: one line for both.
    kinds = list(dict.fromkeys(key[1:3] for key in found if key[2] != "adaptive"))
    panels: list[tuple[str, Any]] = [
        ("rows a batch, load 70 %", lambda kind, n: found["open", *kind, n, 0.7].batch_rows["image"]),
        ("p99 ms, load 70 %", lambda kind, n: found["open", *kind, n, 0.7].all.p99_ms),
        (f"{_CLIENTS} clients: requests/s", lambda kind, n: found["closed", *kind, n].all.rate),
        (f"requests/s a worker, p99 < {_LIMIT_MS:g} ms", lambda kind, n: found["capacity", *kind, n] / n),
    ]
    for axis, (title, value) in zip(axes, panels, strict=True):
        for number, kind in enumerate(kinds):
            style = look(number) | {"linestyle": "--" if kind[0] == "each worker" else "-"}
            if ("load" in title) <= (("open", *kind, workers[0], 0.7) in found):
                axis.plot(workers, [value(kind, count) for count in workers], **style)
        axis.set(title=title, xlabel="workers", ylim=(0, None))
        axis.set_xticks(workers)
        axis.title.set_fontsize(10)
        axis.grid(visible=True, alpha=0.2)
    names = [", ".join(kind) for kind in kinds]
    legend(figure, axes[2].get_lines(), names, loc="lower center", ncols=len(names), fontsize=8)
    figure.tight_layout(rect=(0, 0.07, 1, 1))
