"""What connections write in one pass of the event loop: the first piece at once, what follows together, all in order."""

from __future__ import annotations

import asyncio
import socket as sockets
from collections.abc import Callable
from typing import cast

import pytest
import uvloop
from structlog.testing import capture_logs

from mpspool.router.fronts.http2.connection import Connection
from mpspool.router.fronts.http2.gathering import Gathered, Gathering
from mpspool.router.fronts.http2.headers import RequestHead
from mpspool.router.fronts.http2.listener import Listener
from mpspool.router.fronts.http2.streams import Buffer, Stream
from mpspool.router.memory import Memory
from tests.fakes.http2 import GREETING, LEAD, REQUEST, TAIL, headers


class Socket:
    """A transport and the output before it: has what was written, a list for each system call."""

    def __init__(self) -> None:
        self.calls: list[bytes] = []
        self.closing = self.closed = self.aborted = self.broken = False

    def write(self, data: bytes) -> None:
        if self.broken:
            raise RuntimeError("unable to perform operation")
        self.calls.append(bytes(data))

    def writelines(self, list_of_data: list[Buffer]) -> None:
        self.write(b"".join(list_of_data))

    def close(self) -> None:
        self.closing = self.closed = True

    def is_closing(self) -> bool:
        return self.closing

    def abort(self) -> None:
        self.closing = self.aborted = True


def output(socket: Socket, gathering: Gathering) -> Gathered:
    return Gathered(socket, cast("asyncio.Transport", socket), gathering)


def in_a_loop(test: Callable[[Gathering], None]) -> None:
    async def run() -> None:
        test(Gathering())
        await asyncio.sleep(0)

    asyncio.run(run())


def test_the_first_piece_goes_at_once_and_the_others_together() -> None:
    socket = Socket()

    def write(gathering: Gathering) -> None:
        gathered = output(socket, gathering)
        gathered.write(b"a")
        gathered.write(b"b")
        gathered.writelines([b"c", memoryview(b"d")])
        gathered.write(b"e")
        assert socket.calls == [b"a"]

    in_a_loop(write)
    assert socket.calls == [b"a", b"bcde"]


def test_each_pass_begins_anew() -> None:
    socket = Socket()

    async def run() -> None:
        gathered = output(socket, Gathering())
        for piece in (b"a", b"b"):
            gathered.writelines([piece, piece])
            assert socket.calls[-1] == 2 * piece
            gathered.write(piece)
            await asyncio.sleep(0)
            assert socket.calls[-1] == piece

    asyncio.run(run())
    assert socket.calls == [b"aa", b"a", b"bb", b"b"]


def test_connections_do_not_wait_for_one_another() -> None:
    sockets = [Socket(), Socket()]

    def write(gathering: Gathering) -> None:
        for gathered in [output(socket, gathering) for socket in sockets]:
            gathered.write(b"a")
            gathered.write(b"b")
        assert [socket.calls for socket in sockets] == [[b"a"], [b"a"]]

    in_a_loop(write)
    assert [socket.calls for socket in sockets] == [[b"a", b"b"], [b"a", b"b"]]


@pytest.mark.parametrize("size", [2**14, 2**18])
def test_what_is_long_goes_at_once_with_what_is_before_it(size: int) -> None:
    """Who hands it on looks at once at what the transport has of it."""
    socket = Socket()

    def write(gathering: Gathering) -> None:
        gathered = output(socket, gathering)
        gathered.write(b"a")
        gathered.write(b"b")
        gathered.writelines([bytes(size)])
        assert socket.calls == [b"a", b"b" + bytes(size)]

    in_a_loop(write)
    assert len(socket.calls) == 2


def test_what_was_gathered_goes_before_the_end() -> None:
    socket = Socket()

    def write(gathering: Gathering) -> None:
        gathered = output(socket, gathering)
        gathered.write(b"a")
        gathered.write(b"b")
        gathered.close()
        assert (socket.calls, socket.closed) == ([b"a", b"b"], True)

    in_a_loop(write)
    assert socket.calls == [b"a", b"b"]


def test_nothing_goes_to_what_is_closing() -> None:
    socket = Socket()

    def write(gathering: Gathering) -> None:
        gathered = output(socket, gathering)
        gathered.write(b"a")
        gathered.write(b"b")
        socket.abort()

    in_a_loop(write)
    assert socket.calls == [b"a"]


def test_one_that_fails_is_ended_and_the_others_do_not_notice() -> None:
    bad, good = Socket(), Socket()

    def write(gathering: Gathering) -> None:
        for gathered in (output(bad, gathering), output(good, gathering)):
            gathered.write(b"a")
            gathered.write(b"b")
        bad.broken = True

    with capture_logs() as logs:
        in_a_loop(write)
    assert (bad.aborted, good.calls) == (True, [b"a", b"b"])
    assert [line["event"] for line in logs] == ["connection failed"]


def test_what_was_gathered_goes_where_the_peer_has_half_closed() -> None:
    """The transport closes by itself then."""
    opened: list[Stream] = []

    def open_stream(connection: Connection, stream_id: int, head: RequestHead) -> Stream:
        opened.append(Stream(connection, stream_id, head))
        return opened[-1]

    async def run() -> bytes:
        listener = Listener(open_stream, Memory(2**30))
        client = sockets.create_connection(("127.0.0.1", await listener.start("127.0.0.1", 0)))
        client.sendall(GREETING + b"".join(headers(number, REQUEST, end=True) for number in (1, 3, 5, 7)))
        while len(opened) < 4:
            await asyncio.sleep(0)

        def answer() -> None:
            for stream in opened:
                stream.connection.respond(stream, LEAD, b"", b"answer", TAIL)
            client.shutdown(sockets.SHUT_WR)

        asyncio.get_running_loop().call_soon(answer)
        received = b""
        client.setblocking(False)
        while piece := await asyncio.get_running_loop().sock_recv(client, 2**16):
            received += piece
        client.close()
        await listener.close()
        return received

    assert uvloop.run(run()).count(b"answer") == 4
