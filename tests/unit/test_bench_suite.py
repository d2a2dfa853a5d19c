"""The benchmark's rounds: who goes away is started again or left out, and samples stay in their rounds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

import pytest

from bench import measure, suite
from bench.cell import Sample
from bench.environments import BenchError
from bench.suite import Cell, Contender, Plan, Results

CELL = Cell("pool", "half_plus_two", 1, 32)
PLAN = Plan(["half_plus_two"], [1], [32], 1.0, 3)


class Scripted:
    """Answers at these rates in turn; at None it has gone, until it is entered again."""

    title = "a title"
    ready_s = 0.0

    def __init__(self, name: str, rates: Sequence[float | None]) -> None:
        self.name = name
        self._rates = list(rates)
        self.up = True

    def __enter__(self) -> Self:
        self.up = True
        return self

    def __exit__(self, *exception: object) -> None:
        self.up = False

    def memory(self) -> measure.Memory:
        raise AssertionError("not asked here")

    def measure(self, batch: int, concurrency: int, seconds: float, rate: float = 0.0) -> Sample:
        assert self.up
        rate = self._rates.pop(0)
        if rate is None:
            raise BenchError("its server ended with status -11")
        return Sample(rate, 1.0, 1.0, 1.0, 1.0, 1.0, 0.0)


def rounds(*contenders: Contender) -> Results:
    results = Results()
    suite._rounds(list(contenders), [CELL], PLAN, results)
    return results


def rates(results: Results, name: str) -> list[float]:
    return [sample.rate for sample in results.samples[CELL].get(name, [])]


def test_a_peer_that_goes_away_is_started_again() -> None:
    """The round it went away in is measured all the same, and the report says that it went."""
    results = rounds(Scripted("triton", [100.0, None, 200.0, 300.0]), Scripted("mpspool", [1.0, 2.0, 3.0]))
    assert rates(results, "triton") == [100.0, 200.0, 300.0]
    assert results.ratio(CELL, "mpspool", "triton") == pytest.approx(0.01)
    assert "status -11" in results.restarts[0]
    assert results.failures == []


def test_a_peer_that_goes_away_again_in_the_same_cell_is_left_out() -> None:
    """What it had before stays, and the run has failed."""
    results = rounds(Scripted("triton", [100.0, None, None]), Scripted("mpspool", [1.0, 2.0, 3.0]))
    assert rates(results, "triton") == [100.0]
    assert rates(results, "mpspool") == [1.0, 2.0, 3.0]
    assert len(results.restarts) == len(results.failures) == 1


def test_ours_that_goes_away_is_a_failure() -> None:
    """It is there to show that it does not."""
    results = rounds(Scripted("mpspool", [1.0, None, 3.0]), Scripted("triton", [100.0, 200.0, 300.0]))
    assert rates(results, "mpspool") == [1.0]
    assert results.restarts == []
    assert len(results.failures) == 1
