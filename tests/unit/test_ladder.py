"""How workers are ended: whatever they do, no MPS server is harmed by it."""

from __future__ import annotations

import enum

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpspool.mps.simulated.shares import Share
from mpspool.mps.simulated.state import Rebuild, ServerState, ServerStatus
from mpspool.supervisor.pool import ladder
from mpspool.supervisor.pool.ladder import Ladder, Step

LADDERS = {"leaving": ladder.leaving(10.0), "hung": ladder.HUNG, "lost": ladder.LOST}


class Habit(enum.Enum):
    """What a worker does when it is asked to leave."""

    GOES = "finishes its work and goes"
    STAYS = "works on and does not hear"
    CRASHES = "dies of what it runs while it is cut off"


class World:
    """One server, its clients and what becomes of them; each worker is its pid and its context's number."""

    def __init__(self, busy: list[bool], faulted: bool) -> None:
        self.server = ServerState(1)
        self.server.ready()
        self.alive = set(range(len(busy)))
        for number, works in enumerate(busy):
            self.server.attach(number, number, Share())
            if works:
                self.server.hear(number, "BUSY")
        if faulted:
            self.server.fault()

    def gone(self, number: int) -> None:
        """Its process has ended: the kernel closes what it had open."""
        self.alive.discard(number)
        if number in self.server.clients and any(
            isinstance(order, Rebuild) for order in self.server.left(number)
        ):
            self.server.ready()

    def step(self, step: Step, habits: list[Habit]) -> None:
        for number in sorted(self.alive):
            client = self.server.clients.get(number)
            if step is Step.LEAVE and habits[number] is Habit.GOES:
                if client is not None and client.running:
                    self.server.hear(number, "IDLE")
                self.gone(number)
            elif step is Step.CUT_OFF:
                if any(isinstance(order, Rebuild) for order in self.server.terminate(number)):
                    self.server.ready()
                if habits[number] is Habit.CRASHES:
                    self.gone(number)
            elif step is Step.KILL:
                self.gone(number)


@given(
    st.sampled_from(sorted(LADDERS)),
    st.lists(st.tuples(st.booleans(), st.sampled_from(Habit)), min_size=1, max_size=6),
    st.booleans(),
    st.data(),
)
def test_nobody_is_shot_while_busy(
    name: str, workers: list[tuple[bool, Habit]], faulted: bool, data: st.DataObject
) -> None:
    """The server is ACTIVE afterwards, or comes back by itself, with those that were not to be ended unharmed."""
    world = World([busy for busy, _ in workers], faulted)
    habits = [habit for _, habit in workers]
    chosen = set(range(len(workers)))
    if not faulted:  # else all of them have to go
        chosen = set(data.draw(st.lists(st.sampled_from(sorted(chosen)), min_size=1, unique=True)))
    others = set(world.alive) - chosen
    for rung in LADDERS[name]:
        world.alive -= others
        world.step(rung.step, habits)
        world.alive |= others
    assert world.alive == others, "whoever was to end has ended"
    assert not world.server.broken
    assert world.server.status is ServerStatus.ACTIVE
    assert set(world.server.clients) == others
    assert not any(world.server.clients[number].hit for number in others)


def test_a_shot_client_breaks_the_server() -> None:
    """What the steps before the last are for: this world would show it."""
    world = World([True, False], faulted=False)
    world.step(Step.KILL, [Habit.STAYS, Habit.STAYS])
    assert world.server.broken


@pytest.mark.parametrize("limit_s", [0.0, 1.0, 30.0, 600.0])
def test_limits(limit_s: float) -> None:
    """The steps take no more than they are given in all, but for the second that a kill needs."""
    steps = ladder.leaving(limit_s)
    assert [rung.step for rung in steps] == [Step.LEAVE, Step.CUT_OFF, Step.KILL]
    assert sum(rung.limit_s for rung in steps) <= limit_s + 1
    assert all(rung.limit_s >= 0 for rung in steps)


@pytest.mark.parametrize("steps", LADDERS.values())
def test_the_kill_is_last_and_never_first(steps: Ladder) -> None:
    assert [rung.step for rung in steps][-2:] == [Step.CUT_OFF, Step.KILL]
