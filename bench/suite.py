"""Runs the cells: everyone side by side, round after round, in turn.

All servers of one model are up at the same time and measured one after another in the same cell,
so that a ratio is between two figures taken within seconds of each other; who comes first goes
round. Ratios are built within a round, and the median over the rounds is taken.
"""

from __future__ import annotations

import itertools
import statistics
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Protocol, Self

import grpc
import psutil

from bench import measure
from bench.cell import Sample, median
from bench.environments import BenchError
from bench.guard import Run
from bench.inprocess import InProcess
from bench.models import MODELS
from bench.peers import FOREIGN, Peer
from bench.processors import Processors
from bench.server import Server
from bench.sharing import Sharing
from bench.swap_report import Swaps

# What a server with two TensorFlow processes takes, at most.
_SERVER_BYTES = 1.2e9
_FAILURES = (BenchError, AssertionError, OSError, grpc.RpcError)


class Contender(Protocol):
    """What is measured: a server, or the in-process limit."""

    name: str
    title: str
    ready_s: float

    def __enter__(self) -> Self: ...
    def __exit__(self, *exception: object) -> None: ...
    def memory(self) -> measure.Memory: ...
    def measure(self, batch: int, concurrency: int, seconds: float, rate: float = 0.0) -> Sample: ...


@dataclass(frozen=True, slots=True, order=True)
class Cell:
    """One place in the tables. `part` is "pool", "front" or "steady"."""

    part: str
    model: str
    batch: int
    concurrency: int

    def __str__(self) -> str:
        return f"{self.model}, batch {self.batch}, concurrency {self.concurrency}"


@dataclass(frozen=True, slots=True)
class Footprint:
    """What it took to have a contender up: seconds to the first right answer, and memory at the end."""

    ready_s: float
    memory: measure.Memory


@dataclass(slots=True)
class Results:
    """Everything measured.

    Attributes:
        samples: by cell and contender, one for each round.
        titles: what the tables call a contender.
        sharing: memory and restarts, with and without sharing; None where not measured.
        swaps: what requests see of a new version, of our pool and of one process; empty where not measured.
        restarts: peers that went away in the middle of a cell, and why.
        failures: what did not run, and why.
    """

    samples: dict[Cell, dict[str, list[Sample]]] = field(default_factory=dict)
    titles: dict[str, str] = field(default_factory=dict)
    footprints: dict[tuple[str, str, str], Footprint] = field(default_factory=dict)
    sharing: Sharing | None = None
    swaps: Sequence[Swaps] = ()
    restarts: list[str] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    def median(self, cell: Cell, name: str) -> Sample | None:
        samples = self.samples.get(cell, {}).get(name)
        return median(samples) if samples else None

    def ratio(self, cell: Cell, ours: str, theirs: str) -> float | None:
        """The median over the rounds of ours / theirs, in answers per second."""
        ratios = [one.rate / other.rate for one, other in self._pairs(cell, ours, theirs) if other.rate]
        return statistics.median(ratios) if ratios else None

    def p99_ratio(self, cell: Cell, ours: str, theirs: str) -> float | None:
        """The same in p99 of the latency."""
        ratios = [one.p99_ms / other.p99_ms for one, other in self._pairs(cell, ours, theirs)]
        return statistics.median(ratios) if ratios else None

    def _pairs(self, cell: Cell, ours: str, theirs: str) -> Iterator[tuple[Sample, Sample]]:
        row = self.samples.get(cell, {})
        return zip(row.get(ours, []), row.get(theirs, []), strict=False)


@dataclass(frozen=True, slots=True)
class Pair:
    """Two that are loaded at one rate: a part of what the second one can."""

    ours: str
    theirs: str


PAIRS = (Pair("mpspool", "triton"), Pair("mpspool_batch", "triton_batch"))
STEADY = 0.7
_STEADY_S = 5.0


@dataclass(frozen=True, slots=True)
class Plan:
    """What to run.

    Attributes:
        batches: of these, each model has those it is measured with.
        repeat: rounds.
        seconds: of load in each cell and round.
        load_cpus: processors of the load's own; none: any.
    """

    models: Sequence[str]
    batches: Sequence[int]
    concurrency: Sequence[int]
    seconds: float
    repeat: int
    load_cpus: Processors = ()


