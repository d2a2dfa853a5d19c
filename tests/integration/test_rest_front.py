"""The REST front before a data plane that does as it is told: deadlines, clients that go, drains, room, and failures."""

from __future__ import annotations

import contextlib
import json
import socket
from collections.abc import Iterator
from typing import Any

import pytest

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
        data = b""
        while part := client.recv(65536):
            data += part
    head, _, text = data.partition(b"\r\n\r\n")
    return int(head.split()[1]), text


def begin(fronts: Fronts, body: bytes, *more: str, size: int | None = None) -> socket.socket:
    client = socket.create_connection(("127.0.0.1", fronts.rest.port), timeout=10)
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


def test_a_deadline(fronts: Fronts) -> None:
    """504 when the time is up, and the request is cancelled."""
    status, text = post(fronts, b"wait")
    assert (status, json.loads(text)) == (504, {"error": "Deadline exceeded"})
    until(lambda: fronts.dataplane.cancelled == 1)
    until(lambda: fronts.dataplane.memory.used == 0)


def test_a_client_that_goes(fronts: Fronts) -> None:
    """Its request is cancelled at once, not at its deadline."""
    with contextlib.closing(Fronts()) as patient, begin(patient, b"wait"):
        until(lambda: patient.dataplane.waiting == 1)
    with contextlib.closing(Fronts()) as patient:
        with begin(patient, b"wait"):
            until(lambda: patient.dataplane.waiting == 1)
        until(lambda: patient.dataplane.cancelled == 1, 5)


def test_room_is_asked_for_before_the_body_is_read(fronts: Fronts) -> None:
    """By its length where that is said; a body that never comes holds its room until the deadline."""
    with begin(fronts, b"", size=1000) as client:
        until(lambda: fronts.dataplane.memory.used == 1000)
        assert client.recv(100).startswith(b"HTTP/1.1 504")
    until(lambda: fronts.dataplane.memory.used == 0)


def test_a_body_in_chunks_is_counted_as_it_comes(fronts: Fronts) -> None:
    """Of a length that nobody has said."""
    with begin(fronts, b"5\r\nhello\r\n", "Transfer-Encoding: chunked") as client:
        until(lambda: fronts.dataplane.memory.used == 5)
        client.sendall(b"3\r\nyou\r\n0\r\n\r\n")
        until(lambda: b"helloyou" in client.recv(1000))
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
