"""The benchmark's rounds: who goes away is started again or left out, and samples stay in their rounds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

import pytest

from bench import measure, report, suite
from bench.cell import Sample
from bench.environments import BenchError
from bench.suite import Cell, Contender, Plan, Results

CELL = Cell("pool", "half_plus_two", 1, 32)
STEADY_CELL = Cell("steady", "half_plus_two", 1, 32)
PLAN = Plan(["half_plus_two"], [1], [32], 1.0, 3)


class Scripted:
    """Answers at these rates in turn; at None it has gone, until it is entered again."""

    title = "a title"
    ready_s = 0.0

    def __init__(
        self, name: str, rates: Sequence[float | None], p99_ms: float = 1.0, asked: list[float] | None = None
    ) -> None:
        self.name = name
        self._rates = list(rates)
        self._p99_ms = p99_ms
        self.asked = [] if asked is None else asked
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
        self.asked.append(rate)
        rate = self._rates.pop(0)
        if rate is None:
            raise BenchError("its server ended with status -11")
        return Sample(rate, 1.0, self._p99_ms, 1.0, 1.0, 1.0, 0.0)


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


def steady(ours: Scripted, theirs: Scripted) -> Results:
    """What comes of three rounds of 70 % of the 100 answers a second that the other can, and the report's lines of both."""
    results = Results(titles={"mpspool": "ours", "triton": "Triton"})
    results.samples[CELL] = {"triton": [Sample(100.0, *[1.0] * 5, 0.0)] * 3}
    suite._steady([ours, theirs], "half_plus_two", [1], PLAN, results)
    return results


@pytest.mark.parametrize(("p99_ms", "said"), [(4.0, "0.80 | reached"), (6.0, "1.20 | not reached")])
def test_latencies_at_one_rate(p99_ms: float, said: str) -> None:
    """Both are sent 70 % of what the other can; the verdict is by the ratio of the two."""
    ours, theirs = Scripted("mpspool", [70.0] * 3, p99_ms), Scripted("triton", [70.0] * 3, 5.0)
    lines = list(report._steady_table(steady(ours, theirs)))
    assert ours.asked == theirs.asked == [pytest.approx(70.0)] * 3
    assert said in lines[-1]


def test_latencies_of_a_round_in_which_one_failed_are_not_compared() -> None:
    """Nor with those of another round."""
    ours = Scripted("mpspool", [70.0, None, 70.0])
    results = steady(ours, Scripted("triton", [70.0] * 3))
    assert {name: len(found) for name, found in results.samples[STEADY_CELL].items()} == {
        "mpspool": 2,
        "triton": 2,
    }
    assert len(results.failures) == 1


@pytest.mark.parametrize(("rate", "verdict"), [(199.0, "not reached"), (201.0, "reached")])
def test_targets(rate: float, verdict: str) -> None:
    """A target is judged by the median of its rounds' ratios; what was not measured has no line."""
    results = Results(titles={"mpspool": "ours", "triton": "Triton"})
    suite._rounds(
        [Scripted("mpspool", [rate, 1.0, 900.0]), Scripted("triton", [100.0] * 3)], [CELL], PLAN, results
    )
    (line,) = [line for line in report.target_lines(results) if "against" in line]
    assert "half_plus_two, batch 1 | ours against Triton" in line
    assert line.endswith(f"| {verdict} |")
