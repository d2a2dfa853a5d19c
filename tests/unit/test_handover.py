"""The end of a pool process that another follows: who is answered first."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from mpspool.supervisor.pool.handover import Handover

# Nothing here lasts as long.
_LONG_S = 30.0


async def _ends(handover: Handover, within_s: float = _LONG_S) -> bool:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(within_s):
            await handover.wait()
            return True
    return False


async def _answered_first() -> None:
    handover = Handover(_LONG_S)
    with handover.asking():
        with handover.ordering():
            handover.begin()
            assert handover.is_under_way
            assert not await _ends(handover, 0.1)
        assert not await _ends(handover, 0.1)
    assert await _ends(handover)
    assert handover.is_followed


def test_it_ends_once_orders_and_whoever_asked_are_answered() -> None:
    asyncio.run(_answered_first())


async def _beside_one_that_hangs(*, begun_before_s: float) -> None:
    handover = Handover(patience_s=0.5)
    with handover.ordering():
        assert not await _ends(handover, begun_before_s)
        handover.begin()
        assert not await _ends(handover, 0.1)
        assert await _ends(handover)


@pytest.mark.parametrize("begun_before_s", [0.0, 0.6])
def test_an_order_that_hangs_does_not_hold_it_up(begun_before_s: float) -> None:
    """Patience begins with the handover."""
    asyncio.run(_beside_one_that_hangs(begun_before_s=begun_before_s))


async def _asked_for_long() -> None:
    handover = Handover(patience_s=0.05)
    with handover.asking():
        handover.begin()
        assert not await _ends(handover, 0.3)
    assert await _ends(handover)


def test_whoever_asked_for_it_is_waited_for_however_long_it_takes() -> None:
    asyncio.run(_asked_for_long())


async def _refused() -> None:
    handover = Handover(_LONG_S)
    with contextlib.suppress(KeyError), handover.ordering():
        handover.begin()
        {}["a model"]
    assert await _ends(handover)


def test_an_order_that_fails_is_over_too() -> None:
    asyncio.run(_refused())


async def _for_good(*, begun: bool) -> None:
    handover = Handover(_LONG_S)
    with handover.ordering():
        if begun:
            handover.begin()
        handover.end()
        assert await _ends(handover)
    assert not handover.is_followed


@pytest.mark.parametrize("begun", [False, True])
def test_nobody_follows_one_that_is_ended(begun: bool) -> None:
    """Whose order hangs is not waited for either."""
    asyncio.run(_for_good(begun=begun))
