"""A trace: what was recorded, under every policy."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.sim import compare, pool_file
from bench.sim.arrivals import Replay
from bench.sim.cell import Cell, Key, Task
from bench.sim.costs import loads_of, of_trace, told, with_costs
from bench.sim.pool_file import Placement
from bench.sim.scenario import Options, OptionsError, shown
from bench.sim.service import Pool, Service, divide
from bench.sim.setup import Setup
from bench.sim.trace import Request, read

TITLE = "A trace under every policy"


def tasks(options: Options) -> dict[Key, Task]:
    _read.cache_clear()
    _configured.cache_clear()
    recorded = _read(options)
    services = of_trace(recorded)
    _check(options.slots_of, [service.name for service in services])
    trace = with_costs(recorded, services)
    configured = _configured(options)
    pool = _pool(options, trace, services, configured)
    speed = _speed(options, trace)
    seconds = min(options.seconds or math.inf, trace[-1].time / speed + 1e-6)
    cells = [(setup, _placed(pool, placement)) for setup, placement in configured]
    setups = compare.setups(
        pool,
        options.policy,
        deadlines=len({one.deadline_ms for one in trace}) > 1,
        clients=len({one.client for one in trace}) > 1,
    )
    taken = [setup.title for setup in setups]
    if clash := next((setup.title for setup, _ in cells if setup.title in taken), ""):
        raise OptionsError(f"--config {clash}: a policy has a row of that name; call the file otherwise")
    cells += [(setup, pool) for setup in setups]
    return {
        (setup.title,): Cell(pool, setup, Replay(trace, speed), seconds, options.seed)
        for setup, pool in cells
    }


@functools.lru_cache(maxsize=1)
def _read(options: Options) -> list[Request]:
    """Once, for tasks() and lines(): a pipe is empty then."""
    assert options.trace is not None
    return read(options.trace)


def _check(slots_of: Mapping[str, int], models: Sequence[str]) -> None:
    """Raises OptionsError: workers were said of each model, but not of those that the trace has."""
    if not slots_of:
        return
    if unknown := [name for name in slots_of if name not in models]:
        raise OptionsError(
            f"--slots has {', '.join(unknown)}, of which the trace has no request; leave out what is none of "
            f"{', '.join(models)}"
        )
    if missing := [name for name in models if name not in slots_of]:
        add = ",".join(f"{name}=1" for name in missing)
        raise OptionsError(
            f"--slots has no workers of {', '.join(missing)}, which the trace asks for; add {add}, or give the number "
            "of all workers on a device"
        )


@functools.lru_cache(maxsize=1)
def _configured(options: Options) -> list[tuple[Setup, Placement]]:
    """What each pool file says; of where it runs only what was not asked for. Once, as _read(). Raises OptionsError."""
    found = [pool_file.read(file, _read(options)) for file in options.configs]
    workers_said = _says_workers(options)
    return [
        (setup, Placement(0 if options.gpus else own.devices, {} if workers_said else own.workers))
        for setup, own in found
    ]


def _says_workers(options: Options) -> bool:
    return bool(options.slots or options.slots_of)


def _pool(
    options: Options,
    trace: Iterable[Request],
    services: tuple[Service, ...],
    configured: Iterable[tuple[Setup, Placement]],
) -> Pool:
    """Devices and slots as they were said, as the first pool file has them, or eight, and slots by load."""
    devices = next((own.devices for _, own in configured if own.devices), 0)
    workers = next((dict(own.workers) for _, own in configured if own.workers), None)
    return Pool(
        options.gpus or devices or 8,
        services,
        dict(options.slots_of) or workers or divide(options.slots or 8, loads_of(trace)),
        parallel=compare.parallel(options),
        loss=compare.loss(options),
    )


def _placed(pool: Pool, placement: Placement) -> Pool:
    """The pool, where a file says nothing else."""
    return dataclasses.replace(
        pool, gpus=placement.devices or pool.gpus, slots=dict(placement.workers) or pool.slots
    )


def _speed(options: Options, trace: Sequence[Request]) -> float:
    return options.rate * trace[-1].time / len(trace) if options.rate else 1.0


def lines(found: Mapping[Key, Any], options: Options) -> Iterator[str]:
    recorded = _read(options)
    services = of_trace(recorded)
    length_s, speed = recorded[-1].time, _speed(options, recorded)
    models = ", ".join(
        f"{name} {count}" for name, count in Counter(one.model for one in recorded).most_common()
    )
    rate = len(recorded) / length_s
    assert options.trace is not None
    yield f"{shown(Path(options.trace.name))}: {len(recorded)} requests in {_short(length_s)} s, {_short(rate)} a second: {models}."
    if options.rate:
        yield f"Played {speed:.3g} times as fast, {options.rate:g} a second."
    yield ""
    configured = _configured(options)
    yield from compare.told(_pool(options, with_costs(recorded, services), services, configured))
    others = not _says_workers(options)
    for setup, placement in configured:
        yield compare.told_of(setup, placement.devices, placement.workers, others=others)
    yield from told(recorded, services)
    clients = len({one.client for one in recorded}) > 1
    yield from compare.rows({key[0]: figures for key, figures in found.items()}, fairness=clients)


def _short(value: float) -> str:
    return f"{value:.3g}" if value < 100 else f"{value:.0f}"


def draw(found: Mapping[Key, Any], options: Options, figure: Any) -> None:
    del options
    results = {key[0]: figures for key, figures in found.items()}
    figure.set_size_inches(6 + 1.2 * len(next(iter(results.values())).services), 4.5)
    compare.draw(results, figure.subplots())
    figure.tight_layout()
