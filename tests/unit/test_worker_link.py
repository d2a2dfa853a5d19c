"""The worker's end of the link, over a real socket."""

from __future__ import annotations

import fcntl
import os
import struct
import termios
import threading
from pathlib import Path

import pytest
import zmq

from mpspool.core import messages
from mpspool.core.errors import Code
from mpspool.core.messages import Dispatch, Hello, Leaving, Outcome, Request, Result, Welcome, WhoAreYou
from mpspool.core.states import WorkerState
from mpspool.worker.link import Link, Ran
from tests.polling import until


def test_one_that_leaves_does_not_join_a_new_router(tmp_path: Path) -> None:
    """It was told to go while it ran what the last one sent: the new one, which asks who it is, hears no Hello."""
    stopping = False

    def run(dispatch: Dispatch, _bodies: list[bytes], _frames: list[bytes]) -> Ran:
        nonlocal stopping
        stopping = True
        return Ran([Outcome(Code.OK)] * len(dispatch.requests), [], False)

    hello = Hello(messages.PROTOCOL, 0, "m@1.cpu0.0", 1, os.getpid(), "READY", 2, "")
    link = Link(tmp_path / "socket", hello, run)
    router = zmq.Context()
    reading, writing = os.pipe()
    said: list[messages.FromWorker] = []
    try:
        with router.socket(zmq.ROUTER) as socket:
            socket.bind(f"ipc://{tmp_path}/socket")
            link.announce(WorkerState.READY)
            identity, _ = socket.recv_multipart()
            for message in (Welcome(5), Dispatch(5, 9, [Request(b"")]), WhoAreYou(6)):
                socket.send_multipart([identity, messages.encode(message)])
            link.serve(lambda: stopping, reading)
            while socket.poll(30_000 if len(said) < 2 else 100):
                said.append(messages.decode_from_worker(socket.recv_multipart()[1]))
    finally:
        os.close(reading)
        os.close(writing)
        link.close()
        router.destroy(linger=0)
    assert [type(message) for message in said] == [Result, Leaving]


def test_one_that_is_told_to_leave_over_and_over_waits_for_the_goodbye(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What wakes it is no beat in which the router was silent."""
    monkeypatch.setattr("mpspool.worker.link.BEAT_MS", 60_000)  # there is none here
    hello = Hello(messages.PROTOCOL, 0, "m@1.cpu0.0", 1, os.getpid(), "READY", 2, "")
    link = Link(tmp_path / "socket", hello, lambda *_: Ran([Outcome(Code.OK)], [], False))
    router = zmq.Context()
    reading, writing = os.pipe()
    stopping = threading.Event()
    serving = threading.Thread(target=link.serve, args=(stopping.is_set, reading))
    try:
        with router.socket(zmq.ROUTER) as socket:
            socket.bind(f"ipc://{tmp_path}/socket")
            link.announce(WorkerState.READY)
            identity, _ = socket.recv_multipart()
            for message in (Welcome(5), Dispatch(5, 9, [Request(b"")])):
                socket.send_multipart([identity, messages.encode(message)])
            serving.start()
            assert isinstance(messages.decode_from_worker(socket.recv_multipart()[1]), Result)
            stopping.set()
            for _ in range(10):
                os.write(writing, b"\0")
                until(lambda: not _unread(reading) or not serving.is_alive(), 5)
                assert serving.is_alive()
            socket.send_multipart([identity, messages.encode(messages.Goodbye(5))])
            serving.join()
    finally:
        os.close(reading)
        os.close(writing)
        link.close()
        router.destroy(linger=0)


def _unread(pipe: int) -> int:
    """How many bytes wait in it."""
    return int(struct.unpack("i", fcntl.ioctl(pipe, termios.FIONREAD, bytes(4)))[0])
