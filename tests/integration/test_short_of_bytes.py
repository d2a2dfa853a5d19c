"""The fronts while bytes are short: who does not use what it holds makes way, who is slow does not."""

from __future__ import annotations

import contextlib
import socket
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from h2.settings import SettingCodes

from mpspool.core.errors import Code
from tests.integration.test_front import Fronts, refusals
from tests.integration.test_grpc_wire import Raw, message
from tests.integration.test_rest_front import begin, everything, post
from tests.polling import until

MB = 2**20
LIMIT = 32 * MB
# By a slow client, in a second.
TAKEN = 2**18


@pytest.fixture
def fronts() -> Iterator[Fronts]:
    """Whose memory is looked at when a test says so, however long a look takes; in the end no byte is counted and nobody watched."""
    with contextlib.closing(Fronts()) as found:
        memory = found.dataplane.memory
        memory.limit_bytes = LIMIT
        for holders in (memory.coming, memory.waiting):
            holders._now_s = lambda: 0.0
        yield found
        until(lambda: (memory.used, len(memory.coming), len(memory.waiting)) == (0, 0, 0))


def tick(fronts: Fronts, between: Callable[[], Any] = lambda: None) -> None:
    """As when four seconds pass: what had come when they began is seen in the first."""

    async def once() -> None:
        for link in fronts.grpc.listener.links:
            link.tick(fronts.grpc.listener.now_s())
        fronts.dataplane.memory.tick()

    for _ in range(4):
        between()
        fronts.run(once())


def settle(fronts: Fronts) -> None:
    """Waits until the kernel takes no more of anybody's answer: a busy one does so long after its client has stopped."""
    seen: deque[list[int]] = deque(maxlen=20)

    async def moved() -> list[int]:
        return [holder.moved() for holder in fronts.dataplane.memory.waiting._paces]

    def stands() -> bool:
        seen.append(fronts.run(moved()))
        return len(seen) == 20 and all(one == seen[0] for one in seen)

    until(stands)


@contextlib.contextmanager
def raw(fronts: Fronts, window: int = 0) -> Iterator[Raw]:
    """A client that takes so much before it is asked whether it takes more."""
    client = Raw(fronts.grpc.port)
    with client.socket:
        if window:
            client.h2.update_settings({SettingCodes.INITIAL_WINDOW_SIZE: window})
            client.h2.increment_flow_control_window(window)
            client.flush()
        yield client


def test_a_size_and_a_beginning_keep_nobody_out(fronts: Fronts) -> None:
    """All bytes are announced, again and again, and 5 KB of them sent: what is small finds room, and the other is told."""
    with raw(fronts) as attacker, raw(fronts) as client:
        for count in range(1, 4):
            number = attacker.begin()
            attacker.data(number, message(bytes(LIMIT - 10))[:5005])
            until(lambda: fronts.dataplane.memory.used == LIMIT - 10)
            assert client.call(message(bytes(34))).body == message(bytes(34))
            answer = attacker.answer(number)
            assert answer.code is Code.RESOURCE_EXHAUSTED
            assert "too little has come" in answer.headers["grpc-message"]
            assert refusals(fronts, "bytes") == count


