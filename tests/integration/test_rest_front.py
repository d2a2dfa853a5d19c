"""The REST front before a data plane that does as it is told: deadlines, clients that go, drains, room, and failures."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import json
import logging
import re
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from aiohttp import StreamReader, web
from aiohttp.http_writer import StreamWriter
from google.protobuf import json_format
from structlog.testing import capture_logs

from mpspool.core import tfs
from mpspool.router.fronts import reading_turns as turns_module
from mpspool.router.fronts import rest, rest_body, rest_listener
from tests.integration.test_front import Fronts
from tests.polling import until

PATH = "/v1/models/half:predict"


@pytest.fixture
def fronts() -> Iterator[Fronts]:
    with contextlib.closing(Fronts(rest_timeout_ms=500)) as found:
        yield found


def post(fronts: Fronts, body: bytes, *more: str) -> tuple[int, Any]:
    """Status and body."""
    with begin(fronts, body, *more) as client:
        data = everything(client)
    head, _, text = data.partition(b"\r\n\r\n")
    return int(head.split()[1]), text


def everything(client: socket.socket) -> bytes:
    """What comes until the connection ends, or breaks."""
    parts = []
    with contextlib.suppress(ConnectionError):
        while part := client.recv(2**20):
            parts.append(part)
    return b"".join(parts)


def connect(fronts: Fronts, host: str = "127.0.0.1") -> socket.socket:
    return socket.create_connection((host, fronts.rest.port), timeout=10)


def begin(fronts: Fronts, body: bytes, *more: str, size: int | None = None) -> socket.socket:
    client = connect(fronts)
    lines = [f"POST {PATH} HTTP/1.1", "Host: x", "Connection: close", *more]
    if not any(line.startswith("Transfer-Encoding") for line in more):
        lines.append(f"Content-Length: {len(body) if size is None else size}")
    client.sendall("\r\n".join(lines).encode() + b"\r\n\r\n" + body)
    return client


def test_a_body_goes_as_it_came(fronts: Fronts) -> None:
    """It is not looked into here: the answer is what the data plane says."""
    assert post(fronts, b"\xff anything") == (200, b"\xff anything")
    (head,) = fronts.dataplane.heads
    assert head.peer.startswith("127.0.0.1:")
    assert head.metadata["host"] == "x"
    assert fronts.dataplane.memory.used == 0


@pytest.mark.parametrize(
    "asked", ["GET /v1/models/half", "GET /none", "GET /metrics", "no http", f"POST {PATH}"]
)
def test_no_answer_says_what_the_server_is_made_of(fronts: Fronts, asked: str) -> None:
    """Nor do errors, what is no HTTP, and answers that count until they are taken."""
    body = bytes(2**20) if asked.startswith("POST") else b""
    head = f"{asked} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n"
    with connect(fronts) as client:
        client.sendall(head.encode() + body)
        answer = everything(client).partition(b"\r\n\r\n")[0].split(b"\r\n")
    assert answer[0].startswith(b"HTTP/1.")
    assert [line for line in answer if line.startswith(b"Server:")] == [b"Server: mpspool"]


def test_a_header_that_comes_twice(fronts: Fronts) -> None:
    """Both values count, as of gRPC's metadata: neither takes the place of the other, whatever their order."""
    assert post(fronts, b"x", "X-Tenant: a", "Accept: b", "x-tenant: c")[0] == 200
    (head,) = fronts.dataplane.heads
    assert head.metadata["x-tenant"] == "a,c"


def test_a_deadline(fronts: Fronts) -> None:
    """504 when the time is up, and the request is cancelled."""
    status, text = post(fronts, b"wait")
    assert (status, json.loads(text)) == (504, {"error": "Deadline exceeded"})
    until(lambda: fronts.dataplane.cancelled == 1)
    until(lambda: fronts.dataplane.memory.used == 0)


@pytest.mark.parametrize("timeout_ms", [60_000, 0])
def test_a_deadline_of_a_requests_own(timeout_ms: int) -> None:
    """By its header, which shortens the front's, and does not need it."""
    with contextlib.closing(Fronts(rest_timeout_ms=timeout_ms)) as fronts:
        assert post(fronts, b"wait", "X-Mpspool-Timeout-Ms: 100")[0] == 504
        until(lambda: fronts.dataplane.cancelled == 1)
        assert post(fronts, b"x", "X-Mpspool-Timeout-Ms: 999999999")[0] == 200
        left_ns = fronts.dataplane.deadlines[-1] - time.monotonic_ns()
        assert left_ns < (timeout_ms or 999_999_999) * 1e6
        assert left_ns > 5e10


@pytest.mark.parametrize("text", ["0", "-1", "1.5", "soon", "1000000000", "\u0664"])
def test_a_deadline_that_is_none(fronts: Fronts, text: str) -> None:
    """400, before anything is read or run."""
    status, answer = post(fronts, b"x", f"X-Mpspool-Timeout-Ms: {text}")
    assert status == 400
    assert "x-mpspool-timeout-ms is" in json.loads(answer)["error"]
    assert "whole number of milliseconds from 1 to 999999999" in json.loads(answer)["error"]
    assert not fronts.dataplane.heads


