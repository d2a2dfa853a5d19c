"""The ring of what ran where and when."""

from __future__ import annotations

import base64
from array import array
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from mpspool.router.task_log import TaskLog

CODES = {"worker": "H", "began_ns": "Q", "took_us": "I", "requests": "H"}
tasks = st.tuples(st.sampled_from("abc"), st.integers(0, 2**63), st.integers(0, 2**40), st.integers(1, 10**6))


def read(log: TaskLog) -> list[tuple[Any, ...]]:
    told = log.read()
    columns = {name: array(code, base64.b64decode(told[name])) for name, code in CODES.items()}
    names = [told["workers"][number] for number in columns["worker"]]
    return list(zip(names, columns["began_ns"], columns["took_us"], columns["requests"], strict=True))


@given(st.lists(tasks, max_size=20), st.integers(1, 8))
def test_the_last_ones_are_told_in_order(added: list[tuple[str, int, int, int]], size: int) -> None:
    """As many as it holds; what does not fit its columns is told as the most that does."""
    log = TaskLog(size)
    for task in added:
        log.add(*task)
    kept = [(who, began, min(took, 2**32 - 1), min(n, 2**16 - 1)) for who, began, took, n in added[-size:]]
    assert read(log) == kept


def test_workers_without_end_do_not_fill_it() -> None:
    """More places than a column can number begin it anew."""
    log = TaskLog(4)
    for number in range(70_000):
        log.add(str(number), number, 1, 1)
    assert [task[0] for task in read(log)] == [str(number) for number in range(69_996, 70_000)]
