"""A server's side of one HTTP/2 connection (RFC 9113), without a socket.

Bytes and the time come in by receive() and tick(); what is to be sent goes out by the Output that the
connection was made with. Whatever the peer does, nothing raises: a broken protocol ends the connection with
the code that the RFC has for it, and what it costs to break it is counted against a budget.

What the peer may send is bounded by flow control for what nobody has asked for yet: a stream's first window
is small, and expect() opens it for a message that was admitted. The connection's own window is given back as
it is used, for what comes is either admitted or thrown away.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from mpspool.core import http2_frames as frames
from mpspool.core.http2_frames import (
    ACK,
    END_STREAM,
    MAX_WINDOW,
    STREAM_ID_MASK,
    ErrorCode,
    ProtocolError,
    Setting,
)
from mpspool.router.fronts.http2.headers import RequestHead
from mpspool.router.fronts.http2.limits import Limits
from mpspool.router.fronts.http2.receiving import Receiver
from mpspool.router.fronts.http2.sending import Output
from mpspool.router.fronts.http2.streams import Stream

# What a request that is turned away leaves of its turn, in frames, for one that is taken costs more; and what one leaves of which the
# header block was known.
_FRAMES_OF_STREAM: Final = 64
_FRAMES_OF_DECODING: Final = 56
# Streams that we ended early: what the peer still sends on them is no fault of its.
_REMEMBERED_RESETS = 1024
_MAX_SETTINGS = 32
# Each may touch every stream: as much as this many other frames that bring nothing.
_SETTINGS_COST = 20
# What DATA that was taken makes up for is remembered for so many frames.
_MOST_MADE_UP = 2**16


class Connection(Receiver):
    """One connection.

    Args:
        output: takes what is to be sent.
        open_stream: makes the Stream of a request; None where it has turned it away.
        limits: see there.
        peer: who it is, for RequestHead.
        complain: told what the peer did wrong; for a stream, or, the last time, for the connection.
        handed: told when the output was handed much.
        now_s: the time.

    Attributes:
        client: whose answers go to it, where clients share; the last one's, where it is several clients'.
    """

    def __init__(
        self,
        output: Output,
        open_stream: Callable[[Connection, int, RequestHead], Stream | None],
        limits: Limits,
        *,
        peer: str = "",
        complain: Callable[[ErrorCode, str], None] = lambda _code, _text: None,
        handed: Callable[[], None] = lambda: None,
        now_s: float = 0.0,
    ) -> None:
        super().__init__(output, limits, peer, now_s)
        self._open_stream = open_stream
        self._complain = complain
        self._handed = handed
        self.client: str | None = None
        self._goaway_id: int | None = None
        self._resets: dict[int, None] = {}
        self._resets_left = limits.resets
        self._heard_s = self._begun_s = now_s
        self._pinged_s: float | None = None
        # `sent` when enough of what waits for the connection has gone, and when it last had.
        self._sent_due = 0
        self._sent_s = now_s
        self._control = {
            frames.PRIORITY: self._on_priority,
            frames.RST_STREAM: self._on_rst_stream,
            frames.SETTINGS: self._on_settings,
            frames.PUSH_PROMISE: self._on_push_promise,
            frames.PING: self._on_ping,
            frames.GOAWAY: self._on_goaway,
            frames.WINDOW_UPDATE: self._on_window_update,
        }

    # -- what the shell calls ---------------------------------------------------------------------

    def tick(self, now_s: float) -> None:
        """To be called about once a second."""
        self.now_s = now_s
        if self.over:
            return
        self.useless = max(min(self.useless, 0), -_MOST_MADE_UP)
        self.toil = 0
        self._resets_left = self.limits.resets
        # A ping would be read behind all that waits: whoever takes that at the rate that is demanded lives.
        if self._heard or self.paused:
            self._heard, self._heard_s, self._pinged_s = False, now_s, None
        if not self.greeted:
            if now_s - self._begun_s >= self.limits.greeting_s:
                self.fail(ErrorCode.NO_ERROR, "nothing that begins an HTTP/2 connection came in time")
        elif self._pinged_s is not None:
            if now_s - self._pinged_s >= self.limits.ping_s:
                self.fail(ErrorCode.NO_ERROR, "a ping was not answered")
        elif now_s - self._heard_s >= self.limits.silence_s:
            self._pinged_s = now_s
            self.output.write(frames.frame(frames.PING, 0, 0, bytes(8)))
        self._see_stalls(now_s - self.limits.stall_s)

    def _see_stalls(self, before_s: float) -> None:
        """Who takes too little of what it asked for, or sends too little of what it began, is not waited for."""
        blocked = self.blocked()
        if not blocked or self.sent >= self._sent_due:
            self._sent_due = self.sent + self.limits.least(blocked)
            self._sent_s = self.now_s
        elif self._sent_s <= before_s:
            self.fail(ErrorCode.NO_ERROR, "it takes nothing of what it asked for, or too little")
            return
        for stream in list(self.streams.values()):
            if not stream.is_late(before_s) or not stream.open:
                continue
            if stream.queued:
                if stream.out_window <= 0:
                    text = f"stream {stream.id}: it takes nothing of what it asked for, or too little"
                    self.complain(ErrorCode.CANCEL, text)
                    self.cancel(stream)
            elif stream.receiving:
                stream.on_stalled()

    def is_needed(self) -> bool:
        """Whether a stream is."""
        return any(stream.is_needed() for stream in self.streams.values())

    def cancel_blocked(self) -> None:
        """Ends the streams of which the peer takes nothing by its windows."""
        for stream in list(self.streams.values()):
            if stream.open and stream.queued and (stream.out_window <= 0 or self.out_window <= 0):
                self.cancel(stream)

    def cancel(self, stream: Stream) -> None:
        """Nothing more of a stream is sent, or taken."""
        self._drop(stream)
        self.write_control(frames.rst_stream(stream.id, ErrorCode.CANCEL))
        self.remember_reset(stream.id)

    def go_away(self) -> None:
        """Takes no more streams; those that there are go on."""
        if self._goaway_id is None and not self.over:
            self._goaway_id = self.last_id
            if self.greeted:
                self.output.write(frames.goaway(self.last_id, ErrorCode.NO_ERROR))

    def fail(self, code: ErrorCode, text: str) -> None:
        """Ends the connection, and says why."""
        if self.over:
            return
        self.complain(code, text)
        if self.greeted:
            last_id = self.last_id if self._goaway_id is None else self._goaway_id
            self.output.write(frames.goaway(last_id, code, text))
        self.lost()
        self.output.close()

    def lost(self) -> None:
        """The connection has ended: so has every stream."""
        self.over = True
        for stream in list(self.streams.values()):
            self._drop(stream)

    def complain(self, code: ErrorCode, text: str) -> None:
        """The peer did something wrong."""
        self._complain(code, text)

    def on_handed(self) -> None:
        self._handed()

    # -- what is read -----------------------------------------------------------------------------

    def on_greeting(self) -> None:
        """The peer's preface is there, and ours has been sent."""
        if self._goaway_id is not None:
            self.output.write(frames.goaway(0, ErrorCode.NO_ERROR))

    def on_control(self, kind: int, flags: int, stream_id: int, payload: bytes) -> None:
        """A frame that is neither DATA nor of a header block. Raises ProtocolError."""
        self._control[kind](flags, stream_id, payload)

    def receiver(self, stream_id: int, size: int) -> Stream | None:
        """Whose DATA that is; None where it is to be thrown away."""
        stream = self.streams.get(stream_id)
        if stream is None:
            if not self._may_be_late(stream_id):
                self._refuse(stream_id, ErrorCode.STREAM_CLOSED, "DATA on a stream that is closed")
        elif not stream.receiving:
            self._reset(stream, ErrorCode.STREAM_CLOSED, "DATA after the end of its stream")
        elif size > stream.in_window:
            self._reset(stream, ErrorCode.FLOW_CONTROL_ERROR, "DATA beyond its stream's window")
        else:
            stream.in_window -= size
            return stream
        return None

    def on_end(self, stream: Stream) -> None:
        stream.receiving = False
        length = stream.head.content_length
        if length >= 0 and length != stream.received:
            self._reset(stream, ErrorCode.PROTOCOL_ERROR, "content-length is not the length")
        else:
            stream.on_end()

    def on_block(self, flags: int, stream_id: int, head: RequestHead) -> None:
        if stream_id > self.last_id:
            self.last_id = stream_id
            if self._goaway_id is None:
                self._begin(flags, stream_id, head)
            return
        stream = self.streams.get(stream_id)
        if stream is None:
            if not self._may_be_late(stream_id):
                raise ProtocolError(
                    ErrorCode.STREAM_CLOSED, f"HEADERS on stream {stream_id}, which is closed"
                )
        elif not stream.receiving:
            self._reset(stream, ErrorCode.STREAM_CLOSED, "HEADERS after the end of its stream")
        elif not flags & END_STREAM or not (head.trailers or head.oversized):
            self._reset(
                stream, ErrorCode.PROTOCOL_ERROR, "trailers that do not end their stream, or are none"
            )
        else:
            self.on_end(stream)

    def _begin(self, flags: int, stream_id: int, head: RequestHead) -> None:
        kept = self.kept_header_bytes + head.kept_bytes
        if len(self.streams) >= self.limits.streams or kept > self.limits.kept_header_bytes:
            self.count_useless()
            self.write_control(frames.rst_stream(stream_id, ErrorCode.REFUSED_STREAM))
            self.remember_reset(stream_id)
            return
        if head.malformed:
            self._refuse(stream_id, ErrorCode.PROTOCOL_ERROR, head.malformed)
            return
        self.useless = min(self.useless, 0)
        stream = self._open_stream(self, stream_id, head)
        if stream is None:
            self.turn_left += _FRAMES_OF_STREAM + (_FRAMES_OF_DECODING if self.knew_block else 0)
            if not flags & END_STREAM:
                self.output.write(frames.rst_stream(stream_id, ErrorCode.NO_ERROR))
                self.remember_reset(stream_id)
            return
        self.kept_header_bytes = kept
        self.streams[stream_id] = stream
        stream.receiving = not flags & END_STREAM
        stream.on_head()
        if flags & END_STREAM and stream.open:
            self.on_end(stream)

    # -- the other frames -------------------------------------------------------------------------

    def _on_priority(self, _flags: int, stream_id: int, payload: bytes) -> None:
        if not stream_id:
            raise ProtocolError(ErrorCode.PROTOCOL_ERROR, "PRIORITY of the connection")
        self.count_useless()
        if len(payload) != 5:
            stream = self.streams.get(stream_id)
            if stream is None:  # of one that has not begun there is nothing to reset
                raise ProtocolError(ErrorCode.FRAME_SIZE_ERROR, "PRIORITY of a wrong size")
            self._reset(stream, ErrorCode.FRAME_SIZE_ERROR, "PRIORITY of a wrong size")

    def _on_rst_stream(self, _flags: int, stream_id: int, payload: bytes) -> None:
        if len(payload) != 4:
            raise ProtocolError(ErrorCode.FRAME_SIZE_ERROR, "RST_STREAM of a wrong size")
        self._check_begun(stream_id)
        stream = self.streams.get(stream_id)
        if stream is None:
            self.count_useless()
            return
        open_s = self.now_s - stream.opened_s
        if open_s < self.limits.at_once_s and not stream.head.is_due(open_s):
            self._spend_reset()
        self._drop(stream)

    def _on_settings(self, flags: int, stream_id: int, payload: bytes) -> None:
        if stream_id:
            raise ProtocolError(ErrorCode.PROTOCOL_ERROR, "SETTINGS of a stream")
        if len(payload) % 6 or (flags & ACK and payload):
            raise ProtocolError(ErrorCode.FRAME_SIZE_ERROR, "SETTINGS of a wrong size")
        self.count_useless(_SETTINGS_COST)
        if flags & ACK:
            return
        if len(payload) > 6 * _MAX_SETTINGS:
            raise ProtocolError(ErrorCode.ENHANCE_YOUR_CALM, "too many settings")
        window = self.peer_window
        for key, value in frames.parse_settings(payload):
            if key == Setting.ENABLE_PUSH and value > 1:
                raise ProtocolError(ErrorCode.PROTOCOL_ERROR, f"ENABLE_PUSH of {value}")
            if key == Setting.INITIAL_WINDOW_SIZE:
                if value > MAX_WINDOW:
                    raise ProtocolError(ErrorCode.FLOW_CONTROL_ERROR, f"INITIAL_WINDOW_SIZE of {value}")
                window = value
            elif key == Setting.MAX_FRAME_SIZE:
                self.resize_frames(value)
        if window != self.peer_window:
            self.resize_windows(window)
        self.write_control(frames.frame(frames.SETTINGS, ACK, 0))

    def _on_push_promise(self, _flags: int, _stream_id: int, _payload: bytes) -> None:
        raise ProtocolError(ErrorCode.PROTOCOL_ERROR, "PUSH_PROMISE from a client")

    def _on_ping(self, flags: int, stream_id: int, payload: bytes) -> None:
        if stream_id:
            raise ProtocolError(ErrorCode.PROTOCOL_ERROR, "PING of a stream")
        if len(payload) != 8:
            raise ProtocolError(ErrorCode.FRAME_SIZE_ERROR, "PING of a wrong size")
        self.count_useless()
        if not flags & ACK:
            self.write_control(frames.frame(frames.PING, ACK, 0, payload))

    def _on_goaway(self, _flags: int, stream_id: int, payload: bytes) -> None:
        """The peer begins nothing more, and closes when it has its answers."""
        self.count_useless()
        if stream_id:
            raise ProtocolError(ErrorCode.PROTOCOL_ERROR, "GOAWAY of a stream")
        if len(payload) < 8:
            raise ProtocolError(ErrorCode.FRAME_SIZE_ERROR, "GOAWAY of a wrong size")

    def _on_window_update(self, _flags: int, stream_id: int, payload: bytes) -> None:
        if len(payload) != 4:
            raise ProtocolError(ErrorCode.FRAME_SIZE_ERROR, "WINDOW_UPDATE of a wrong size")
        self.count_useless()
        increment = int.from_bytes(payload, "big") & STREAM_ID_MASK
        if not stream_id:
            if not increment:
                raise ProtocolError(ErrorCode.PROTOCOL_ERROR, "WINDOW_UPDATE of nothing")
            self.open_out_window(increment)
        elif (stream := self.streams.get(stream_id)) is None:
            self._check_begun(stream_id)
        elif not increment:
            self._reset(stream, ErrorCode.PROTOCOL_ERROR, "WINDOW_UPDATE of nothing")
        elif stream.out_window + increment > MAX_WINDOW:
            self._reset(stream, ErrorCode.FLOW_CONTROL_ERROR, "a stream's window beyond 2**31-1")
        else:
            stream.out_window += increment
            if stream.queued:
                self.push(stream)

    # -- streams that end early -------------------------------------------------------------------

    def _check_begun(self, stream_id: int) -> None:
        if not stream_id & 1 or stream_id > self.last_id:
            raise ProtocolError(ErrorCode.PROTOCOL_ERROR, f"a frame on stream {stream_id}, which is idle")

    def _may_be_late(self, stream_id: int) -> bool:
        """Whether a frame on a stream that is no more is no fault of the peer's: it was us who ended it early."""
        self._check_begun(stream_id)
        self.count_useless()
        return stream_id in self._resets or (self._goaway_id is not None and stream_id > self._goaway_id)

    def _reset(self, stream: Stream, code: ErrorCode, text: str) -> None:
        self._drop(stream)
        self._refuse(stream.id, code, text)

    def _refuse(self, stream_id: int, code: ErrorCode, text: str) -> None:
        """Resets a stream for what the peer did; there may be no such stream."""
        self.complain(code, f"stream {stream_id}: {text}")
        self._spend_reset()
        self.write_control(frames.rst_stream(stream_id, code))
        self.remember_reset(stream_id)

    def _spend_reset(self) -> None:
        """What is begun and reset at once, by whomever, costs us and not the peer."""
        self._resets_left -= 1
        if self._resets_left < 0:
            raise ProtocolError(ErrorCode.ENHANCE_YOUR_CALM, "too many streams were reset")

    def remember_reset(self, stream_id: int) -> None:
        self._resets[stream_id] = None
        if len(self._resets) > 2 * _REMEMBERED_RESETS:
            # The older half at once: the first of a dictionary is found behind all that were deleted before it.
            self._resets = dict.fromkeys(list(self._resets)[_REMEMBERED_RESETS:])

    def _drop(self, stream: Stream) -> None:
        self.forget(stream)
        stream.on_reset()
