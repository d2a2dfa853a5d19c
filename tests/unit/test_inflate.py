"""Compressed messages: what they are about is known from their beginning, and whose bytes they become."""

from __future__ import annotations

import asyncio
import gzip
import random
import zlib
from types import SimpleNamespace
from typing import Any

import pytest

from mpspool.core.errors import PoolError
from mpspool.router.fronts import inflate as inflate_module
from mpspool.router.fronts.inflate import begin, inflate
from mpspool.router.memory import Memory


def test_a_message_says_at_once_how_it_begins() -> None:
    """Some KiB of it, however much follows; nothing where it is not of that format."""
    plain = bytes(range(256)) * 1000
    assert begin(gzip.compress(plain)[:1000], "gzip") == plain[:4096]
    assert begin(gzip.compress(b"short"), "gzip") == b"short"
    assert begin(b"no gzip", "gzip") == b""


def test_what_is_inflated_counts_for_its_model() -> None:
    """From the first step on: a small message that becomes a large one takes nothing from other models."""
    memory = Memory(2**30)
    memory.limits = {"m": 2**22, "other": 2**29}
    message = gzip.compress(bytes(2**24))
    admission = memory.admit(len(message), "m")
    with pytest.raises(
        PoolError, match=f"The request has {2**22 + len(message)} bytes and max_queued_bytes for m is {2**22}"
    ):
        asyncio.run(inflate(message, "gzip", 2**30, admission))
    assert memory.used == admission.size == 3 * 2**20 + len(message)
    admission.release()
    assert memory.used == 0


@pytest.mark.parametrize("size", [0, 1, 2**18, 3 * 2**20 + 5])
@pytest.mark.parametrize("repeats", [1, 50])
def test_a_message_is_inflated_in_pieces(monkeypatch: pytest.MonkeyPatch, size: int, repeats: int) -> None:
    """Whatever it is of, and the library is never given so much that what it leaves of that is long to copy."""
    plain = random.Random(size).randbytes(size) * repeats
    given = []

    class Inflater:
        def __init__(self, bits: int) -> None:
            self._inflater = zlib.decompressobj(bits)

        def __getattr__(self, name: str) -> Any:
            return getattr(self._inflater, name)

        def decompress(self, data: bytes, most: int) -> bytes:
            given.append(len(data))
            return self._inflater.decompress(data, most)

    message = gzip.compress(plain, 1)
    monkeypatch.setattr(inflate_module, "zlib", SimpleNamespace(decompressobj=Inflater, error=zlib.error))
    admission = Memory(2**30).admit(len(message))
    assert asyncio.run(inflate(message, "gzip", 2**30, admission)) == plain
    assert max(given) <= 2**18
    for broken in (message[:-1], message + b"x"):
        with pytest.raises(PoolError, match=r"cut off|past its end"):
            asyncio.run(inflate(broken, "gzip", 2**30, admission))


def test_what_yields_nothing_does_not_hold_up_others() -> None:
    """A megabyte of empty blocks: others have their turns meanwhile."""
    squeezer = zlib.compressobj()
    body = squeezer.compress(b"end") + squeezer.flush(zlib.Z_SYNC_FLUSH)
    body += b"\x00\x00\x00\xff\xff" * (2**20 // 5) + squeezer.flush()
    turns = []

    async def count() -> None:
        while True:
            turns.append(1)
            await asyncio.sleep(0)

    async def both() -> bytes:
        counting = asyncio.ensure_future(count())
        found = await inflate(body, "deflate", 2**20, Memory(2**30).admit(len(body), "m"))
        counting.cancel()
        return found

    assert asyncio.run(both()) == b"end"
    assert len(turns) >= 10
