"""What do requests see of a new version? `python -m bench.swap`

The 1 GB model under a constant load, and one version after another renamed into its base path: in our pool, which starts
workers for each, and in one process that loads it beside the one that it serves.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from bench import embedding, environments, measure, processors, report, swap_load, swap_report
from bench.drive import drive
from bench.environments import REPOSITORY, BenchError
from bench.guard import Run, running
from bench.processors import on
from bench.protocols import Tfs
from bench.server import check_counts
from bench.swap_load import Requests
from bench.swap_report import Bin, Swap, Swaps
from bench.swap_servers import BasePath, Seen, Swapping, SwappingPool, SwappingProcess

SHARE = 0.3
_CAPACITY_CONNECTIONS = 32
_RAMP_S = 2.0
_BIN_S = 0.25
_LOAD_END_S = 30.0
_RESULTS = Path(__file__).resolve().parent / "results"


@dataclass(frozen=True, slots=True)
class Plan:
    """What to run.

    Attributes:
        swaps: of the pool's version.
        in_process: of the one process's; 0 leaves it out.
        steady_s: before each swap.
        pause_s: after it until memory is read, and after that, for it is felt.
        capacity_s: for the closed loop.
    """

    swaps: int = 20
    in_process: int = 5
    steady_s: float = 5.0
    pause_s: float = 1.0
    capacity_s: float = 4.0


QUICK = Plan(swaps=2, in_process=2, steady_s=1.0, pause_s=0.5, capacity_s=1.0)


def measure_swaps(run: Run, plan: Plan) -> list[Swaps]:
    """Raises BenchError: a server did not come up, answered wrong, or did not take up a version."""
    exported = embedding.ensure_exported(run.models) / "1"
    found = []
    for server_of, swaps in ((SwappingPool, plan.swaps), (SwappingProcess, plan.in_process)):
        if swaps:
            base_path = BasePath(exported, run.folder / server_of.title.replace(" ", "-"), swaps + 1)
            with server_of(run, base_path.path) as server:
                found.append(_measure(run, server, base_path, replace(plan, swaps=swaps)))
    return found


def _measure(run: Run, server: Swapping, base_path: BasePath, plan: Plan) -> Swaps:
    measure.wait_until_quiet(limit_s=15.0)
    capacity = _capacity(run, server.port, plan.capacity_s)
    rate = SHARE * capacity
    print(f"bench: {server.title} answers {capacity:.0f}/s, and gets {rate:.0f}/s", flush=True)
    record = run.folder / "record.npz"
    with measure.CpuMeter(run.mark) as cpu, _loaded(run, server.port, rate, record):
        time.sleep(_RAMP_S)
        seen = []
        for number in range(2, plan.swaps + 2):
            seen.append(_swap(server, base_path, number, plan))
            print(f"bench: {server.title} has version {number} {_seconds(seen[-1]):.1f} s later", flush=True)
    requests = Requests.read(record)
    return Swaps(
        title=server.title,
        capacity=capacity,
        rate=rate,
        sent=len(requests),
        failed=requests.failed,
        failures=requests.failures,
        steady_ms=_p99_of_all(requests, [(one.steady, one.begin) for one in seen]),
        during_ms=_p99_of_all(requests, [(one.begin, one.end) for one in seen]),
        swaps=[figures(requests, one, cpu) for one in seen],
        bins=_bins(requests),
    )


def _seconds(seen: Seen) -> float:
    return seen.end - seen.begin


def _capacity(run: Run, port: int, seconds: float) -> float:
    """Answers a second in a closed loop. Raises BenchError."""
    protocol, body, address = Tfs(), swap_load.bodies()[0], f"127.0.0.1:{port}"
    frame_bytes = len(protocol.frame(protocol.call(address, body)))
    file = run.folder / "body"
    file.write_bytes(protocol.frame(body))
    url = f"http://{address}{protocol.path}"
    for duration in (min(1.0, seconds), seconds):  # the first is to warm it up
        driven = drive(
            url,
            protocol.headers,
            file,
            _CAPACITY_CONNECTIONS,
            duration,
            log=run.folder / "h2load",
            http1=False,
            cpus=run.load_cpus,
        )
    check_counts(address, driven, frame_bytes, http1=False)
    return driven.ok / seconds


@contextlib.contextmanager
def _loaded(run: Run, port: int, rate: float, record: Path) -> Iterator[None]:
    """Afterwards the record is there. Raises BenchError."""
    command = [sys.executable, "-m", "bench.swap_load", str(port), str(rate), str(record)]
    environment = os.environ | {measure.MARK: f"{run.mark}.load."}
    process = subprocess.Popen(
        on(run.load_cpus, command), env=environment, cwd=REPOSITORY, stdin=subprocess.PIPE
    )
    try:
        yield
    finally:
        assert process.stdin is not None
        process.stdin.close()
        process.wait(_LOAD_END_S)
    if process.returncode:
        raise BenchError(f"the load ended with status {process.returncode}")


def _swap(server: Swapping, base_path: BasePath, number: int, plan: Plan) -> Seen:
    server.prepare_swap()
    steady = time.monotonic()
    time.sleep(plan.steady_s)
    begin = time.monotonic()
    base_path.publish(number)
    server.wait_swapped(number)
    end = time.monotonic()
    time.sleep(plan.pause_s)
    pids = measure.marked(server.mark)
    seen = Seen(number, steady, begin, end, measure.memory(pids), measure.segments(pids))
    time.sleep(plan.pause_s)
    return seen


def figures(requests: Requests, seen: Seen, cpu: measure.CpuMeter) -> Swap:
    """Of all requests of the load those that tell of this swap. Raises BenchError where there are none."""
    steady, during = requests.due_in(seen.steady, seen.begin), requests.due_in(seen.begin, seen.end)
    new = requests.where(requests.version == seen.number)
    if not (len(steady) and len(during) and len(new)):
        raise BenchError(f"too few requests to tell what the swap to version {seen.number} was like")
    return Swap(
        version=seen.number,
        begin_s=seen.begin - float(requests.due.min()),
        seconds=_seconds(seen),
        steady_ms=_p99(steady.latencies_ms),
        during_ms=_p99(during.latencies_ms),
        late_ms=_p99((during.sent - during.due) * 1000),
        first_ms=float(new.latencies_ms[np.argmin(new.over)]),
        failed=requests.due_in(seen.steady, seen.end + 1).failed,
        processes=seen.memory.processes,
        pss_mb=seen.memory.pss_mb,
        segments=seen.segments.count,
        segments_mb=seen.segments.mb,
        foreign_cores=cpu.used(seen.steady, seen.end)[measure.FOREIGN] / (seen.end - seen.steady),
        cpu_s=_extra_cpu_s(cpu, seen),
    )


def _p99_of_all(requests: Requests, times: Sequence[tuple[float, float]]) -> float:
    return _p99(np.concatenate([requests.due_in(*each).latencies_ms for each in times]))


def _p99(values: swap_load.Floats) -> float:
    return float(np.percentile(values, 99))


def _extra_cpu_s(cpu: measure.CpuMeter, seen: Seen) -> Mapping[str, float]:
    """By role, beyond what the steady time before it took in as long."""
    scale = _seconds(seen) / (seen.begin - seen.steady)
    steady = cpu.used(seen.steady, seen.begin)
    used = cpu.used(seen.begin, seen.end)
    return {role: used.get(role, 0.0) - scale * steady.get(role, 0.0) for role in {**steady, **used}}


def _bins(requests: Requests) -> list[Bin]:
    """In the order of time; those without requests are left out."""
    latencies = requests.latencies_ms
    places = ((requests.due - requests.due.min()) / _BIN_S).astype(int)
    order = np.argsort(places, kind="stable")
    found, firsts = np.unique(places[order], return_index=True)
    return [
        Bin(
            at_s=float(place) * _BIN_S,
            p50_ms=float(np.percentile(mine, 50)),
            p99_ms=_p99(mine),
            max_ms=float(mine.max()),
        )
        for place, mine in zip(found, np.split(latencies[order], firsts[1:]), strict=True)
    ]


def _write(found: Sequence[Swaps], options: argparse.Namespace) -> None:
    # Both first: a file that is written anew makes the clone differ from its commit.
    facts = report.machine() | {"load_cpus": options.load_cpus}
    parts = swap_report.head(facts), swap_report.tables(found), swap_report.target_lines(found)
    table = "\n".join([*itertools.chain(*parts), ""])
    whole = {"machine": facts, "swaps": swap_report.as_dict(found)}
    folder, name = options.results, options.name
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.md").write_text(table)
    (folder / f"{name}.json").write_text(json.dumps(whole, indent=1) + "\n")
    swap_report.plot(found, folder / f"{name}.png")
    print(f"\n{table}\nbench: written to {folder / name}.md, .json, .png", flush=True)


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.swap", description=__doc__)
    add = parser.add_argument
    add("--swaps", type=int, help="of the pool; default: 20")
    add("--in-process", type=int, help="of the one process, 0 for none; default: 5")
    add("--steady", type=float, help="seconds before each swap; default: 5")
    add("--quick", action="store_true", help="two swaps each, a second before them: does everything run?")
    processors.add_option(parser)
    add("--name", default=time.strftime("%Y%m%d-%H%M%S-swap"), help="of the files; default: the time")
    add("--results", type=Path, default=_RESULTS, help="where they go; default: bench/results")
    add("--cache", type=Path, default=environments.DEFAULT_CACHE, help="for the model")
    return parser.parse_args(argv)


def _plan(options: argparse.Namespace) -> Plan:
    chosen = {"swaps": options.swaps, "in_process": options.in_process, "steady_s": options.steady}
    given = {name: value for name, value in chosen.items() if value is not None}
    return replace(QUICK if options.quick else Plan(), **given)


def main(argv: Sequence[str] | None = None) -> int:
    options = _arguments(argv)
    options.load_cpus = processors.divide(options.server_cpus)
    try:
        environments.ensure_h2load()
        with running(options.cache.resolve(), options.load_cpus) as run:
            found = measure_swaps(run, _plan(options))
        _write(found, options)
    except BenchError as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
