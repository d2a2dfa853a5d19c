"""8 devices with 8 workers each at 10,000 requests a second over five models: every policy, and what a decision costs."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

from bench.sim import compare
from bench.sim.arrivals import Open, Stream
from bench.sim.cell import Cell, Key, Task
from bench.sim.figures import Figures
from bench.sim.scenario import Options, look, table
from bench.sim.service import Linear, Pool, Service, divide
from bench.sim.setup import Setup

TITLE = "A fleet: many workers, five models"


def _service(name: str, device_ms: float, cpu_ms: float, width: float) -> Service:
    """Most of what a request takes is there for the first row as for all of a batch."""
    device, cpu = Linear(0.8 * device_ms, 0.2 * device_ms), Linear(0.5 * cpu_ms, 0.5 * cpu_ms)
    return Service(name, device, cpu, sigma=0.4, width=width, batching=compare.BATCHING)


# Each with its share, and the deadlines of its requests: every second one has the longer.
_SERVICES = (
    (_service("tiny", 0.5, 0.2, 1), 0.545, (25, 100)),
    (_service("small", 1.5, 0.3, 1), 0.25, (50, 200)),
    (_service("wide", 4.0, 0.5, 1), 0.12, (50, 200)),
    (_service("rank", 8.0, 0.8, 1), 0.075, (50, 200)),
    (_service("slow", 60.0, 5.0, 2), 0.01, (250, 2000)),
)
STREAMS = tuple(
    Stream(service, share / len(deadlines), deadline_ms=deadline_ms)
    for service, share, deadlines in _SERVICES
    for deadline_ms in deadlines
)
_BURST = 1.5
_GROWTH = (1, 8, 64, 512)
_GROWING = (
    Setup("fifo"),
    Setup("sjf, slow lane 2, at most 6", policy="sjf", long=2, running=6),
    Setup("fifo, clients share", fair=True),
)


def tasks(options: Options) -> dict[Key, Task]:
    pool = _pool(options)
    rate = options.rate or 10_000.0 * pool.gpus * (options.slots or 8) / 64
    load = Open(STREAMS, rate, burst=_BURST)
    found: dict[Key, Task] = {
        ("policy", setup.title): Cell(pool, setup, load, options.seconds or 2.5, options.seed)
        for setup in compare.setups(pool, options.policy)
    }
    one = dataclasses.replace(_SERVICES[1][0], batching=None)
    for workers in _GROWTH:
        devices = max(1, workers // 8)
        grown = Pool(devices, (one,), {one.name: workers // devices}, parallel=8.0)
        each = 0.75 * workers * 1e9 / one.mean_ns()
        for setup in _GROWING:
            found["growth", setup.title, workers] = Cell(
                grown, setup, Open((Stream(one, 1.0, "c", 20),), each), 12_000 / each, options.seed
            )
    return found


def _pool(options: Options) -> Pool:
    """Slots by load."""
    return Pool(
        options.gpus or 8,
        tuple(service for service, _, _ in _SERVICES),
        divide(
            options.slots or 8, {service.name: share * service.mean_ns() for service, share, _ in _SERVICES}
        ),
        parallel=compare.parallel(options),
        loss=compare.loss(options),
    )


def lines(found: Mapping[Key, Any], options: Options) -> Iterator[str]:
    yield from compare.told(_pool(options))
    yield "Device time, share and the deadlines of its two halves: " + "; ".join(map(_told, _SERVICES)) + "."
    yield ""
    yield "A fifth of the time grows with the rows of a batch. A tenth of the time the rate is half as high again."
    yield "With batches whatever waits for a model goes together, and `edf` is `fifo`."
    yield from compare.rows(_policies(found), cpu=True)
    yield ""
    yield "## What a decision costs: microseconds of the scheduler's CPU a request, by workers (measured here)"
    yield from table(
        ("", *map(str, _GROWTH)),
        [
            (
                setup.title,
                *(f"{found['growth', setup.title, workers].scheduler_us:.0f}" for workers in _GROWTH),
            )
            for setup in _GROWING
        ],
    )


def _policies(found: Mapping[Key, Any]) -> dict[str, Figures]:
    return {key[1]: figures for key, figures in found.items() if key[0] == "policy"}


def _told(what: tuple[Service, float, tuple[float, ...]]) -> str:
    service, share, deadlines = what
    device_ms, in_ms = service.mean_ns(service.device) / 1e6, " and ".join(f"{one:g}" for one in deadlines)
    return f"{service.name} {device_ms:g} ms, {100 * share:g} %, {in_ms} ms"


def draw(found: Mapping[Key, Any], options: Options, figure: Any) -> None:
    del options
    figure.set_size_inches(15, 4.5)
    latency, growth = figure.subplots(1, 2, width_ratios=(2, 1))
    compare.draw(_policies(found), latency)
    for number, setup in enumerate(_GROWING):
        heights = [found["growth", setup.title, workers].scheduler_us for workers in _GROWTH]
        growth.plot(_GROWTH, heights, label=setup.title, **look(number))
    growth.set(
        title="the scheduler's CPU a request", xlabel="workers", ylabel="us", xscale="log", ylim=(0, None)
    )
    growth.set_xticks(_GROWTH, [str(workers) for workers in _GROWTH])
    growth.minorticks_off()
    growth.legend(fontsize=9)
    figure.tight_layout()
