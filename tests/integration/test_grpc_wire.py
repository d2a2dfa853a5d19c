"""The gRPC front as other HTTP/2 peers see it: what goes wrong on the wire, what is bounded, and stock clients at length."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import quote

import grpc
import grpc.aio
import pytest
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import (
    ConnectionTerminated,
    DataReceived,
    ResponseReceived,
    StreamEnded,
    StreamReset,
    TrailersReceived,
)
from h2.settings import SettingCodes

from mpspool.core import http2_frames as frames
from mpspool.core.errors import Code
from mpspool.core.http2_frames import ErrorCode
from mpspool.router.fronts import grpc_call, grpc_server, health
from mpspool.router.fronts.http2 import link as link_module
from mpspool.router.fronts.http2.limits import Limits
from tests.integration.test_front import PREDICT, Fronts, refusals
from tests.polling import until
from tests.traced import traced

CHECK, WATCH = (f"/{health.SERVICE}/{method}" for method in ("Check", "Watch"))
REFLECTION = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo"
HEAD = [
    (":method", "POST"),
    (":scheme", "http"),
    (":path", PREDICT),
    (":authority", "localhost"),
    ("content-type", "application/grpc"),
    ("te", "trailers"),
]


@pytest.fixture(scope="module")
def fronts() -> Iterator[Fronts]:
    started = Fronts()
    yield started
    started.close()


@pytest.fixture(autouse=True)
def _nothing_is_left(fronts: Fronts) -> Iterator[None]:
    """After each test no byte is counted, no call open and no task left of it."""
    yield
    until(lambda: fronts.dataplane.memory.used == 0)
    until(lambda: not fronts.grpc._server._calls())


class Answer:
    """What came for one stream."""

    def __init__(self) -> None:
        self.headers: dict[str, str] = {}
        self.body = b""
        self.ended = False
        self.reset: int | None = None

    @property
    def code(self) -> Code:
        return Code(int(self.headers["grpc-status"]))


class Raw:
    """A client that says exactly what it is told to."""

    def __init__(self, port: int, source: str = "127.0.0.1") -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=10, source_address=(source, 0))
        self.h2 = H2Connection(H2Configuration(header_encoding="utf-8", validate_outbound_headers=False))
        self.h2.initiate_connection()
        self.answers: dict[int, Answer] = {}
        self.closed = False
        self.goaway: int | None = None
        self.flush()

    def flush(self) -> None:
        self.socket.sendall(self.h2.data_to_send())

    def begin(self, *extra: tuple[str, str], end: bool = False, head: list[tuple[str, str]] = HEAD) -> int:
        number = self.h2.get_next_available_stream_id()
        self.answers[number] = Answer()
        self.h2.send_headers(number, [*head, *extra], end_stream=end)
        self.flush()
        return number

    def data(self, number: int, body: bytes, end: bool = False) -> None:
        """As the windows allow."""
        while body or end:
            size = min(len(body), self.h2.local_flow_control_window(number), self.h2.max_outbound_frame_size)
            if size or not body:
                last = end and size == len(body)
                self.h2.send_data(number, body[:size], end_stream=last)
                body, end = body[size:], end and not last
                self.flush()
            else:
                self.step()

    def step(self) -> None:
        got = self.socket.recv(2**16)
        if not got:
            self.closed = True
            return
        for event in self.h2.receive_data(got):
            answer = self.answers.get(getattr(event, "stream_id", 0), Answer())
            if isinstance(event, ResponseReceived | TrailersReceived):
                answer.headers.update(event.headers)
            elif isinstance(event, DataReceived):
                answer.body += event.data
                self.h2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
            elif isinstance(event, StreamEnded):
                answer.ended = True
            elif isinstance(event, StreamReset):
                answer.reset = int(event.error_code)
            elif isinstance(event, ConnectionTerminated):
                self.goaway = int(event.error_code)
        self.flush()

    def answer(self, number: int) -> Answer:
        answer = self.answers[number]
        while not (answer.ended or answer.reset is not None or self.closed):
            self.step()
        return answer

    def call(self, body: bytes, *extra: tuple[str, str]) -> Answer:
        number = self.begin(*extra)
        self.data(number, body, end=True)
        return self.answer(number)


@pytest.fixture
def raw(fronts: Fronts) -> Iterator[Raw]:
    client = Raw(fronts.grpc.port)
    yield client
    client.socket.close()


def to(path: str) -> list[tuple[str, str]]:
    return [(name, path if name == ":path" else value) for name, value in HEAD]


def message(body: bytes, flag: int = 0) -> bytes:
    return bytes([flag]) + len(body).to_bytes(4, "big") + body


# -- what a call may look like ------------------------------------------------------------------------


def test_a_call_is_answered_by_headers_message_and_status(raw: Raw) -> None:
    """As gRPC over HTTP/2 has it."""
    answer = raw.call(message(b"hello"))
    assert answer.body == message(b"hello")
    assert answer.headers == {":status": "200", "content-type": "application/grpc", "grpc-status": "0"}


def test_a_message_in_pieces(raw: Raw) -> None:
    """A byte a frame, the prefix too, and the end apart."""
    number = raw.begin()
    for byte in message(b"in pieces"):
        raw.data(number, bytes([byte]))
    raw.data(number, b"", end=True)
    assert raw.answer(number).body == message(b"in pieces")


WRONG = {
    "no message": (b"", [], Code.UNIMPLEMENTED),
    "two messages": (message(b"a") + message(b"b"), [], Code.UNIMPLEMENTED),
    "half a prefix": (b"\x00\x00", [], Code.INTERNAL),
    "half a message": (message(b"hello")[:-1], [], Code.INTERNAL),
    "a flag that is none": (message(b"x", 2), [], Code.INTERNAL),
    "compressed by nothing": (message(b"x", 1), [], Code.INTERNAL),
    "an unknown compression": (message(b"x"), [("grpc-encoding", "snappy")], Code.UNIMPLEMENTED),
    "not what it is compressed by": (message(b"x", 1), [("grpc-encoding", "gzip")], Code.INTERNAL),
    "a timeout that is none": (message(b"x"), [("grpc-timeout", "soon")], Code.INVALID_ARGUMENT),
    "no time at all": (message(b"wait"), [("grpc-timeout", "0n")], Code.DEADLINE_EXCEEDED),
    "a short time": (message(b"wait"), [("grpc-timeout", "30m")], Code.DEADLINE_EXCEEDED),
    "too much metadata": (message(b"x"), [("x-long", "x" * 17_000)], Code.RESOURCE_EXHAUSTED),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_with_a_call_is_its_status(raw: Raw, case: str) -> None:
    """The connection goes on, and says so by answering the next one."""
    body, extra, code = WRONG[case]
    number = raw.begin(*extra)
    answer = raw.answers[number]
    if not raw.answers[number].ended:
        raw.h2.send_data(number, body, end_stream=True)
        raw.flush()
    answer = raw.answer(number)
    assert (answer.code, answer.headers[":status"]) == (code, "200")
    assert raw.call(message(b"next")).body == message(b"next")


def test_the_refusal_of_a_compression_names_those_that_there_are(raw: Raw) -> None:
    """So that the client can choose another."""
    answer = raw.call(message(b"x"), ("grpc-encoding", "snappy"))
    assert answer.headers["grpc-accept-encoding"] == "identity, gzip, deflate"


@pytest.mark.parametrize(
    ("head", "status"),
    [
        ([(":method", "GET"), *HEAD[1:]], "405"),
        ([*HEAD[:4], ("content-type", "application/json")], "415"),
        (HEAD[:4], "415"),
    ],
)
def test_what_is_not_grpc_is_told_in_http(raw: Raw, head: list[tuple[str, str]], status: str) -> None:
    """A status of HTTP, and a line for a person to read."""
    answer = raw.answer(raw.begin(head=head, end=True))
    assert answer.headers[":status"] == status
    assert b"gRPC" in answer.body


def test_head_is_told_without_a_body(raw: Raw) -> None:
    """The status and its headers end the answer: DATA would be an error of ours (RFC 9110, section 9.3.2)."""
    answer = raw.answer(raw.begin(head=[(":method", "HEAD"), *HEAD[1:4]], end=True))
    assert (answer.headers[":status"], answer.headers["allow"]) == ("405", "POST")
    assert (answer.body, answer.ended) == (b"", True)
    assert raw.call(message(b"x")).code is Code.OK


def test_metadata_and_peer_reach_the_data_plane(fronts: Fronts, raw: Raw) -> None:
    """By lower-case name, without what is the protocol's own."""
    raw.call(message(b"x"), ("x-priority", "high"), ("grpc-timeout", "5S"))
    head = fronts.dataplane.heads[-1]
    assert dict(head.metadata) == {"x-priority": "high"}
    assert head.peer == f"127.0.0.1:{raw.socket.getsockname()[1]}"


