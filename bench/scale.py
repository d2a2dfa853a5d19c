"""Does a request cost the router the same whatever the number of workers and connections? `python -m bench.scale`

The router with echo workers, which compute nothing, under one steady rate; CPU of the router process per request. In rounds, each of
which has every number once, in random order.
"""

from __future__ import annotations

import argparse
import dataclasses
import random
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from bench import environments, measure, report
from bench.environments import BenchError
from bench.front import LAYERS
from bench.guard import Run, running
from bench.server import Server

_ROUTER = next(layer for layer in LAYERS if layer.name == "front_router")
_MODEL, _BATCH = "half_plus_two", 1
_WORKERS, _CONNECTIONS = (1, 2, 8, 64), (1, 10, 100, 1000)
# What the other of the two is meanwhile.
_FEW_WORKERS, _SOME_CONNECTIONS = 2, 32
_RESULTS = Path(__file__).resolve().parent / "results"


@dataclasses.dataclass(frozen=True, slots=True)
class Series:
    """What a request costs over one of the two numbers.

    Attributes:
        title: which, and what the other is meanwhile.
        counts: of it.
        rounds_us: of the router's CPU for each request, in each round.
    """

    title: str
    counts: Sequence[int]
    rounds_us: Sequence[Sequence[float]]

    def medians_us(self) -> list[float]:
        return [statistics.median(costs) for costs in zip(*self.rounds_us, strict=True)]

    def ratios(self) -> list[float]:
        """Of the first of the same round; medians."""
        ratios = ([cost / costs[0] for cost in costs] for costs in self.rounds_us)
        return [statistics.median(of_one) for of_one in zip(*ratios, strict=True)]


def _measure(options: argparse.Namespace) -> list[Series]:
    with running(options.cache.resolve()) as run:
        rounds = [_round(run, options) for _ in range(options.repeat)]
    by_workers, by_connections = zip(*rounds, strict=True)
    return [
        Series(f"workers, {_SOME_CONNECTIONS} connections", options.workers, by_workers),
        Series(f"connections, {_FEW_WORKERS} workers", options.connections, by_connections),
    ]


def _round(run: Run, options: argparse.Namespace) -> tuple[list[float], list[float]]:
    """By number of workers, and of connections."""
    found = {
        workers: _costs_us(run, workers, [_SOME_CONNECTIONS], options)[_SOME_CONNECTIONS]
        for workers in random.sample(options.workers, len(options.workers))
    }
    connections = random.sample(options.connections, len(options.connections))
    by_connections = _costs_us(run, _FEW_WORKERS, connections, options)
    return [found[count] for count in options.workers], [
        by_connections[count] for count in options.connections
    ]


def _costs_us(
    run: Run, workers: int, connections: Sequence[int], options: argparse.Namespace
) -> dict[int, float]:
    """Over each number of connections."""
    peer = dataclasses.replace(_ROUTER, environment={"BENCH_ECHO_WORKERS": str(workers)})
    costs = {}
    with Server(peer, _MODEL, run) as server:
        measure.wait_until_quiet(limit_s=15.0)
        for count in connections:
            sample = server.measure(_BATCH, count, options.seconds, options.rate)
            answers = sample.cpu_by_role["router"] / sum(sample.cpu_by_role.values())
            costs[count] = sample.cpu_s_per_1000 * answers * 1000
            print(f"bench: {workers} workers, {count} connections: {costs[count]:.1f} us", flush=True)
    return costs


def _lines(found: Sequence[Series], options: argparse.Namespace) -> Iterator[str]:
    facts = report.machine()
    yield "# What a request costs the router, by workers and connections"
    yield ""
    yield f"{facts['cpus']} CPUs ({facts['cpu']}), {facts['system']}, Python {facts['python']}, mpspool {facts['commit']},"
    yield f"{facts['time']}. Microseconds of the router's CPU for each of {options.rate:g} requests a second over"
    yield f"{options.seconds:g} s, with echo workers and {_MODEL}'s bodies; the load driver runs on the same machine."
    yield f"Medians of {options.repeat} rounds in random order, and the least and the most of them."
    for series in found:
        by_count = list(zip(*series.rounds_us, strict=True))
        yield ""
        yield f"| {series.title} | " + " | ".join(map(str, series.counts)) + " |"
        yield "|---" * (1 + len(series.counts)) + "|"
        yield "| us a request | " + " | ".join(f"{cost:.1f}" for cost in series.medians_us()) + " |"
        yield "| least to most | " + " | ".join(f"{min(us):.0f} to {max(us):.0f}" for us in by_count) + " |"
        yield "| of the first | " + " | ".join(f"{ratio:.2f}" for ratio in series.ratios()) + " |"


def _write(found: Sequence[Series], options: argparse.Namespace) -> None:
    # Both first: a file that is written anew makes the clone differ from its commit.
    table = "\n".join([*_lines(found, options), ""])
    figures = {
        "machine": report.machine(),
        "rate": options.rate,
        "seconds": options.seconds,
        "series": [dataclasses.asdict(series) for series in found],
    }
    report.write(options.results, options.name, table, figures)


def _numbers(text: str) -> list[int]:
    return [int(word) for word in text.split(",")]


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.scale", description=__doc__)
    add = parser.add_argument
    add("--workers", type=_numbers, default=_WORKERS, help=f"default: {','.join(map(str, _WORKERS))}")
    add(
        "--connections",
        type=_numbers,
        default=_CONNECTIONS,
        help=f"default: {','.join(map(str, _CONNECTIONS))}",
    )
    add("--rate", type=float, default=2000.0, help="requests a second; default: 2000")
    add("--seconds", type=float, default=4.0, help="of load for each figure; default: 4")
    add("--repeat", type=int, default=3, help="rounds; default: 3")
    add("--name", default=time.strftime("%Y%m%d-%H%M%S-scale"), help="of the files; default: the time")
    add("--results", type=Path, default=_RESULTS, help="where they go; default: bench/results")
    add("--cache", type=Path, default=environments.DEFAULT_CACHE, help="for the model")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    options = _arguments(argv)
    try:
        environments.ensure_h2load()
        _write(_measure(options), options)
    except BenchError as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
