"""A generator's connection to the server, made anew whenever it is gone."""

from __future__ import annotations

import asyncio
import errno
import ssl
from collections.abc import Callable, Sequence
from time import monotonic
from typing import cast

from mpspool.core.client_tls import MAY_HAVE_NONE, MAY_WANT, ClientTls
from mpspool.core.errors import Code
from mpspool.core.host_port import host_port
from mpspool.loadtest.wire import LAST_STREAM, Call, Connection, WireError

CONNECT_TIMEOUT_S = 10.0
_PAUSE_S, _MAX_PAUSE_S = 0.05, 1.0
_MORE_FILES = "; raise `ulimit -n`, or have fewer connections: more --streams-per-connection, or fewer --connections with --rate"


class UnreachableError(Exception):
    """There is no connection to be had, or none that speaks HTTP/2."""


# What connections are made with; None for clear text.
Secure = tuple[ssl.SSLContext, str] | None


def secure(tls: ClientTls | None) -> Secure:
    """What Link takes: to be made once for many."""
    return None if tls is None else (tls.context(), tls.name)


class Link:
    """One connection after another.

    Args:
        host, port: of the server.
        finished: told each call that is over, and when.
        on_ready: called when a connection can be used.
        on_fail: called with the reason when another one could not be made; the next try follows.
        last_stream: the highest id on one connection.
        secure: of secure().
    """

    def __init__(
        self,
        host: str,
        port: int,
        finished: Callable[[Link, Call, float], None],
        on_ready: Callable[[Link], None] = lambda _: None,
        on_fail: Callable[[str], None] = lambda _: None,
        *,
        last_stream: int = LAST_STREAM,
        secure: Secure = None,
    ) -> None:
        self.finished = finished
        self.last_stream = last_stream
        self._host, self._port = host, port
        self._secure = secure
        self._on_ready, self._on_fail = on_ready, on_fail
        self._socket: _Socket | None = None
        self._again: asyncio.Task[None] | None = None
        self._closed = False
        self._spoken = False

    @property
    def usable(self) -> bool:
        """Whether a call can be started now."""
        return self._socket is not None and not self._socket.connection.closing

    @property
    def calls(self) -> int:
        """On their way."""
        return 0 if self._socket is None else self._socket.connection.count

    async def connect(self) -> None:
        """Raises UnreachableError."""
        loop = asyncio.get_running_loop()
        where = host_port(self._host, self._port)
        new = _Socket(self, loop.create_future())
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                if self._secure is None:
                    await loop.create_connection(lambda: new, self._host, self._port)
                else:
                    context, name = self._secure
                    await loop.create_connection(
                        lambda: new, self._host, self._port, ssl=context, server_hostname=name or self._host
                    )
                await new.ready
            self._spoken = True
        except TimeoutError as error:
            raise UnreachableError(f"{where} did not answer within {CONNECT_TIMEOUT_S:g} s") from error
        except OSError as error:
            raise UnreachableError(f"cannot connect to {where}: {self._why(error)}") from error
        except WireError as error:
            raise UnreachableError(f"{where}: {error}") from error
        finally:
            if not new.ready.done() or new.ready.cancelled() or new.ready.exception():
                new.ready.cancel()  # nobody waits any more for what becomes of it
                new.end()
        if new.over:
            raise UnreachableError(f"{where} closed the connection")
        self._socket = new
        self._on_ready(self)

    def _why(self, error: OSError) -> str:
        """What a connection did not come about for, and what to do. A handshake's end has no words.

        Where there has been a connection, TLS is not what is wrong.
        """
        if error.errno == errno.EMFILE:
            return f"{error.strerror}{_MORE_FILES}"
        why = error.strerror or str(error)
        if self._secure is None:  # an end that the system has no number for is the server's
            hint = "" if error.errno else MAY_WANT
        else:
            hint = MAY_HAVE_NONE if not why or "WRONG_VERSION_NUMBER" in why else ""
            why = why or "it ended the handshake"
        return f"{why}; {hint}" if hint and not self._spoken else why

    def start(self, call: Call) -> None:
        """Of a usable link."""
        assert self._socket is not None
        self._socket.connection.start(call)

    def expire(self, before: float) -> list[Call]:
        """Forgets the calls that were sent before then, and gives them back."""
        if self._socket is None:
            return []
        connection = self._socket.connection
        found = []
        for call in connection.pending():
            if call.sent > before:
                break
            found.append(call)
        for call in found:
            connection.cancel(call)
        connection.start_waiting()
        self._socket.retire()
        return found

    def gone(self, socket: _Socket, why: str, over: Sequence[Call] = ()) -> None:
        """It cannot be used any more; another one is made.

        Args:
            socket: which one.
            why: what those are told that were on their way.
            over: calls that it has answered, and nobody has been told yet.
        """
        if socket is not self._socket:
            return
        self._socket = None
        if not self._closed:
            self._again = asyncio.get_running_loop().create_task(self._reconnect())
        now = monotonic()
        for call in over:
            self.finished(self, call, now)
        for call in socket.connection.lost():
            call.code, call.text = Code.UNAVAILABLE, why
            self.finished(self, call, now)

    async def _reconnect(self) -> None:
        pause_s = _PAUSE_S
        while not self._closed:
            try:
                await self.connect()
            except UnreachableError as error:
                self._on_fail(str(error))
                await asyncio.sleep(pause_s)
                pause_s = min(pause_s * 2, _MAX_PAUSE_S)
            else:
                return

    def close(self) -> None:
        """Whatever is on its way is forgotten."""
        self._closed = True
        if self._again is not None:
            self._again.cancel()
        if self._socket is not None:
            self._socket.end()
            self._socket = None


class _Socket(asyncio.Protocol):
    """One connection. `ready` is done once the server has spoken HTTP/2; `over` when the socket is gone."""

    def __init__(self, link: Link, ready: asyncio.Future[None]) -> None:
        self.ready = ready
        self.over = False
        self._link = link
        self._transport: asyncio.Transport | None = None
        self.connection = Connection(self._write, last_stream=link.last_stream)

    def _write(self, data: bytes) -> None:
        assert self._transport is not None
        self._transport.write(data)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self.connection.send = self._transport.write
        self.connection.open()

    def data_received(self, data: bytes) -> None:
        now = monotonic()
        connection = self.connection
        try:
            over = connection.receive(data)
        except WireError as error:
            if not self.ready.done():
                self.ready.set_exception(error)
            self.end()
            self._link.gone(self, f"the connection is given up: {error}", error.over)
            return
        if over:
            link = self._link
            finished = link.finished
            for call in over:
                finished(link, call, now)
        if connection.closing:
            self.retire()
        elif not self.ready.done() and connection.ready:
            self.ready.set_result(None)

    def retire(self) -> None:
        """A connection that takes no more calls is left once it has none."""
        if self.connection.closing and not self.connection.count:
            self.end()
            self._link.gone(self, self.connection.closing)

    def end(self) -> None:
        self.over = True
        if self._transport is not None:
            self._transport.abort()

    def connection_lost(self, error: Exception | None) -> None:
        self.over = True
        why = f"the connection is lost: {error or 'the server closed it'}"
        if not self.ready.done():
            self.ready.set_exception(ConnectionError(why))
        self._link.gone(self, why)