def test_a_stream_that_the_client_takes_back_is_cancelled(fronts: Fronts, raw: Raw) -> None:
    """Its task ends; the connection's other calls do not."""
    before = fronts.dataplane.cancelled
    other, gone = raw.begin(), raw.begin()
    raw.data(gone, message(b"wait"), end=True)
    until(lambda: fronts.dataplane.waiting == 1)
    raw.h2.reset_stream(gone, 8)
    raw.flush()
    until(lambda: fronts.dataplane.cancelled == before + 1)
    raw.data(other, message(b"x"), end=True)
    assert raw.answer(other).body == message(b"x")


def test_a_reset_before_the_task_has_begun_gives_its_bytes_back(fronts: Fronts, raw: Raw) -> None:
    """Request and reset in one segment: nothing runs, nothing is counted any more."""
    number = raw.h2.get_next_available_stream_id()
    raw.h2.send_headers(number, HEAD)
    raw.h2.send_data(number, message(b"wait"), end_stream=True)
    raw.h2.reset_stream(number, 8)
    raw.flush()
    assert raw.call(message(b"next")).body == message(b"next")
    assert fronts.dataplane.waiting == 0


# -- admission ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("pieces", [(5 + 4096,), (3, 1, 1, 1, 4094, 1), (5, 4096), (1005, 4000)])
def test_a_message_is_admitted_before_it_is_read(fronts: Fronts, raw: Raw, pieces: tuple[int, ...]) -> None:
    """With its size and the 4 KiB that say whose it is, in whatever pieces; the windows are then opened for all of it."""
    body = bytes(range(256)) * 12_000
    number, before = raw.begin(), len(fronts.dataplane.admitted)
    start = 0
    for piece in pieces:
        assert raw.call(message(b"x")).body == message(b"x")
        assert [size for size, _ in fronts.dataplane.admitted[before:] if size > 1] == []
        raw.data(number, message(body)[start : start + piece])
        start += piece
    until(lambda: fronts.dataplane.memory.used == len(body))
    (begun,) = [begun for size, begun in fronts.dataplane.admitted[before:] if size == len(body)]
    assert begun[:4096] == body[:4096]
    while raw.h2.local_flow_control_window(number) < len(body) + 5 - start:
        raw.step()
    raw.data(number, message(body)[start:], end=True)
    assert raw.answer(number).body == message(body)


