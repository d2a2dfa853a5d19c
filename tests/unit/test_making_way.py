"""Which connection makes way for one more."""

from __future__ import annotations

from collections import Counter
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from mpspool.router.fronts import making_way
from mpspool.router.fronts.making_way import Asking, MakingWay


def in_order(connections: list[Asking[Any]]) -> list[Any]:
    counts = Counter(address for _, address, _, _ in connections)
    return [one for one, *_ in making_way.in_order(connections, counts)]


def test_of_one_address_who_has_asked_nothing_for_the_longest() -> None:
    """And nobody of whom something runs."""
    all_of_x = [
        ("a", "x", 3.0, False),
        ("b", "x", 1.0, False),
        ("c", "x", None, True),
        ("d", "x", 2.0, False),
    ]
    assert in_order(all_of_x) == ["b", "d", "a"]


def test_of_the_address_that_has_most() -> None:
    """As long as it has; those that ask something count as well."""
    many = [(f"m{n}", "many", 10.0 + n, False) for n in range(3)] + [("busy", "many", None, True)]
    few = [("f0", "few", 1.0, False), ("f1", "few", 2.0, False)]
    assert in_order([*few, *many]) == ["m0", "m1", "f0", "m2", "f1"]


def test_who_asks_something_of_which_nothing_runs_comes_last() -> None:
    """However many its address has."""
    asking = [(f"a{n}", "many", float(n), True) for n in range(3)]
    assert in_order([*asking, ("idle", "few", 9.0, False)]) == ["idle", "a0", "a1", "a2"]


@given(st.lists(st.tuples(st.sampled_from("abc"), st.none() | st.floats(0, 9), st.booleans())))
def test_each_is_of_the_address_that_then_has_most_of_those_that_can(drawn) -> None:
    """One after the other, all of whom nothing runs make way; first those that ask nothing."""
    left = [(number, *one) for number, one in enumerate(drawn)]
    for gone in in_order(left):
        can = [one for one in left if one[2] is not None]
        first = [one for one in can if not one[3]] or can
        counts = {address: sum(one[1] == address for one in left) for _, address, _, _ in first}
        chosen = next(one for one in left if one[0] == gone)
        assert counts[chosen[1]] == max(counts.values())
        assert chosen[2] == min(one[2] for one in first if one[1] == chosen[1])
        left.remove(chosen)
    assert all(one[2] is None for one in left)


class Open:
    """Connections, by number in the order in which they came, and their addresses. All ask something, of which for "busy" it runs."""

    def __init__(self, *addresses: str) -> None:
        self.open = dict(enumerate(addresses))
        self._number = len(addresses)
        self._making_way = MakingWay(self._look, self._end, lambda: 0.0)

    def _look(self) -> list[Asking[int]]:
        return [(one, whose, None if whose == "busy" else 0.0, True) for one, whose in self.open.items()]

    def _end(self, one: int) -> bool:
        return self.open.pop(one, "busy") != "busy"

    def joins(self, address: str) -> bool:
        """Whether another of that address does."""
        found = self._making_way.make_room(address)
        if found:
            self.open[self._number] = address
            self._number += 1
        return found

    def count(self, address: str) -> int:
        return list(self.open.values()).count(address)


def test_who_asks_something_makes_way_for_addresses_with_no_more_than_its_own() -> None:
    """Whoever takes all connections for what runs nothing keeps out nobody else; nobody takes away the few that another has."""
    scene = Open(*["many"] * 6)
    assert [scene.joins("few") for _ in range(5)] == [True] * 4 + [False]
    assert scene.count("few") == 4
    assert scene.joins("third")
    scene = Open("busy", "busy", "few")
    assert not scene.joins("busy")
    assert scene.joins("third")


def test_where_all_are_of_one_address_they_make_way_for_their_own() -> None:
    """As clients behind a proxy: those of whom something runs stay."""
    scene = Open(*["x"] * 4)
    assert [scene.joins("x") for _ in range(4)] == [True] * 4
    assert not Open("busy", "busy").joins("busy")


def test_one_that_is_gone_or_has_begun_is_passed_over() -> None:
    """It was found a moment ago; the next makes way instead."""
    scene = Open(*["x"] * 3)
    assert scene.joins("x")
    del scene.open[1]
    assert scene.joins("x")
    assert 2 not in scene.open


def next_at(took_s: float, *times_s: float) -> list[int | None]:
    """Who makes way at these times of 10 connections, of which two ask nothing, where a look takes so long."""
    clock, ended = [0.0], []

    def look() -> list[Asking[int]]:
        clock[0] += took_s
        return [(number, "x", float(number) if number < 2 else None, number >= 2) for number in range(10)]

    def end(one: int) -> bool:
        ended.append(one)
        return True

    one, found = MakingWay(look, end, lambda: clock[0]), []
    for clock[0] in times_s:
        found.append(ended[-1] if one.make_room("x") else None)
    return found


def test_looks_are_few() -> None:
    """Whoever comes in thousands has all looked at for a part of the time, however long that takes."""
    assert next_at(1 / 64, 5.0, 5.02, 5.03, 5.15, 5.16) == [0, 1, None, None, 0]
    assert next_at(1 / 2, 5.0, 5.5, 6.0, 9.9, 10.0) == [0, 1, None, None, 0]
    assert next_at(0.0005, 5.0, 5.0, 5.0, 5.0) == [0, 1, 0, 1]


def test_what_was_found_holds_for_a_second() -> None:
    """Or longer, where it took long to find it."""
    assert next_at(1 / 64, 5.0, 5.9, 6.0) == [0, 1, 0]
    assert next_at(1 / 64, 5.0, 6.0, 6.1) == [0, 0, 1]
    assert next_at(1 / 4, 5.0, 7.4) == [0, 1]
    assert next_at(1 / 4, 5.0, 7.5) == [0, 0]


def test_what_was_not_enough_does_not_hold() -> None:
    """Others may be idle a moment later: they are looked at again, as if nobody had been found."""
    idle: set[str] = set()
    all_of_them = [("x", one) for one in "abc"] + [("y", "watches")]

    def look() -> list[Asking[str]]:
        return [
            (one, whose, 0.0 if one in idle or whose == "y" else None, whose == "y")
            for whose, one in all_of_them
        ]

    making_way = MakingWay(look, lambda _: True, lambda: 0.0)
    assert not making_way.make_room("x")
    idle.add("b")
    assert making_way.make_room("x")


def test_what_holds_no_more_is_not_kept() -> None:
    """They may be gone, and nobody may want room for long."""
    now_s = 0.0
    making_way = MakingWay(lambda: [(one, "x", 0.0, False) for one in "abc"], lambda _: True, lambda: now_s)
    assert making_way.make_room("y")
    making_way.tick()
    assert len(making_way._line) == 2
    now_s = 60.0
    making_way.tick()
    assert not making_way._line
    assert making_way.make_room("y")
