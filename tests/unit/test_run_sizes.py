"""When calls that can share a run are made two runs: learned from what they take, at little cost."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable

import pytest

from mpspool.worker import run_sizes
from mpspool.worker.run_sizes import RunSizes

ROWS = 1024
MS = 1_000_000
# Long enough for whatever is to be found out.
FOUND_OUT = 450


def go_on(sizes: RunSizes, count: int, taken_ns: Callable[[bool], float]) -> list[bool]:
    """So many runs; whether each was made two."""
    made = []
    for _ in range(count):
        halved = sizes.halves("kind", ROWS)
        sizes.observe("kind", ROWS, int(taken_ns(halved)), halved=halved)
        made.append(halved)
    return made


def steady(one_ns: float, two_ns: float) -> Callable[[bool], float]:
    return lambda halved: two_ns if halved else one_ns


def test_two_that_are_sooner_become_the_rule() -> None:
    """And one again when that is sooner."""
    sizes = RunSizes()
    made = go_on(sizes, 5000, steady(4 * MS, 3.6 * MS))
    assert not any(made[:32])
    assert sum(made[FOUND_OUT:]) > 0.95 * len(made[FOUND_OUT:])
    made = go_on(sizes, 20_000, steady(4 * MS, 4.8 * MS))
    assert sum(made[-5000:]) < 0.05 * 5000


@pytest.mark.parametrize("longer", [1.02, 1.1, 1.25, 1.4, 2.0, 10.0])
def test_trials_cost_little(longer: float) -> None:
    """However much longer two take, from the first run on."""
    made = go_on(RunSizes(), 100_000, steady(4 * MS, longer * 4 * MS))
    assert 0 < sum(made) * (longer - 1) < 0.01 * len(made)


@pytest.mark.parametrize("two", [0.95, 1.0, 1.05])
def test_trials_get_seldom(two: float) -> None:
    """Also where they cost nothing by what is known, for any change does."""
    made = go_on(RunSizes(), 100_000, steady(4 * MS, two * 4 * MS))
    assert sum(one != other for one, other in itertools.pairwise(made[50_000:])) < 100


def test_a_trial_that_goes_badly_ends_early() -> None:
    """Three of eight runs, for a model that takes twice as long so."""
    assert sum(go_on(RunSizes(), FOUND_OUT, steady(4 * MS, 8 * MS))) == 24


@pytest.mark.parametrize("halved", [False, True])
@pytest.mark.parametrize("two", [0.9, 1.1])
def test_the_first_run_of_either_does_not_count(two: float, halved: bool) -> None:
    """A kernel may be compiled in it, and take a hundred times as long."""
    seen = set()

    def taken_ns(this: bool) -> float:
        first = this == halved and this not in seen
        seen.add(this)
        return 4 * MS * (two if this else 1.0) * (100 if first else 1)

    made = go_on(RunSizes(), 5000, taken_ns)
    right = sum(one == (two < 1) for one in made[FOUND_OUT:])
    assert right > 0.85 * len(made[FOUND_OUT:])


def test_who_asks_is_told_once() -> None:
    """When the rule has changed."""
    sizes = RunSizes()
    told = []
    for two in (0.9, 1.2):
        for _ in range(20_000):
            halved = sizes.halves("kind", ROWS)
            told.append(sizes.observe("kind", ROWS, int(4 * MS * (two if halved else 1)), halved=halved))
    assert sum(told) == 2


def test_short_runs_stay_one() -> None:
    """Nothing is tried of runs that take less than a millisecond; of those that have come to take longer it is, and two may take less."""
    sizes = RunSizes()
    assert not any(go_on(sizes, FOUND_OUT, steady(0.9 * MS, 0.1 * MS)))
    assert any(go_on(sizes, FOUND_OUT, steady(2 * MS, 0.5 * MS)))
    assert all(go_on(sizes, 50, steady(2 * MS, 0.5 * MS)))


@pytest.mark.parametrize(("two", "rule"), [(0.9, True), (1.1, False)])
def test_it_is_found_out_in_noise(two: float, rule: bool) -> None:
    """Where a run takes a fifth more or less by chance, a few stall, and the machine's speed moves by a third."""
    chance = random.Random(7)
    speed = 1.0

    def taken_ns(halved: bool) -> float:
        nonlocal speed
        speed = min(max(speed + chance.gauss(0, 0.01), 0.85), 1.15)
        stall = 20.0 if chance.random() < 0.005 else 1.0
        return 4 * MS * (two if halved else 1.0) * speed * chance.uniform(0.8, 1.2) * stall

    made = go_on(RunSizes(), 20_000, taken_ns)
    right = sum(halved == rule for halved in made[2000:])
    assert right > 0.9 * len(made[2000:])


def test_what_follows_a_change_does_not_count() -> None:
    """Two are sooner, but for the first sixteen runs after a change, while what memory holds is the other way's."""
    before, since = False, 0

    def taken_ns(halved: bool) -> float:
        nonlocal before, since
        since = since + 1 if halved == before else 0
        before = halved
        return (3.6 if halved else 4.0) * MS * (1.3 if since < 16 else 1.0)

    made = go_on(RunSizes(), 5000, taken_ns)
    assert sum(made[FOUND_OUT:]) > 0.9 * len(made[FOUND_OUT:])


def test_kinds_and_sizes_are_apart() -> None:
    """What holds for one does not for another, nor for half as many rows."""
    sizes = RunSizes()
    go_on(sizes, FOUND_OUT, steady(4 * MS, 3 * MS))
    assert sizes.halves("kind", ROWS + 1)
    assert not sizes.halves("kind", ROWS // 2)
    assert not sizes.halves("another", ROWS)


def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """By what was seen last: kinds that are asked for once do not push out one that is always asked for."""
    monkeypatch.setattr(run_sizes, "_MAX_SIZES", 3)
    sizes = RunSizes()
    go_on(sizes, FOUND_OUT, steady(4 * MS, 3 * MS))
    for kind in range(10):
        sizes.observe(kind, ROWS, 4 * MS, halved=False)
        assert all(go_on(sizes, 1, steady(4 * MS, 3 * MS)))
    for kind in range(3):
        sizes.observe(kind, ROWS, 4 * MS, halved=False)
    assert not sizes.halves("kind", ROWS)