def test_a_size_alone_reserves_nothing(fronts: Fronts) -> None:
    """Who announces 2 GiB and sends nothing of it is admitted nothing, and stalls; a size over the limit is refused at once."""
    raw = Raw(fronts.grpc.port)
    numbers = [raw.begin() for _ in range(3)]
    for number in numbers:
        raw.data(number, b"\0\x7f\xff\xff\xff" + bytes(4095))
    assert raw.call(message(b"x")).body == message(b"x")
    assert fronts.dataplane.memory.used == 0
    assert not [size for size, _ in fronts.dataplane.admitted if size == 2**31 - 1]
    too_large = raw.begin()
    raw.data(too_large, b"\0\x80\0\0\0")
    assert raw.answer(too_large).code is Code.RESOURCE_EXHAUSTED
    raw.socket.close()


def test_a_message_that_comes_too_slowly_is_given_up(fronts: Fronts, monkeypatch: pytest.MonkeyPatch) -> None:
    """Within a stall's time a tenth of it has to come; what a slow one held is free again, and a faster one is answered."""
    monkeypatch.setattr(fronts.grpc._server.listener, "limits", Limits(stall_s=4.0))
    raw = Raw(fronts.grpc.port)
    raw.socket.settimeout(0.01)
    rest = message(bytes(200_000))[50_000:]
    bytes_per_s = {raw.begin(): 2_000, raw.begin(): 25_000}
    slow, fast = bytes_per_s
    for number in bytes_per_s:
        raw.data(number, message(bytes(200_000))[:50_000])
    sent = dict.fromkeys(bytes_per_s, 0)
    start_s = time.monotonic()

    def trickle() -> bool:
        for number, rate in bytes_per_s.items():
            until_now = min(int((time.monotonic() - start_s) * rate), len(rest))
            if not raw.answers[number].ended and until_now > sent[number]:
                raw.data(number, rest[sent[number] : until_now], end=until_now == len(rest))
                sent[number] = until_now
        with contextlib.suppress(TimeoutError):
            raw.step()
        return all(raw.answers[number].ended for number in bytes_per_s)

    until(trickle)
    assert raw.answers[slow].code is Code.DEADLINE_EXCEEDED
    assert sent[slow] < 20_000
    assert raw.answers[fast].code is Code.OK
    raw.socket.close()


def test_a_message_that_is_refused_is_not_read() -> None:
    """RESOURCE_EXHAUSTED at its beginning; what comes all the same is thrown away, and other calls go on."""
    fronts = Fronts()
    try:
        fronts.dataplane.memory.limit_bytes = 1000
        raw = Raw(fronts.grpc.port)
        number = raw.begin()
        raw.data(number, message(bytes(10_000))[:4101])
        answer = raw.answer(number)
        assert answer.code is Code.RESOURCE_EXHAUSTED
        assert "max_queued_bytes is 1000" in answer.headers["grpc-message"]
        while answer.reset is None:
            raw.step()
        assert answer.reset == 0
        assert fronts.dataplane.memory.used == 0
        raw.socket.sendall(frames.frame(frames.DATA, 0, number, bytes(9990)) * 20)
        assert raw.call(message(b"small")).body == message(b"small")
        raw.socket.close()
    finally:
        fronts.close()


def test_a_message_that_is_refused_while_the_client_reads_nothing() -> None:
    """The refusal waits behind another call's answer: what comes of the message until then is not taken for one of its own."""
    fronts = Fronts()
    try:
        raw = Raw(fronts.grpc.port)
        raw.h2.update_settings({SettingCodes.INITIAL_WINDOW_SIZE: 2**30})
        raw.h2.increment_flow_control_window(2**30)
        raw.flush()
        large = raw.begin()
        raw.data(large, message(bytes(30 * 2**20)), end=True)
        (link,) = fronts.grpc._server.listener.links
        until(lambda: link.connection.paused)
        fronts.dataplane.memory.limit_bytes = 1000
        refused, ends_later = raw.begin(), raw.begin()
        for number in (refused, ends_later):
            raw.data(number, message(bytes(10_000))[:4101])
        raw.data(refused, bytes(5_904), end=True)
        raw.data(ends_later, bytes(900))
        sent = 30 * 2**20 + 5 + 10_005 + 5_001
        until(lambda: sum(stream.received for stream in link.connection.streams.values()) == sent)
        assert raw.answer(refused).code is Code.RESOURCE_EXHAUSTED
        assert raw.answer(ends_later).code is Code.RESOURCE_EXHAUSTED
        assert len(raw.answer(large).body) == 30 * 2**20 + 5
        assert [size for size, _ in fronts.dataplane.admitted] == [30 * 2**20, 10_000, 10_000]
        raw.socket.close()
    finally:
        fronts.close()


