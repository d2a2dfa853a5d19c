"""How much of the in-process limit a server can reach beside its load generator. `python -m bench.ceiling`

The limit's calls have the CPUs to themselves; a server shares them with the generator, and has to take requests in. So the ceiling
is the limit's calls while a front in C (nghttpd) takes as many of the same requests from the same generator, and throws them
away: what a server comes to that has such a front, and spends nothing on queues, workers and answers. Limit, ceiling, and the pool
without batching and with it, in turns of random order.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Self

from bench import environments, measure, report, tables
from bench.cell import Sample
from bench.drive import drive
from bench.environments import BenchError
from bench.guard import Run, running
from bench.inprocess import InProcess
from bench.models import MODELS
from bench.peers import OURS, OURS_BATCHING
from bench.server import Server, free_ports, listens

_RESULTS = Path(__file__).resolve().parent / "results"
_START_S = 10.0
# The load goes on for so much longer than the calls that are counted: these begin later, and are checked afterwards.
_AROUND_S = 1.5
# Of the limit, what the front takes in at first: from then on as much as the ceiling turned out to be.
_FIRST = 0.9
# A front that wants no window updates of its own, as ours does.
_WINDOWS = ("--window-bits=24", "--connection-window-bits=28")


@dataclasses.dataclass(frozen=True, slots=True)
class Turn:
    """What one of them came to in one turn.

    Attributes:
        rate: answers a second.
        work_ms, way_ms, load_ms: of CPU for each, of the calls or the workers, of the front or all else of the pool, and of the generator.
    """

    rate: float
    work_ms: float
    way_ms: float = 0.0
    load_ms: float = 0.0


Round = Mapping[str, Turn]


class Ceiling:
    """The limit's calls beside a front that throws requests away. A context manager; on exit nothing of it is left."""

    name, title = "ceiling", "ceiling: the limit's calls beside a front in C"

    def __init__(self, limit: InProcess, run: Run, body: Path, answer_bytes: int) -> None:
        self._limit, self._run, self._body = limit, run, body
        self._port = free_ports(1)
        self._folder = run.folder / self.name
        self._folder.mkdir()
        (self._folder / "answer").write_bytes(bytes(answer_bytes))
        self._stack = ExitStack()
        self._rate = 0.0

    def __enter__(self) -> Self:
        """Raises BenchError."""
        self._front = self._stack.enter_context(_nghttpd(self._folder, self._port, self._run.mark))
        return self

    def __exit__(self, *exception: object) -> None:
        self._stack.close()

    def turn(self, limit: Turn, batch: int, concurrency: int, seconds: float) -> Turn:
        """By what the limit came to in the same round.

        As many calls as requests would be made where the front had taken in just as many: what each of its requests took from
        the calls is known by then.
        """
        asked = self._rate or _FIRST * limit.rate
        before_s = self._used_s()
        with ThreadPoolExecutor(1) as other:
            calls = other.submit(self._limit.load, batch, seconds)
            url = f"http://127.0.0.1:{self._port}/answer"
            driven = drive(
                url,
                (),
                self._body,
                concurrency,
                seconds + _AROUND_S,
                log=self._folder / "h2load",
                http1=False,
                rate=asked,
                cpus=self._run.load_cpus,
            )
            sample = calls.result()
        if not driven.ok:
            raise BenchError("nghttpd answered nothing")
        taken = driven.ok / (seconds + _AROUND_S)
        lost = max(0.0, limit.rate - sample.rate) / taken  # calls, for each request
        self._rate = limit.rate / (1 + lost)
        front_ms = 1000 * (self._used_s() - before_s) / driven.ok
        return Turn(self._rate, sample.cpu_s_per_1000, front_ms, 1000 * driven.client_cpu_s / driven.ok)

    def _used_s(self) -> float:
        return sum(measure.cpu_by_pid([self._front.pid]).values())


@contextmanager
def _nghttpd(folder: Path, port: int, mark: str) -> Iterator[subprocess.Popen[bytes]]:
    command = [environments.ensure_nghttpd(), "--no-tls", *_WINDOWS, f"--htdocs={folder}", str(port)]
    with (folder / "log").open("wb") as log:
        environment = os.environ | {measure.MARK: f"{mark}.ceiling."}
        front = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        end = time.monotonic() + _START_S
        while not listens(port):
            if front.poll() is not None or time.monotonic() > end:
                raise BenchError(f"nghttpd did not start: {(folder / 'log').read_text(errors='replace')}")
            time.sleep(0.05)
        yield front
    finally:
        front.kill()
        front.wait()


