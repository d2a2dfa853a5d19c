"""Policies side by side on one load: which there are, their table and their plot."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from bench.sim.figures import Figures, Part
from bench.sim.scenario import LOOKS, Options, legend, logarithmic, look, ms, percent, sharing, table
from bench.sim.service import Pool
from bench.sim.setup import Setup
from mpspool.core.settings import BatchingSettings

BATCHING = BatchingSettings(max_batch_size=32, adaptive=True, max_enqueued_batches=1000)
_PARALLEL = 4.0
_LOSS = 0.01
# From there on what was not answered says more than the times of what was; one request, as the last of a trace, says nothing.
_MUCH, _MANY = 0.05, 2


def parallel(options: Options) -> float:
    return options.parallel or _PARALLEL


def loss(options: Options) -> float:
    return _LOSS if options.loss is None else options.loss


def setups(pool: Pool, policy: str, *, deadlines: bool = True, clients: bool = False) -> list[Setup]:
    """Those that can differ on this pool; and a policy of one's own, as fifo is there: without batches and with them.

    Args:
        pool: limits grow with the workers on one of its devices.
        policy: to be judged beside the others; "" for none.
        deadlines: those of the requests differ.
        clients: there are several.
    """
    slots = sum(map(pool.workers, pool.services))
    choice = pool.gpus > 1 or slots > len(pool.services)
    lanes = sorted({slots // 4, slots // 2} - {0})
    most = 3 * slots // 4
    found = [
        Setup("fifo", batching=False),
        Setup("fifo, round robin", dispatch="round_robin", batching=False),
        Setup("sjf", policy="sjf", batching=False),
        Setup("edf", policy="edf", batching=False),
        *(Setup(f"sjf, slow lane {lane}", policy="sjf", long=lane, batching=False) for lane in lanes),
        *([Setup(f"fifo, at most {most}", running=most, batching=False)] if most else []),
        *([sharing(Setup("fifo", batching=False))] if clients else []),
        Setup("fifo, batching"),
        Setup("fifo, batching, round robin", dispatch="round_robin"),
        Setup("sjf, batching", policy="sjf"),
        Setup("edf, batching", policy="edf"),
        *([sharing(Setup("fifo, batching"))] if clients else []),
    ]
    found = [
        setup
        for setup in found
        if (choice or setup.dispatch != "round_robin") and (deadlines or setup.policy != "edf")
    ]
    own = [Setup(policy, policy=policy, batching=False), Setup(f"{policy}, batching", policy=policy)]
    own = [each for setup in own for each in ([setup, sharing(setup)] if clients else [setup])]
    return [*found, *(setup for setup in own if policy and setup not in found)]


def told(pool: Pool) -> Iterator[str]:
    """What all of them run on."""
    slots = {service.name: pool.workers(service) for service in pool.services}
    each = " each" if pool.gpus > 1 else ""
    yield f"{_count(pool.gpus, 'device')} with {_count(sum(slots.values()), 'worker')}{each} ({_divided(slots)})."
    yield f"A device runs {pool.parallel:g} jobs at full speed, each overlap costs {pool.loss:.2g} of its speed."
    most = max(service.batching.max_batch_size for service in pool.services if service.batching)
    why = ", as the largest request has," if most > BATCHING.max_batch_size else ""
    yield f"With batching, a batch has {most} rows at most{why} and waits only while every worker is busy."


def told_of(setup: Setup, devices: int, workers: Mapping[str, int], *, others: bool) -> str:
    """What a row of a pool file runs on, as far as that is its own; `others`: that is the file's to say."""
    where = f", on {_count(devices, 'device')}" if devices else ""
    own = f", with its own workers on each device ({_divided(workers)})" if workers else ""
    lacks = (
        ", which does not say the workers of each model: they are as above" if others and not workers else ""
    )
    return f"{setup.title} is as that file says{where}{own}{lacks}."


