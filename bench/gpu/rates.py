"""Answers per second of each setting, in pairs with one process.

One process without MPS is up all the time; every other setting comes up beside it, is measured in turns with it, and
goes. Who is first changes each round; a ratio is between the two loads of one round. What is idle costs the other
nothing but its memory.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import grpc

from bench.environments import BenchError
from bench.gpu.device import Gpu
from bench.gpu.faults import Recovery
from bench.gpu.pool import ONE, GpuSample, Pool, Setting
from bench.guard import Run
from mpspool.core import control

FAILURES = (BenchError, AssertionError, OSError, grpc.RpcError, control.ControlError)
# Requests in flight for each worker: one runs, one is sent, and there is something to choose from.
PER_CONTEXT = 4
_WARM_S = 1.0


@dataclass(frozen=True, slots=True, order=True)
class Load:
    """A closed loop: of so many requests in flight, or 0 for PER_CONTEXT for each worker."""

    concurrency: int

    @property
    def title(self) -> str:
        return f"c{self.concurrency}" if self.concurrency else f"{PER_CONTEXT} a context"

    def on(self, setting: Setting) -> int:
        return self.concurrency or PER_CONTEXT * setting.contexts


@dataclass(frozen=True, slots=True, order=True)
class Cell:
    """One place in the tables."""

    model: str
    batch: int
    load: Load


@dataclass(frozen=True, slots=True)
class Pair:
    """One round: one process, and the setting beside it."""

    one: GpuSample
    it: GpuSample

    @property
    def ratio(self) -> float:
        """Answers per second, by those of one process."""
        return self.it.served.rate / self.one.served.rate if self.one.served.rate else float("nan")


@dataclass(frozen=True, slots=True)
class Plan:
    """What to run.

    Attributes:
        batches: by model.
        loads: the last one is what the targets are about.
        repeat: rounds.
        seconds: of each load.
        merged: each setting once more, with copies on the stream that computes.
    """

    batches: Mapping[str, Sequence[int]]
    contexts: Sequence[int]
    loads: Sequence[Load]
    seconds: float
    repeat: int
    merged: bool = False

    def settings(self) -> list[Setting]:
        """All but one process without MPS, which each is compared with."""
        streams = (False, True) if self.merged else (False,)
        every = [Setting(*each) for each in itertools.product(self.contexts, (False, True), streams)]
        return [setting for setting in every if setting != ONE]


@dataclass(slots=True)
class Results:
    """All that was measured.

    Attributes:
        pairs: by cell and setting, one for each round.
        attached: workers in the client list of their MPS daemon at the end, by model and setting.
        failures: what did not run, and why.
    """

    gpu: Gpu
    pairs: dict[Cell, dict[Setting, list[Pair]]] = field(default_factory=dict)
    attached: dict[tuple[str, Setting], int] = field(default_factory=dict)
    recoveries: list[Recovery] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    def note(self, failure: str) -> None:
        self.failures.append(failure)
        print(f"bench.gpu: {failure}", file=sys.stderr, flush=True)


def measure(plan: Plan, gpu: Gpu, run: Run, results: Results) -> None:
    """Adds to the results as it goes; what fails is noted there."""
    for model, batches in plan.batches.items():
        try:
            with Pool(ONE, model, gpu, run) as one:
                _warm(one, batches, plan)
                for setting in plan.settings():
                    _beside(one, setting, plan, run, results)
        except FAILURES as error:
            results.note(f"{ONE.title}, {model}: {error}")


def _warm(pool: Pool, batches: Sequence[int], plan: Plan) -> None:
    for batch in batches:
        pool.warm(batch, max(load.on(pool.setting) for load in plan.loads), min(_WARM_S, plan.seconds))


def _beside(one: Pool, setting: Setting, plan: Plan, run: Run, results: Results) -> None:
    batches = plan.batches[one.model]
    try:
        with Pool(setting, one.model, one.gpu, run) as it:
            print(
                f"bench.gpu: {setting.title} of {it.model}: answers after {it.ready_s:.1f} s;"
                f" {_attached(it, results)}",
                flush=True,
            )
            _warm(it, batches, plan)
            for turn, batch, load in itertools.product(range(plan.repeat), batches, plan.loads):
                cell = Cell(one.model, batch, load)
                pair = _pair(one, it, cell, plan.seconds, one_first=turn % 2 == 0)
                results.pairs.setdefault(cell, {}).setdefault(setting, []).append(pair)
                print(_line(turn, cell, setting, pair), flush=True)
            _attached(it, results)
    except FAILURES as error:
        results.note(f"{setting.title}, {one.model}: {error}")


def _attached(pool: Pool, results: Results) -> str:
    attached = pool.attached()
    if attached is None:
        return "no MPS"
    results.attached[pool.model, pool.setting] = attached
    return f"{attached} of {pool.setting.contexts} workers in the MPS daemon's client list"


def _pair(one: Pool, it: Pool, cell: Cell, seconds: float, *, one_first: bool) -> Pair:
    order = [one, it] if one_first else [it, one]
    taken = {pool: pool.sample(cell.batch, cell.load.on(pool.setting), seconds) for pool in order}
    return Pair(taken[one], taken[it])


def _line(turn: int, cell: Cell, setting: Setting, pair: Pair) -> str:
    served = pair.it.served
    return (
        f"{turn + 1} {cell.model:9} b{cell.batch:<5} {cell.load.title:11} {setting.title:27}"
        f" {served.rate:8.1f}/s  p50 {served.p50_ms:7.2f}  p99 {served.p99_ms:7.2f} ms"
        f"  {pair.ratio:.2f} x one process ({pair.one.served.rate:.1f}/s)"
    )