def held(fronts: Fronts, raw: Raw, all_held: Callable[[], int]) -> int:
    """Without what the fakes keep."""
    for keeper in (raw.answers, fronts.dataplane.admitted):
        keeper.clear()
    return all_held()


def test_what_was_answered_is_not_kept(fronts: Fronts, raw: Raw) -> None:
    """Of ten messages of 1 MiB none is there any more, though their deadlines are a minute away."""
    with traced() as all_held:
        raw.call(message(bytes(2**20)), ("grpc-timeout", "60S"))
        before = held(fronts, raw, all_held)
        for _ in range(10):
            raw.call(message(bytes(2**20)), ("grpc-timeout", "60S"))
        until(lambda: held(fronts, raw, all_held) - before < 2**20)


@pytest.mark.parametrize("deadline", ["", "2S"])
def test_what_was_given_up_is_not_kept(fronts: Fronts, raw: Raw, deadline: str) -> None:
    """Of ten messages of 1 MiB whose calls were taken back, or were too late, none is there any more, without a collector."""
    extra = [("grpc-timeout", deadline)] if deadline else []

    def give_up(count: int) -> None:
        before, numbers = fronts.dataplane.cancelled, []
        for _ in range(count):
            numbers.append(raw.begin(*extra))
            raw.data(numbers[-1], message(b"wait" + bytes(2**20)), end=True)
        if deadline:
            assert {raw.answer(number).code for number in numbers} == {Code.DEADLINE_EXCEEDED}
        else:
            until(lambda: fronts.dataplane.waiting == count)
            for number in numbers:
                raw.h2.reset_stream(number, 8)
            raw.flush()
        until(lambda: fronts.dataplane.cancelled == before + count)

    with traced(collector=False) as all_held:
        give_up(1)
        before = held(fronts, raw, all_held)
        give_up(10)
        until(lambda: held(fronts, raw, all_held) - before < 2**20)


