"""Who makes way where bytes are short."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from mpspool.core.errors import Lack, PoolError
from mpspool.router.memory import Admission, Memory
from mpspool.router.relief import Holders


class Message:
    """One that was admitted, and comes as it is told."""

    def __init__(self, memory: Memory, size: int, come: int, model: str | None = "") -> None:
        self.size = size
        self.come = come
        self.gone = False
        self.admission: Admission = memory.admit(size, model)
        memory.coming.watch(self)

    def holds(self, model: str | None) -> int:
        return self.admission.held(model)

    def moved(self) -> int:
        return self.come

    def missing(self) -> int:
        return self.size - self.come

    def make_way(self) -> None:
        self.gone = True
        self.admission.release()


class Answer:
    """One that waits for its client, which takes as it is told."""

    def __init__(self, memory: Memory, size: int, client: str | None = None) -> None:
        self.size = size
        self.taken = 0
        self.gone = False
        self._memory = memory
        self._client = client
        memory.check_answer(size, None, client)
        memory.hold(size, client=client)
        memory.waiting.watch(self)

    def holds(self, model: str | None) -> int:
        return self.size if model is None else 0

    def moved(self) -> int:
        return self.taken

    def missing(self) -> int:
        return 0

    def make_way(self) -> None:
        self.gone = True
        self._memory.hold(-self.size, client=self._client)
        self.size = 0


def go_on(memory: Memory, *steps: Callable[[], None], ticks: int = 3) -> None:
    for _ in range(ticks):
        for step in steps:
            step()
        memory.tick()


def test_a_message_that_has_hardly_begun_makes_way_at_once() -> None:
    """For what is much smaller than the rest of it, as often as somebody announces another."""
    memory = Memory(100_000)
    for _ in range(5):
        large = Message(memory, 99_990, 5000)
        memory.admit(34).release()
        assert large.gone
        memory.coming.forget(large)
    assert memory.used == 0


def test_it_does_not_for_what_is_as_large() -> None:
    """Those who flood with large ones do not end each other's, and none is lost that is half there."""
    memory = Memory(100_000)
    begun, half = Message(memory, 50_000, 5000), Message(memory, 50_000, 25_000)
    with pytest.raises(PoolError, match="Requests and answers hold 100000 of 100000 bytes") as refused:
        memory.admit(50_000)
    assert refused.value.lack is Lack.BYTES
    memory.admit(4000)
    assert (begun.gone, half.gone) == (True, False)


def test_a_message_that_stops_makes_way_and_a_slow_one_does_not() -> None:
    """After three ticks with too little; the largest first, and no more than are needed."""
    memory = Memory(200_000)
    small, large = Message(memory, 30_000, 20_000), Message(memory, 60_000, 30_000)
    slow = Message(memory, 100_000, 50_000)

    def trickle() -> None:
        slow.come += 200

    go_on(memory, trickle, ticks=2)
    with pytest.raises(PoolError):
        memory.admit(50_000)
    go_on(memory, trickle, ticks=1)
    memory.admit(50_000)
    assert (small.gone, large.gone, slow.gone) == (False, True, False)
    with pytest.raises(PoolError):
        memory.admit(60_000)
    assert (small.gone, slow.gone) == (True, False)


def test_nobody_does_while_there_is_room() -> None:
    """However long one brings, or takes, nothing."""
    memory = Memory(100)
    message, answer = Message(memory, 50, 1), Answer(memory, 20)
    go_on(memory, ticks=50)
    memory.admit(30)
    memory.check_answer(30, None, None)
    assert (message.gone, answer.gone) == (False, False)


def test_a_model_that_has_all_of_its_own_has_its_own_make_way() -> None:
    """What others hold would not help."""
    memory = Memory(200_000)
    memory.limits = {"a": 50_000, "b": 100_000}
    mine, other = Message(memory, 45_000, 30_000, "a"), Message(memory, 90_000, 50_000, "b")
    go_on(memory)
    memory.admit(40_000, "a")
    assert (mine.gone, other.gone) == (True, False)


def test_what_could_never_fit_ends_nobody() -> None:
    """It is refused for its own size."""
    memory = Memory(100)
    memory.limits = {"a": 40}
    message = Message(memory, 90, 50)
    go_on(memory)
    for size, model in ((101, "b"), (41, "a")):
        with pytest.raises(PoolError):
            memory.admit(size, model)
    assert not message.gone


def test_answers_that_nobody_takes_make_way_for_others() -> None:
    """As few as it needs; one that is taken slowly, and one that was counted and is gone by now, end nobody."""
    memory = Memory(400_000)
    stuck, slow, larger = Answer(memory, 60_000), Answer(memory, 70_000), Answer(memory, 90_000)

    def take() -> None:
        slow.taken += 200

    with pytest.raises(PoolError, match="hold 220000 of 200000 bytes"):
        memory.check_answer(1000, None, None)
    go_on(memory, take)
    memory.check_answer(1000, None, None)
    assert (stuck.gone, slow.gone, larger.gone) == (False, False, True)
    assert memory.used == 130_000


def test_answers_make_way_for_requests_too() -> None:
    """When no message does."""
    memory = Memory(100)
    answer = Answer(memory, 50)
    running = memory.admit(50)
    go_on(memory)
    memory.admit(10)
    assert answer.gone
    running.release()


def test_a_look_that_takes_long_is_not_taken_again_at_once() -> None:
    """Of all time no more than a tenth: who has thousands hold bytes does not have others wait for that."""
    now = [0.0]
    holders = Holders(lambda: now[0])
    looks = []

    class Slow(Message):
        def holds(self, model: str | None) -> int:
            looks.append(now[0])
            now[0] += 0.01
            return super().holds(model)

    memory = Memory(1000)
    message = Slow(memory, 1000, 10)
    holders.watch(message)
    assert holders.idle(None, 10) == [message]
    assert holders.idle(None, 10) == []
    now[0] = 0.101
    assert holders.idle(None, 10) == [message]
    assert len(looks) == 2


def test_what_grows_finds_room_as_well() -> None:
    """A body whose length nobody has said."""
    memory = Memory(100_000)
    large, growing = Message(memory, 90_000, 4096), memory.admit(100)
    growing.grow(10_000)
    assert large.gone
    assert memory.used == growing.size == 10_100
