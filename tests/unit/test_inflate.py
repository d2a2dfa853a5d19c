"""Compressed messages: what they are about is known from their beginning, and whose bytes they become."""

from __future__ import annotations

import asyncio
import gzip

import pytest

from mpspool.core.errors import PoolError
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
    with pytest.raises(PoolError, match=f"Requests for m hold {3 * 2**20 + len(message)} of {2**22} bytes"):
        asyncio.run(inflate(message, "gzip", 2**30, admission))
    assert memory.used == admission.size == 3 * 2**20 + len(message)
    admission.release()
    assert memory.used == 0