def test_calls_that_have_ended_are_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that goes leaves nothing behind, though its calls had hours and no others come."""
    monkeypatch.setattr(grpc_server, "PRUNE_S", 0.5)
    with contextlib.closing(Fronts()) as fronts:
        raw, server = Raw(fronts.grpc.port), fronts.grpc._server
        for _ in range(100):
            raw.data(raw.begin(("grpc-timeout", "9H")), message(bytes(10_000))[:4000])

        async def begun() -> list[Any]:
            return [call for call in server._calls() if call._start]

        until(lambda: len(fronts.run(begun())) == 100)
        calls = fronts.run(begun())
        raw.socket.close()
        until(lambda: not any(call.open or call._start for call in calls))
        until(lambda: len(server._deadlines) == 0)


def test_a_client_that_goes_away_within_its_message(fronts: Fronts) -> None:
    """What was admitted for it is free again."""
    raw = Raw(fronts.grpc.port)
    number = raw.begin()
    raw.data(number, message(bytes(2**20))[:10_000])
    until(lambda: fronts.dataplane.memory.used == 2**20)
    raw.socket.close()
    until(lambda: fronts.dataplane.memory.used == 0)


def test_a_method_that_takes_one_message_refuses_a_second(fronts: Fronts, raw: Raw) -> None:
    """Of watchers nobody would read it: it would be kept for as long as they watch."""
    number = raw.begin(head=to("/grpc.health.v1.Health/Watch"))
    raw.data(number, message(b""))
    while not raw.answers[number].body:
        raw.step()
    raw.data(number, message(bytes(5000)))
    answer = raw.answer(number)
    assert (answer.code, answer.headers["grpc-message"]) == (
        Code.UNIMPLEMENTED,
        "The method takes one message, and more than one came",
    )
    assert fronts.dataplane.memory.used == 0


def test_messages_that_wait_to_be_read_are_few(raw: Raw) -> None:
    """Of a streaming method, for those without a byte count nowhere; as many as there may be are all answered."""
    path = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"
    number = raw.begin(head=to(path))
    raw.data(number, message(b"") * 16, end=True)
    answer = raw.answer(number)
    assert answer.code is Code.OK
    assert answer.body.count(b"invalid argument") == 16
    number = raw.begin(head=to(path))
    raw.data(number, message(b"") * 17, end=True)
    answer = raw.answer(number)
    assert answer.code is Code.RESOURCE_EXHAUSTED
    assert "16 messages" in answer.headers["grpc-message"]


def test_an_answer_that_waits_for_its_client_is_counted(fronts: Fronts) -> None:
    """Until it is taken, or the client goes."""
    raw = Raw(fronts.grpc.port)
    number = raw.begin()
    raw.data(number, message(bytes(200_000)), end=True)
    until(lambda: fronts.dataplane.memory.used >= 200_000)
    raw.socket.close()


def test_what_is_read_too_late_is_turned_away(fronts: Fronts) -> None:
    """Of calls that come at once, those whose time is half over when they have their turn; the others are run, and all are told."""
    raw = Raw(fronts.grpc.port)
    numbers = [raw.h2.get_next_available_stream_id() + 2 * n for n in range(600)]
    for number in numbers:
        raw.answers[number] = Answer()
        raw.h2.send_headers(number, [*HEAD, ("grpc-timeout", "1m" if number % 4 == 1 else "60S")])
        raw.h2.send_data(number, message(b"%d" % number), end_stream=True)
    before, called = refusals(fronts, "late"), len(fronts.dataplane.heads)
    raw.flush()
    answers = {number: raw.answer(number) for number in numbers}
    late = [answer for answer in answers.values() if "was not run" in answer.headers.get("grpc-message", "")]
    assert len(late) > 100
    assert {answer.code for answer in late} == {Code.DEADLINE_EXCEEDED}
    assert refusals(fronts, "late") == before + len(late)
    right = [answer for answer in answers.values() if answer.code is Code.OK]
    assert len(right) <= len(fronts.dataplane.heads) - called <= len(numbers) - len(late)
    for number in numbers:
        if number % 4 != 1:
            assert answers[number].body == message(b"%d" % number)
    assert raw.call(message(b"after")).body == message(b"after")
    assert raw.goaway is None
    raw.socket.close()


def test_refusals_that_wait_for_their_client_are_counted(fronts: Fronts) -> None:
    """They have no data, and there may be as many of them as streams: by their headers, until they are taken or the client goes."""
    memory, before = fronts.dataplane.memory, set(fronts.grpc._server.listener.links)
    raw = Raw(fronts.grpc.port)
    raw.h2.update_settings({SettingCodes.INITIAL_WINDOW_SIZE: 2**30})
    raw.h2.increment_flow_control_window(2**30)
    raw.flush()
    raw.data(raw.begin(), message(bytes(30 * 2**20)), end=True)
    (link,) = set(fronts.grpc._server.listener.links) - before
    until(lambda: link.connection.paused)

    async def beside_data() -> int:
        streams = link.connection.streams.values()
        return memory.used - link._buffered - sum(stream.queued + stream.cut for stream in streams)

    text = "é" * 300
    for _ in range(100):
        raw.data(raw.begin(), message(b"refuse:" + text.encode()), end=True)
    until(lambda: fronts.run(beside_data()) > 100 * len(quote(text)))
    raw.socket.close()


def test_an_answer_that_there_is_no_room_for(fronts: Fronts, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where answers that are not taken have half of all, another that would have to wait is not kept; one that goes at once is sent."""
    monkeypatch.setattr(fronts.dataplane.memory, "limit_bytes", 400_000)
    raw = Raw(fronts.grpc.port)
    waits = raw.begin()
    raw.data(waits, message(bytes(200_000)), end=True)
    until(lambda: fronts.dataplane.memory.used >= 200_000)
    other = Raw(fronts.grpc.port)
    refused = other.call(message(bytes(100_000)))
    assert refused.code is Code.RESOURCE_EXHAUSTED
    assert (
        f"for the rest of them, hold {fronts.dataplane.memory.used} of 200000"
        in refused.headers["grpc-message"]
    )
    assert other.call(message(bytes(1000))).body == message(bytes(1000))
    counted = 'mpspool_refusals_total{model="",reason="answers",version=""} 1.0'
    assert counted in fronts.get("/metrics")[1]
    assert len(raw.answer(waits).body) == 200_005
    assert len(other.call(message(bytes(100_000))).body) == 100_005
    raw.socket.close()
    other.socket.close()


