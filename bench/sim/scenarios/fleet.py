"""8 devices with 8 workers each at 10,000 requests a second over five models: every policy, and what a decision costs."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.sim.arrivals import Load, Open, Replay, Stream
from bench.sim.cell import Cell, Key, Task
from bench.sim.figures import Figures
from bench.sim.scenario import Options, look, ms, percent, table
from bench.sim.service import Linear, Pool, Service, divide
from bench.sim.setup import Setup
from bench.sim.trace import Request, read
from mpspool.core.settings import BatchingSettings

TITLE = "A fleet: many workers, five models"

_BATCHING = BatchingSettings(max_batch_size=32, adaptive=True, max_enqueued_batches=1000)


def _service(name: str, device_ms: float, cpu_ms: float, width: float) -> Service:
    """Most of what a request takes is there for the first row as for all of a batch."""
    device, cpu = Linear(0.8 * device_ms, 0.2 * device_ms), Linear(0.5 * cpu_ms, 0.5 * cpu_ms)
    return Service(name, device, cpu, sigma=0.4, width=width, batching=_BATCHING)


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
_PARALLEL = 4.0
_LOSS = 0.01
_BURST = 1.5
SETUPS = (
    Setup("fifo", batching=False),
    Setup("fifo, round robin", dispatch="round_robin", batching=False),
    Setup("sjf", policy="sjf", batching=False),
    Setup("edf", policy="edf", batching=False),
    Setup("sjf, slow lane 2", policy="sjf", long=2, batching=False),
    Setup("sjf, slow lane 4", policy="sjf", long=4, batching=False),
    Setup("fifo, at most 6", running=6, batching=False),
    Setup("fifo, batching"),
    Setup("fifo, batching, round robin", dispatch="round_robin"),
    Setup("edf, batching", policy="edf"),
)
_GROWTH = (1, 8, 64, 512)
_GROWING = (
    Setup("fifo"),
    Setup("sjf, slow lane 2, at most 6", policy="sjf", long=2, running=6),
    Setup("fifo, clients share", fair=True),
)


def tasks(options: Options) -> dict[Key, Task]:
    gpus, slots = options.gpus or 8, options.slots or 8
    seconds = options.seconds or 2.5
    rate = options.rate or 10_000.0 * gpus * slots / 64
    load: Load = Open(STREAMS, rate, burst=_BURST)
    services = tuple(service for service, _, _ in _SERVICES)
    loads = {service.name: share * service.mean_ns() for service, share, _ in _SERVICES}
    if options.trace is not None:
        trace = read(options.trace)
        services = of_trace(trace)
        loads = loads_of(trace, services)
        length_s = trace[-1].time
        load = Replay(trace, options.rate * length_s / len(trace) if options.rate else 1.0)
        seconds = options.seconds or length_s + 1e-6
    pool = Pool(gpus, services, divide(slots, loads), parallel=_PARALLEL, loss=_LOSS)
    found: dict[Key, Task] = {
        ("policy", setup.title): Cell(pool, setup, load, seconds, options.seed)
        for setup in options.setups(SETUPS)
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


def of_trace(trace: Sequence[Request]) -> tuple[Service, ...]:
    """The services of a trace: of the time that it tells, four fifths are taken for the device's."""
    costs_ms: dict[str, list[float]] = {request.model: [] for request in trace}
    for request in trace:
        if request.cost_us:
            costs_ms[request.model].append(request.cost_us / request.rows / 1000)
    found = []
    for name, costs in costs_ms.items():
        each_ms = sum(costs) / len(costs) if costs else 1.0
        found.append(Service(name, Linear(0, 0.8 * each_ms), Linear(0, 0.2 * each_ms), batching=_BATCHING))
    return tuple(found)


def loads_of(trace: Sequence[Request], services: Iterable[Service]) -> dict[str, float]:
    """Milliseconds of a worker's time that are asked of each service."""
    by_name = {service.name: service for service in services}
    found = dict.fromkeys(by_name, 0.0)
    for request in trace:
        alone_us = by_name[request.model].alone_ns(request.rows) / 1000
        found[request.model] += (request.cost_us or alone_us) / 1000
    return found


