"""Long bodies on their way to a worker: written by the router, read by the worker, in memory that both map."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
import zmq

from mpspool.core import tfs
from mpspool.core.errors import Code
from mpspool.core.ids import WorkerId
from mpspool.core.inbox import REGION_BYTES, Inbox, InboxWriter
from mpspool.core.messages import (
    INLINE_MAX_BYTES,
    PROTOCOL,
    Dispatch,
    Goodbye,
    Hello,
    Outcome,
    Request,
    Welcome,
    decode_from_worker,
    encode,
)
from mpspool.core.progress import ProgressReader, ProgressWriter
from mpspool.core.states import WorkerState
from mpspool.router.workers import Worker
from mpspool.worker.link import Link as WorkerLink
from mpspool.worker.link import Ran
from tests.unit.test_dataplane import Scene, play, settle


@pytest.fixture
def inbox() -> Iterator[Inbox]:
    made = Inbox(regions=2)
    yield made
    made.close()


@pytest.fixture
def writer(inbox: Inbox) -> Iterator[InboxWriter]:
    made = InboxWriter(inbox.path)
    yield made
    made.close()


def test_bodies_are_read_as_they_were_written(inbox: Inbox, writer: InboxWriter) -> None:
    bodies = [os.urandom(size) for size in (1, 63, 64, 65, 133_000)]
    others = [os.urandom(REGION_BYTES)]
    places = writer.put(1, bodies) + writer.put(2, others)
    assert None not in places
    assert [inbox.body(place) for place in places if place] == bodies + others


def test_what_does_not_fit_is_not_written(inbox: Inbox, writer: InboxWriter) -> None:
    """A smaller one after it still is."""
    large, small = bytes(REGION_BYTES + 1), b"small"
    first, second = writer.put(1, [large, small])
    assert first is None
    assert second is not None
    assert inbox.body(second) == small


def test_a_region_is_written_to_again_only_when_it_was_given_back(inbox: Inbox, writer: InboxWriter) -> None:
    ((first,), (second,)) = writer.put(1, [b"one"]), writer.put(2, [b"two"])
    assert writer.put(3, [b"three"]) == [None]
    assert first is not None
    assert second is not None
    writer.release(1)
    assert writer.put(4, [b"four"]) == [(first[0], 4)]
    assert inbox.body(second) == b"two"
    writer.release(7)  # put nothing
    assert writer.put(5, [b"five"]) == [None]


def test_a_file_that_is_no_inbox_is_refused(tmp_path: Path) -> None:
    """A process may have the number of a worker that has ended."""
    (tmp_path / "file").write_bytes(bytes(REGION_BYTES))
    with pytest.raises(OSError, match="not a worker's inbox"):
        InboxWriter(str(tmp_path / "file"))


def _long_request() -> bytes:
    request = tfs.PredictRequest()
    request.model_spec.name = "m"
    request.inputs["x"].string_val.append(os.urandom(INLINE_MAX_BYTES))
    return request.SerializeToString()


def test_a_long_request_lies_in_its_workers_inbox(tmp_path: Path, inbox: Inbox) -> None:
    """Until the worker has answered, so that there is room for any number of them in turn."""

    async def story(scene: Scene) -> None:
        identity = scene.hello(0, inbox=inbox.path)
        for _ in range(5):
            body = _long_request()
            task = scene.ask(body=body)
            await settle()
            dispatch = scene.link.dispatches(identity)[-1]
            place = dispatch.requests[0].body
            assert isinstance(place, tuple)
            assert inbox.body(place) == body
            assert not scene.link.frames
            scene.answer(identity, dispatch)
            assert await task == b"answer"

    play(tmp_path, story)


@pytest.mark.parametrize("path", ["", "/proc/self/fd/0", "/nowhere"])
def test_without_an_inbox_a_long_request_goes_in_a_frame(tmp_path: Path, path: str) -> None:
    async def story(scene: Scene) -> None:
        identity = scene.hello(0, inbox=path)
        body = _long_request()
        task = scene.ask(body=body)
        await settle()
        (dispatch,) = scene.link.dispatches(identity)
        assert dispatch.requests[0].body is None
        assert scene.link.frames == [body]
        scene.answer(identity, dispatch)
        assert await task == b"answer"

    play(tmp_path, story)


@pytest.fixture
def worker(tmp_path: Path, writer: InboxWriter) -> Iterator[Worker]:
    page = tmp_path / "progress"
    with closing(ProgressWriter(page)), closing(ProgressReader(page)) as progress:
        yield Worker(b"m@1.cpu0.0#1", WorkerId("m", 1, "cpu0", 0), 1, 0, 0, progress, writer)


@pytest.mark.parametrize("with_inbox", [True, False])
def test_bodies_that_together_are_long_lie_in_the_inbox(
    inbox: Inbox, worker: Worker, with_inbox: bool
) -> None:
    """But those that are next to nothing; where there is no inbox, only what is long by itself goes in a frame."""
    tiny, some, long = b"x" * 100, os.urandom(9000), os.urandom(INLINE_MAX_BYTES + 1)
    if not with_inbox:
        worker.inbox = None
    assert worker.pack(1, [some, tiny]) == ([some, tiny], [])
    assert worker.pack(2, [tiny] * 400) == ([tiny] * 400, [])
    packed, frames = worker.pack(3, [some, tiny, long, some])
    worker.unpack(3)
    if not with_inbox:
        assert (packed, frames) == ([some, tiny, None, some], [long])
        return
    assert frames == []
    assert packed[1] == tiny
    assert [inbox.body(place) for place in packed if isinstance(place, tuple)] == [some, long, some]


def test_what_a_region_has_no_room_for_goes_in_the_message(inbox: Inbox, worker: Worker) -> None:
    """In a frame where it is long."""
    some, long = os.urandom(9000), os.urandom(REGION_BYTES - 9100)
    packed, frames = worker.pack(1, [long, some, some, long])
    assert (packed[2:], frames) == ([some, None], [long])
    assert [inbox.body(place) for place in packed if isinstance(place, tuple)] == [long, some]


def test_a_worker_reads_what_lies_in_its_inbox(tmp_path: Path) -> None:
    """Over a real socket, together with what lies in the message and what lies in a frame."""
    bodies = [b"short", os.urandom(100_000), os.urandom(REGION_BYTES + 1)]
    ran: list[bytes] = []

    def run(_dispatch: Dispatch, got: list[bytes], _frames: list[bytes]) -> Ran:
        ran.extend(got)
        return Ran([Outcome(Code.OK, b"")] * len(got), [], False)

    hello = Hello(PROTOCOL, 0, "m@1.cpu0.0", 1, os.getpid(), "READY", 2, "")
    link = WorkerLink(tmp_path / "socket", hello, run)
    router = zmq.Context()
    try:
        with router.socket(zmq.ROUTER) as socket:
            socket.bind(f"ipc://{tmp_path}/socket")
            link.announce(WorkerState.READY)
            identity, head = socket.recv_multipart()
            said = decode_from_worker(head)
            assert isinstance(said, Hello)
            with closing(InboxWriter(said.inbox)) as writer:
                _, place, nothing = (None, *writer.put(9, bodies[1:]))
                assert nothing is None
                requests = [Request(bodies[0]), Request(place), Request(nothing)]
                socket.send_multipart([identity, encode(Welcome(5))])
                socket.send_multipart([identity, encode(Dispatch(5, 9, requests)), bodies[2]])
                reading, writing = os.pipe()
                socket.send_multipart([identity, encode(Goodbye(5))])
                link.serve(lambda: False, reading)
                os.close(reading)
                os.close(writing)
    finally:
        link.close()
        router.destroy(linger=0)
    assert ran == bodies