def test_messages_of_streams_that_there_is_no_room_for(
    fronts: Fronts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are as many as streams, and large where their client asks for descriptors: no more of them is kept than of other answers."""
    monkeypatch.setattr(fronts.dataplane.memory, "limit_bytes", 100_000)
    monkeypatch.setattr(grpc_call, "_STREAMING_BYTES", 0)
    symbol = b"tensorflow.serving.PredictionService"
    asking = message(b"\x22" + bytes([len(symbol)]) + symbol)  # file_containing_symbol
    raw = Raw(fronts.grpc.port)
    raw.h2.update_settings({SettingCodes.INITIAL_WINDOW_SIZE: 0})
    raw.flush()
    numbers = [
        raw.begin(head=to("/grpc.reflection.v1.ServerReflection/ServerReflectionInfo")) for _ in range(50)
    ]
    for number in numbers:
        raw.data(number, asking)

    async def kept() -> list[int]:
        return [call.id for call in fronts.grpc._server._calls() if call.queued]

    until(lambda: fronts.dataplane.memory.used >= 50_000)
    first, *others = fronts.run(kept())
    refused = [raw.answer(number) for number in numbers if number not in (first, *others)]
    assert {answer.code for answer in refused} == {Code.RESOURCE_EXHAUSTED}
    assert fronts.dataplane.memory.used < 100_000
    raw.h2.increment_flow_control_window(2**20, first)
    raw.data(first, b"", end=True)
    assert raw.answer(first).code is Code.OK
    raw.socket.close()


def test_an_answer_that_waits_ends_with_its_deadline(fronts: Fronts, raw: Raw) -> None:
    """Its client waits no longer, whatever it has taken of it."""
    number = raw.begin(("grpc-timeout", "2S"))
    raw.data(number, message(bytes(200_000)), end=True)
    until(lambda: fronts.dataplane.memory.used >= 200_000)
    until(lambda: fronts.dataplane.memory.used == 0)
    answer = raw.answer(number)
    assert answer.reset == ErrorCode.CANCEL
    assert len(answer.body) == 65_535


def test_a_message_of_a_stream_that_waits_ends_with_its_deadline(fronts: Fronts, raw: Raw) -> None:
    """As an answer does: a status behind it would wait for as long."""
    raw.h2.update_settings({SettingCodes.INITIAL_WINDOW_SIZE: 0})
    raw.flush()
    number = raw.begin(("grpc-timeout", "2S"), head=to("/grpc.health.v1.Health/Watch"))
    raw.data(number, message(b""), end=True)
    until(lambda: fronts.dataplane.memory.used > 0)
    until(lambda: fronts.dataplane.memory.used == 0)
    assert raw.answer(number).reset == ErrorCode.CANCEL


def test_what_the_socket_does_not_take_is_counted(fronts: Fronts) -> None:
    """A client whose windows are open and which does not read: what was handed to the transport counts until it has gone."""
    before = set(fronts.grpc._server.listener.links)
    raw = Raw(fronts.grpc.port)
    raw.h2.update_settings({SettingCodes.INITIAL_WINDOW_SIZE: 2**30})
    raw.h2.increment_flow_control_window(2**30)
    raw.flush()
    number = raw.begin()
    raw.data(number, message(bytes(30 * 2**20)), end=True)
    (link,) = set(fronts.grpc._server.listener.links) - before

    async def buffered() -> tuple[int, int]:
        queued = sum(
            stream.queued + stream.cut + len(stream.tail) for stream in link.connection.streams.values()
        )
        return link._transport.get_write_buffer_size(), queued

    until(lambda: fronts.run(buffered()) > (2**18, 2**20))
    until(lambda: fronts.dataplane.memory.used == sum(fronts.run(buffered())))
    assert len(raw.answer(number).body) == 30 * 2**20 + 5
    until(lambda: fronts.dataplane.memory.used == 0)
    raw.socket.close()


def test_who_takes_long_to_read_makes_way(fronts: Fronts, raw: Raw, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between two reads of its socket the others have their turn, however much more of it is there."""
    monkeypatch.setattr(link_module, "_SLICE_S", 0.0)
    read: list[int] = []
    turns = 0
    data_received = link_module.Link.data_received

    def noted(link: link_module.Link, data: bytes) -> None:
        read.append(turns)
        data_received(link, data)

    async def count() -> None:
        nonlocal turns
        while not raw.answers[number].ended:
            turns += 1
            await asyncio.sleep(0)
        turns = 0

    monkeypatch.setattr(link_module.Link, "data_received", noted)
    raw = Raw(fronts.grpc.port)
    number = raw.begin()
    counting = asyncio.run_coroutine_threadsafe(count(), fronts.loop)
    raw.data(number, message(bytes(8 * 2**20)), end=True)
    assert len(raw.answer(number).body) == 8 * 2**20 + 5
    counting.result(10)
    raw.socket.close()
    counted = [turn for turn in read if turn]  # of the time in which they were
    assert len(counted) > 10
    assert len(set(counted)) == len(counted)


# -- stock clients ------------------------------------------------------------------------------------


@pytest.mark.parametrize("compression", [grpc.Compression.Gzip, grpc.Compression.Deflate])
def test_compressed_requests_of_a_stock_client(fronts: Fronts, compression: grpc.Compression) -> None:
    """They reach the data plane in plain, and are counted as such; their beginning is in plain before they are."""
    body = b"compressible " * 100_000
    answer = fronts.channel.unary_unary(PREDICT)(body, timeout=20, compression=compression)
    assert answer == body
    (small, begun), (size, _) = fronts.dataplane.admitted[-2:]
    assert (small < 10_000, begun, size) == (True, body[:4096], len(body))


def test_a_compressed_message_over_the_limit() -> None:
    """The limit is of what it is when inflated."""
    fronts = Fronts(max_message_bytes=100_000)
    try:
        with pytest.raises(grpc.RpcError) as refused:
            fronts.channel.unary_unary(PREDICT)(bytes(100_001), timeout=10, compression=grpc.Compression.Gzip)
        assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert len(gzip.compress(bytes(100_001))) < 1000
        assert fronts.dataplane.memory.used == 0
    finally:
        fronts.close()


def test_two_hundred_connections(fronts: Fronts) -> None:
    """Of the asyncio client, each with a call at a time and some with large bodies."""

    async def talk() -> None:
        channels = [
            grpc.aio.insecure_channel(
                f"127.0.0.1:{fronts.grpc.port}", [("grpc.use_local_subchannel_pool", 1)]
            )
            for _ in range(200)
        ]
        bodies = [bytes([number]) * (300_000 if number % 20 == 0 else number) for number in range(200)]
        calls = [channel.unary_unary(PREDICT) for channel in channels]
        for _ in range(3):
            answers = await asyncio.gather(
                *(call(body, timeout=30) for call, body in zip(calls, bodies, strict=True))
            )
            assert answers == bodies
        assert len(fronts.grpc._server.listener.links) >= 200
        await asyncio.gather(*(channel.close() for channel in channels))

    asyncio.run(talk())
    until(lambda: len(fronts.grpc._server.listener.links) < 10)


def test_a_thousand_streams_of_one_connection(fronts: Fronts) -> None:
    """All wait at once in the data plane, and all are answered; the next hundred have to wait for a place."""
    calls = [fronts.channel.unary_unary(PREDICT).future(b"wait", timeout=60) for _ in range(1000)]
    until(lambda: fronts.dataplane.waiting == 1000)
    large = [fronts.channel.unary_unary(PREDICT).future(bytes(100_000), timeout=60) for _ in range(100)]
    fronts.loop.call_soon_threadsafe(fronts.dataplane.release.set)
    assert {call.result() for call in calls} == {b"wait"}
    assert {len(call.result()) for call in large} == {100_000}
    fronts.loop.call_soon_threadsafe(fronts.dataplane.release.clear)


def test_a_client_that_pings_often_is_not_sent_away(fronts: Fronts) -> None:
    """As often as clients are allowed to, and with no call open."""
    options: list[tuple[str, Any]] = [
        ("grpc.keepalive_time_ms", 5000),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.use_local_subchannel_pool", 1),
    ]
    with grpc.insecure_channel(f"127.0.0.1:{fronts.grpc.port}", options) as channel:
        assert channel.unary_unary(PREDICT)(b"x", timeout=10) == b"x"
    raw = Raw(fronts.grpc.port)
    for _ in range(500):
        raw.h2.ping(bytes(8))
        raw.flush()
    assert raw.call(message(b"x")).body == message(b"x")
    raw.socket.close()


def test_the_sockets_do_not_wait_to_fill_a_segment(fronts: Fronts, raw: Raw) -> None:
    """TCP_NODELAY is on: an answer leaves at once."""
    raw.call(message(b"x"))
    links = list(fronts.grpc._server.listener.links)
    for link in links:
        sock = link._transport.get_extra_info("socket")
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def waiting(front: Fronts) -> Raw:
    """A client that asks something and has no answer."""
    client, before = Raw(front.grpc.port), front.dataplane.waiting
    client.data(client.begin(), message(b"wait"), end=True)
    until(lambda: front.dataplane.waiting == before + 1)
    return client


def answered(client: Raw) -> bool:
    """Whether it is let in."""
    with contextlib.suppress(OSError):
        return client.call(message(b"x")).body == message(b"x")
    return False


def test_connections_are_bounded() -> None:
    """One more than allowed is closed where all ask something; when another has gone there is room again."""
    with contextlib.closing(Fronts(max_connections=2)) as front:
        first, second = waiting(front), waiting(front)
        third = Raw(front.grpc.port)
        assert not answered(third)
        assert answered(first)
        first.socket.close()
        until(lambda: front.grpc.listener.open_connections == 1)
        fourth = Raw(front.grpc.port)
        assert answered(fourth)
        for client in (second, third, fourth):
            client.socket.close()


def test_connections_that_ask_nothing_make_way() -> None:
    """However many one opens: the one that has asked nothing for the longest, with a GOAWAY. Those that ask something stay."""
    with contextlib.closing(Fronts(max_connections=3)) as front:
        busy = waiting(front)
        idle = [Raw(front.grpc.port)]
        assert answered(idle[0])
        idle.append(Raw(front.grpc.port))
        assert answered(idle[1])
        more = [Raw(front.grpc.port)]
        assert answered(more[0])
        while not idle[0].closed:
            idle[0].step()
        assert idle[0].goaway == ErrorCode.NO_ERROR
        assert answered(idle[1])
        more.append(Raw(front.grpc.port))
        assert answered(more[1])
        assert answered(busy)
        assert front.grpc.listener.open_connections == 3
        for client in (busy, *idle, *more):
            client.socket.close()


def begun(front: Fronts, path: str, body: bytes = b"", source: str = "127.0.0.1") -> Raw:
    """A client that has begun a call, and sent so much of it."""
    client = Raw(front.grpc.port, source)
    number = client.begin(head=[*HEAD[:2], (":path", path), *HEAD[3:]])
    client.data(number, body)
    return client


def sent_away(client: Raw) -> bool:
    """Whether it is told that its connection ends, and it does."""
    with contextlib.suppress(ConnectionError):  # what it sends meanwhile is not read any more
        while not client.closed:
            client.step()
    return client.goaway == ErrorCode.NO_ERROR


@pytest.mark.parametrize(
    ("path", "body"),
    [(REFLECTION, b""), (WATCH, message(b"")), (PREDICT, b""), (PREDICT, message(bytes(4095))[:-1])],
)
def test_calls_of_which_nothing_runs_keep_out_nobody(path: str, body: bytes) -> None:
    """A stream that lives for ever, or a message that does not come, makes way for others; what runs or was admitted stays."""
    with contextlib.closing(Fronts(max_connections=3)) as front:
        running, coming = waiting(front), begun(front, PREDICT, message(bytes(4097))[:-1])
        until(lambda: len(front.dataplane.admitted) == 2)
        without = begun(front, path, body)
        until(lambda: len(front.grpc._server._calls()) == 3)
        more = waiting(front)
        assert sent_away(without)
        last = Raw(front.grpc.port)
        assert not answered(last)
        coming.data(1, b"\0", end=True)
        assert coming.answer(1).body == message(bytes(4097))
        front.loop.call_soon_threadsafe(front.dataplane.release.set)
        for client in (running, more):
            assert client.answer(1).body == message(b"wait")
        for client in (running, coming, without, more, last):
            client.socket.close()


def test_answers_that_are_not_taken_keep_out_others_where_a_model_gave_them() -> None:
    """What costs nothing to ask again makes way."""
    with contextlib.closing(Fronts(max_connections=2)) as front:
        clients = []
        for path in (PREDICT, CHECK):
            client = Raw(front.grpc.port)
            client.h2.update_settings({SettingCodes.INITIAL_WINDOW_SIZE: 0})
            clients.append(client)
            number = client.begin(head=[*HEAD[:2], (":path", path), *HEAD[3:]])
            client.data(number, message(b""), end=True)
            until(lambda: sum(call.sent_all for call in front.grpc._server._calls()) == len(clients))
        more = waiting(front)
        assert sent_away(clients[1])
        last = Raw(front.grpc.port)
        assert not answered(last)
        clients[0].h2.update_settings({SettingCodes.INITIAL_WINDOW_SIZE: 100})
        clients[0].flush()
        assert clients[0].answer(1).body == message(b"")
        for client in (*clients, more, last):
            client.socket.close()


def test_what_an_address_asks_does_not_make_way_for_one_that_has_more() -> None:
    """Whoever has requests in all other connections does not get the last one, too; somebody else does."""
    with contextlib.closing(Fronts(max_connections=3)) as front:
        running = [waiting(front), waiting(front)]
        watcher = begun(front, WATCH, message(b""), source="127.0.0.2")
        until(lambda: len(front.grpc._server._calls()) == 3)
        again = Raw(front.grpc.port)
        assert not answered(again)
        other = Raw(front.grpc.port, source="127.0.0.3")
        assert answered(other)
        assert sent_away(watcher)
        for client in (*running, watcher, again, other):
            client.socket.close()


def test_http_1_is_answered_in_http_1(fronts: Fronts) -> None:
    """A line for a person, and the connection ends."""
    with socket.create_connection(("127.0.0.1", fronts.grpc.port), timeout=10) as plain:
        plain.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        said = b""
        while got := plain.recv(1000):
            said += got
    assert said.startswith(b"HTTP/1.1 400 ")
    assert b"gRPC" in said


def test_curl_is_told(fronts: Fronts) -> None:
    """With either version of HTTP it shows what this port is for."""
    url = f"http://127.0.0.1:{fronts.grpc.port}/v1/models/half"
    for option in ("--http1.1", "--http2-prior-knowledge"):
        said = subprocess.run(
            ["curl", "-s", "-m", "10", option, url], capture_output=True, text=True, check=False
        )
        assert "gRPC" in said.stdout, said


# -- the end ------------------------------------------------------------------------------------------


def test_an_end_tells_clients_and_answers_what_runs() -> None:
    """GOAWAY first; the answer of what ran; what comes later is not begun; then the connection closes."""
    fronts = Fronts()
    raw = Raw(fronts.grpc.port)
    running = raw.begin()
    raw.data(running, message(b"wait"), end=True)
    until(lambda: fronts.dataplane.waiting == 1)
    quiet = asyncio.run_coroutine_threadsafe(fronts.grpc.quiesce(20), fronts.loop)
    while raw.goaway is None:
        raw.step()
    assert raw.goaway == 0
    late = Raw(fronts.grpc.port)
    refused = late.call(message(b"x"))
    assert refused.code is Code.UNAVAILABLE
    assert "shutting down" in refused.headers["grpc-message"].replace("%20", " ")
    fronts.loop.call_soon_threadsafe(fronts.dataplane.release.set)
    quiet.result(10)
    closing = asyncio.run_coroutine_threadsafe(fronts.grpc.close(), fronts.loop)
    said = b""
    while got := raw.socket.recv(2**16):  # by hand, for h2's client reads nothing after a GOAWAY
        said += got
    assert message(b"wait") in said
    raw.socket.close()
    late.socket.close()
    closing.result(10)
    assert not fronts.grpc._server.listener.links
    fronts.close()


def test_what_runs_at_the_end_is_unavailable() -> None:
    """A closed connection is UNAVAILABLE to a stock client, also in the moment of the end: and nothing else."""
    fronts = Fronts()
    calls = [fronts.start_call(b"wait") for _ in range(50)]
    until(lambda: fronts.dataplane.waiting == 50)
    fronts.run(fronts.grpc.quiesce(0.05))
    fronts.run(fronts.grpc.close())
    calls += [fronts.start_call(b"x") for _ in range(5)]
    assert {call.code() for call in calls} == {grpc.StatusCode.UNAVAILABLE}
    assert fronts.dataplane.cancelled == 50
    fronts.close()


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "::1", "::", "0.0.0.0"])
def test_hosts(host: str) -> None:
    """Names and addresses of either family; all addresses of a name have one port."""
    if ":" in host and not socket.has_ipv6:
        pytest.skip("there is no IPv6 here")
    try:
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
            probe.bind((host, 0))
    except OSError:
        pytest.skip(f"{host} is no address of this machine")
    fronts = Fronts(host=host)
    try:
        reached = "[::1]" if host == "::1" else "127.0.0.1"
        with grpc.insecure_channel(f"{reached}:{fronts.grpc.port}") as channel:
            assert channel.unary_unary(PREDICT)(b"x", timeout=10) == b"x"
    finally:
        fronts.close()