def lines(found: Mapping[Key, Any], options: Options) -> Iterator[str]:
    gpus, slots = options.gpus or 8, options.slots or 8
    yield f"{gpus} devices with {slots} workers each; a device runs {_PARALLEL:g} jobs at full speed, each overlap costs"
    yield f"{percent(_LOSS)} of its speed."
    if options.trace is None:
        yield (
            "Device time, share and the deadlines of its two halves: "
            + "; ".join(map(_told, _SERVICES))
            + "."
        )
        yield ""
        yield "A fifth of the time grows with the rows of a batch. A tenth of the time the rate is half as high again."
        yield "With batches whatever waits for a model goes together, and `edf` is `fifo`."
    else:
        yield _played(options.trace, slots)
    rows = []
    names: list[str] = []
    for key, figures in found.items():
        if key[0] == "policy":
            names = list(figures.services)
            rows.append(_row(key[1], figures))
    yield from table(
        (
            "",
            "answers/s",
            "in time/s",
            "refused",
            "mean ms",
            "p50",
            "p95",
            "p99",
            *(f"{name} p99" for name in names),
            "device in use",
            "rows a batch",
            "us a request: scheduler",
            "simulation",
        ),
        rows,
    )
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


def _told(what: tuple[Service, float, tuple[float, ...]]) -> str:
    service, share, deadlines = what
    device_ms, in_ms = service.mean_ns(service.device) / 1e6, " and ".join(f"{one:g}" for one in deadlines)
    return f"{service.name} {device_ms:g} ms, {100 * share:g} %, {in_ms} ms"


def _played(file: Path, slots: int) -> str:
    trace = read(file)
    divided = divide(slots, loads_of(trace, of_trace(trace)))
    (first, count), *others = divided.items()
    models = ", ".join([f"{first} ({count} workers on each device)", *(f"{one} ({n})" for one, n in others)])
    return f"{file.name}: {len(trace)} requests of {models} in {trace[-1].time:.3g} s."


def _row(title: str, figures: Figures) -> tuple[str, ...]:
    part = figures.all
    return (
        title,
        f"{part.rate:.0f}",
        f"{part.good:.0f}",
        percent(part.expired + part.refused_late + part.refused_full),
        ms(part.mean_ms),
        ms(part.p50_ms),
        ms(part.p95_ms),
        ms(part.p99_ms),
        *(ms(one.p99_ms) for one in figures.services.values()),
        percent(figures.busy),
        " ".join(f"{rows:.1f}" for rows in figures.batch_rows.values()),
        f"{figures.scheduler_us:.0f}",
        f"{figures.wall_us:.0f}",
    )


def draw(found: Mapping[Key, Any], options: Options, figure: Any) -> None:
    del options
    figure.set_size_inches(13, 4.5)
    latency, growth = figure.subplots(1, 2, width_ratios=(2, 1))
    results = {key[1]: figures for key, figures in found.items() if key[0] == "policy"}
    names = list(next(iter(results.values())).services)
    width = 0.8 / len(results)
    for number, (title, figures) in enumerate(results.items()):
        places = [place + number * width for place in range(len(names))]
        heights = [figures.services[name].p99_ms for name in names]
        hatch = "//" if number >= 8 else ""
        latency.bar(places, heights, width, label=title, color=look(number)["color"], hatch=hatch)
    latency.set_xticks([place + 0.4 - width / 2 for place in range(len(names))], names)
    latency.set(title="p99 by model", ylabel="ms", yscale="log")
    latency.set_ylim(top=5 * latency.get_ylim()[1])  # room for the legend
    latency.legend(fontsize=7, ncols=2)
    for number, setup in enumerate(_GROWING):
        heights = [found["growth", setup.title, workers].scheduler_us for workers in _GROWTH]
        growth.plot(_GROWTH, heights, label=setup.title, **look(number))
    growth.set(
        title="the scheduler's CPU a request", xlabel="workers", ylabel="us", xscale="log", ylim=(0, None)
    )
    growth.set_xticks(_GROWTH, [str(workers) for workers in _GROWTH])
    growth.minorticks_off()
    growth.legend(fontsize=7)
    figure.tight_layout()
