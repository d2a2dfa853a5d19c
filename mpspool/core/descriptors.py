"""File descriptors that come with a message over a UNIX socket."""

from __future__ import annotations

import array
import socket


def receive(connection: socket.socket, max_bytes: int, most: int) -> tuple[bytes, list[int], int]:
    """One message, its descriptors and recvmsg()'s flags. The descriptors are the caller's to close, and end with an exec.

    socket.recv_fds() passes no flags on (Python 3.11 to 3.13): what it takes in is inherited.

    Args:
        connection: SOCK_SEQPACKET.
        max_bytes: of the message.
        most: descriptors.

    Raises:
        OSError: from recvmsg().
    """
    descriptors = array.array("i")
    space = socket.CMSG_SPACE(most * descriptors.itemsize)
    data, ancillary, flags, _ = connection.recvmsg(max_bytes, space, socket.MSG_CMSG_CLOEXEC)
    for level, kind, content in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            descriptors.frombytes(content[: len(content) - len(content) % descriptors.itemsize])
    return data, descriptors.tolist(), flags
