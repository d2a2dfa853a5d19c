"""The command line's client: which way it goes to the server."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from concurrent import futures

import grpc
import pytest

from mpspool import client
from mpspool.core import metadata
from tests.pool import cli


@pytest.fixture
def proxy(monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    """Where the environment says that an HTTP proxy is: it listens, and accepts nobody by itself."""
    for name in ("no_proxy", "no_grpc_proxy", "grpc_proxy", "https_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(10)
        monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{listener.getsockname()[1]}")
        yield listener


@pytest.fixture
def overheard() -> Overheard:
    return Overheard()


@pytest.fixture
def port(overheard: Overheard) -> Iterator[int]:
    """A server that knows no method, on 127.0.0.1."""
    with futures.ThreadPoolExecutor(1) as pool:
        server = grpc.server(pool, handlers=[overheard])
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        yield port
        server.stop(None).wait()


class Overheard(grpc.GenericRpcHandler):  # type: ignore[misc]
    """What came along with each call; it knows no method."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, dict[str, str | bytes]]] = []

    def service(self, details: grpc.HandlerCallDetails) -> None:
        self.calls.append((details.method.rpartition("/")[2], dict(details.invocation_metadata)))


def test_metadata_goes_along(port: int, overheard: Overheard) -> None:
    """With every call, by its key in small letters; bytes under a key for those. What cannot be sent is a usage error."""
    sent = ("--metadata", "X-Mpspool-Priority=1", "--metadata", "blob-bin=\u00e9=")
    done = cli("predict", "half", "--input", "[1]", "--address", f"127.0.0.1:{port}", *sent)
    assert (done.returncode, "UNIMPLEMENTED" in done.stderr) == (1, True)
    (method, sent_along), *_ = overheard.calls
    assert method == "GetModelMetadata"
    assert (sent_along["x-mpspool-priority"], sent_along["blob-bin"]) == ("1", "\u00e9=".encode())
    for given, told in (
        ("priority=\u00e9", "the value of 'priority' is no printable ASCII"),
        ("te=x", "'te' is no key of metadata"),
        ("content-length=5", "'content-length' is no key of metadata"),
        ("alone", "'alone' is no KEY=VALUE"),
    ):
        done = cli("predict", "half", "--input", "[1]", "--metadata", given)
        assert (done.returncode, told in done.stderr) == (2, True)


def test_bytes_that_are_no_text_are_sent_as_they_are() -> None:
    """As the command line hands them on."""
    assert metadata.value("blob-bin", b"\xff\x00".decode(errors="surrogateescape")) == b"\xff\x00"


def ask(address: str) -> None:
    client.predict(address, "half", [1], signature="", version=None, timeout_s=5)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_a_server_of_this_machine_is_asked_past_the_proxy(proxy: socket.socket, port: int, host: str) -> None:
    """It is the server that answers, whatever the environment says about proxies."""
    with pytest.raises(client.CallError, match="UNIMPLEMENTED"):
        ask(f"{host}:{port}")


def test_an_http_port_is_recognised() -> None:
    """By what gRPC says of an answer that is none of its own."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            with contextlib.suppress(OSError):
                while True:
                    with listener.accept()[0] as connection:
                        connection.recv(4096)
                        connection.sendall(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")

        serving = threading.Thread(target=answer)
        serving.start()
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        with pytest.raises(client.NotGrpcError) as told:
            ask(address)
        listener.shutdown(socket.SHUT_RDWR)
        serving.join()
    assert str(told.value) == (
        f"UNAVAILABLE: what listens at {address} does not speak gRPC; it looks like an HTTP port"
    )


def test_a_server_elsewhere_is_asked_through_the_proxy(proxy: socket.socket) -> None:
    """As gRPC's own clients do it."""

    def try_it() -> None:
        with contextlib.suppress(client.CallError):
            ask("192.0.2.1:8500")

    asking = threading.Thread(target=try_it)
    asking.start()
    with proxy.accept()[0] as connection:
        assert connection.recv(4096).startswith(b"CONNECT 192.0.2.1:8500 ")
    asking.join()


@pytest.mark.parametrize(
    ("address", "loopback"),
    [
        ("127.8.0.1:8500", True),
        ("[::1]:8500", True),
        ("localhost:1", True),
        ("[2001:db8::1]:8500", False),
        ("localhost.example:8500", False),
    ],
)
def test_loopback_in_every_form(address: str, loopback: bool) -> None:
    """Names and numbers of this machine's own, and none that only look like it."""
    assert client._is_loopback(address) is loopback
