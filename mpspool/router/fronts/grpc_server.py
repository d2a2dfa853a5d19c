"""gRPC over HTTP/2: methods on a port, and the deadlines of their calls."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import Any

from mpspool.core.errors import Code, PoolError
from mpspool.router.fronts.deadlines import Deadlines
from mpspool.router.fronts.grpc_call import TOO_LATE, Call, Method, Unary, refusal_block
from mpspool.router.fronts.http2.connection import Connection
from mpspool.router.fronts.http2.headers import RequestHead
from mpspool.router.fronts.http2.limits import Limits
from mpspool.router.fronts.http2.listener import Listener
from mpspool.router.memory import Admission, Memory

# The loop's timers count milliseconds, and may be that early.
_TIMER_S = 0.001
# Calls that have ended are known no longer than this, whatever deadlines their clients gave them.
PRUNE_S = 30.0
# A deadline further away is none: it has to fit into 63 bits of nanoseconds.
_LONGEST_TIMEOUT_NS = 365 * 86400 * 10**9
_TOO_LATE = refusal_block(TOO_LATE)


class Server:
    """Serves methods on one port.

    Args:
        methods: by path.
        memory: where what is read and what waits to be sent counts.
        max_message_bytes: of a message, inflated.
        limits: of each connection.

    Attributes:
        loop: it lives on.
        timeout_ns: from the head of a call that brings no deadline to its own, where its method is timed; 0 for none.
    """

    def __init__(
        self,
        methods: Mapping[str, Method],
        memory: Memory,
        max_message_bytes: int,
        limits: Limits | None = None,
    ) -> None:
        self.methods = methods
        self.memory = memory
        self.max_message_bytes = max_message_bytes
        self.timeout_ns = 0
        self.loop = asyncio.get_running_loop()
        self.listener = Listener(self._open, memory, limits)
        self._deadlines: Deadlines[Call] = Deadlines()
        self._timer: asyncio.TimerHandle | None = None
        self._pruned_ns = 0

    async def start(self, host: str, port: int) -> int:
        """Returns the port. Raises OSError."""
        return await self.listener.start(host, port)

    async def start_at(self, path: str) -> None:
        """At a UNIX socket, too. Raises OSError."""
        await self.listener.start_at(path)

    async def quiesce(self, grace_s: float) -> None:
        """Sends clients elsewhere, and gives the unary calls that there are grace_s to finish."""
        self.listener.go_away()
        end_s = self.loop.time() + grace_s
        while self.loop.time() < end_s and any(call.unary for call in self._calls()):
            await asyncio.sleep(0.005)

    async def close(self) -> None:
        """Ends all connections; what runs is cancelled."""
        tasks = [call.task for call in self._calls() if call.task is not None]
        await self.listener.close()
        if self._timer is not None:
            self._timer.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _calls(self) -> list[Any]:
        return [call for link in self.listener.links for call in link.connection.streams.values()]

    def _open(self, connection: Connection, stream_id: int, head: RequestHead) -> Call | None:
        method, timeout_ns = self.methods.get(head.path), head.timeout_ns
        timed = isinstance(method, Unary) and method.timed
        if timeout_ns is None and timed and self.timeout_ns:
            timeout_ns = self.timeout_ns
        if timeout_ns is None or not 0 <= timeout_ns < _LONGEST_TIMEOUT_NS or not head.is_call:
            return Call(connection, stream_id, head, self)
        came_ns = int(connection.came_s * 1e9)
        # Where others have had their turns before it, some of its time is over: with half of it, what a model answers would be late,
        # and so would be those behind it. While a connection takes nothing more, what it is told has to wait in a Stream.
        late = time.monotonic_ns() - came_ns >= (timeout_ns // 2 if timed else timeout_ns)
        if late:
            self.too_late(head.path, timed=timed)
            if not connection.paused:
                connection.turn_away(stream_id, _TOO_LATE)
                return None
        return Call(connection, stream_id, head, self, came_ns + timeout_ns, late=late)

    # -- refusals, which those who count them override --------------------------------------------

    def unknown(self, path: str) -> PoolError:
        """Of a method that is not there."""
        return PoolError(Code.UNIMPLEMENTED, f"{path} is not implemented here")

    def too_large(self, path: str, sizes: str) -> PoolError:  # noqa: ARG002
        """Of a message over the limit, not read; `sizes` says what it has, and what it may have."""
        return PoolError(Code.RESOURCE_EXHAUSTED, f"SERVER: Received message larger than max ({sizes})")

    def too_late(self, path: str, *, timed: bool) -> None:
        """A call was not begun: too much of its time was over when it was read; it would have run a model, or not."""

    def failed(self, path: str) -> PoolError:
        """Of a method that raised what it should not have."""
        return PoolError(Code.INTERNAL, f"{path.rpartition('/')[2]} failed inside the server")

    def gave_way(self, path: str, model: str | None) -> None:
        """A message of this model's, or of one that is not known, was not waited for."""

    def keep(self, admission: Admission | None, size: int) -> None:
        """An answer of so many bytes is long, or has to wait for its client; of no admission for a message of a streaming call.

        Raises:
            PoolError: there is no room for it.
        """
        if admission is None:
            self.memory.check_answer(size, None, None)
        else:
            admission.check_answer(size)

    # -- deadlines --------------------------------------------------------------------------------

    def watch(self, call: Call) -> None:
        """Ends the call when its deadline has passed."""
        if self._deadlines.add(call.deadline_ns, call):
            self._arm()

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        next_ns = self._deadlines.next_ns()
        if next_ns is not None:
            later_s = min(max(0.0, (next_ns - time.monotonic_ns()) / 1e9), PRUNE_S)
            self._timer = self.loop.call_later(later_s + _TIMER_S, self._expire)

    def _expire(self) -> None:
        self._timer = None
        now_ns = time.monotonic_ns()
        for call in self._deadlines.due(now_ns):
            call.expire()
        if now_ns - self._pruned_ns >= PRUNE_S * 1e9:
            self._pruned_ns = now_ns
            self._deadlines.prune()
        self._arm()
