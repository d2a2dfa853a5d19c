"""What one connection may cost us."""

from __future__ import annotations

from dataclasses import dataclass

# Such a part of what was begun has to come, or be taken, within Limits.stall_s.
_LEAST_PART = 10


@dataclass(frozen=True, slots=True)
class Limits:
    """What one connection may cost.

    Attributes:
        streams: open at once; one more is REFUSED_STREAM.
        window_bytes: of a stream, for what was not admitted.
        connection_window_bytes: of all streams together, given back as it is used.
        frame_bytes: of one frame, as we announce it.
        header_list_bytes: of a request's headers, decoded.
        kept_header_bytes: of the headers of all open streams, as RequestHead.kept_bytes counts them; one more is REFUSED_STREAM.
        resets: streams per second that may be reset within at_once_s of their beginning, or for what is wrong with them. Who waits
            longer, or for half of the call's own time, has no more of them than `streams` allows: not many more than where we end
            them at their deadlines.
        useless: frames in a row, within a second, that bring neither a request nor data, beyond those that belong to taking answers.
        control_bytes: of our answers to such frames that may wait for a peer that does not read.
        greeting_s: until the preface is there.
        silence_s: after which the peer is asked whether it is alive.
        ping_s: for its answer.
        stall_s: with less than there has to be of a request that was begun, or taken of a response.
        stall_bytes: that have to come of a request in this time, or its end, or be taken of a response, where no more is
            demanded.
    """

    streams: int = 1024
    window_bytes: int = 2**20
    connection_window_bytes: int = 2**24
    frame_bytes: int = 2**20
    header_list_bytes: int = 16 * 1024
    kept_header_bytes: int = 2**20
    resets: int = 512
    at_once_s: float = 0.01
    useless: int = 2000
    control_bytes: int = 64 * 1024
    greeting_s: float = 10.0
    silence_s: float = 120.0
    ping_s: float = 20.0
    stall_s: float = 60.0
    stall_bytes: int = 4096

    def least(self, size: int) -> int:
        """How many of so many bytes have to come, or be taken, within stall_s."""
        return max(size // _LEAST_PART, self.stall_bytes)
