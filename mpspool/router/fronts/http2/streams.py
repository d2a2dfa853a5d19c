"""One exchange of a connection: what HTTP/2 knows of it, and what its server overrides."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, cast

from mypy_extensions import mypyc_attr

from mpspool.core.http2_frames import END_HEADERS, END_STREAM, FRAME_HEADER, HEADERS
from mpspool.router.fronts.http2.headers import RequestHead

if TYPE_CHECKING:
    from mpspool.router.fronts.http2.connection import Connection

Buffer = bytes | memoryview
# The transport has copies of the parts of a longer chunk: a part that has not gone yet is not to keep all of it, which counts no
# more when its stream has ended.
_LONG_BYTES = 2**18


@mypyc_attr(allow_interpreted_subclasses=True)  # the fuzzer has one
class Stream:
    """A request that came in and the response that goes out.

    A server derives from it. The on_... methods are called from within Connection.receive() and tick() and
    must not raise; any of them may send, and may end the stream.

    Attributes:
        open: neither side has ended it for good: nothing is called any more once it is not.
        receiving: the peer has not ended its side.
        in_window: what the peer may still send.
        out_window: what we may still send; below 0 after the peer has made it smaller.
        received: bytes of DATA so far, without padding.
        pace: how many of them have to come within Limits.stall_s.
        due: `received` when that many have come.
        touched_s: when they had, or enough of the queue had gone, as of Connection.now_s.
        queued: bytes of DATA that wait for the peer to take them.
        least: `queued` when enough of it has gone.
        cut: bytes that were taken of the first chunk, which is there until it has gone to its end.
        held: bytes that wait, and are told to be held: DATA, what was cut of it, and header blocks.
    """

    __slots__ = (
        "connection", "cut", "due", "head", "held", "id", "in_window", "lead", "least", "open", "opened_s", "out_window",
        "pace", "queue", "queued", "received", "receiving", "sent_all", "tail", "touched_s",
    )  # fmt: skip

    def __init__(self, connection: Connection, stream_id: int, head: RequestHead) -> None:
        self.connection = connection
        self.id = stream_id
        self.head = head
        self.open = True
        self.receiving = True
        self.in_window = connection.limits.window_bytes
        self.out_window = connection.peer_window
        self.received = 0
        self.pace = self.due = connection.limits.stall_bytes
        self.opened_s = self.touched_s = connection.now_s
        self.queue: deque[Buffer] | None = None
        self.queued = self.least = self.held = self.cut = 0
        self.lead = b""
        self.tail = b""
        self.sent_all = False

    # -- what a server overrides ------------------------------------------------------------------

    def held_of(self, _model: str) -> int:
        """Of what is held, the bytes that count for that model."""
        return 0

    def is_needed(self) -> bool:
        """Whether its connection is not to make way for another."""
        return True

    def on_head(self) -> None:
        """The request has begun."""

    def on_data(self, data: bytes, start: int, stop: int) -> None:
        """data[start:stop], which is not empty, is the next part of the request's body."""

    def on_end(self) -> None:
        """The request is whole."""

    def on_drained(self) -> None:
        """What was queued has gone."""

    def on_held(self, change: int) -> None:
        """So many bytes more of its response, or fewer, wait for the peer to take them; called after its end, too."""

    def on_reset(self) -> None:
        """The exchange has ended before its response had been sent."""

    def on_stalled(self) -> None:
        """Too little of the request came for Limits.stall_s, and it is not whole."""

    # -- what a server calls ----------------------------------------------------------------------

    def demand(self, pace: int) -> None:
        """From now on so many bytes have to come within Limits.stall_s, or what its limits demand, if that is more."""
        self.pace = max(pace, self.connection.limits.stall_bytes)
        self.due = self.received + self.pace
        self.touched_s = self.connection.now_s

    # -- what the connection asks of it -----------------------------------------------------------

    def is_late(self, before_s: float) -> bool:
        """Whether too little of what waits has been taken since before_s, or has come."""
        if self.queued:
            if self.queued <= self.least:
                self.demand_taking()
        elif self.received >= self.due:
            self.due = self.received + self.pace
            self.touched_s = self.connection.now_s
        return self.touched_s <= before_s

    def demand_taking(self) -> None:
        """From now on such a part of what waits has to be taken."""
        self.least = self.queued - self.connection.limits.least(self.queued)
        self.touched_s = self.connection.now_s

    # -- what the connection sends of it ----------------------------------------------------------

    def enqueue(self, lead: bytes, chunks: tuple[Buffer, ...], tail: bytes, last: bool) -> None:
        """Adds to what is to be sent: a header block, DATA, and a header block at the end; empty for none."""
        if lead:
            self.lead += headers_frame(self.id, lead)
        if self.queue is None:
            self.queue = deque()
        for chunk in chunks:
            if size := len(chunk):
                self.queue.append(chunk)
                self.queued += size
        if tail:
            self.tail = headers_frame(self.id, tail, END_STREAM)
        self.sent_all = last

    def take(self, size: int) -> list[Buffer]:
        """The next `size` bytes of the queue, which has as many, as views where a chunk is cut."""
        queue = self.queue
        assert queue is not None
        self.queued -= size
        taken: list[Buffer] = []
        while size:
            chunk = queue.popleft()
            if len(chunk) > size:
                view = memoryview(chunk)
                queue.appendleft(view[size:])
                chunk = view[:size]
                self.cut += size
            else:
                self.cut = 0
            taken.append(bytes(chunk) if _is_part(chunk) else chunk)
            size -= len(chunk)
        return taken


def _is_part(chunk: Buffer) -> bool:
    """Whether it keeps a long chunk."""
    return isinstance(chunk, memoryview) and len(cast("bytes", chunk.obj)) > _LONG_BYTES


def headers_frame(stream_id: int, block: bytes, flags: int = 0) -> bytes:
    return FRAME_HEADER.pack(len(block) << 8 | HEADERS, flags | END_HEADERS, stream_id) + block
