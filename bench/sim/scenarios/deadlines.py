"""More load than the pool bears, and a deadline for each request: how many answers are in time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from bench.sim.arrivals import Open, Stream
from bench.sim.cell import Cell, Key, Task
from bench.sim.figures import Figures, part_of
from bench.sim.scenario import Options, legend, look, ms, percent, table
from bench.sim.service import Linear, Pool, Service
from bench.sim.setup import Setup
from mpspool.core.settings import BatchingSettings

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
# Requests that are joined: a run of four of the first takes four times as long, one of sixteen of the other half as long again.
_JOINED = (
    Service(
        "rows that cost alike",
        Linear(0.5, 0.012),
        sigma=0.1,
        rows=((256, 1.0),),
        batching=BatchingSettings(max_batch_size=1000, max_enqueued_batches=1000),
    ),
    Service(
        "rows that cost little",
        Linear(4, 0.01),
        sigma=0.1,
        rows=((16, 1.0),),
        batching=BatchingSettings(max_batch_size=256, max_enqueued_batches=1000),
    ),
)
_JOINED_MS, _JOINED_WORKERS = 20.0, 2
_JOINED_LOADS = (0.9, 1.2, 2.0, 4.0)
_JOINED_SETUPS = (
    Setup("fifo, batches"),
    Setup("fifo, batches, late ones kept", refuse_late=False),
    Setup("edf, batches", policy="edf"),
    Setup("fifo, one by one", batching=False),
)


def tasks(options: Options) -> dict[Key, Task]:
    gpus, slots = options.gpus or 4, options.slots or 1
    pool = Pool(gpus, (_MODEL,), {"m": slots})
    # One worker on a device alternates between its core and the device; several keep the device busy.
    capacity = gpus * 1e9 / (_MODEL.mean_ns() if slots == 1 else _MODEL.mean_ns(_MODEL.device))
    found: dict[Key, Task] = {
        (setup.title, load): Cell(
            pool,
            setup,
            Open(_STREAMS, load * capacity),
            options.seconds or 15.0,
            options.seed,
        )
        for setup in options.setups(SETUPS)
        for load in _LOADS
    }
    for service in _JOINED:
        joined = Pool(_JOINED_WORKERS, (service,))
        streams = (Stream(service, 1.0, deadline_ms=_JOINED_MS),)
        for setup in options.setups(_JOINED_SETUPS):
            for load in _JOINED_LOADS:
                arrivals = Open(streams, load * _joined_capacity(service))
                found[service.name, setup.title, load] = Cell(
                    joined, setup, arrivals, options.seconds or 6.0, options.seed
                )
    return found


def _joined_capacity(service: Service) -> float:
    """Requests a second that the workers run in full batches."""
    assert service.batching is not None
    rows, _ = service.rows[0]
    together = service.batching.max_batch_size // rows
    return _JOINED_WORKERS * together * 1e9 / service.alone_ns(together * rows)


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
    for service in _JOINED:
        yield ""
        yield f"## Joined: {service.name}"
        yield ""
        yield f"Answers in time a second, of requests of {service.rows[0][0]} rows that have {_JOINED_MS:g} ms, by the load in parts of what"
        yield f"{_JOINED_WORKERS} workers can do in full batches: {_joined_capacity(service):.0f} a second."
        titles = dict.fromkeys(key[1] for key in found if key[0] == service.name)
        yield from table(
            ("", *(percent(load) for load in _JOINED_LOADS)),
            [
                (title, *(f"{found[service.name, title, load].all.good:.0f}" for load in _JOINED_LOADS))
                for title in titles
            ],
        )


def _row(title: str, figures: Figures) -> tuple[str, ...]:
    part = figures.all
    hasty, patient = (part_of(figures.clients, name) for name in ("hasty", "patient"))
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
    titles = list(dict.fromkeys(key[0] for key in found if len(key) == 2))
    for number, title in enumerate(titles):
        results = [found[title, load] for load in _LOADS]
        # Two at a time may be the same line.
        style = look(number) | ({"linestyle": ":", "markersize": 7} if "kept" in title else {})
        good.plot([100 * load for load in _LOADS], [f.all.good for f in results], **style)
        late.plot([100 * load for load in _LOADS], [100 * f.all.expired for f in results], **style)
    good.set(title="answers in time", xlabel="load, %", ylabel="per second", ylim=(0, None))
    late.set(title="expired while they waited or ran", xlabel="load, %", ylabel="% of the requests")
    legend(good, good.get_lines(), titles, fontsize=8)
    for axis in (good, late):
        axis.grid(visible=True, alpha=0.2)
    figure.tight_layout()