def run_part(
    part: str, peers: Sequence[Peer], plan: Plan, results: Results, run: Run, *, limit: bool
) -> None:
    """Measures the peers, and the in-process limit too where `limit`; adds to the results as it goes.

    Raises:
        BenchError: there is not enough memory for all of them.
    """
    for model in plan.models:
        contenders: list[Contender] = [Server(peer, model, run) for peer in peers]
        if limit:
            contenders.append(InProcess(model, run))
        batches = [batch for batch in MODELS[model].batches if batch in plan.batches]
        if not batches:
            continue
        _check_memory(len(contenders))
        cells = [Cell(part, model, *pair) for pair in itertools.product(batches, plan.concurrency)]
        with ExitStack() as stack:
            up = list(_started(contenders, stack, model, results))
            measure.wait_until_quiet(limit_s=15.0)
            _rounds(up, cells, plan, results)
            if part == "pool":
                _steady(up, model, batches, plan, results)
            for one in up:
                results.footprints[part, model, one.name] = Footprint(one.ready_s, one.memory())


def _check_memory(servers: int) -> None:
    available = psutil.virtual_memory().available
    if available < servers * _SERVER_BYTES:
        raise BenchError(
            f"{servers} servers side by side may take {servers * _SERVER_BYTES / 1e9:.0f} GB and "
            f"{available / 1e9:.0f} GB are available: choose fewer with --peers"
        )


def _started(
    contenders: Iterable[Contender], stack: ExitStack, model: str, results: Results
) -> Iterator[Contender]:
    """Starts one after another; one that does not start is noted and left out."""
    for contender in contenders:
        results.titles[contender.name] = contender.title
        try:
            stack.enter_context(contender)
        except _FAILURES as error:
            _note(results.failures, f"{contender.title}, {model}, did not start: {error}")
            continue
        print(f"bench: {contender.title} serves {model} after {contender.ready_s:.1f} s", flush=True)
        yield contender


def _rounds(contenders: list[Contender], cells: Sequence[Cell], plan: Plan, results: Results) -> None:
    for turn, cell in itertools.product(range(plan.repeat), cells):
        row = results.samples.setdefault(cell, {})
        first = turn % max(1, len(contenders))
        for one in [*contenders[first:], *contenders[:first]]:
            if isinstance(one, InProcess) and cell.concurrency != max(plan.concurrency):
                continue
            try:
                sample = _sample(one, cell, plan.seconds, results)
            except _FAILURES as error:
                _note(results.failures, f"{one.title}, {cell}: {error}")
                contenders.remove(one)  # its samples must stay those of the first rounds
                continue
            row.setdefault(one.name, []).append(sample)
            print(_line(turn, cell, one, sample), flush=True)


def _steady(
    contenders: list[Contender], model: str, batches: Sequence[int], plan: Plan, results: Results
) -> None:
    """Latencies of both of a pair at the same rate, which neither of them should find hard."""
    up = {one.name: one for one in contenders}
    highest = max(plan.concurrency)
    for turn, batch, pair in itertools.product(range(plan.repeat), batches, PAIRS):
        capacity = results.median(Cell("pool", model, batch, highest), pair.theirs)
        if pair.ours not in up or pair.theirs not in up or capacity is None:
            continue
        cell = Cell("steady", model, batch, highest)
        found: dict[str, Sample] = {}
        for name in (pair.ours, pair.theirs):
            try:
                found[name] = _sample(up[name], cell, _STEADY_S, results, STEADY * capacity.rate)
            except _FAILURES as error:
                _note(results.failures, f"{up[name].title}, {cell}: {error}")
                break  # the samples of both must stay those of the same rounds
            print(_line(turn, cell, up[name], found[name]), flush=True)
        else:
            for name, sample in found.items():
                results.samples.setdefault(cell, {}).setdefault(name, []).append(sample)


def _sample(one: Contender, cell: Cell, seconds: float, results: Results, rate: float = 0.0) -> Sample:
    """A peer that goes away is started again, once in a cell; ours is not, for it must not."""
    try:
        return one.measure(cell.batch, cell.concurrency, seconds, rate)
    except _FAILURES as error:
        if one.name not in FOREIGN:
            raise
        _note(results.restarts, f"{one.title}, {cell}: {error}")
    one.__exit__()
    one.__enter__()
    return one.measure(cell.batch, cell.concurrency, seconds, rate)


def _line(turn: int, cell: Cell, one: Contender, sample: Sample) -> str:
    return (
        f"{turn + 1} {cell.model:13} b{cell.batch:<3} c{cell.concurrency:<2} {one.title:24}"
        f" {sample.rate:8.0f}/s  p50 {sample.p50_ms:7.2f}  p99 {sample.p99_ms:7.2f} ms"
        f"  cpu {sample.cpu_s_per_1000:7.3f} s/1000  cores {sample.server_cores:.2f}"
        f" + client {sample.client_cores:.2f} + foreign {sample.foreign_cores:.2f}"
    )


def _note(notes: list[str], failure: str) -> None:
    notes.append(failure)
    print(f"bench: {failure}", file=sys.stderr, flush=True)
