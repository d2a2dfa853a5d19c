"""The router's end of the link to the workers: a ZeroMQ ROUTER on the event loop."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path

import msgspec
import zmq

from mpspool.core import log, messages, zmq_frames

logger = log.get("link")

# A worker holds as many dispatches as it has credits, and a few words beside.
_SEND_HIGH_WATER = 64
# Of a message with answers: after more than this, others have a turn of the loop.
_LONG_BYTES = 2**20
Receiver = Callable[[bytes, messages.FromWorker, list[bytes]], None]


class Link:
    """Receives from every worker, sends to one.

    Args:
        path: the UNIX socket to bind, in place of one that a killed predecessor left.
        receive: called on the event loop for each message: identity, message, payload frames.
    """

    def __init__(self, path: Path, receive: Receiver) -> None:
        self._receive = receive
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.ROUTER)
        self._socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        self._socket.setsockopt(zmq.ROUTER_HANDOVER, 1)
        self._socket.setsockopt(zmq.SNDHWM, _SEND_HIGH_WATER)
        self._socket.setsockopt(zmq.LINGER, 0)
        before = os.umask(0o177)
        try:
            self._socket.bind(f"ipc://{path}")
        finally:
            os.umask(before)
        self._loop = asyncio.get_running_loop()
        self._pauses = False
        self._fd = int(self._socket.getsockopt(zmq.FD))
        self._loop.add_reader(self._fd, self._on_readable)
        self._loop.call_soon(self._on_readable)

    def send(self, identity: bytes, message: messages.FromRouter, frames: list[bytes]) -> bool:
        """False where the worker cannot be reached any more."""
        try:
            zmq_frames.send(self._socket, [identity, messages.encode(message), *frames])
        except zmq.ZMQError as error:
            logger.warning("unreachable", worker=identity.decode(), error=str(error))
            return False
        if zmq_frames.arrived(self._socket):
            self._loop.call_soon(self._on_readable)
        return True

    def drain(self) -> None:
        """Takes in what has arrived so far."""
        while self._take_next() >= 0:
            pass

    def _on_readable(self) -> None:
        if self._pauses:
            return
        while (size := self._take_next()) >= 0:
            # Who waits for it lets its request go before those behind it are here.
            if size > _LONG_BYTES:
                self._pauses = True
                self._loop.call_soon(self._go_on)
                return

    def _go_on(self) -> None:
        self._pauses = False
        self._on_readable()

    def _take_next(self) -> int:
        """The size of a message that had arrived; -1 where none had."""
        if self._socket.closed or not zmq_frames.arrived(self._socket):
            return -1
        identity, *parts = zmq_frames.receive(self._socket)
        if parts:
            self._take(identity, parts[0], parts[1:])
        return sum(map(len, parts))

    def _take(self, identity: bytes, head: bytes, frames: list[bytes]) -> None:
        try:
            message = messages.decode_from_worker(head)
        except msgspec.MsgspecError as error:
            logger.warning("not understood", worker=identity.decode(errors="replace"), error=str(error))
            return
        try:
            self._receive(identity, message, frames)
        except Exception:  # the descriptor is edge-triggered: what is behind it would be read when more comes
            logger.exception("a message was not taken in", worker=identity.decode(errors="replace"))

    def close(self) -> None:
        if not self._socket.closed:
            self._loop.remove_reader(self._fd)
            self._context.destroy(linger=0)