def test_a_client_that_goes(fronts: Fronts) -> None:
    """Its request is cancelled at once, not at its deadline."""
    with contextlib.closing(Fronts()) as patient, begin(patient, b"wait"):
        until(lambda: patient.dataplane.waiting == 1)
    with contextlib.closing(Fronts()) as patient:
        with begin(patient, b"wait"):
            until(lambda: patient.dataplane.waiting == 1)
        until(lambda: patient.dataplane.cancelled == 1, 5)


def test_room_is_asked_for_before_the_body_is_read(fronts: Fronts, monkeypatch: pytest.MonkeyPatch) -> None:
    """By its length where that is said, when it has begun; a body that does not come on does not hold its room for ever."""
    monkeypatch.setattr(rest_body, "STALL_S", 2.0)
    with begin(fronts, bytes(4096), size=100_000) as client:
        until(lambda: fronts.dataplane.memory.used == 100_000)
        assert client.recv(100).startswith(b"HTTP/1.1 504")
    until(lambda: fronts.dataplane.memory.used == 0)


@pytest.mark.parametrize("expecting", [[], ["Expect: 100-continue"]])
def test_a_length_alone_holds_nothing(fronts: Fronts, expecting: list[str]) -> None:
    """Whoever announces all that there is room for, and sends next to nothing of it, keeps nobody out."""
    most = fronts.dataplane.memory.limit_bytes = 1_000_000
    with contextlib.ExitStack() as announcing:
        for _ in range(8):
            client = announcing.enter_context(begin(fronts, b"", *expecting, size=most))
            if expecting:
                assert client.recv(100) == b"HTTP/1.1 100 Continue\r\n\r\n"
            client.sendall(bytes(4095))
        assert post(fronts, b"hello") == (200, b"hello")
        assert fronts.dataplane.memory.used == 0


def test_a_body_may_take_longer_than_its_answer(fronts: Fronts) -> None:
    """The time for an answer begins with the last byte of the request, as in TensorFlow Serving."""
    begun_s = time.monotonic()
    with begin(fronts, b"", size=5) as client:
        until(lambda: time.monotonic() - begun_s > 0.7)
        client.sendall(b"hello")
        assert everything(client).endswith(b"\r\n\r\nhello")


@pytest.mark.parametrize(("piece", "status"), [(1, 504), (10_000, 200)])
def test_a_body_has_to_come_at_a_rate(
    fronts: Fronts, monkeypatch: pytest.MonkeyPatch, piece: int, status: int
) -> None:
    """A tenth of it in the time that there is for one; a byte now and then does not do."""
    monkeypatch.setattr(rest_body, "STALL_S", 1.5)  # less than a hundred pieces take
    size = 1_000_000
    with begin(fronts, b"", size=size) as client:
        client.setblocking(False)
        left = bytearray(size)

        def answer() -> bytes:
            with contextlib.suppress(BlockingIOError):
                del left[: client.send(left[:piece])]
            with contextlib.suppress(BlockingIOError):
                return client.recv(100)
            return b""

        assert until(answer).startswith(b"HTTP/1.1 %d" % status)
    until(lambda: fronts.dataplane.memory.used == 0)


def test_a_body_in_chunks_is_counted_as_it_comes(fronts: Fronts) -> None:
    """Of a length that nobody has said."""
    with begin(fronts, b"5\r\nhello\r\n", "Transfer-Encoding: chunked") as client:
        until(lambda: fronts.dataplane.memory.used == 5)
        client.sendall(b"3\r\nyou\r\n0\r\n\r\n")
        until(lambda: b"helloyou" in client.recv(1000))
    assert fronts.dataplane.memory.used == 0