def _measure(options: argparse.Namespace) -> tuple[Mapping[str, str], Sequence[Round]]:
    """Titles by name, and rounds."""
    batch, concurrency, seconds = options.batch, options.concurrency, options.seconds
    with running(options.cache.resolve()) as run, ExitStack() as stack:
        limit = stack.enter_context(InProcess(options.model, run))
        servers = [stack.enter_context(Server(peer, options.model, run)) for peer in (OURS, OURS_BATCHING)]
        bodies = [server.write_body(batch) for server in servers]
        frames = [server.check(batch) for server in servers]
        ceiling = stack.enter_context(Ceiling(limit, run, bodies[0], frames[0]))
        turns: dict[str, Callable[[Round], Turn]] = {
            limit.name: lambda _: _calls(limit.load(batch, seconds)),
            ceiling.name: lambda found: ceiling.turn(found[limit.name], batch, concurrency, seconds),
        }
        for server, body, frame in zip(servers, bodies, frames, strict=True):
            server.load(body, concurrency, 3.0)
            turns[server.name] = functools.partial(_loaded, server, body, concurrency, seconds, frame)
        rounds = [_round(turns, [limit.name, ceiling.name]) for _ in range(options.repeat)]
        titles = {limit.name: limit.title, ceiling.name: ceiling.title}
        return titles | {server.name: server.title for server in servers}, rounds


def _round(turns: Mapping[str, Callable[[Round], Turn]], in_order: Sequence[str]) -> Round:
    """All of them, in random order but for these."""
    measure.wait_until_quiet()
    names = random.sample(list(turns), len(turns))
    places = sorted(names.index(name) for name in in_order)
    for place, name in zip(places, in_order, strict=True):
        names[place] = name
    found: dict[str, Turn] = {}
    for name in names:
        found[name] = turns[name](found)
    print("bench: " + ", ".join(f"{name} {found[name].rate:.0f}" for name in turns), flush=True)
    return found


def _calls(sample: Sample) -> Turn:
    return Turn(sample.rate, sample.cpu_s_per_1000)


def _loaded(server: Server, body: Path, concurrency: int, seconds: float, frame: int, _: Round) -> Turn:
    sample = server.load(body, concurrency, seconds, frame)
    work = sample.cpu_by_role["worker"] / sum(sample.cpu_by_role.values())
    return Turn(
        sample.rate,
        sample.cpu_s_per_1000 * work,
        sample.cpu_s_per_1000 * (1 - work),
        1000 * sample.client_cores / sample.rate,
    )


def _lines(titles: Mapping[str, str], rounds: Sequence[Round], options: argparse.Namespace) -> Iterator[str]:
    facts = report.machine()

    def median(name: str, field: str) -> float:
        return float(statistics.median(getattr(found[name], field) for found in rounds))

    def ratio(name: str, other: str) -> str:
        return f"{statistics.median(found[name].rate / found[other].rate for found in rounds):.3f}"

    yield f"# {options.model}, batch {options.batch}: what of the in-process limit a server can reach"
    yield ""
    yield f"{facts['cpus']} CPUs ({facts['cpu']}), {facts['system']}, Python {facts['python']}, mpspool {facts['commit']},"
    yield f"{facts['time']}. {len(rounds)} rounds of {options.seconds:g} s in random order, {options.concurrency} requests in flight;"
    yield "medians, and ratios of one round. CPU milliseconds for each answer. The ceiling is no server: what it is, bench/ceiling.py says."
    yield ""
    names = list(titles)
    yield from tables.table(
        ["", "answers/s", "of the limit", "of the ceiling", "calls, workers", "front, router", "generator"],
        [
            [
                titles[name],
                f"{median(name, 'rate'):.0f}",
                ratio(name, names[0]),
                ratio(name, names[1]),
                *(f"{median(name, field):.3f}" for field in ("work_ms", "way_ms", "load_ms")),
            ]
            for name in names
        ],
    )


def _write(titles: Mapping[str, str], rounds: Sequence[Round], options: argparse.Namespace) -> None:
    text = "\n".join([*_lines(titles, rounds, options), ""])
    figures = {
        "machine": report.machine(),
        "model": options.model,
        "batch": options.batch,
        "rounds": [{name: dataclasses.asdict(turn) for name, turn in found.items()} for found in rounds],
    }
    report.write(options.results, options.name, text, figures)


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.ceiling", description=__doc__)
    add = parser.add_argument
    models = [name for name, model in MODELS.items() if model.batches]
    add("--model", choices=models, default="widedeep", help="default: widedeep")
    add("--batch", type=int, default=512, help="rows of a request; default: 512")
    add("--concurrency", type=int, default=32, help="connections; default: 32")
    add("--seconds", type=float, default=2.0, help="of each turn; default: 2")
    add("--repeat", type=int, default=12, help="rounds; default: 12")
    add("--name", default=time.strftime("%Y%m%d-%H%M%S-ceiling"), help="of the files; default: the time")
    add("--results", type=Path, default=_RESULTS, help="where they go; default: bench/results")
    add("--cache", type=Path, default=environments.DEFAULT_CACHE, help="for the models")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    options = _arguments(argv)
    try:
        environments.ensure_h2load()
        _write(*_measure(options), options)
    except BenchError as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
