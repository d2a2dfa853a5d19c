"""The ring of what ran where and when."""

from __future__ import annotations

import base64
import struct
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from mpspool.router.task_log import TaskLog

tasks = st.tuples(st.sampled_from("abc"), st.integers(0, 2**63), st.integers(0, 2**40), st.integers(1, 10**6))


def decoded(part: dict[str, Any]) -> list[tuple[Any, ...]]:
    rows = struct.iter_unpack("=QIHH", base64.b64decode(part["rows"]))
    return [(part["workers"][place], began, took, requests) for began, took, place, requests in rows]


def read(log: TaskLog, since_ns: int = 0, at_most: int = 3) -> list[tuple[Any, ...]]:
    """Its parts, in the order of time."""
    parts = [decoded(part) for part in log.parts(since_ns, at_most)]
    assert all(0 < len(part) <= at_most for part in parts)
    return [task for part in reversed(parts) for task in part]


@given(st.lists(tasks, max_size=20), st.integers(1, 8), st.integers(1, 9))
def test_the_last_ones_are_told_in_order(
    added: list[tuple[str, int, int, int]], size: int, at_most: int
) -> None:
    """As many as it holds, in parts of any size; what does not fit its columns is told as the most that does."""
    log = TaskLog(5, size)
    for task in added:
        log.add(*task)
    kept = [(who, began, min(took, 2**32 - 1), min(n, 2**16 - 1)) for who, began, took, n in added[-size:]]
    assert read(log, at_most=at_most) == kept
    _, began_ns, took_us, _ = kept[0] if kept else ("", 0, 0, 0)
    dropped = {"begins_ns": began_ns + took_us * 1000, "keeps": size}
    assert log.begins() == (dropped if len(added) > size else {"begins_ns": 5, "keeps": 0})


@given(st.integers(0, 30), st.integers(1, 12), st.integers(0, 12), st.integers(1, 5))
def test_what_comes_while_it_is_told_harms_nothing(
    before: int, size: int, between: int, at_most: int
) -> None:
    """What was there first is told once and in order, as far as it is kept; what came since is not told."""
    log = TaskLog(0, size)
    for number in range(before):
        log.add("a", number, 1, 1)
    told: list[int] = []
    for part in log.parts(0, at_most):
        told = [task[1] for task in decoded(part)] + told
        for number in range(between):
            log.add("b", 1000 + number, 1, 1)
    assert told == list(range(before - len(told), before))
    assert len(told) >= min(before, size, at_most)


def test_no_more_is_told_than_was_asked_for() -> None:
    """It stops at the first part that begins well before that time."""
    log = TaskLog(0, 100)
    for second in range(100):
        log.add("a", second * 10**9, 1, 1)
    found = read(log, since_ns=90 * 10**9, at_most=4)
    assert [began for _, began, _, _ in found] == [second * 10**9 for second in range(88, 100)]


def test_workers_without_end_do_not_fill_it() -> None:
    """More places than a column can number begin it anew, and it says from when on."""
    log = TaskLog(0, 4)
    for number in range(65_536):
        log.add(str(number), number, 1, 1)
    assert read(log) == [("65535", 65_535, 1, 1)]
    assert log.begins() == {"begins_ns": 65_535 + 1000, "keeps": 0}
    for number in range(65_536, 70_000):
        log.add(str(number), number, 1, 1)
    assert [task[0] for task in read(log)] == [str(number) for number in range(69_996, 70_000)]
