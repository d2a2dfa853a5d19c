"""One client, or one model, asks for twenty times its share: what the others notice."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

from bench.sim.arrivals import Open, Stream
from bench.sim.cell import Cell, Key, Task
from bench.sim.figures import Figures, NothingArrivedError, part_of
from bench.sim.scenario import Options, look, ms, percent, sharing, table
from bench.sim.service import Linear, Pool, Service
from bench.sim.setup import Setup

TITLE = "Floods: one client, or one model, asks for 20 times its share"

_ONE = Service("m", Linear(4), Linear(1), sigma=0.3)
_MODELS = tuple(Service(f"m{n}", Linear(4), Linear(1), sigma=0.3) for n in range(4))
_FLOOD = 20.0
# What a model may have waiting, whatever its setup.
_MAX_REQUESTS = 2000
_CLIENTS = (
    Setup("fifo"),
    sharing(Setup("fifo")),
    Setup("sjf", policy="sjf"),
    sharing(Setup("sjf", policy="sjf")),
)
_POOLS = (
    Setup("no limit"),
    Setup("no limit, round robin", dispatch="round_robin"),
    Setup("at most 1", running=1),
    Setup("at most 2", running=2),
    Setup("at most 3", running=3),
    Setup("sjf, at most 1", policy="sjf", running=1),
)


def tasks(options: Options) -> dict[Key, Task]:
    gpus = options.gpus or 4
    found: dict[Key, Task] = {}
    # Nine clients ask for half of what there is, and the tenth for twenty times as much as any of them.
    capacity = gpus * 1e9 / _ONE.device.ns(1)
    each = 0.5 * capacity / 9
    one = Pool(gpus, (_ONE,), {"m": options.slots or 2})
    streams: tuple[Stream, ...] = (Stream(_ONE, 9.0, "c", 9), Stream(_ONE, _FLOOD, "flood"))
    for setup in options.setups(_CLIENTS):
        found["client", setup.title] = _cell(one, setup, Open(streams, (9 + _FLOOD) * each), options)
    pool = Pool(gpus, _MODELS, {model.name: max(1, (options.slots or 4) // 4) for model in _MODELS})
    each = 0.4 * capacity / 3
    streams = tuple(
        Stream(model, _FLOOD if n == 0 else 1.0, "flood" if n == 0 else f"c{n}")
        for n, model in enumerate(_MODELS)
    )
    for setup in options.setups(_POOLS):
        found["model", setup.title] = _cell(pool, setup, Open(streams, (3 + _FLOOD) * each), options)
    return found


def _cell(pool: Pool, setup: Setup, load: Open, options: Options) -> Cell:
    rules = dataclasses.replace(setup, max_requests=_MAX_REQUESTS)
    return Cell(pool, rules, load, options.seconds or 8.0, options.seed)


def lines(found: Mapping[Key, Any], options: Options) -> Iterator[str]:
    del options
    yield "4 ms of device and 1 ms of CPU a request. Fairness: Jain's index of what each got by what max-min fair shares"
    yield "would have given it."
    for kind, text in (
        ("client", "## Ten clients of one model; nine ask for half of what there is, in all"),
        (
            "model",
            "## Four models, a worker of each on each device; three ask for 40 % of what there is, in all",
        ),
    ):
        yield ""
        yield text
        yield from table(
            (
                "",
                "others: mean ms",
                "p99",
                "refused",
                "flood: answers/s",
                "refused",
                "fairness",
                "device in use",
            ),
            [_row(key[1], figures) for key, figures in found.items() if key[0] == kind],
        )


def _row(title: str, figures: Figures) -> tuple[str, ...]:
    others = [part for name, part in figures.clients.items() if name != "flood" and part.offered]
    if not others:
        raise NothingArrivedError("nothing of the others arrived")
    count = sum(part.offered for part in others)
    mean = sum(part.mean_ms * part.offered for part in others) / count
    refused = sum(part.refused_full * part.offered for part in others) / count
    flood = part_of(figures.clients, "flood")
    return (
        title,
        ms(mean),
        ms(max(part.p99_ms for part in others)),
        percent(refused),
        f"{flood.rate:.0f}",
        percent(flood.refused_full),
        f"{figures.fairness:.2f}",
        percent(figures.busy),
    )


def draw(found: Mapping[Key, Any], options: Options, figure: Any) -> None:
    del options
    figure.set_size_inches(11, 4)
    for axis, kind, name in zip(
        figure.subplots(1, 2), ("client", "model"), ("one client floods", "one model floods"), strict=True
    ):
        results = [(key[1], figures) for key, figures in found.items() if key[0] == kind]
        for shift, who in ((-0.2, "others"), (0.2, "flood")):
            heights = [
                max(
                    part.p99_ms
                    for client, part in figures.clients.items()
                    if part.offered and (client == "flood") == (who == "flood")
                )
                for _, figures in results
            ]
            places = [place + shift for place in range(len(results))]
            axis.bar(places, heights, 0.4, label=who, color=look(int(who == "flood"))["color"])
        titles = [title.replace(", ", ",\n").replace(":", ":\n") for title, _ in results]
        axis.set_xticks(range(len(results)), titles, fontsize=7, parse_math=False)
        axis.set(title=f"{name}: p99", ylabel="ms", yscale="log")
        axis.set_ylim(10, 60_000)  # room for the legend
        axis.legend(fontsize=8, loc="upper left", ncols=2)
    figure.tight_layout()
