"""The worker's end of the link to the router: a ZeroMQ DEALER that outlives router after router."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec
import zmq

from mpspool.core import log, messages, zmq_frames
from mpspool.core.inbox import Inbox, Place
from mpspool.core.messages import Dispatch, Hello, LoadReport, Outcome
from mpspool.core.states import WorkerState
from mpspool.core.weights import WeightsReport

logger = log.get("link")

# Idle, a worker says Hello this often: so a replaced router learns of it.
BEAT_MS = 250
_CONNECT_MS = 500
# Leaving, it waits at most this many beats of silence for the router's Goodbye; a beat that a signal cuts short is not counted.
_GOODBYE_BEATS = 8


class Ran(NamedTuple):
    """What became of a dispatch.

    Attributes:
        outcomes: of each request.
        runs, apart: as in Result.
    """

    outcomes: list[Outcome]
    runs: list[tuple[int, int, int]]
    apart: bool


# Runs a dispatch: what is asked, the body of each request, and the list of frames that long responses go to.
Run = Callable[[Dispatch, list[bytes], list[bytes]], Ran]


class RefusedError(Exception):
    """The router does not want this worker, and says why."""


class Link:
    """Says Hello until it is heard, runs dispatches, leaves in good order.

    Args:
        path: the router's socket.
        hello: what to say of this worker; epoch and state are filled in here.
        run: called for each dispatch.
    """

    def __init__(self, path: Path, hello: Hello, run: Run) -> None:
        self._inbox = Inbox(hello.credits)
        self._hello = msgspec.structs.replace(hello, inbox=self._inbox.path)
        self._run = run
        self._epoch = 0
        self._signatures = b""
        self._leaving = False
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.setsockopt(zmq.ROUTING_ID, messages.worker_identity(hello.worker, hello.generation))
        # Nothing is kept for a router that is not there: what it was told is void for its successor.
        self._socket.setsockopt(zmq.IMMEDIATE, 1)
        self._socket.setsockopt(zmq.RECONNECT_IVL, 50)
        self._socket.setsockopt(zmq.LINGER, 2_000)
        self._socket.connect(f"ipc://{path}")
        self._poller = zmq.Poller()
        self._poller.register(self._socket, zmq.POLLIN)

    def announce(
        self,
        state: WorkerState,
        engine: str = "",
        signatures: bytes = b"",
        weights: WeightsReport | None = None,
        loaded: LoadReport | None = None,
        *,
        failed: str = "",
    ) -> None:
        """Tells the router a new state, once it is true; a router that is not there learns it later."""
        self._socket.poll(_CONNECT_MS, zmq.POLLOUT)
        self._hello = msgspec.structs.replace(
            self._hello,
            state=state.value,
            engine=engine,
            weights=weights or WeightsReport(),
            loaded=loaded or self._hello.loaded,
            failed=failed,
        )
        self._signatures = signatures
        self._epoch = 0
        self._say_hello()

    def serve(self, stopping: Callable[[], bool], wakeup: int) -> None:
        """Runs dispatches until `stopping()` and the router's Goodbye, or the word of a new one that it does not know us.

        Args:
            stopping: whether to leave; asked after each message and each wake-up.
            wakeup: a descriptor that becomes readable when `stopping` may have changed.

        Raises:
            RefusedError: the router does not want this worker.
        """
        self._poller.register(wakeup, zmq.POLLIN)
        silent_beats = 0
        while silent_beats < _GOODBYE_BEATS:
            if stopping() and not self._leave():
                return
            ready = dict(self._poller.poll(BEAT_MS))
            if wakeup in ready:
                os.read(wakeup, 4096)
            if self._socket in ready:
                if not self._take_all(stopping):
                    return
            elif self._leaving:
                silent_beats += not ready  # that it is told to leave once more is none
            else:
                self._say_hello()

    def close(self) -> None:
        """Waits a moment for what was said last to be sent."""
        self._context.destroy()
        self._inbox.close()

    def _take_all(self, stopping: Callable[[], bool]) -> bool:
        """Handles what has arrived. False once nothing is to follow: after a Goodbye, or where the router is new and we leave."""
        while zmq_frames.arrived(self._socket):
            head, *frames = zmq_frames.receive(self._socket)
            if not self._take(messages.decode_from_router(head), frames):
                return False
            if stopping() and not self._leave():
                return False
        return True

    def _take(self, message: messages.FromRouter, frames: list[bytes]) -> bool:
        if isinstance(message, Dispatch):
            if message.epoch == self._epoch:
                self._on_dispatch(message, frames)
        elif isinstance(message, messages.Welcome):
            self._epoch = message.epoch
        elif isinstance(message, messages.WhoAreYou):
            if self._leaving:  # of a router that is new, and has nothing from us to wait for
                return False
            self._epoch = 0
            self._say_hello()
        elif isinstance(message, messages.Goodbye):
            return False
        else:
            raise RefusedError(message.reason)
        return True

    def _on_dispatch(self, dispatch: Dispatch, frames: list[bytes]) -> None:
        began_ns = time.monotonic_ns()
        long_bodies = iter(frames)
        bodies = [self._body(request.body, long_bodies) for request in dispatch.requests]
        answers: list[bytes] = []
        ran = self._run(dispatch, bodies, answers)
        busy_us = (time.monotonic_ns() - began_ns) // 1000
        result = messages.Result(
            dispatch.epoch, dispatch.dispatch, ran.outcomes, began_ns, busy_us, ran.runs, ran.apart
        )
        self._send(result, answers)

    def _body(self, body: bytes | Place | None, frames: Iterator[bytes]) -> bytes:
        if isinstance(body, bytes):
            return body
        return next(frames) if body is None else self._inbox.body(body)

    def _say_hello(self) -> None:
        signatures = b"" if self._epoch else self._signatures
        self._send(msgspec.structs.replace(self._hello, epoch=self._epoch, signatures=signatures), [])

    def _leave(self) -> bool:
        """Tells the router once that we go. False where there is no router to wait for."""
        if not self._leaving:
            self._leaving = True
            return self._send(messages.Leaving(self._epoch), []) and bool(self._epoch)
        return True

    def _send(self, message: messages.FromWorker, frames: list[bytes]) -> bool:
        try:
            zmq_frames.send(self._socket, [messages.encode(message), *frames])
        except zmq.Again:
            return False
        return True


def wake_on_signals() -> int:
    """A descriptor that becomes readable when a signal with a Python handler arrives."""
    reading, writing = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    return reading
