"""A call of gRPC over HTTP/2: its messages, its deadline and its status.

A unary method takes one message, which was admitted before it was read, and returns one; any other shape is
a streaming method, which is given the Call, and receives and sends as many as it likes.

A message is admitted when its beginning is there, which says whose it is: a size alone reserves nothing. What was
admitted has to come at a rate, for others are refused for it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from io import BytesIO
from typing import TYPE_CHECKING
from urllib.parse import quote

from mpspool.core import log
from mpspool.core.errors import Code, PoolError, cut
from mpspool.core.settings import MAX_MESSAGE_BYTES
from mpspool.router.fronts.http2.connection import Connection
from mpspool.router.fronts.http2.headers import RequestHead, encode
from mpspool.router.fronts.http2.streams import Stream
from mpspool.router.fronts.inflate import ENCODINGS, begin, inflate
from mpspool.router.memory import LONG_ANSWER_BYTES, START_BYTES, Admission
from mpspool.router.relief import made_way

if TYPE_CHECKING:
    from mpspool.router.fronts.grpc_server import Server

logger = log.get("grpc")

_PREFIX_BYTES = 5
# The most of a message that is parsed where it is received, while all others wait: one with the name of each of 10,000 models has as much.
SMALL_BYTES = 2**20
# Of memory, that a streaming call takes for as long as it lasts, which may be for ever.
_STREAMING_BYTES = 4608
# Messages of a streaming method that may wait to be taken: what it costs to know one of no bytes is not counted.
_MOST_WAITING = 16
# Every printable character of ASCII but "%" is itself in grpc-message.
_PLAIN = "".join(map(chr, range(0x20, 0x7F))).replace("%", "")
_NOTHING = BytesIO()
_CONTENT_TYPE = (b"content-type", b"application/grpc")
_ACCEPTS = (b"grpc-accept-encoding", ", ".join(ENCODINGS).encode())
_LEAD = encode((b":status", b"200"), _CONTENT_TYPE)
TOO_LATE = PoolError(
    Code.DEADLINE_EXCEEDED,
    "Deadline exceeded: too much of its time was over when it was read; it was not run",
)
_OK = encode((b"grpc-status", b"0"))
_NOT_GRPC_TEXT = b"This port speaks gRPC: POST with content-type application/grpc\n"


# Takes a message's size, what is here of it (4 KiB, or all), and its call's head; raises PoolError to have it refused unread.
Admit = Callable[[int, bytes, RequestHead], Admission]


@dataclass(frozen=True, slots=True)
class Unary:
    """A method with one message each way.

    Attributes:
        call: takes the message, the call and what `admit` returned, which it releases.
        admit: see above.
        timed: it runs a model: calls that bring no deadline have the server's.
        max_bytes: of a message, inflated, where that is less than the server's.
    """

    call: Callable[[bytes, Call, Admission], Awaitable[bytes]]
    admit: Admit
    timed: bool = False
    max_bytes: int = MAX_MESSAGE_BYTES


@dataclass(frozen=True, slots=True)
class Streaming:
    """A method that reads and sends messages by its call, any number of them.

    Attributes:
        call: takes the call.
        admit: see above; what it returned is released when the message is read.
        one: it takes one message.
        max_bytes: as of Unary.
    """

    call: Callable[[Call], Awaitable[None]]
    admit: Admit
    one: bool = False
    max_bytes: int = MAX_MESSAGE_BYTES


Method = Unary | Streaming


class Call(Stream):
    """One call, from its headers to its status.

    Attributes:
        deadline_ns: CLOCK_MONOTONIC, 0 for none.
        unary: its method is one.
    """

    __slots__ = (
        "_admission",
        "_answered",
        "_buffer",
        "_complete",
        "_compressed",
        "_inbox",
        "_late",
        "_left",
        "_method",
        "_server",
        "_standing",
        "_start",
        "_taken",
        "_task",
        "_waiter",
        "deadline_ns",
        "led",
    )  # fmt: skip

    def __init__(
        self,
        connection: Connection,
        stream_id: int,
        head: RequestHead,
        server: Server,
        deadline_ns: int = 0,
        *,
        late: bool = False,
    ) -> None:
        super().__init__(connection, stream_id, head)
        self._server = server
        self._method: Method | None = None
        self.deadline_ns = deadline_ns
        self._late = late
        self.led = False
        self._task: asyncio.Task[None] | None = None
        # The message that is being read: what there is of its prefix and its beginning, then how many bytes are
        # missing (-1 while there is none), what is here of it, and what it was admitted by.
        self._start = b""
        self._left = -1
        self._buffer = _NOTHING
        self._compressed = False
        self._admission: Admission | None = None
        # What the message was admitted by that its answer answers: that counts with it.
        self._answered: Admission | None = None
        # Of a streaming call: what it takes itself.
        self._standing: Admission | None = None
        # Messages that are whole and not taken yet, and who waits for one.
        self._inbox: deque[tuple[bytes, bool, Admission]] | None = None
        self._taken = False
        self._complete: tuple[bytes, bool] | None = None
        self._waiter: asyncio.Future[None] | None = None

    @property
    def unary(self) -> bool:
        return isinstance(self._method, Unary)

    @property
    def task(self) -> asyncio.Task[None] | None:
        """What runs for it; None of one that has been let go."""
        return self._task

    # -- what the connection calls ----------------------------------------------------------------

    def on_head(self) -> None:
        head, server = self.head, self._server
        if head.oversized:
            most = self.connection.limits.header_list_bytes
            self.refuse(PoolError(Code.RESOURCE_EXHAUSTED, f"The headers are larger than {most} bytes"))
            return
        if not head.is_call:
            self._refuse_http()
            return
        if self._late:
            self.refuse(TOO_LATE)
            return
        method = server.methods.get(head.path)
        if head.timeout_ns is not None and head.timeout_ns < 0:
            self.refuse(PoolError(Code.INVALID_ARGUMENT, "grpc-timeout is malformed"))
            return
        if method is None:
            self.refuse(server.unknown(head.path))
            return
        if head.encoding not in ENCODINGS:
            self.refuse(PoolError(Code.UNIMPLEMENTED, f"grpc-encoding {head.encoding} is not supported"))
            return
        self._method = method
        if self.deadline_ns:
            server.watch(self)
        if isinstance(method, Streaming):
            self._begin(method)

    def _begin(self, method: Streaming) -> None:
        try:
            self._standing = self._server.memory.admit(_STREAMING_BYTES)
        except PoolError as refusal:
            self.refuse(refusal)
            return
        self._inbox = deque()
        self._task = self._server.loop.create_task(self._stream(method))

    def on_data(self, data: bytes, start: int, stop: int) -> None:
        while start < stop and self.open and not self.sent_all:
            if self._left < 0:
                start = self._on_start(data, start, stop)
            else:
                take = min(self._left, stop - start)
                self._left -= take
                self._buffer.write(memoryview(data)[start : start + take])
                start += take
                if not self._left:
                    self._server.memory.coming.forget(self)
                    self._on_message(self._buffer.getvalue())

    def _on_start(self, data: bytes, start: int, stop: int) -> int:
        """The beginning of a message; returns where it has been read to."""
        if self._start:
            return self._on_more_of_start(data, start, stop)
        begun = start + _PREFIX_BYTES
        if begun > stop:
            self._start = data[start:stop]
            return stop
        flag, size = data[start], int.from_bytes(data[start + 1 : begun], "big")
        end = min(stop, begun + size)
        body = data[begun:end]
        try:
            if not self._admit(flag, size, body):
                self._start = data[start:end]
                return end
            if not self.open:  # what made way for it was its own connection
                self._let_go()
                return stop
        except PoolError as refusal:
            self.refuse(refusal)
            return stop
        except Exception as error:  # noqa: BLE001 - told to the log, and to the client that there was one
            self._fail(error)
            return stop
        if end - begun == size:
            self._on_message(body)
        else:
            # Made in its size, of pages that come as they are written to, and written in place: its bytes are
            # copied once, and getvalue() copies nothing.
            self._buffer = BytesIO(bytes(size))
            self._buffer.write(body)
            self._left = size - len(body)
            self.connection.expect(self, self._left)
            self.demand(self.connection.limits.least(size))
            self._server.memory.coming.watch(self)
        return end

    def _on_more_of_start(self, data: bytes, start: int, stop: int) -> int:
        kept, self._start = self._start, b""
        more = data[start : min(stop, start + _PREFIX_BYTES + START_BYTES)]
        return start + self._on_start(kept + more, 0, len(kept) + len(more)) - len(kept)

    def _admit(self, flag: int, size: int, body: bytes) -> bool:
        """Whether it is admitted: not while too little of it is here. Raises PoolError where it is refused."""
        server, method = self._server, self._method
        assert method is not None
        if size > (most := self._most_bytes(method)):
            raise server.too_large(self.head.path, f"{size} vs. {most}")
        if self._complete is not None:
            raise _cardinality("more than one")
        if isinstance(method, Streaming):
            self._check_waiting(method)
        if flag > 1 or (flag and self.head.encoding == "identity"):
            raise PoolError(
                Code.INTERNAL, "A message is marked as compressed, and grpc-encoding says by nothing"
            )
        if len(body) < size and len(body) < START_BYTES:
            return False
        self._compressed = bool(flag)
        if flag:  # it is admitted again when it is inflated
            body = begin(body, self.head.encoding)
        self._admission = method.admit(size, body, self.head)
        return True

    def _most_bytes(self, method: Method) -> int:
        return min(method.max_bytes, self._server.max_message_bytes)

    def _check_waiting(self, method: Streaming) -> None:
        """Raises PoolError for a message too many."""
        if method.one and self._taken:
            raise _cardinality("more than one")
        if self._inbox is not None and len(self._inbox) >= _MOST_WAITING:
            text = f"{_MOST_WAITING} messages of this call wait to be read; send them as they are answered"
            raise PoolError(Code.RESOURCE_EXHAUSTED, text)

    def _on_message(self, body: bytes) -> None:
        self._buffer, self._left = _NOTHING, -1
        if self._inbox is None:
            self._complete = body, self._compressed
            return
        admission, self._admission = self._admission, None
        assert admission is not None
        self._taken = True
        self._inbox.append((body, self._compressed, admission))
        self._wake()

    def on_end(self) -> None:
        if self.sent_all:
            return
        if self._left >= 0 or self._start:
            self.refuse(PoolError(Code.INTERNAL, "The request ended within a message"))
        elif self._inbox is not None:
            self._wake()
        elif self._complete is None:
            self.refuse(_cardinality("no"))
        else:
            assert isinstance(self._method, Unary)
            self._task = self._server.loop.create_task(self._run(self._method))

    def on_drained(self) -> None:
        self._wake()

    def on_reset(self) -> None:
        self._let_go()

    def on_held(self, change: int) -> None:
        if self._answered is not None:
            self._answered.hold(change)
        else:
            self._server.memory.hold(change)

    def held_of(self, model: str) -> int:
        return self.held if self._answered is not None and self._answered.model == model else 0

    def is_needed(self) -> bool:
        """Whether its message was admitted, it runs, or what a model answered is not taken; never of a streaming method."""
        method = self._method
        if not isinstance(method, Unary):
            return False
        if self.sent_all:
            return method.timed
        return self._admission is not None or self._answered is not None

    # -- where bytes are short, and its message is not whole --------------------------------------

    def holds(self, model: str | None) -> int:
        return self._admission.held(model) if self._admission is not None else 0

    def moved(self) -> int:
        return self.received

    def missing(self) -> int:
        return max(0, self._left)

    def make_way(self) -> None:
        model = self._admission.model if self._admission is not None else None
        self._server.gave_way(self.head.path, model)
        self.refuse(made_way())

    # ---------------------------------------------------------------------------------------------

    def on_stalled(self) -> None:
        if self._inbox is None or self._left >= 0 or self._start:
            seconds = self.connection.limits.stall_s
            text = f"Nothing of the request came for {seconds:g} s, or too little"
            self.refuse(PoolError(Code.DEADLINE_EXCEEDED, text))

    # -- running ----------------------------------------------------------------------------------

    async def _run(self, method: Unary) -> None:
        assert self._complete is not None
        # The server knows the call until its deadline: not to keep its body.
        (body, compressed), self._complete = self._complete, None
        try:
            if compressed:
                body, self._admission = await self._inflated(method, body, self._admission)
            admission, self._admission = self._admission, None
            assert admission is not None
            self._answered = admission
            if admission.client is not None:
                self.connection.client = admission.client
            answer = await method.call(body, self, admission)
            if self.open and self._is_kept(len(answer)):
                self._server.keep(admission, len(answer))
        except PoolError as refusal:
            self.refuse(refusal)
        except Exception as error:  # noqa: BLE001 - told to the log, and to the client that there was one
            self._fail(error)
        else:
            if self.open:
                prefix = b"\x00" + len(answer).to_bytes(4, "big")
                self.connection.respond(self, _LEAD, prefix, answer, _OK)

    def _is_kept(self, size: int) -> bool:
        """Whether an answer needs room until its client takes it: what is short goes into the connection's buffer, if that may."""
        return size >= LONG_ANSWER_BYTES or not self.connection.takes(self, size)

    async def _stream(self, method: Streaming) -> None:
        try:
            await method.call(self)
        except PoolError as refusal:
            self.refuse(refusal)
        except Exception as error:  # noqa: BLE001 - told to the log, and to the client that there was one
            self._fail(error)
        else:
            self._end(_OK)

    async def _inflated(
        self, method: Method, body: bytes, compressed: Admission | None
    ) -> tuple[bytes, Admission]:
        """The message in plain, admitted as such; `compressed` is what it was admitted by until then."""
        assert compressed is not None
        inflated = await inflate(body, self.head.encoding, self._most_bytes(method), compressed)
        compressed.release()
        return inflated, method.admit(len(inflated), inflated, self.head)

    async def receive(self) -> bytes | None:
        """The next message of a streaming call; None after the last."""
        assert self._inbox is not None
        while not self._inbox:
            if not self.receiving:
                return None
            await self._wait()
        body, compressed, admission = self._inbox.popleft()
        try:
            if compressed:
                assert self._method is not None
                body, admission = await self._inflated(self._method, body, admission)
        finally:
            admission.release()
        self.connection.expect(self, self.connection.limits.window_bytes)
        return body

    async def send(self, message: bytes) -> None:
        """A message of a streaming call; returns when the peer has taken it. Raises PoolError where it needs room and there is none."""
        if self._is_kept(len(message)):
            self._server.keep(None, len(message))
        prefix = b"\x00" + len(message).to_bytes(4, "big")
        lead, self.led = b"" if self.led else _LEAD, True
        self.connection.send(self, lead, (prefix, message), last=False)
        while self.open and self.queued:
            await self._wait()

    async def _wait(self) -> None:
        self._waiter = self._server.loop.create_future()
        await self._waiter

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    # -- ends -------------------------------------------------------------------------------------

    def expire(self) -> None:
        """The deadline has passed, and with it what its client waits for."""
        if self.sent_all or self.queued:
            self.connection.cancel(self)
            return
        self.refuse(PoolError(Code.DEADLINE_EXCEEDED, "Deadline exceeded"))

    def refuse(self, refusal: PoolError) -> None:
        """Ends the call with a status, where it has none yet."""
        if not self.open or self.sent_all:
            return
        self._end(_status(refusal))

    def _end(self, status: bytes) -> None:
        self._let_go()
        self.connection.send(self, tail=status if self.led else _LEAD + status, last=True)

    def _fail(self, error: Exception) -> None:
        logger.error("call failed", method=self.head.path.rpartition("/")[2], exc_info=error)
        self.refuse(self._server.failed(self.head.path))

    def _refuse_http(self) -> None:
        status = b"415" if self.head.method == "POST" else b"405"
        lead = encode((b":status", status), (b"content-type", b"text/plain"), (b"allow", b"POST"))
        if self.head.method == "HEAD":
            self.connection.send(self, tail=lead, last=True)
        else:
            self.connection.send(self, lead, (_NOT_GRPC_TEXT,), last=True)

    def _let_go(self) -> None:
        """Nothing more is read or run for it."""
        # A task that was cancelled keeps where it was, our body and this call: all of it would stay until a collector comes.
        task, self._task = self._task, None
        if task is not None and task is not asyncio.current_task():
            task.cancel()
        if self._left >= 0:
            self._server.memory.coming.forget(self)
        if self._admission is not None:
            self._admission.release()
            self._admission = None
        if self._standing is not None:
            self._standing.release()
            self._standing = None
        self._start, self._buffer, self._complete = b"", _NOTHING, None
        while self._inbox:
            self._inbox.popleft()[2].release()


def refusal_block(refusal: PoolError) -> bytes:
    """A response that is nothing but a status."""
    return _LEAD + _status(refusal)


def _status(refusal: PoolError) -> bytes:
    text = quote(cut(refusal.message), safe=_PLAIN)
    return encode((b"grpc-status", b"%d" % refusal.code), (b"grpc-message", text.encode()), _ACCEPTS)


def _cardinality(count: str) -> PoolError:
    return PoolError(Code.UNIMPLEMENTED, f"The method takes one message, and {count} came")
