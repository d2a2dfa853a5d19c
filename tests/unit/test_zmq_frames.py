"""What goes through a ZeroMQ socket without pyzmq's enums is what pyzmq itself would have sent and taken."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq

from mpspool.core import zmq_frames
from tests.polling import until

MESSAGES = [[b""], [b"head"], [b"head", b"", b"x" * 16_384], [b"head", b"long" * 50_000, b"short"]]
Pair = tuple["zmq.Socket[bytes]", "zmq.Socket[bytes]"]


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    """A router with one worker: what the two ends of the link are."""
    with zmq.Context() as context, context.socket(zmq.ROUTER) as router, context.socket(zmq.DEALER) as worker:
        for socket in (router, worker):
            socket.setsockopt(zmq.LINGER, 0)
        router.setsockopt(zmq.ROUTER_MANDATORY, 1)
        router.bind(f"ipc://{tmp_path}/link")
        worker.setsockopt(zmq.ROUTING_ID, b"worker")
        worker.connect(f"ipc://{tmp_path}/link")
        yield router, worker


@pytest.mark.parametrize("parts", MESSAGES, ids=lambda parts: f"{len(parts)}-{sum(map(len, parts))}")
def test_a_message_comes_as_it_was_sent(pair: Pair, parts: list[bytes]) -> None:
    """Either way, frame by frame, an empty one too; and nothing is there before and after it."""
    router, worker = pair
    assert not zmq_frames.arrived(router)
    zmq_frames.send(worker, parts)
    until(lambda: zmq_frames.arrived(router), 5, "the message arrives")
    assert zmq_frames.receive(router) == [b"worker", *parts]
    assert not zmq_frames.arrived(router)
    zmq_frames.send(router, [b"worker", *parts])
    until(lambda: zmq_frames.arrived(worker), 5, "the answer arrives")
    assert zmq_frames.receive(worker) == parts
    assert not zmq_frames.arrived(worker)


def test_messages_are_taken_one_by_one(pair: Pair) -> None:
    router, worker = pair
    for parts in MESSAGES:
        zmq_frames.send(worker, parts)
    taken = []
    for _ in MESSAGES:
        until(lambda: zmq_frames.arrived(router), 5, "the next one arrives")
        taken.append(zmq_frames.receive(router)[1:])
    assert taken == MESSAGES


def test_pyzmq_understands_what_is_sent(pair: Pair) -> None:
    router, worker = pair
    for parts in MESSAGES:
        zmq_frames.send(worker, parts)
        assert router.recv_multipart() == [b"worker", *parts]


def test_what_cannot_be_sent_is_told(pair: Pair) -> None:
    """Of a message to nobody no frame goes: the next one is whole."""
    router, worker = pair
    with pytest.raises(zmq.ZMQError):
        zmq_frames.send(router, [b"nobody", b"head", b"body"])
    zmq_frames.send(worker, [b"hello"])
    until(lambda: zmq_frames.arrived(router), 5, "the worker is known")
    zmq_frames.receive(router)
    zmq_frames.send(router, [b"worker", b"head", b"body"])
    until(lambda: zmq_frames.arrived(worker), 5, "the next one arrives")
    assert zmq_frames.receive(worker) == [b"head", b"body"]