@pytest.mark.parametrize("start", [b"5\r\nhello\r\n", b"80000\r\n" + bytes(0x80000) + b"\r\n"])
def test_a_body_that_does_not_go_on_as_http(fronts: Fronts, start: bytes) -> None:
    """400 at once, and the end of the connection: where another request would begin nobody can tell."""
    with connect(fronts) as client:
        client.sendall(f"POST {PATH} HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n".encode())
        client.sendall(start)
        until(lambda: fronts.dataplane.memory.used >= len(start) // 2)
        client.sendall(b"ZZ\r\nabc\r\n")
        head, _, text = everything(client).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400")
    assert b"Connection: close" in head
    assert "The request is no HTTP" in json.loads(text)["error"]
    assert fronts.dataplane.memory.used == 0
    labels = 'code="INVALID_ARGUMENT",method="Predict",model="",version=""'
    assert f"mpspool_requests_total{{{labels}}} 1.0\n" in fronts.get("/metrics")[1]


async def count_turns(turns: list[int]) -> None:
    """A 0 for each turn of the event loop, behind it."""
    while True:
        turns.append(0)
        await asyncio.sleep(0)


@pytest.mark.parametrize("waits", [False, True], ids=["first", "behind another"])
def test_a_body_in_tiny_chunks_is_read_in_turns(monkeypatch: pytest.MonkeyPatch, waits: bool) -> None:
    """Some hundreds at a time, between which others are read; and all of them, also where they had to wait."""
    monkeypatch.setattr(turns_module, "_TURN_S", 0.0)
    turns = [0]
    feed = StreamReader.feed_data

    def counted(reader: StreamReader, data: bytes, size: int = 0) -> bool:
        turns[-1] += 1
        return feed(reader, data, size)

    head = f"POST {PATH} HTTP/1.1\r\nHost: x\r\n"
    with contextlib.closing(Fronts()) as patient, connect(patient) as client:
        counting = asyncio.run_coroutine_threadsafe(count_turns(turns), patient.loop)
        if waits:
            client.sendall(f"{head}Content-Length: 4\r\n\r\nwait".encode())
            until(lambda: patient.dataplane.waiting == 1)
        monkeypatch.setattr(StreamReader, "feed_data", counted)
        client.sendall(f"{head}Connection: close\r\nTransfer-Encoding: chunked\r\n\r\n".encode())
        client.sendall(b"1\r\na\r\n1\r\nb\r\n" * 25_000 + b"0\r\n\r\n")
        if waits:
            until(lambda: sum(turns) > 10_000)
            patient.loop.call_soon_threadsafe(patient.dataplane.release.set)
        assert everything(client).endswith(b"\r\n\r\n" + b"ab" * 25_000)
        counting.cancel()
    assert sum(turns) == 50_000
    assert max(turns) <= 512


@pytest.mark.parametrize(
    ("version", "coding", "status"),
    [
        ("1.1", "Transfer-Encoding: Chunked", 200),
        ("1.0", "Transfer-Encoding: chunked\r\nConnection: keep-alive", 400),
        ("1.1", "Transfer-Encoding: gzip, chunked", 501),
    ],
)
def test_how_a_body_may_come(fronts: Fronts, version: str, coding: str, status: int) -> None:
    """In chunks, and nothing besides; by HTTP/1.0 not so: who is between takes its end to be elsewhere."""
    with connect(fronts) as client:
        client.sendall(f"POST {PATH} HTTP/{version}\r\nHost: x\r\n{coding}\r\n\r\n".encode())
        with contextlib.suppress(ConnectionError):
            client.sendall(b"5\r\nhello\r\n0\r\n\r\n")
        assert int(client.recv(1000).split()[1]) == status
        if status != 200:
            everything(client)  # it ends
    assert len(fronts.dataplane.heads) == (status == 200)


def test_a_body_behind_another_request_that_does_not_go_on_as_http() -> None:
    """Those before it have their answers."""
    with contextlib.closing(Fronts()) as patient, connect(patient) as client:
        head = f"POST {PATH} HTTP/1.1\r\nHost: x\r\n"
        client.sendall(f"{head}Content-Length: 4\r\n\r\nwait".encode())
        client.sendall(f"{head}Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n".encode())
        until(lambda: patient.dataplane.waiting == 1)
        client.sendall(b"ZZ\r\n")
        patient.loop.call_soon_threadsafe(patient.dataplane.release.set)
        assert re.findall(rb"HTTP/1\.. (\d+)", everything(client)) == [b"200", b"400"]


@pytest.mark.parametrize("protocol", ["h2c", "tcp", "websocket"])
@pytest.mark.parametrize("body", ["", "hello"])
def test_nothing_is_answered_behind_a_request_for_another_protocol(
    fronts: Fronts, protocol: str, body: str
) -> None:
    """It has its answer, and is the last: of what follows a part may be taken for the whole, or a body for a request."""
    with connect(fronts) as client:
        head = f"POST {PATH} HTTP/1.1\r\nHost: x\r\n"
        upgrade = f"{head}Connection: upgrade\r\nUpgrade: {protocol}\r\nContent-Length: {len(body)}\r\n\r\n"
        inner = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"
        client.sendall(f"{upgrade}{body}{head}Content-Length: {len(inner)}\r\n\r\n".encode())
        with contextlib.suppress(ConnectionError):
            client.sendall(inner)
        answer = everything(client)
    assert re.findall(rb"HTTP/1\.. (\d+)", answer) == [b"200"]
    assert b"\r\nConnection: close\r\n" in answer
    assert answer.endswith(b"\r\n\r\n" + body.encode())
    assert len(fronts.dataplane.heads) == 1


def test_the_body_of_a_request_for_another_protocol_may_come_later(fronts: Fronts) -> None:
    """It is read to its end."""
    upgrade = ["Connection: upgrade", "Upgrade: h2c"]
    with begin(fronts, b"hel", *upgrade, size=5) as client:
        until(lambda: any(one._request_in_progress for one in fronts.rest.listener._connections()))
        client.sendall(b"lo")
        assert everything(client).endswith(b"\r\n\r\nhello")


def test_a_body_that_does_not_go_on_as_http_behind_its_answer(
    fronts: Fronts, caplog: pytest.LogCaptureFixture
) -> None:
    """Nobody waits for the rest of it; it is a line in the log."""
    fronts.dataplane.draining = True
    with capture_logs() as logs, connect(fronts) as client:
        client.settimeout(5)
        client.sendall(f"POST {PATH} HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n".encode())
        assert client.recv(1000).startswith(b"HTTP/1.1 503")
        client.sendall(b"ZZ\r\n")
        everything(client)
    assert [line["code"] for line in logs] == ["BAD_REQUEST"]
    assert not caplog.records


def test_a_body_that_waits_to_be_asked_for(fronts: Fronts) -> None:
    """It is asked for when there is room, and not where it is refused."""
    expecting = "Expect: 100-Continue"
    with begin(fronts, b"", expecting, size=5) as client:
        assert client.recv(100) == b"HTTP/1.1 100 Continue\r\n\r\n"
        client.sendall(b"hello")
        assert everything(client).endswith(b"\r\n\r\nhello")
    fronts.dataplane.memory.limit_bytes = 4
    with begin(fronts, b"", expecting, size=5) as client:
        assert client.recv(100).startswith(b"HTTP/1.1 429")


@pytest.mark.parametrize(
    ("line", "status"),
    [
        (f"POST {PATH}", 429),
        ("POST /v1/nothing", 400),
        ("GET /v1/models/half", 200),
        ("OPTIONS /v1/models/half", 400),
    ],
)
def test_a_body_that_is_not_asked_for(fronts: Fronts, line: str, status: int) -> None:
    """The connection is said to end: the next request on it would be taken for the body."""
    fronts.dataplane.memory.limit_bytes = 4
    with connect(fronts) as client:
        client.sendall(
            f"{line} HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\n".encode()
        )
        head = client.recv(2**16).decode()
        assert head.startswith(f"HTTP/1.1 {status} ")
        assert "\r\nConnection: close\r\n" in head
        client.sendall(b"hello")  # it may come all the same
        assert b"HTTP/1.1" not in everything(client)


def test_a_body_that_was_asked_for_leaves_its_connection(fronts: Fronts) -> None:
    """Whatever the answer: the next request comes behind it."""
    with connect(fronts) as client:
        head = (
            f"POST {PATH} HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 12\r\n\r\n".encode()
        )
        for _ in range(2):
            client.sendall(head)
            assert client.recv(100) == b"HTTP/1.1 100 Continue\r\n\r\n"
            client.sendall(b"refuse:hello")
            answer = b""
            while not answer.endswith(b"}"):
                answer += client.recv(2**16)
            assert answer.startswith(b"HTTP/1.1 429 ")
            assert b"Connection" not in answer


def test_a_client_that_goes_as_its_body_is_asked_for(fronts: Fronts, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is no failure of the server, and nothing to write down."""
    asked = threading.Event()

    async def gone(*_: object) -> None:
        asked.set()
        raise ConnectionResetError("Cannot write to closing transport")

    monkeypatch.setattr(StreamWriter, "write", gone)
    with capture_logs() as logs, begin(fronts, b"", "Expect: 100-continue", size=5):
        assert asked.wait(10)
    until(lambda: not fronts.rest.listener.open_connections)
    monkeypatch.undo()
    assert not logs
    assert 'code="INTERNAL"' not in fronts.get("/metrics")[1]
    assert fronts.dataplane.memory.used == 0


def test_a_long_answer_counts_until_it_is_taken(fronts: Fronts) -> None:
    """A client that reads nothing holds its answer's bytes; one that goes gives them back."""
    size = 32 * 2**20
    with begin(fronts, b"x" * size):
        until(lambda: fronts.dataplane.heads and fronts.dataplane.memory.used == size)
    until(lambda: fronts.dataplane.memory.used == 0)
    status, text = post(fronts, b"y" * size)
    assert (status, len(text)) == (200, size)
    assert fronts.dataplane.memory.used == 0


def test_a_long_answer_that_there_is_no_room_for(fronts: Fronts, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another client takes nothing of as much as answers may have; a short one is sent all the same."""
    size = 32 * 2**20
    monkeypatch.setattr(fronts.dataplane.memory, "limit_bytes", 2 * size)
    with begin(fronts, b"x" * size):
        until(lambda: fronts.dataplane.heads and fronts.dataplane.memory.used == size)
        status, text = post(fronts, b"y" * 100_000)
        assert status == 429
        assert f"hold {size} of {size} bytes" in json.loads(text)["error"]
        assert post(fronts, b"z") == (200, b"z")
        assert 'mpspool_refusals_total{model="",reason="answers",version=""} 1.0' in fronts.get("/metrics")[1]
    until(lambda: fronts.dataplane.memory.used == 0)


def test_a_client_that_goes_as_it_is_answered(fronts: Fronts, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is no failure of the server, and nothing to write down."""

    async def gone(*_: object) -> None:
        raise ConnectionResetError("Cannot write to closing transport")

    monkeypatch.setattr(web.Response, "write_eof", gone)
    with capture_logs() as logs, begin(fronts, b"x" * 2**20) as client:
        everything(client)
    assert not logs
    assert fronts.dataplane.memory.used == 0


def test_no_room(fronts: Fronts) -> None:
    """429, before anything is read."""
    fronts.dataplane.memory.limit_bytes = 10
    status, text = post(fronts, b"x" * 11)
    assert status == 429
    assert "11 bytes" in json.loads(text)["error"]


def test_a_refusal_and_a_failure(fronts: Fronts) -> None:
    """A refusal has its text; of what fails inside nothing is told."""
    assert post(fronts, b"refuse:no") == (429, b'{"error":"no"}')
    status, text = post(fronts, b"break")
    assert status == 500
    assert b"secret" not in text
    page = fronts.get("/monitoring/prometheus/metrics")[1]
    assert ':tensorflow:serving:request_count{model_name="",status="INTERNAL"} 1\n' in page
    assert 'mpspool_requests_total{code="INTERNAL",method="",model="",version=""} 1.0\n' in page


def test_a_pool_that_drains(fronts: Fronts) -> None:
    """503, so that a balancer goes elsewhere; health is told all the same."""
    fronts.dataplane.draining = True
    assert post(fronts, b"x")[0] == 503
    assert fronts.get("/v1/models/half")[0] == 503
    assert fronts.get("/healthz")[0] == 200


def test_what_is_known_of_a_model(fronts: Fronts) -> None:
    """Each version's state, failed ones with their reason; an invented model makes no series."""
    status, text, _ = fronts.get("/v1/models/half")
    assert status == 200
    assert [one["state"] for one in json.loads(text)["model_version_status"]] == ["AVAILABLE", "END"]
    assert "no such file" in text
    assert fronts.get("/v1/models/invented/metadata")[0] == 404
    page = fronts.get("/metrics")[1]
    assert 'code="OK",method="GetModelStatus",model="half"' in page
    assert "invented" not in page


def test_metadata_is_printed_once(fronts: Fronts, monkeypatch: pytest.MonkeyPatch) -> None:
    """Signatures of thousands of inputs hold the router up each time; others of the same version are told at once."""
    first, second = (tfs.SignatureDefMap() for _ in range(2))
    first.signature_def["first"].method_name = second.signature_def["second"].method_name = "metadata"
    printed = []
    print_it = json_format.MessageToDict

    def counted(message: Any, **options: Any) -> Any:
        printed.append(message)
        return print_it(message, **options)

    monkeypatch.setattr(json_format, "MessageToDict", counted)
    for signatures, name in [(first, "first"), (first, "first"), (second, "second")]:
        told = 3, signatures.SerializeToString()
        monkeypatch.setattr(fronts.dataplane, "metadata", lambda *_, told=told: told)
        found = json.loads(fronts.get("/v1/models/half/metadata")[1])
        assert list(found["metadata"]["signature_def"]["signature_def"]) == [name]
    assert printed.count(first) == printed.count(second) == 1


def test_what_is_refused_here_is_counted(fronts: Fronts, monkeypatch: pytest.MonkeyPatch) -> None:
    """The data plane has not seen it; with a method's name where the path has one."""
    monkeypatch.setattr(rest_body, "STALL_S", 0.5)
    assert fronts.get("/v1/models/half/versions/x")[0] == 400
    assert post(fronts, b"x", "Content-Encoding: br")[0] == 400
    assert post(fronts, gzip.compress(b"x")[:-1], "Content-Encoding: gzip")[0] == 400
    fronts.dataplane.draining = True
    assert post(fronts, b"x")[0] == 503
    assert fronts.get("/v1/models/half")[0] == 503
    fronts.dataplane.draining = False
    with begin(fronts, b"", size=1000) as client:
        assert client.recv(100).startswith(b"HTTP/1.1 504")
    page = fronts.get("/monitoring/prometheus/metrics")[1]
    for method, code, count in [
        ("", "INVALID_ARGUMENT", 1),
        ("Predict", "INVALID_ARGUMENT", 2),
        ("Predict", "UNAVAILABLE", 1),
        ("Predict", "DEADLINE_EXCEEDED", 1),
        ("GetModelStatus", "UNAVAILABLE", 1),
    ]:
        labels = f'code="{code}",method="{method}",model="",version=""'
        assert f"mpspool_requests_total{{{labels}}} {count}.0\n" in page
    for code, count in [("INVALID_ARGUMENT", 3), ("UNAVAILABLE", 2), ("DEADLINE_EXCEEDED", 1)]:
        assert f':tensorflow:serving:request_count{{model_name="",status="{code}"}} {count}\n' in page


def test_a_connection_too_many_is_closed() -> None:
    """Those that there are go on; when one goes there is room for another, and a reload may make more."""
    with contextlib.closing(Fronts(max_connections=1)) as fronts:
        first = begin(fronts, bytes(4096), size=4097)
        until(lambda: fronts.dataplane.memory.used == 4097)
        with connect(fronts) as second:
            assert everything(second) == b""
        first.sendall(b"y")
        assert first.recv(100).startswith(b"HTTP/1.1 200")
        first.close()
        until(lambda: not fronts.rest._runner.server.connections)  # type: ignore[union-attr]
        assert post(fronts, b"z") == (200, b"z")


def test_connections_that_ask_nothing_give_way() -> None:
    """The one that has asked nothing for the longest: whoever opens them keeps out nobody who asks."""
    with contextlib.closing(Fronts(max_connections=3)) as fronts, contextlib.ExitStack() as stack:
        busy = stack.enter_context(begin(fronts, bytes(4096), size=4097))
        until(lambda: fronts.dataplane.memory.used == 4097)
        idle = [stack.enter_context(connect(fronts)) for _ in range(2)]
        until(lambda: fronts.rest.listener.open_connections == 3)
        idle[0].sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
        assert idle[0].recv(1000).startswith(b"HTTP/1.1 200")
        for _ in range(3):
            assert fronts.get("/healthz")[0] == 200
            until(lambda: fronts.rest.listener.open_connections == 2)
        assert everything(idle[1]) == b""
        idle[0].sendall(b"GET /readyz HTTP/1.1\r\nHost: x\r\n\r\n")
        assert idle[0].recv(1000).startswith(b"HTTP/1.1 200")
        busy.sendall(b"y")
        assert busy.recv(100).startswith(b"HTTP/1.1 200")
        assert 'mpspool_bad_connections_total{code="REFUSED",front="http"} 1.0' in fronts.get("/metrics")[1]


@pytest.mark.parametrize(
    ("lines", "body"),
    [
        (["Content-Length: 5000"], b""),
        (["Content-Length: 5000"], bytes(4095)),
        (["Content-Length: 9", "Expect: 100-continue"], b""),
        (["Transfer-Encoding: chunked"], b""),
        (["Transfer-Encoding: chunked"], b"5\r\nhello\r\n"),
    ],
)
def test_requests_of_which_nothing_runs_keep_out_nobody(lines: list[str], body: bytes) -> None:
    """A body that does not come makes way for others; those that run, and what was admitted and comes, stay."""
    with contextlib.closing(Fronts(max_connections=3)) as fronts, contextlib.ExitStack() as stack:
        running = stack.enter_context(begin(fronts, b"wait"))
        coming = stack.enter_context(begin(fronts, bytes(4096), size=4097))
        until(lambda: fronts.dataplane.waiting == 1 and fronts.dataplane.memory.used == 4101)
        without = stack.enter_context(connect(fronts))
        without.sendall("\r\n".join([f"POST {PATH} HTTP/1.1", "Host: x", *lines, "", ""]).encode() + body)
        until(lambda: [begun for _, begun in list(fronts.rest.listener._idle.values())] == [True])
        assert fronts.get("/healthz")[0] == 200
        until(lambda: fronts.rest.listener.open_connections == 2)
        more = stack.enter_context(begin(fronts, b"wait"))
        assert not everything(without).startswith(b"HTTP/1.1 2")
        until(lambda: fronts.dataplane.waiting == 2)
        assert everything(stack.enter_context(connect(fronts))) == b""
        coming.sendall(b"y")
        assert everything(coming).startswith(b"HTTP/1.1 200")
        fronts.loop.call_soon_threadsafe(fronts.dataplane.release.set)
        for client in (running, more):
            assert everything(client).endswith(b"wait")


def test_who_a_client_is_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not at each look at who makes way: of thousands that takes long."""
    asked: list[object] = []
    address_of = rest_listener.address_of

    def counted(address: object) -> str:
        asked.append(address)
        return address_of(address)

    monkeypatch.setattr(rest_listener, "address_of", counted)
    with contextlib.closing(Fronts(max_connections=3)) as fronts, contextlib.ExitStack() as stack:
        for _ in range(3):
            stack.enter_context(connect(fronts))
        until(lambda: fronts.rest.listener.open_connections == 3)
        for _ in range(3):
            assert fronts.get("/healthz")[0] == 200
    assert len(asked) == len(set(asked)) == 6


def test_a_client_that_takes_nothing_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its answer is dropped and no longer counts; one that takes it slowly gets it all."""
    monkeypatch.setattr(rest_listener, "STALL_S", 3.0)
    size = 32 * 2**20
    with contextlib.closing(Fronts()) as fronts, capture_logs() as logs:
        memory = fronts.dataplane.memory
        with begin(fronts, b"x" * size) as idle, begin(fronts, b"y" * size) as slow:
            until(lambda: len(fronts.dataplane.heads) == 2 and memory.used == 2 * size)
            taken, start_s = bytearray(), time.monotonic()

            def left() -> bool:
                while len(taken) < (time.monotonic() - start_s) * size // 8:
                    part = slow.recv(2**18)
                    assert part, "it is not left"
                    taken.extend(part)
                return memory.used == size

            until(left)
            assert len(taken) < size
            taken.extend(everything(slow))
            assert taken.endswith(b"\r\n\r\n" + b"y" * size)
            assert len(everything(idle)) < size
        until(lambda: memory.used == 0)
    assert [line["code"] for line in logs if line["event"] == "bad connection"] == ["STALLED"]


def leave_untaken(fronts: Fronts) -> socket.socket:
    """A connection whose client has taken nothing of short answers, of which so few bytes wait that nobody is told to pause."""
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.connect(("127.0.0.1", fronts.rest.port))
    (connection,) = until(fronts.rest.listener._connections)
    transport = connection.own_transport
    transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    request = f"POST {PATH} HTTP/1.1\r\nHost: x\r\nContent-Length: 2000\r\n\r\n".encode() + bytes(2000)
    while not transport.get_write_buffer_size():
        asked = len(fronts.dataplane.heads)
        client.sendall(request)
        until(lambda asked=asked: len(fronts.dataplane.heads) > asked and connection._waiter is not None)
    assert not connection.writing_paused
    return client


def test_one_that_is_gone_makes_no_way() -> None:
    """What was found a moment ago may have closed meanwhile: nobody is taken in its place beyond those that may be open."""
    with contextlib.closing(Fronts(max_connections=4)) as fronts, contextlib.ExitStack() as stack:
        listener = fronts.rest.listener
        idle = [stack.enter_context(connect(fronts)) for _ in range(4)]
        until(lambda: listener.open_connections == 4)
        stack.enter_context(connect(fronts))  # for which the first of them goes, and the others are known
        until(lambda: everything(idle[0]) == b"")
        for client in idle[1:]:
            client.close()
        until(lambda: listener.open_connections == 1)
        for _ in range(3):
            stack.enter_context(connect(fronts))
        until(lambda: listener.open_connections == 4)
        line = [found[0] for found in listener._making_way._line]
        assert all(one.is_gone for one in line)
        assert not any(listener._end(one) for one in line)
        assert listener.complaints.counts["REFUSED"] == 1


@pytest.mark.parametrize("end", ["idle", "close", "half-close"])
def test_what_is_closed_does_not_wait_for_ever_to_be_taken(monkeypatch: pytest.MonkeyPatch, end: str) -> None:
    """Whoever closes it: it would count among the connections for as long as its client pleases."""
    monkeypatch.setattr(rest_listener, "STALL_S", 1.0)
    if end == "idle":
        monkeypatch.setattr(rest, "IDLE_S", 1.0)
    with contextlib.closing(Fronts()) as fronts, capture_logs() as logs, leave_untaken(fronts) as client:
        if end == "half-close":
            client.shutdown(socket.SHUT_WR)
        elif end == "close":
            client.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        until(lambda: not fronts.rest.listener.open_connections, 10)
    assert [line["code"] for line in logs] == ["STALLED"]


def test_a_connection_that_gives_way_does_not_wait_to_be_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its client has a while to take what there is; then it makes room for the one that it gives way to, and for no more than that."""
    with contextlib.closing(Fronts(max_connections=1)) as fronts, leave_untaken(fronts):
        with pytest.raises(OSError):
            fronts.get("/healthz")
        monkeypatch.setattr(rest_listener, "_TAKES_S", 0.2)

        def is_answered() -> bool:
            with contextlib.suppress(OSError):
                return fronts.get("/healthz")[0] == 200
            return False

        until(is_answered, 10)
        for _ in range(2):
            until(lambda: not fronts.rest.listener.open_connections, 10)
            assert fronts.get("/healthz")[0] == 200


@pytest.mark.parametrize("start", [b"", b"POST /v1/models/half:predict HTTP/1.1\r\nHost: x\r\nContent-"])
def test_a_client_that_asks_nothing_is_left(monkeypatch: pytest.MonkeyPatch, start: bytes) -> None:
    """At its beginning as between two requests, however much of a head is there."""
    monkeypatch.setattr(rest, "IDLE_S", 0.2)
    with contextlib.closing(Fronts()) as fronts, connect(fronts) as client:
        client.sendall(start)
        assert everything(client) == b""


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"GET / HTTP/1.1\r\nContent-Length: -1\r\n\r\n", "Content-Length"),
        (b"\x16\x03\x01\0\x05hello", "HTTPS"),
    ],
)
def test_what_is_no_http_is_a_line_in_the_log(
    fronts: Fronts, caplog: pytest.LogCaptureFixture, data: bytes, why: str
) -> None:
    """And not a stack of calls, of which a scan of ports would fill the disk."""
    with capture_logs() as logs, caplog.at_level(logging.DEBUG), connect(fronts) as client:
        client.sendall(data)
        assert everything(client).startswith(b"HTTP/1.0 400")
    (line,) = logs
    assert (line["event"], line["peer"], line["code"]) == ("bad connection", "127.0.0.1", "BAD_REQUEST")
    assert why in line["why"]
    assert not caplog.records


def test_every_address_of_the_machine() -> None:
    """By "::" IPv4, too, as by gRPC; and a peer is written as gRPC's are."""
    with contextlib.closing(Fronts(host="::")) as fronts:
        assert post(fronts, b"x") == (200, b"x")
        with connect(fronts, "::1") as client:
            client.sendall(f"POST {PATH} HTTP/1.0\r\nContent-Length: 1\r\n\r\ny".encode())
            assert everything(client).endswith(b"\r\n\r\ny")
        assert fronts.dataplane.heads[1].peer.startswith("[::1]:")


def test_what_comes_behind_a_request_that_waits_is_left_in_its_socket(fronts: Fronts) -> None:
    """A client that sends dozens of large ones at once is read as far as one or two of them; nobody would count the rest."""
    with contextlib.closing(Fronts()) as patient, connect(patient) as client:
        client.settimeout(2)
        head = f"POST {PATH} HTTP/1.1\r\nHost: x\r\n"
        client.sendall(f"{head}Content-Length: 4\r\n\r\nwait".encode())
        until(lambda: patient.dataplane.waiting == 1)
        body = f"{head}Content-Length: 500000\r\n\r\n".encode() + bytes(500_000)
        sent = 0
        with contextlib.suppress(TimeoutError):
            for _ in range(64):
                at = 0
                while at < len(body):
                    size = client.send(body[at:])
                    at, sent = at + size, sent + size
        assert sent < 14 * 2**20, "what sockets hold, and a little"


def test_of_a_body_behind_a_request_that_waits_little_is_read() -> None:
    """Half a megabyte at most."""
    with contextlib.closing(Fronts()) as patient, connect(patient) as client:
        head = f"POST {PATH} HTTP/1.1\r\nHost: x\r\n"
        client.sendall(f"{head}Content-Length: 4\r\n\r\nwait".encode())
        until(lambda: patient.dataplane.waiting == 1)
        (connection,) = patient.rest.listener._connections()
        client.sendall(f"{head}Content-Length: 1000000\r\n\r\n".encode() + bytes(10**6))
        until(lambda: connection._reading_paused)
        assert connection._body.total_bytes <= 2**19


def test_a_length_of_thousands_of_digits(fronts: Fronts) -> None:
    """It is the client's mistake."""
    with connect(fronts) as client:
        length = "0" * 5000 + "1"
        client.sendall(f"POST {PATH} HTTP/1.1\r\nHost: x\r\nContent-Length: {length}\r\n\r\nx".encode())
        assert client.recv(100).startswith(b"HTTP/1.1 400")


LINES = b"".join(b"X%d: %s\r\n" % (number, b"a" * 16_000) for number in range(5))


@pytest.mark.parametrize("piece", [10_000, 10**6], ids=["pieces", "whole"])
@pytest.mark.parametrize("end", [b"\r\n", b""], ids=["ended", "open"])
def test_a_head_of_many_long_lines(fronts: Fronts, piece: int, end: bytes) -> None:
    """It is refused, however it comes: nobody counts it."""
    head = b"GET /healthz HTTP/1.1\r\nHost: x\r\n" + LINES + end
    with capture_logs() as logs, connect(fronts) as client, contextlib.suppress(ConnectionError):
        for start in range(0, len(head), piece):
            client.sendall(head[start : start + piece])
            time.sleep(0.01)
        assert client.recv(100).startswith(b"HTTP/1.0 400")
    assert [line["code"] for line in logs] == ["BAD_REQUEST"]


@pytest.mark.parametrize(("count", "status"), [(128, 200), (129, 400)])
def test_a_head_of_many_headers(fronts: Fronts, count: int, status: int) -> None:
    """As many as docs/rest.md says, the Host among them."""
    lines = b"".join(b"X%d: y\r\n" % number for number in range(count - 1))
    with connect(fronts) as client:
        client.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n" + lines + b"\r\n")
        assert int(client.recv(100).split()[1]) == status


def test_trailers_of_many_long_lines(fronts: Fronts) -> None:
    """Nor what comes behind a body in chunks."""
    with connect(fronts) as client, contextlib.suppress(ConnectionError):
        client.sendall(f"POST {PATH} HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n".encode())
        client.sendall(b"5\r\nhello\r\n0\r\n")
        until(lambda: fronts.dataplane.memory.used > 0)
        client.sendall(LINES)
        assert client.recv(100).startswith(b"HTTP/1.1 400")
    until(lambda: fronts.dataplane.memory.used == 0)


def test_requests_that_are_long_together(fronts: Fronts) -> None:
    """Heads and bodies of one connection are as many as its client likes, in pieces of any size."""
    request = f"POST {PATH} HTTP/1.1\r\nHost: x\r\nContent-Length: 2000\r\n\r\n".encode() + bytes(2000)
    sent = request * 100
    with connect(fronts) as client:
        for start in range(0, len(sent), 7001):
            client.sendall(sent[start : start + 7001])
        got = b""
        while got.count(b"HTTP/1.1 200") < 100:
            part = client.recv(2**20)
            assert part
            got += part
