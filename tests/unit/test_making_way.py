"""Which connection makes way for one more."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mpspool.router.fronts.making_way import MakingWay, in_order


def test_of_one_address_who_has_asked_nothing_for_the_longest() -> None:
    """And nobody who asks something."""
    assert in_order([("a", "x", 3.0), ("b", "x", 1.0), ("c", "x", None), ("d", "x", 2.0)]) == ["b", "d", "a"]


def test_of_the_address_that_has_most() -> None:
    """As long as it has; those that ask something count as well."""
    many = [(f"m{n}", "many", 10.0 + n) for n in range(3)] + [("busy", "many", None)]
    few = [("f0", "few", 1.0), ("f1", "few", 2.0)]
    assert in_order([*few, *many]) == ["m0", "m1", "f0", "m2", "f1"]


@given(st.lists(st.tuples(st.sampled_from("abc"), st.none() | st.floats(0, 9))))
def test_each_is_of_the_address_that_then_has_most_of_those_that_can(drawn) -> None:
    """One after the other, all that ask nothing make way."""
    left = [(number, address, since_s) for number, (address, since_s) in enumerate(drawn)]
    for gone in in_order(left):
        idle = [one for one in left if one[2] is not None]
        counts = {address: sum(one[1] == address for one in left) for _, address, _ in idle}
        chosen = next(one for one in left if one[0] == gone)
        assert counts[chosen[1]] == max(counts.values())
        assert chosen[2] == min(one[2] for one in idle if one[1] == chosen[1])
        left.remove(chosen)
    assert all(since_s is None for _, _, since_s in left)


def next_at(took_s: float, *times_s: float) -> list[int | None]:
    """Who makes way at these times of 10 connections, of which two ask nothing, where a look takes so long."""
    clock = [0.0]

    def look() -> list[tuple[int, str, float | None]]:
        clock[0] += took_s
        return [(number, "x", float(number) if number < 2 else None) for number in range(10)]

    one, found = MakingWay(look, lambda: clock[0]), []
    for clock[0] in times_s:
        found.append(one.next())
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
