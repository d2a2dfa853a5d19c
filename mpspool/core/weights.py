"""Weights in words: what a worker reports of them, and what is said on the pool's weights socket.

The socket is SOCK_SEQPACKET: one JSON message a packet, a segment's descriptor beside it (SCM_RIGHTS).
"""

from __future__ import annotations

import array
import os
import socket

import msgspec

from mpspool.core import descriptors

_MAX_MESSAGE_BYTES = 64 * 1024
# Why a variable is private all the same after it was bound to the one copy: TensorFlow's doing, or the model's.
COPIED = "TensorFlow copied it"
WRITTEN = "the model writes to it"


class WeightsReport(msgspec.Struct, frozen=True):
    """Where the variables of one worker lie.

    Attributes:
        shared_bytes: in the one copy of all workers.
        private_bytes: in this worker alone.
        why: reason -> names of the variables that are private for it, wholly or in part, a few of each.
        excess_bytes: private memory that should not be: of the variables under COPIED, and after warm-up what
            the worker has beyond all that was expected.
    """

    shared_bytes: int = 0
    private_bytes: int = 0
    shared_variables: int = 0
    private_variables: int = 0
    why: dict[str, list[str]] = {}
    excess_bytes: int = 0


class Offer(msgspec.Struct, tag="offer", frozen=True):
    """A model version's segment, whose descriptor comes with it; or the reason why there is none.

    Without one each worker reads the checkpoint for itself, unless that has `failed` for good.
    """

    model: str
    version: int
    reason: str = ""
    failed: bool = False


class Taken(msgspec.Struct, tag="taken", frozen=True):
    """The pool's answer to a publisher: it has the segment."""


class Want(msgspec.Struct, tag="want", frozen=True):
    """A worker asks for its model version's segment; the answer is an Offer."""

    model: str
    version: int


Message = Offer | Taken | Want

_decode = msgspec.json.Decoder(Message).decode


def send(connection: socket.socket, message: Message, descriptor: int | None = None) -> None:
    """Raises OSError."""
    rights = [] if descriptor is None else [descriptor]
    ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", rights))] if rights else []
    connection.sendmsg([msgspec.json.encode(message)], ancillary)


def receive(connection: socket.socket) -> tuple[Message, int | None]:
    """One message and the descriptor that came with it, which is the caller's to close.

    Raises:
        OSError: the connection; ConnectionResetError where the other side has gone.
        msgspec.DecodeError: not one of ours.
    """
    data, found, flags = descriptors.receive(connection, _MAX_MESSAGE_BYTES, 1)
    descriptor = found[0] if found else None
    try:
        return _decode(_whole(data, flags)), descriptor
    except BaseException:
        if descriptor is not None:
            os.close(descriptor)
        raise


def _whole(data: bytes, flags: int) -> bytes:
    if not data:
        raise ConnectionResetError("the other side has gone")
    if flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC):
        raise OSError("a message was cut")
    return data
