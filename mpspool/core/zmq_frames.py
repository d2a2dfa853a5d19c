"""The frames of a message through a ZeroMQ socket, without waiting.

As pyzmq's own send_multipart(), recv_multipart() and getsockopt(EVENTS); but those make enums of their flags and options for each
frame, and that costs more than what is sent.
"""

from __future__ import annotations

from typing import Any, Final

import zmq

_NOBLOCK: Final = int(zmq.NOBLOCK)
_SNDMORE: Final = int(zmq.SNDMORE)
_POLLIN: Final = int(zmq.POLLIN)
_BORROW_BYTES: Final = 64 * 1024


def send(socket: Any, parts: list[bytes]) -> None:
    """Sends the parts of one message.

    Raises:
        zmq.ZMQError: it cannot be sent now, no part of it.
    """
    # Our memory instead of a copy: dear for short parts.
    copy = all(len(part) < _BORROW_BYTES for part in parts)
    for part in parts[:-1]:
        socket.send(part, _NOBLOCK | _SNDMORE, copy)
    socket.send(parts[-1], _NOBLOCK, copy)


def arrived(socket: Any) -> bool:
    """Whether a message is there, for a socket that is open.

    To be asked until none is, and after a send: the descriptor is edge-triggered, and a send may swallow the edge.
    """
    return bool(zmq.zmq_poll([(socket, _POLLIN)], 0))


def receive(socket: Any) -> list[bytes]:
    """The parts of a message that has arrived. Raises zmq.Again where none has."""
    frame = socket.recv(_NOBLOCK, False)
    parts: list[bytes] = [frame.bytes]
    while frame.more:
        frame = socket.recv(_NOBLOCK, False)
        parts.append(frame.bytes)
    return parts
