"""HTTP/2 connections on asyncio: sockets, the clock, and what all connections share."""

from __future__ import annotations

import asyncio
import contextlib
import os
import ssl
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor

from mpspool.core import log, unix_socket
from mpspool.router.fronts.complaints import Complaints
from mpspool.router.fronts.http2.connection import Connection
from mpspool.router.fronts.http2.gathering import Gathering
from mpspool.router.fronts.http2.headers import RequestHead
from mpspool.router.fronts.http2.limits import Limits
from mpspool.router.fronts.http2.link import LINGER_S, Link
from mpspool.router.fronts.http2.streams import Stream
from mpspool.router.fronts.http2.tls_link import TlsLink
from mpspool.router.fronts.making_way import Asking, MakingWay
from mpspool.router.fronts.reading_turns import Turns
from mpspool.router.fronts.sockets import BACKLOG, bind
from mpspool.router.memory import Memory

logger = log.get("http2")

TICK_S = 1.0
# In so many parts: thousands of connections take tens of milliseconds, and no request is to wait for all of them.
_PARTS = 10


class Listener:
    """Takes connections. For one too many another makes way of which nothing runs: see MakingWay. Where there is none, it is not taken.

    Args:
        open_stream: makes the Stream of a request; None where it has turned it away.
        memory: where what the sockets' buffers have for peers to take counts.
        limits: of each connection.
        max_connections: at once.

    Attributes:
        memory: the same.
        links: the connections that are open, in the order in which they came.
        turns: of those that have sent more than is read at once.
        gathering: of what they write.
        tls: of connections from now on; None for clear text.
        complaints: of bad connections.
    """

    def __init__(
        self,
        open_stream: Callable[[Connection, int, RequestHead], Stream | None],
        memory: Memory,
        limits: Limits | None = None,
        max_connections: int = 10_000,
    ) -> None:
        self.open_stream = open_stream
        self.memory = memory
        self.limits = limits or Limits()
        self.max_connections = max_connections
        self.links: dict[Link, None] = {}
        self.turns = Turns(logger)
        self.gathering = Gathering()
        self.tls: ssl.SSLContext | None = None
        self._loop = asyncio.get_running_loop()
        self._servers: list[asyncio.Server] = []
        self._paths: list[str] = []
        self._ticker: asyncio.TimerHandle | None = None
        # Those whose tick is still to come, by part.
        self._parts: list[list[Link]] = []
        self._making_way: MakingWay[Link] = MakingWay(self._asking, self._end)
        self.complaints = Complaints(self.now_s, logger)
        # Signing takes as long as a hundred requests: so many clients that come at once are not to hold up others.
        self._signers: ThreadPoolExecutor | None = None

    @property
    def open_connections(self) -> int:
        return len(self.links)

    def now_s(self) -> float:
        return self._loop.time()

    async def start(self, host: str, port: int) -> int:
        """Listens at every address that the host stands for; returns the port. Raises OSError."""
        for listening in bind(host, port):
            self._servers.append(await self._loop.create_server(self._link, sock=listening, backlog=BACKLOG))
            port = port or listening.getsockname()[1]
        return port

    async def start_at(self, path: str) -> None:
        """Listens at a UNIX socket, too. Raises OSError."""
        listening = unix_socket.bind(path)
        self._servers.append(await self._loop.create_unix_server(self._link, sock=listening, backlog=BACKLOG))
        self._paths.append(path)

    def _link(self) -> Link:
        return Link(self) if self.tls is None else TlsLink(self, self.tls)

    def in_thread(self, work: Callable[[], bool]) -> asyncio.Future[bool]:
        """Has it done beside the event loop; one at a time, in the order in which they come."""
        if self._signers is None:
            self._signers = ThreadPoolExecutor(1, "handshakes")
        return self._loop.run_in_executor(self._signers, work)

    def has_room(self, address: str) -> bool:
        """Whether one more may join, of that address; there is room made for it."""
        return len(self.links) < self.max_connections or self._making_way.make_room(address)

    def _asking(self) -> list[Asking[Link]]:
        return [(link, link.address, link.quiet_s(), bool(link.connection.streams)) for link in self.links]

    def _end(self, link: Link) -> bool:
        if link not in self.links or link.quiet_s() is None:
            return False
        del self.links[link]
        link.leave()
        return True

    def joined(self, link: Link) -> None:
        self.links[link] = None
        if self._parts:
            self._parts[len(self.links) % len(self._parts)].append(link)
        if self._ticker is None:
            self._ticker = self._loop.call_later(TICK_S / _PARTS, self._tick)

    def _tick(self) -> None:
        """Of a part of them: each has one in every round of TICK_S."""
        if not self._parts:
            links = list(self.links)
            self._parts = [links[place::_PARTS] for place in range(_PARTS)]
        now_s = self.now_s()
        self._each(self._parts.pop(), lambda link: link.tick(now_s))
        self.complaints.tick()
        self._making_way.tick()
        if self.links:
            self._ticker = self._loop.call_later(TICK_S / _PARTS, self._tick)
        else:
            self._ticker = None
            self._parts.clear()

    def _each(self, links: Iterable[Link], work: Callable[[Link], None]) -> None:
        """Does it with those that are open; one with which it fails is ended, and the others do not notice."""
        for link in links:
            if link not in self.links:
                continue
            try:
                work(link)
            except Exception:
                logger.exception("connection failed")
                link.abort()

    def go_away(self) -> None:
        """Tells all peers to begin nothing more on the connections that they have; new ones are taken."""
        self._each(list(self.links), lambda link: link.connection.go_away())

    async def close(self) -> None:
        """Ends everything: what has been answered is sent, what runs is reset."""
        for server in self._servers:
            server.close()
        for path in self._paths:
            with contextlib.suppress(OSError):
                os.unlink(path)
        self._each(list(self.links), lambda link: link.end())
        end_s = self.now_s() + LINGER_S
        while self.links and self.now_s() < end_s:
            await asyncio.sleep(0.005)
        self._each(list(self.links), lambda link: link.abort())
        while self.links:
            await asyncio.sleep(0)
        if self._ticker is not None:
            self._ticker.cancel()
            self._ticker = None
        self.complaints.flush()
        if self._signers is not None:
            self._signers.shutdown(cancel_futures=True)
            self._signers = None