def _divided(workers: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in workers.items())


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def rows(results: Mapping[str, Figures], *, fairness: bool = False, cpu: bool = False) -> Iterator[str]:
    """A row for each setup, and what to make of it; `cpu`: also what it took here."""
    names = list(next(iter(results.values())).services)
    yield from table(
        (
            "",
            "asked/s",
            "answers/s",
            "in time/s",
            "refused",
            "unanswered at the end",
            "mean ms",
            "p50",
            "p95",
            "p99",
            *(f"{name} p99" for name in names),
            *(("fairness",) if fairness else ()),
            "device in use",
            "rows a batch",
            *(("us a request: scheduler", "simulation") if cpu else ()),
        ),
        [
            (
                *_row(title, figures),
                *((f"{figures.fairness:.2f}",) if fairness else ()),
                percent(figures.busy),
                ", ".join(f"{name} {mean:.1f}" for name, mean in figures.batch_rows.items()),
                *((f"{figures.scheduler_us:.0f}", f"{figures.wall_us:.0f}") if cpu else ()),
            )
            for title, figures in results.items()
        ],
    )
    yield ""
    yield "Asked, refused and unanswered are of what arrived after the first 15 % of the time, which in overload waits behind what"
    yield "arrived before. Unanswered at the end is what was refused, had expired or still waited then. Times are of what was"
    yield "answered, be it after the end."
    if much := [title for title, figures in results.items() if _overloaded(figures.all)]:
        which = "Every row" if len(much) == len(results) else "; ".join(much)
        yield ""
        yield f"**{which}: {percent(_MUCH)} or more was left unanswered.** Compare that before any time."


def _row(title: str, figures: Figures) -> tuple[str, ...]:
    part = figures.all
    return (
        title,
        f"{part.asked:.0f}",
        f"{part.rate:.0f}",
        f"{part.good:.0f}",
        percent(part.expired + part.refused_late + part.refused_full),
        percent(part.unanswered),
        ms(part.mean_ms),
        ms(part.p50_ms),
        ms(part.p95_ms),
        ms(part.p99_ms),
        *map(_p99, figures.services.values()),
    )


def _p99(part: Part) -> str:
    """With how many it is not of."""
    if not part.offered:
        return "none asked"
    if not part.answered:
        return f"none of {part.offered} answered"
    return ms(part.p99_ms) + (f", {percent(part.unanswered)} unanswered" if _overloaded(part) else "")


def _overloaded(part: Part) -> bool:
    return part.unanswered >= _MUCH and round(part.unanswered * part.offered) >= _MANY


def draw(results: Mapping[str, Figures], axes: Any) -> None:
    """p99 of each model: a dot for each setup, crossed where much was not answered, and none where nothing was."""
    names = list(next(iter(results.values())).services)
    step = 0.7 / len(results)
    lines: list[Any] = []
    for number, figures in enumerate(results.values()):
        places = [place + (number - (len(results) - 1) / 2) * step for place in range(len(names))]
        heights = [figures.services[name].p99_ms for name in names]
        # Where looks begin again, the dots are hollow.
        filled = {} if number < LOOKS else {"markerfacecolor": "white"}
        style = {**look(number), "linestyle": "", "markersize": 7, **filled}
        lines += axes.plot(places, heights, **style)
        much = [n for n, name in enumerate(names) if _overloaded(figures.services[name])]
        crossed = {"linestyle": "", "marker": "x", "color": "black", "markersize": 9}
        axes.plot([places[n] for n in much], [heights[n] for n in much], **crossed)
    axes.set_xticks(range(len(names)), names, parse_math=False)
    axes.set_xlim(-0.5, len(names) - 0.5)
    for place in range(1, len(names)):
        axes.axvline(place - 0.5, color="#dddddd", linewidth=0.8)
    title = f"p99 of what was answered; crossed: {percent(_MUCH)} or more was not"
    axes.set(title=title, ylabel="ms")
    logarithmic(axes)
    if not any(figures.all.answered for figures in results.values()):
        axes.set_ylim(1, 10)  # nothing has no place on a logarithmic scale
    axes.grid(axis="y", color="#eeeeee")
    legend(axes, lines, list(results), fontsize=9, loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False)
