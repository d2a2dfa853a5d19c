"""What the sockets of all fronts have in common: where they listen, and what a peer is called."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import resource
import socket
import sys
import termios

from mpspool.core.errors import Problem
from mpspool.core.host_port import host_port

# In the kernel's queue, until we accept them.
BACKLOG = 1024
# Files that may be open and are none for clients: for workers, each of which takes a few, and whatever else is read.
_OTHER_FILES = 256
# Addresses that a name may stand for on a machine that does not have them all.
_NOT_HERE = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)


def connections(wanted: int) -> int:
    """Of so many wanted, those that each of the two fronts may have: clients are not to take the files that workers need."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files == resource.RLIM_INFINITY:
        return wanted
    return max(1, min(wanted, (files - max(_OTHER_FILES, files // 4)) // 2))


def bind(host: str, port: int) -> list[socket.socket]:
    """A socket for every address of a name, all with one port. "::" takes IPv4, too.

    Raises:
        OSError: none of them can be had, or one is taken.
    """
    found = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    sockets: list[socket.socket] = []
    problem: OSError | None = None
    for family, address in dict.fromkeys((entry[0], entry[4]) for entry in found):
        try:
            sockets.append(_bind(family, address, port))
        except OSError as error:
            if error.errno not in _NOT_HERE:
                for bound in sockets:
                    bound.close()
                raise
            problem = error
            continue
        port = port or sockets[0].getsockname()[1]
    if not sockets:
        raise problem or OSError(errno.EADDRNOTAVAIL, f"{host} has no address")
    return sockets


def _bind(family: int, address: tuple[object, ...], port: int) -> socket.socket:
    bound = socket.socket(family, socket.SOCK_STREAM)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, address[0] != "::")
        bound.bind((address[0], port, *address[2:]))
    except OSError:
        bound.close()
        raise
    return bound


def cannot_bind(key: str, host: str, port: int, error: OSError) -> Problem:
    """What bind() raised for the port of a key, as people are told it."""
    why = error.strerror or str(error)  # of a name that stands for nothing, errno is none of the system's
    return Problem(key, f"cannot listen on {host_port(host, port)}: {why}")


def unsent(transport: asyncio.BaseTransport) -> int:
    """Bytes that the kernel has of what was written, and the peer's has not; 0 where that is not known."""
    return _told(transport, termios.TIOCOUTQ)


def unread(transport: asyncio.BaseTransport) -> int:
    """Bytes that the kernel has of what the peer has sent; 0 where that is not known."""
    return _told(transport, termios.FIONREAD)


def _told(transport: asyncio.BaseTransport, request: int) -> int:
    try:
        told = fcntl.ioctl(transport.get_extra_info("socket").fileno(), request, bytes(4))
    except (OSError, ValueError, AttributeError):  # it is closed
        return 0
    return int.from_bytes(told, sys.byteorder)


def peer_name(address: object) -> str:
    """As "127.0.0.1:1234"; empty for what is gone already."""
    if not isinstance(address, tuple):
        return ""
    return host_port(*address[:2])


def address_of(address: object) -> str:
    """As "127.0.0.1", whatever the port; empty for what is gone already, and for a UNIX socket's peer."""
    return str(address[0]) if isinstance(address, tuple) else ""
