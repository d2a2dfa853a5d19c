"""How long the pool process looks at the workers' memory, and what it tells of those that it did not come to."""

from __future__ import annotations

import asyncio
import time
from types import SimpleNamespace

import pytest

from mpspool.core import process
from mpspool.core.ids import WorkerId
from mpspool.supervisor.pool import measured

PIDS = {WorkerId("m", 1, "cpu0", slot): 100 + slot for slot in range(8)}


@pytest.fixture
def looked_at(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The processes, each of which takes 20 ms by a clock of its own where 50 are to be had; what is found tells how many were before."""
    pids: list[int] = []
    now_s = 0.0

    def memory(pid: int) -> process.Memory | None:
        nonlocal now_s
        time.sleep(0.005)
        now_s += 0.02
        pids.append(pid)
        return process.Memory(len(pids), 0, 0) if pid else None

    monkeypatch.setattr(process, "memory", memory)
    monkeypatch.setattr(measured, "LOOK_S", 0.05)
    monkeypatch.setattr(measured, "time", SimpleNamespace(monotonic=lambda: now_s))
    return pids


def test_a_look_ends_and_the_next_one_goes_on(looked_at: list[int]) -> None:
    """In turns over all workers; what was not come to is as it was."""

    async def scenario() -> None:
        found = measured.Measured()
        first = await found.memory(PIDS)
        assert 0 < len(first) < len(PIDS)
        while len(await found.memory(PIDS)) < len(PIDS):
            pass
        was = len(looked_at)
        assert set(await found.memory(PIDS)) == set(PIDS)
        assert 0 < len(looked_at) - was < len(PIDS)
        turns = list(PIDS.values()) * 3
        assert looked_at == turns[: len(looked_at)]

    asyncio.run(scenario())


def test_a_worker_that_is_another_is_not_told_as_the_former(looked_at: list[int]) -> None:
    """Nor is one that has ended; one that is new comes first."""
    ended, renewed, kept = list(PIDS)[:3]

    async def scenario() -> None:
        found = measured.Measured()
        pids = {ended: 1, renewed: 2, kept: 3}
        while len(await found.memory(pids)) < 3:
            pass
        looked_at.clear()
        told = await found.memory({ended: 0, renewed: 7, kept: 3})
        assert looked_at[:2] == [0, 7]
        assert set(told) == {renewed, kept}

    asyncio.run(scenario())


def test_who_asks_while_it_looks_waits_for_its_end(looked_at: list[int]) -> None:
    """However many they are: commands that have given up, and ask again, do not have everything looked at once each."""

    async def scenario() -> None:
        found = measured.Measured()
        pids = dict(list(PIDS.items())[:1])
        asked = [asyncio.create_task(found.memory(pids)) for _ in range(10)]
        assert [len(one) for one in await asyncio.gather(*asked)] == [1] * 10
        assert len(looked_at) == 1

    asyncio.run(scenario())
