"""Compressed messages of gRPC and bodies of REST: gzip and deflate, in steps, and never to more than is allowed."""

from __future__ import annotations

import asyncio
import zlib
from io import BytesIO

from mpspool.core.errors import Code, PoolError
from mpspool.router.memory import Admission

# gRPC's "deflate" is zlib's format.
_WINDOW_BITS = {"gzip": 16 + zlib.MAX_WBITS, "deflate": zlib.MAX_WBITS}
ENCODINGS = ("identity", *_WINDOW_BITS)
# Inflated at once: some milliseconds of the event loop.
_STEP_BYTES = 2**20
# Given to the library at once: of what it does not take yet it makes a copy, each time, and of what yields nothing it takes all.
_GIVEN_BYTES = 2**16
# What was taken counts so many times: bytes that yield nothing cost as much as those that they might have.
_TAKEN = 16
# Of what a message begins with.
_BEGIN_BYTES = 4096


def begin(body: bytes, encoding: str) -> bytes:
    """The first bytes, in plain, of a message that begins with these; none where it is not of that format."""
    try:
        return zlib.decompressobj(_WINDOW_BITS[encoding]).decompress(body[:_BEGIN_BYTES], _BEGIN_BYTES)
    except zlib.error:
        return b""


async def inflate(body: bytes, encoding: str, max_bytes: int, admission: Admission) -> bytes:
    """The message in plain.

    Args:
        body: the message.
        encoding: of ENCODINGS.
        max_bytes: more are refused.
        admission: of the message; what is inflated of it counts there, too.

    Raises:
        PoolError: RESOURCE_EXHAUSTED for more than max_bytes or more than there is room for, INTERNAL for
            what is not of that format.
    """
    if encoding == "identity":
        return body
    inflater = zlib.decompressobj(_WINDOW_BITS[encoding])
    plain = BytesIO()  # grows in place: putting a long message together at its end would hold up all others
    given, left = 0, b""
    step = 0
    try:
        while not inflater.eof:
            if not left:
                left = body[given : given + _GIVEN_BYTES]
                given += len(left)
            there = len(left)
            part = inflater.decompress(left, _STEP_BYTES)
            left = inflater.unconsumed_tail
            if plain.tell() + len(part) > max_bytes:
                raise PoolError(
                    Code.RESOURCE_EXHAUSTED,
                    f"SERVER: Received message larger than max (more than {max_bytes} bytes when inflated)",
                )
            admission.grow(len(part))
            plain.write(part)
            if given == len(body) and not left and not part and not inflater.eof:
                raise PoolError(Code.INTERNAL, f"A message in {encoding} is cut off")
            step += len(part) + _TAKEN * (there - len(left))
            if step >= _STEP_BYTES:
                step = 0
                await asyncio.sleep(0)
        if inflater.unused_data or given < len(body):
            raise PoolError(Code.INTERNAL, f"A message in {encoding} has bytes past its end")
        return plain.getvalue()
    except zlib.error as error:
        raise PoolError(Code.INTERNAL, f"A message is not in {encoding}: {error}") from None
