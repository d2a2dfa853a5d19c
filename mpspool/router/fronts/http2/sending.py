"""What a connection sends: small answers at once, the rest as the peer takes it."""

from __future__ import annotations

from typing import Final, Protocol

from mpspool.core import http2_frames as frames
from mpspool.core.http2_frames import (
    DATA,
    DEFAULT_FRAME_BYTES,
    DEFAULT_WINDOW,
    END_HEADERS,
    END_STREAM,
    FRAME_HEADER,
    HEADERS,
    LARGEST_FRAME_BYTES,
    MAX_WINDOW,
    NO_TABLE,
    ErrorCode,
    ProtocolError,
)
from mpspool.router.fronts.http2.streams import Buffer, Stream

# Handed to the transport at once: it says after each whether it takes more.
_PIECE_BYTES = 2**18
# It is told at once of as much that it was handed.
_LONG_PIECE_BYTES = 2**16
# Below this, one buffer that is copied together is cheaper than several.
_JOIN_BYTES = 8 * 1024
_END = END_HEADERS | END_STREAM
# Who takes a piece of DATA opens two windows for it, its stream's and the connection's, or does so for every part that is read: as
# many frames that bring nothing are no fault.
_FRAMES_OF_PIECE: Final = 2
_BYTES_OF_FRAME: Final = 32
# A crumb is DATA of fewer bytes that one frame of the peer's lets go on many streams; it is toil, and so is a change of all windows,
# as much as one crumb for so many streams.
_CRUMB_BYTES = 64
_STREAMS_OF_CRUMB = 64
# Of the crumbs that go at once so many are none: as many small frames might have asked for them.
_FEW_CRUMBS = 8
# Within a tick: ten milliseconds or so.
_MOST_TOIL = 4000


class Output(Protocol):
    """Where a connection's bytes go; an asyncio transport is one."""

    def write(self, data: bytes) -> None: ...

    def writelines(self, list_of_data: list[Buffer]) -> None: ...

    def close(self) -> None:
        """Once all is sent."""


