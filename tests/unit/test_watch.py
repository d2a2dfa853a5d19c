"""The streaming op of the control sockets: what watchers of a changing answer are sent."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from mpspool.core import control
from mpspool.core.control import Message, Watch


@pytest.fixture(autouse=True)
def _only_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    """No answer for the sake of the time that has passed."""
    monkeypatch.setattr(control, "_WATCH_MIN_S", 0.01)
    monkeypatch.setattr(control, "_WATCH_MAX_S", 60.0)


class Counter:
    """Something that changes. `during` makes it change once more while it answers."""

    def __init__(self) -> None:
        self.value = 0
        self.during = False
        self.watch = Watch(self.answer)

    def change(self) -> None:
        self.value += 1
        self.watch.changed()

    async def answer(self, _request: Message) -> Message:
        answer = {"value": self.value}
        if self.during:
            self.during = False
            self.change()
        return answer


def test_every_watcher_hears_of_changes_once() -> None:
    """Two watchers get the answer at once and again after a change; changes close together are one."""

    async def scenario() -> None:
        counter = Counter()
        async with (
            contextlib.aclosing(counter.watch({})) as one,
            contextlib.aclosing(counter.watch({})) as two,
        ):
            assert [await anext(one), await anext(two)] == [{"value": 0}] * 2
            for value in (2, 4, 6):
                counter.change()
                counter.change()
                async with asyncio.timeout(10):
                    assert await asyncio.gather(anext(one), anext(two)) == [{"value": value}] * 2
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.1):
                    await anext(one)

    asyncio.run(scenario())


def test_a_change_while_the_answer_is_made_is_not_lost() -> None:
    """It makes another answer."""

    async def scenario() -> None:
        counter = Counter()
        counter.during = True
        async with contextlib.aclosing(counter.watch({})) as answers, asyncio.timeout(10):
            assert await anext(answers) == {"value": 0}
            assert await anext(answers) == {"value": 1}

    asyncio.run(scenario())


def test_time_alone_makes_an_answer_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a change the same is said again, so that counters move."""
    monkeypatch.setattr(control, "_WATCH_MAX_S", 0.01)

    async def scenario() -> None:
        answers = Counter().watch({})
        async with asyncio.timeout(10):
            assert [await anext(answers) for _ in range(3)] == [{"value": 0}] * 3

    asyncio.run(scenario())


def test_a_watcher_ends_that_is_told_to_in_the_moment_of_a_change(monkeypatch: pytest.MonkeyPatch) -> None:
    """The end wins: a watcher that went on would keep its server from closing."""
    monkeypatch.setattr(control, "_WATCH_MIN_S", 0)

    async def scenario() -> None:
        counter = Counter()
        answered = asyncio.Event()

        async def watch() -> None:
            async for _ in counter.watch({}):
                answered.set()

        watcher = asyncio.create_task(watch())
        await answered.wait()
        for _ in range(10):
            await asyncio.sleep(0)  # it waits for a change
        counter.change()
        await asyncio.sleep(0)  # it has been woken, and has not run yet
        watcher.cancel()
        done, _ = await asyncio.wait([watcher], timeout=10)
        assert done

    asyncio.run(scenario())
