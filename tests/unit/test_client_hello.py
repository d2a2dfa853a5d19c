"""What a TLS client begins with: told from anything else, in whatever pieces it comes."""

from __future__ import annotations

import ssl

import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from mpspool.core import log
from mpspool.core.http2_frames import PREFACE
from mpspool.router.fronts.complaints import Complaints
from mpspool.router.fronts.http2 import client_hello
from mpspool.router.fronts.http2.client_hello import Kind


def hello_of(*protocols: str) -> bytes:
    """A real one."""
    context = ssl.create_default_context()
    if protocols:
        context.set_alpn_protocols(protocols)
    out = ssl.MemoryBIO()
    client = context.wrap_bio(ssl.MemoryBIO(), out, server_hostname="localhost")
    with pytest.raises(ssl.SSLWantReadError):
        client.do_handshake()
    return out.read()


HELLO = hello_of("h2", "http/1.1")


def test_what_is_offered() -> None:
    """All protocols, in the client's order; nothing where it offers none."""
    assert client_hello.read(HELLO) == client_hello.Hello(Kind.HELLO, (b"h2", b"http/1.1"))
    assert client_hello.read(hello_of()) == client_hello.Hello(Kind.HELLO)
    assert client_hello.read(HELLO + b"more") == client_hello.read(HELLO)


def test_in_pieces() -> None:
    """Until it is whole it is to be continued; also where it comes in many records."""
    for size in range(len(HELLO)):
        assert client_hello.read(HELLO[:size]).kind is Kind.CUT
    message = HELLO[5:]
    records = b"".join(
        b"\x16\x03\x01" + len(part).to_bytes(2, "big") + part
        for part in (message[start : start + 50] for start in range(0, len(message), 50))
    )
    assert client_hello.read(records) == client_hello.read(HELLO)
    assert client_hello.read(records[:-1]).kind is Kind.CUT


@pytest.mark.parametrize(
    "data", [PREFACE, b"GET / HTTP/1.1\r\n", b"\0", b"\x16\x02", b"\x15\x03\x01\0\x02\x01\0"]
)
def test_no_tls(data: bytes) -> None:
    """Known by the first bytes, so that nothing has to be waited for."""
    assert client_hello.read(data).kind is Kind.CLEAR
    assert client_hello.read(data[:2]).kind is Kind.CLEAR


def test_a_record_of_another_kind_of_handshake_is_none() -> None:
    """A server's words are no client's."""
    assert client_hello.read(b"\x16\x03\x03\0\x04\x02\0\0\0").kind is Kind.CLEAR


def test_a_hello_without_end() -> None:
    """It is not collected for ever."""
    endless = (b"\x16\x03\x01\x40\0" + b"\x01\xff\xff\xff" + bytes(2**14 - 4)) * 9
    assert client_hello.read(endless[: 2**14]).kind is Kind.CUT
    assert client_hello.read(endless).kind is Kind.CLEAR


def test_a_hello_of_crumbs() -> None:
    """Nor in thousands of records: each piece that comes has all of them read again."""
    crumbs = b"".join(b"\x16\x03\x01\0\x01" + bytes([byte]) for byte in b"\x01\xff\xff\xff" + bytes(5000))
    assert client_hello.read(crumbs[: 6 * 50]).kind is Kind.CUT
    assert client_hello.read(crumbs[: 6 * 100]).kind is Kind.CLEAR


@given(st.binary(max_size=300), st.integers(0, len(HELLO)), st.integers(0, len(HELLO)))
def test_whatever_comes(noise: bytes, start: int, stop: int) -> None:
    """Any bytes, and a real hello with some of it replaced, are read or refused, and never break anything."""
    for data in (noise, HELLO[:start] + noise + HELLO[stop:]):
        if data:
            assert isinstance(client_hello.read(data), client_hello.Hello)


def test_a_flood_of_bad_connections_is_a_few_lines() -> None:
    """And at the end of its time one line with the number of the others."""
    now_s = [0.0]
    complaints = Complaints(lambda: now_s[0], log.get("http2"))
    with capture_logs() as logs:
        for number in range(500):
            complaints.say(f"10.0.0.1:{number}", "NO_ERROR", "why")
        assert len(logs) == 20
        now_s[0] = 10.0
        complaints.tick()
        complaints.say("10.0.0.1:1", "NO_ERROR", "why")
    assert [line["event"] for line in logs[20:]] == ["more bad connections", "bad connection"]
    assert logs[20]["count"] == 480