def test_a_message_that_stops_makes_way_and_a_slow_one_is_answered(fronts: Fronts) -> None:
    """Each has half of the bytes, and half of its own is there."""
    size = LIMIT // 2
    whole = message(bytes(size))
    with raw(fronts) as attacker, raw(fronts) as slow, raw(fronts) as client:
        numbers = [(sender, sender.begin()) for sender in (attacker, slow)]
        for sender, number in numbers:
            sender.data(number, whole[: size // 2])
        rest = bytearray(whole[size // 2 :])
        number = numbers[1][1]

        def trickle() -> None:
            received = len(whole) - len(rest)
            slow.data(number, bytes(rest[:100_000]))
            del rest[:100_000]
            until(lambda: fronts.run(come(fronts)) > received)

        # Of one frame: what is refused at its beginning is not sent any more.
        assert client.call(message(bytes(10_000))).code is Code.RESOURCE_EXHAUSTED
        tick(fronts, trickle)
        assert client.call(message(bytes(100_000))).code is Code.OK
        assert attacker.answer(numbers[0][1]).code is Code.RESOURCE_EXHAUSTED
        slow.data(number, bytes(rest), end=True)
        assert slow.answer(number).body == whole


async def come(fronts: Fronts) -> int:
    """Bytes of the message of which most is there."""
    return max(
        stream.received for link in fronts.grpc.listener.links for stream in link.connection.streams.values()
    )


def test_connections_that_take_nothing_are_ended_and_a_slow_one_is_not(fronts: Fronts) -> None:
    """Their windows are open: what they do not take is in their transports, and their streams. Others get their answers."""
    size = 12 * MB
    with raw(fronts, 2**30) as attacker, raw(fronts, 2**30) as slow, raw(fronts, 2**30) as client:
        for sender, length in ((slow, size), (attacker, size + MB)):
            sender.data(sender.begin(), message(bytes(length)), end=True)
        links = fronts.grpc.listener.links
        until(lambda: fronts.run(queued(fronts)) > 2 * size)
        (number,) = slow.answers

        def take() -> None:
            before = len(slow.answers[number].body)
            while len(slow.answers[number].body) < before + TAKEN:
                slow.step()

        assert client.call(message(bytes(100_000))).code is Code.RESOURCE_EXHAUSTED
        assert refusals(fronts, "answers") == 1

        def answered() -> bool:
            tick(fronts, take)
            answer = client.call(message(bytes(300_000)))
            return answer.code is Code.OK and answer.body == message(bytes(300_000))

        until(answered)  # at once, but where what the attacker's socket has room for is still being sent
        until(lambda: len(links) == 2)
        assert len(slow.answer(number).body) == size + 5
        assert slow.answers[number].code is Code.OK
        assert fronts.grpc.listener.complaints.counts["ENHANCE_YOUR_CALM"] == 1


async def queued(fronts: Fronts) -> int:
    """Bytes that wait in streams."""
    return sum(link.connection.held for link in fronts.grpc.listener.links)


def test_streams_of_which_nothing_is_taken_are_ended_and_their_connection_goes_on(fronts: Fronts) -> None:
    """Their own windows are shut, the connection's is not."""
    with raw(fronts) as attacker, raw(fronts) as client:
        number = attacker.begin()
        body = message(bytes(LIMIT // 2 + MB))
        attacker.h2.increment_flow_control_window(2**29)
        attacker.data(number, body, end=True)
        until(lambda: fronts.run(queued(fronts)) > LIMIT // 2)
        assert client.call(message(bytes(100_000))).code is Code.RESOURCE_EXHAUSTED
        tick(fronts)
        assert client.call(message(bytes(100_000))).code is Code.OK
        assert attacker.answer(number).reset == 8
        assert attacker.call(message(b"x")).body == message(b"x")


def test_what_transports_have_counts_for_its_client(fronts: Fronts) -> None:
    """Who takes nothing has its share and no more; the last byte gives it back."""
    memory = fronts.dataplane.memory
    admit = memory.admit

    def shared(_asked: object, size: int, _start: bytes, head: Any) -> Any:
        return admit(size, client=head.metadata.get("x-tenant"))

    fronts.dataplane.admit = shared  # type: ignore[method-assign]
    with raw(fronts, 2**30) as attacker, raw(fronts, 2**30) as client:
        attacker.data(attacker.begin(("x-tenant", "a")), message(bytes(LIMIT // 3)), end=True)
        (link,) = {link for link in fronts.grpc.listener.links if link.connection.client == "a"} or until(
            lambda: {link for link in fronts.grpc.listener.links if link.connection.client == "a"}
        )
        until(lambda: link.connection.paused)
        assert memory._answers.of_client(None, "a") == memory.used > MB
        number = client.begin(("x-tenant", "b"))
        client.data(number, message(bytes(MB)), end=True)
        assert client.answer(number).code is Code.OK


def test_while_answers_are_short_a_connection_is_handed_little(fronts: Fronts) -> None:
    """What it has not taken keeps what follows in its streams, where it is bounded."""
    with raw(fronts):
        until(lambda: len(fronts.grpc.listener.links) == 1)
        (link,) = fronts.grpc.listener.links
        tick(fronts)
        high = link._transport.get_write_buffer_limits()[1]

        async def hold(size: int) -> None:
            fronts.dataplane.memory.hold(size)

        fronts.run(hold(LIMIT))
        tick(fronts)
        assert link._transport.get_write_buffer_limits()[1] < high // 8
        fronts.run(hold(-LIMIT))
        tick(fronts)
        assert link._transport.get_write_buffer_limits()[1] == high


def test_a_body_that_has_hardly_begun_keeps_nobody_out(fronts: Fronts) -> None:
    """By REST, too: it is told 429."""
    with begin(fronts, bytes(5000), size=LIMIT - 10) as attacker:
        until(lambda: fronts.dataplane.memory.used == LIMIT - 10)
        assert post(fronts, b"hello" * 10) == (200, b"hello" * 10)
        until(lambda: fronts.dataplane.memory.used == 0)
        told = attacker.recv(1000)
        assert told.startswith(b"HTTP/1.1 429")
        assert b"too little has come" in told
        assert refusals(fronts, "bytes") == 1


def test_an_answer_that_its_client_does_not_take_makes_way(fronts: Fronts) -> None:
    """By REST: its connection ends, and another's answer is sent. One that takes it slowly is left alone."""
    size = 12 * MB
    with begin(fronts, b"x" * size) as attacker, begin(fronts, b"y" * size) as slow:
        until(lambda: len(fronts.dataplane.memory.waiting) == 2)
        while slow.recv(4, socket.MSG_PEEK) != b"yyyy":
            slow.recv(1)

        def take() -> None:
            taken = b""
            while len(taken) < TAKEN:
                taken += slow.recv(TAKEN - len(taken))

        assert post(fronts, b"z" * 100_000)[0] == 429
        settle(fronts)
        tick(fronts, take)
        assert post(fronts, b"z" * 100_000) == (200, b"z" * 100_000)
        assert everything(slow).count(b"y") + 4 * TAKEN == size
        assert everything(attacker).count(b"x") < size
        assert fronts.rest.listener.complaints.counts["STALLED"] == 1