class Sender:
    """The sending half of a connection, and the streams that it sends for.

    Attributes:
        output: takes what is to be sent.
        now_s: of the last tick, or the last bytes from the peer.
        streams: those that are open, by number.
        kept_header_bytes: of their requests.
        peer_window: that a stream begins with.
        out_window: what may be sent on all streams together.
        paused: the transport takes nothing more for now.
        sent: bytes of DATA that were handed to the transport.
        held: bytes that wait in the streams.
        useless: frames that the peer has sent since the last one that brought something, less what the DATA makes up for that was
            sent; below 0 for frames to come.
        toil: since the last tick, in crumbs.
    """

    def __init__(self, output: Output, control_bytes: int, now_s: float) -> None:
        self.output = output
        self.now_s = now_s
        self.streams: dict[int, Stream] = {}
        self.kept_header_bytes = 0
        self.peer_window = self.out_window = DEFAULT_WINDOW
        self.useless = self.toil = 0
        self._frame_bytes = DEFAULT_FRAME_BYTES
        self.paused = False
        self.sent = self.held = 0
        self._control_bytes = control_bytes
        self._control_waiting = 0
        # Those with something queued, in the order of their turns; not those with DATA next and no window for it of their own.
        self._waiting: dict[Stream, None] = {}
        self._table_told = False

    # -- what streams call ------------------------------------------------------------------------

    def takes(self, stream: Stream, size: int) -> bool:
        """Whether a response of so many bytes could go now; part of another waits for the peer."""
        return not self.paused and size <= min(_PIECE_BYTES, self.out_window, stream.out_window)

    def respond(self, stream: Stream, lead: bytes, prefix: bytes, body: bytes, tail: bytes) -> None:
        """A whole response: header block, DATA, trailers."""
        size = len(prefix) + len(body)
        if (
            size <= _JOIN_BYTES
            and size <= self.out_window
            and size <= stream.out_window
            and not self.paused
            and self._table_told
            and stream.queue is None
        ):
            self.out_window -= size
            self.sent += size
            self.useless -= _FRAMES_OF_PIECE + size // _BYTES_OF_FRAME
            stream_id = stream.id
            self.output.write(
                b"".join(
                    (
                        FRAME_HEADER.pack(len(lead) << 8 | HEADERS, END_HEADERS, stream_id),
                        lead,
                        FRAME_HEADER.pack(size << 8, 0, stream_id),
                        prefix,
                        body,
                        FRAME_HEADER.pack(len(tail) << 8 | HEADERS, _END, stream_id),
                        tail,
                    )
                )
            )
            self._finish(stream)
        else:
            self.send(stream, lead, (prefix, body), tail, last=True)

    def send(
        self,
        stream: Stream,
        lead: bytes = b"",
        chunks: tuple[Buffer, ...] = (),
        tail: bytes = b"",
        *,
        last: bool,
    ) -> None:
        """A part of a response: a header block to begin with, DATA, trailers; empty for none.

        What the peer does not take yet is kept, not copied, and told to the stream: each chunk until all of it has gone.
        """
        if not stream.open:
            return
        lead, tail = (self._opening(lead), tail) if lead else (lead, self._opening(tail))
        stream.enqueue(lead, chunks, tail, last)
        stream.demand_taking()
        self.push(stream)

    def turn_away(self, stream_id: int, block: bytes) -> None:
        """Answers a request that no Stream is made of by a header block; not while paused."""
        block = self._opening(block)
        self.output.write(FRAME_HEADER.pack(len(block) << 8 | HEADERS, _END, stream_id) + block)

    def _opening(self, block: bytes) -> bytes:
        """A header block; before the connection's first stands that none of them needs a table."""
        if self._table_told:
            return block
        self._table_told = True
        return NO_TABLE + block

    def push(self, stream: Stream) -> None:
        """Sends what the windows and the transport allow of a stream's queue."""
        while not self.paused:
            pieces, size = self._next(stream)
            if size:
                self.useless -= _FRAMES_OF_PIECE + size // _BYTES_OF_FRAME
                self.sent += size
            if pieces:
                self.output.writelines(pieces)
                if size >= _LONG_PIECE_BYTES:
                    self.on_handed()
            if stream.sent_all and not (stream.queued or stream.lead or stream.tail):
                self._finish(stream)
                return
            if size < _PIECE_BYTES:
                break
        self._waiting.pop(stream, None)
        if stream.queued or stream.lead or stream.tail:
            if stream.lead or not stream.queued or stream.out_window > 0:
                self._waiting[stream] = None
        elif stream.held:
            stream.on_drained()
        self._account(stream)

    def _next(self, stream: Stream) -> tuple[list[Buffer], int]:
        """What can go to the transport in one piece, and the bytes of DATA in it."""
        pieces: list[Buffer] = []
        if stream.lead:
            pieces.append(stream.lead)
            stream.lead = b""
        total = 0
        while stream.queued and total < _PIECE_BYTES:
            room = min(
                self._frame_bytes, _PIECE_BYTES - total
            )  # the peer's frames may be larger than what goes at once
            size = min(stream.queued, room, stream.out_window, self.out_window)
            if size <= 0:
                return pieces, total
            stream.out_window -= size
            self.out_window -= size
            total += size
            taken = stream.take(size)
            last = stream.sent_all and not stream.queued and not stream.tail
            pieces.append(FRAME_HEADER.pack(size << 8 | DATA, END_STREAM if last else 0, stream.id))
            pieces += taken
        if stream.tail and not stream.queued:
            pieces.append(stream.tail)
            stream.tail = b""
        return pieces, total

    def _account(self, stream: Stream) -> None:
        change = stream.queued + stream.cut + len(stream.lead) + len(stream.tail) - stream.held
        if change:
            stream.held += change
            self.held += change
            stream.on_held(change)

    def _finish(self, stream: Stream) -> None:
        """The response has gone. What the peer still sends is not wanted."""
        self.forget(stream)
        if stream.receiving:
            self.write_control(frames.rst_stream(stream.id, ErrorCode.NO_ERROR))
            self.remember_reset(stream.id)

    def remember_reset(self, stream_id: int) -> None:
        """What the peer still sends on this stream is no fault of its."""
        raise NotImplementedError

    def forget(self, stream: Stream) -> None:
        """Lets go of a stream and of what it has queued."""
        stream.open = False
        if self.streams.pop(stream.id, None) is not None:
            self.kept_header_bytes -= stream.head.kept_bytes
        if stream.queue is not None:
            self._waiting.pop(stream, None)
            stream.queue.clear()
            stream.queued = stream.cut = 0
            stream.lead = stream.tail = b""
            self._account(stream)

    # -- what the peer and the transport allow ----------------------------------------------------

    def on_handed(self) -> None:
        """The transport was handed much."""

    def pause(self) -> None:
        """The transport takes nothing more for now."""
        self.paused = True

    def resume(self) -> None:
        """The transport takes more again."""
        self.paused = False
        self._control_waiting = 0
        self._push_all()

    def write_control(self, frame: bytes) -> None:
        """An answer that the peer provoked; where it reads none of them, the connection ends."""
        if self.paused:
            self._control_waiting += len(frame)
            if self._control_waiting > self._control_bytes:
                self.fail(ErrorCode.ENHANCE_YOUR_CALM, "it does not read the answers to its frames")
                return
        self.output.write(frame)

    def fail(self, code: ErrorCode, text: str) -> None:
        """Ends the connection, and says why."""
        raise NotImplementedError

    def open_out_window(self, increment: int) -> None:
        """Raises ProtocolError where that is more than there can be, or too little for too many streams."""
        shut = self.out_window <= 0
        self.out_window += increment
        if self.out_window > MAX_WINDOW:
            raise ProtocolError(ErrorCode.FLOW_CONTROL_ERROR, "the connection's window beyond 2**31-1")
        if shut:  # else nothing has waited for it
            self._push_granted()

    def resize_windows(self, size: int) -> None:
        """INITIAL_WINDOW_SIZE, which is of the streams that are open, too. Raises ProtocolError."""
        change = size - self.peer_window
        self.peer_window = size
        for stream in self.streams.values():
            stream.out_window += change
            if stream.out_window > MAX_WINDOW:
                raise ProtocolError(ErrorCode.FLOW_CONTROL_ERROR, "a stream's window beyond 2**31-1")
            if stream.queued and stream.out_window > 0:
                self._waiting.setdefault(stream, None)
            elif stream.queued and not stream.lead:
                self._waiting.pop(stream, None)
        self._count_toil(len(self.streams) // _STREAMS_OF_CRUMB)
        self._push_granted()

    def resize_frames(self, size: int) -> None:
        """MAX_FRAME_SIZE. Raises ProtocolError."""
        if not DEFAULT_FRAME_BYTES <= size <= LARGEST_FRAME_BYTES:
            raise ProtocolError(ErrorCode.PROTOCOL_ERROR, f"MAX_FRAME_SIZE of {size}")
        self._frame_bytes = size

    def blocked(self) -> int:
        """How many bytes wait for the connection's window, or the transport, and not for their streams' own windows."""
        if not self.paused and self.out_window > 0:
            return 0
        return sum(stream.queued for stream in self._waiting)

    def _push_all(self) -> None:
        for stream in list(self._waiting):
            if self.paused:
                return
            if stream.open and (stream.lead or not stream.queued or self.out_window > 0):
                self.push(stream)

    def _push_granted(self) -> None:
        """What the peer's windows let go of DATA, as long as the connection's does. Raises ProtocolError where it is crumbs."""
        crumbs = 0
        for stream in list(self._waiting):
            if self.paused or self.out_window <= 0:
                break
            if stream.open:
                before = self.sent
                self.push(stream)
                if stream.queued and stream.out_window <= 0 and self.sent - before < _CRUMB_BYTES:
                    crumbs += 1
        if crumbs > _FEW_CRUMBS:
            self._count_toil(crumbs - _FEW_CRUMBS)

    def _count_toil(self, count: int) -> None:
        self.toil += count
        if self.toil > _MOST_TOIL:
            text = "windows of many streams are changed too often, or opened by too little"
            raise ProtocolError(ErrorCode.ENHANCE_YOUR_CALM, text)
