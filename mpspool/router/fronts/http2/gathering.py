"""What connections write within one pass of the event loop: the first piece of each at once, all that follows together.

Each piece by itself would be a system call, which costs more than what it tells: of a thousand calls on one connection that are
refused in a row, or whose answers are there at once, two of three microseconds were the kernel's.
"""

from __future__ import annotations

import asyncio
from typing import Final

from mpspool.core import log
from mpspool.router.fronts.http2.sending import Output
from mpspool.router.fronts.http2.streams import Buffer

logger = log.get("http2")

# With so much nothing is gained by waiting for more.
_MOST_BYTES: Final = 2**14
# Up to this a copy in one piece is cheaper than several.
_JOIN_BYTES: Final = 2**16


class Gathering:
    """The passes of the event loop, for all connections."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._begun: list[Gathered] = []

    def begin(self, output: Gathered) -> None:
        """It has written; it is told when the pass is over."""
        if not self._begun:
            self._loop.call_soon(self._end)
        self._begun.append(output)

    def _end(self) -> None:
        begun, self._begun = self._begun, []
        for output in begun:
            try:
                output.end_pass()
            except Exception:
                logger.exception("connection failed")
                output.abort()


class Gathered:
    """An Output before another.

    Args:
        output: takes what is to be sent.
        transport: that it goes to; what is left when that closes is dropped.
        gathering: everybody's.
    """

    def __init__(self, output: Output, transport: asyncio.Transport, gathering: Gathering) -> None:
        self._output = output
        self._transport = transport
        self._gathering = gathering
        self._wrote = False
        self._pieces: list[Buffer] = []
        self._size = 0

    def write(self, data: bytes) -> None:
        if self._wrote:
            self._pieces.append(data)
            self._add(len(data))
        else:
            self._wrote = True
            self._gathering.begin(self)
            self._output.write(data)

    def writelines(self, list_of_data: list[Buffer]) -> None:
        if self._wrote:
            self._pieces += list_of_data
            self._add(sum(map(len, list_of_data)))
        else:
            self._wrote = True
            self._gathering.begin(self)
            self._output.writelines(list_of_data)

    def _add(self, size: int) -> None:
        self._size += size
        if self._size >= _MOST_BYTES:
            self.flush()

    def end_pass(self) -> None:
        self._wrote = False
        if self._pieces:
            self.flush()

    def flush(self) -> None:
        """What has been gathered goes now."""
        pieces, size = self._pieces, self._size
        self._pieces, self._size = [], 0
        if not pieces or self._transport.is_closing():
            return
        if size <= _JOIN_BYTES:
            self._output.write(b"".join(pieces))
        else:
            self._output.writelines(pieces)

    def abort(self) -> None:
        self._transport.abort()

    def close(self) -> None:
        """Once all is sent."""
        self.flush()
        self._output.close()
