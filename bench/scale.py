"""Does a request cost the router the same whatever the number of workers and connections? `python -m bench.scale`

The router with echo workers, which compute nothing, under one steady rate; CPU of the router process per request.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Sequence

from bench import environments, measure
from bench.environments import DEFAULT_CACHE, BenchError
from bench.front import LAYERS
from bench.guard import Run, running
from bench.server import Server

_ROUTER = next(layer for layer in LAYERS if layer.name == "front_router")
_MODEL, _BATCH = "half_plus_two", 1
_WORKERS, _CONNECTIONS = (1, 2, 8, 64), (1, 10, 100, 1000)
# What the other of the two is meanwhile.
_FEW_WORKERS, _SOME_CONNECTIONS = 2, 32


def _cost_us(run: Run, workers: int, connections: Sequence[int], rate: float, seconds: float) -> list[float]:
    """Microseconds of the router's CPU for each request, over each number of connections."""
    peer = dataclasses.replace(_ROUTER, environment={"BENCH_ECHO_WORKERS": str(workers)})
    costs = []
    with Server(peer, _MODEL, run) as server:
        measure.wait_until_quiet(limit_s=15.0)
        for count in connections:
            sample = server.measure(_BATCH, count, seconds, rate)
            answers = sample.cpu_by_role["router"] / sum(sample.cpu_by_role.values())
            costs.append(sample.cpu_s_per_1000 * answers * 1000)
    return costs


def _row(title: str, counts: Sequence[int], costs: Sequence[float]) -> None:
    print(f"{title:12}" + "".join(f"{count:>10}" for count in counts))
    print(f"{'us':12}" + "".join(f"{cost:10.1f}" for cost in costs))
    print(f"{'of the first':12}" + "".join(f"{cost / costs[0]:10.2f}" for cost in costs) + "\n", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.scale", description=__doc__)
    parser.add_argument("--rate", type=float, default=2000.0, help="requests a second; default: 2000")
    parser.add_argument("--seconds", type=float, default=4.0, help="of load for each figure; default: 4")
    options = parser.parse_args()
    try:
        environments.ensure_h2load()
        with running(DEFAULT_CACHE.resolve()) as run:
            print(f"router CPU per request at {options.rate:.0f}/s\n")
            costs = [
                _cost_us(run, workers, [_SOME_CONNECTIONS], options.rate, options.seconds)[0]
                for workers in _WORKERS
            ]
            _row("workers", _WORKERS, costs)
            costs = _cost_us(run, _FEW_WORKERS, _CONNECTIONS, options.rate, options.seconds)
            _row("connections", _CONNECTIONS, costs)
    except BenchError as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
