"""TLS on the gRPC port: stock clients with real certificates, those who have none, and what goes wrong on the wire."""

from __future__ import annotations

import asyncio
import contextlib
import select
import socket
import ssl
import subprocess
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from h2.settings import SettingCodes
from structlog.testing import capture_logs

from mpspool.core.errors import Code, StartError
from mpspool.core.http2_frames import PREFACE
from mpspool.core.settings import RouterSettings, TlsSettings
from mpspool.router.fronts import sockets
from mpspool.router.fronts.http2.limits import Limits
from mpspool.router.fronts.http2.tls_session import TlsSession
from mpspool.router.fronts.tfs_grpc import GrpcFront
from mpspool.router.metrics.exposition import Metrics
from tests.certificates import Authority, Pair, ssl_config
from tests.fakes.dataplane import FakeDataplane
from tests.integration.test_front import PREDICT, SERVING, Fronts
from tests.integration.test_grpc_wire import HEAD, Raw, message
from tests.polling import until

OPTIONS = [
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    ("grpc.use_local_subchannel_pool", 1),
]
HTTPS = [(":scheme", "https") if name == ":scheme" else (name, value) for name, value in HEAD]


@pytest.fixture(scope="module")
def ca(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("ca"))


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """A CA that nobody knows, of the same name."""
    return Authority(tmp_path_factory.mktemp("stranger"))


@pytest.fixture(scope="module")
def server(ca: Authority) -> Pair:
    return ca.issue("server")


@pytest.fixture(scope="module")
def shared(server: Pair) -> Iterator[Fronts]:
    started = Fronts(tls=TlsSettings(**server.files()))
    yield started
    started.close()


@pytest.fixture
def fronts(shared: Fronts) -> Iterator[Fronts]:
    """After each test no byte is counted, no call open and no connection left of it."""
    yield shared
    until(lambda: shared.dataplane.memory.used == 0)
    until(lambda: not shared.grpc._server._calls())
    until(lambda: not shared.grpc._server.listener.links)


@contextlib.contextmanager
def serving(**settings: Any) -> Iterator[Fronts]:
    started = Fronts(**settings)
    try:
        yield started
    finally:
        started.close()


def mutual(server: Pair, ca: Authority) -> TlsSettings:
    return TlsSettings(**server.files(), client_ca=str(ca.cert), verify_client=True)


def channel(fronts: Fronts, ca: Authority, own: Pair | None = None, host: str = "127.0.0.1") -> grpc.Channel:
    """The stock client's."""
    key, cert = own.pem() if own else (None, None)
    credentials = grpc.ssl_channel_credentials(ca.pem(), key, cert)
    return grpc.secure_channel(f"{host}:{fronts.grpc.port}", credentials, options=OPTIONS)


def refusal(found: grpc.Channel) -> str:
    """What a stock client is told that gets no connection."""
    with found, pytest.raises(grpc.RpcError) as caught:
        found.unary_unary(PREDICT)(b"x", timeout=20)
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    return str(caught.value.details())


def why(logs: Sequence[Any]) -> set[str]:
    return {line["why"] for line in logs if line["event"] == "bad connection"}


def context(ca: Authority, *protocols: str, own: Pair | None = None) -> ssl.SSLContext:
    made = ssl.create_default_context(cadata=ca.pem().decode())
    made.set_alpn_protocols(list(protocols))
    if own:
        made.load_cert_chain(own.cert, own.key)
    return made


def connect(fronts: Fronts) -> socket.socket:
    return socket.create_connection(("127.0.0.1", fronts.grpc.port), timeout=10)


def secured(fronts: Fronts, made: ssl.SSLContext) -> ssl.SSLSocket:
    """After its handshake."""
    return made.wrap_socket(connect(fronts), server_hostname="localhost")


class Secure(Raw):
    """A client that says exactly what it is told to, through TLS."""

    def __init__(self, fronts: Fronts, made: ssl.SSLContext) -> None:
        self._made = made
        super().__init__(fronts.grpc.port)

    def flush(self) -> None:
        if not isinstance(self.socket, ssl.SSLSocket):
            self.socket = self._made.wrap_socket(self.socket, server_hostname="localhost")
        super().flush()

    def begin(self, *extra: tuple[str, str], end: bool = False, head: list[tuple[str, str]] = HTTPS) -> int:
        return super().begin(*extra, end=end, head=head)


def told_when_it_ended(found: socket.socket) -> bool:
    """Reads to the end; whether that was said by TLS, too."""
    try:
        while found.recv(2**16):
            pass
    except ssl.SSLEOFError:
        return False
    return True


# -- what is carried --------------------------------------------------------------------------------


def test_bytes_both_ways(fronts: Fronts, ca: Authority) -> None:
    """Empty messages, small ones, and sizes around those of TLS records and of the pieces that they are made in."""
    with channel(fronts, ca) as found:
        call = found.unary_unary(PREDICT)
        for edge in (0, 2**14, 2**15, 2**16, 2**18):
            for size in {max(0, edge - 30), max(0, edge - 5), edge, edge + 1}:
                body = bytes(range(256)) * (size // 256) + bytes(size % 256)
                assert call(body, timeout=10) == body


def test_large_messages(fronts: Fronts, ca: Authority) -> None:
    """64 MiB, twice at a time, both ways."""
    body = bytes(64 * 2**20)
    with channel(fronts, ca) as found:
        calls = [found.unary_unary(PREDICT).future(body, timeout=120) for _ in range(2)]
        for call in calls:
            assert call.result() == body


@pytest.mark.parametrize("rsa", [False, True])
def test_thousands_of_requests(ca: Authority, rsa: bool) -> None:
    """Over three connections, each answer its own request's; no connection is lost on the way."""
    with (
        serving(tls=TlsSettings(**ca.issue("server", rsa=rsa).files())) as started,
        contextlib.ExitStack() as stack,
    ):
        channels = [stack.enter_context(channel(started, ca)) for _ in range(3)]
        for batch in range(10):
            calls = {
                body: channels[number % 3].unary_unary(PREDICT).future(body, timeout=60)
                for number in range(300)
                for body in [b"%d of %d" % (number, batch)]
            }
            assert all(call.result() == body for body, call in calls.items())
        assert len(started.grpc._server.listener.links) == 3


def test_other_services_and_hosts(fronts: Fronts, ca: Authority) -> None:
    """Health, too; the certificate is for the name that is asked."""
    with channel(fronts, ca, host="localhost") as found:
        answer = health_pb2_grpc.HealthStub(found).Check(health_pb2.HealthCheckRequest(), timeout=10)
        assert answer.status == SERVING


def test_http_stays_in_clear(fronts: Fronts) -> None:
    """As TensorFlow Serving's ssl_config_file, it is for gRPC alone."""
    assert fronts.get("/healthz")[0] == 200


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_versions(fronts: Fronts, ca: Authority, version: ssl.TLSVersion) -> None:
    """TLS 1.2 and 1.3 are spoken, with ciphers that HTTP/2 allows."""
    made = context(ca, "h2")
    made.minimum_version = made.maximum_version = version
    client = Secure(fronts, made)
    assert isinstance(client.socket, ssl.SSLSocket)
    assert client.socket.selected_alpn_protocol() == "h2"
    cipher = client.socket.cipher()
    assert cipher is not None
    assert "GCM" in cipher[0] or "CHACHA20" in cipher[0]
    assert client.call(message(b"x")).body == message(b"x")
    client.socket.close()


def test_tensorflow_servings_file(ca: Authority, server: Pair, tmp_path: Path) -> None:
    """With custom_ca and client_verify; without client_verify nobody is asked for a certificate."""
    file = tmp_path / "ssl.cfg"
    for verify in (True, False):
        file.write_text(ssl_config(server, ca.pem(), verify=verify))
        with serving(tls=TlsSettings(file=str(file))) as started:
            with channel(started, ca, ca.issue("client")) as found:
                assert found.unary_unary(PREDICT)(b"x", timeout=10) == b"x"
            if verify:
                refusal(channel(started, ca))
            else:
                with channel(started, ca) as found:
                    assert found.unary_unary(PREDICT)(b"x", timeout=10) == b"x"


# -- certificates -----------------------------------------------------------------------------------


def test_clients_with_a_certificate(ca: Authority, server: Pair) -> None:
    """Whoever has one of the CA is let in."""
    with serving(tls=mutual(server, ca)) as started, channel(started, ca, ca.issue("client")) as found:
        for _ in range(100):
            assert found.unary_unary(PREDICT)(b"x", timeout=10) == b"x"


def test_connections_are_counted(ca: Authority, stranger: Authority, server: Pair) -> None:
    """Those that are open, and by code those that came to nothing."""
    bad = 'mpspool_bad_connections_total{code="INADEQUATE_SECURITY",front="grpc"}'
    with serving(tls=mutual(server, ca)) as started:
        with channel(started, ca, ca.issue("client")) as found:
            assert found.unary_unary(PREDICT)(b"x", timeout=10) == b"x"
            text = started.get("/metrics")[1]
            assert 'mpspool_connections{front="grpc"} 1.0\n' in text
            limit = sockets.connections(10_000)
            assert f'mpspool_connections_limit{{front="grpc"}} {limit}.0\n' in text
            assert bad not in text
        refusal(channel(started, ca, stranger.issue("client")))
        until(lambda: bad in started.get("/metrics")[1])
        until(lambda: 'mpspool_connections{front="grpc"} 0.0\n' in started.get("/metrics")[1])


def test_clients_without_the_right_one(ca: Authority, stranger: Authority, server: Pair) -> None:
    """No certificate, one of another CA with the same name, one that has expired: no byte of theirs is a request."""
    expired = ca.issue("client", begins_days=-9, ends_days=-1)
    with serving(tls=mutual(server, ca)) as started:
        for own, said in (
            (None, {"it has no certificate, and must have one"}),
            (
                stranger.issue("client"),
                {"its certificate does not do: unable to get local issuer certificate"},
            ),
            (expired, {"its certificate does not do: certificate has expired"}),
        ):
            with capture_logs() as logs:
                refusal(channel(started, ca, own))
                until(lambda logs=logs: why(logs))
            assert why(logs) == said
        assert started.dataplane.heads == []
        until(lambda: not started.grpc._server.listener.links)


def test_the_alert_reaches_a_client_that_sends_at_once(ca: Authority, server: Pair) -> None:
    """In TLS 1.3 it has sent its request before it hears of it: the answer is no mere reset."""
    with serving(tls=mutual(server, ca)) as started, secured(started, context(ca, "h2")) as found:
        found.sendall(PREFACE + bytes(100_000))
        with pytest.raises(ssl.SSLError, match=r"(?i)certificate required"):
            found.recv(1)


def test_a_server_that_the_client_does_not_know(fronts: Fronts, stranger: Authority) -> None:
    """The client ends it, and the log says why; gRPC's own goes without a word."""
    with capture_logs() as logs, connect(fronts) as plain:
        with pytest.raises(ssl.SSLCertVerificationError):
            context(stranger, "h2").wrap_socket(plain, server_hostname="localhost")
        until(lambda: why(logs))
    assert why(logs) == {"it does not know the CA of our certificate"}
    with capture_logs() as logs:
        assert "CERTIFICATE_VERIFY_FAILED" in refusal(channel(fronts, stranger))
        until(lambda: why(logs))
    assert why(logs) == {"it went away during the handshake; it may not trust our certificate"}


def test_a_server_whose_certificate_has_expired(ca: Authority) -> None:
    """Or is for another name: that is the client's to refuse."""
    expired = ca.issue("server", begins_days=-9, ends_days=-1)
    for pair in (expired, ca.issue("server", ("elsewhere.example.com",))):
        with serving(tls=TlsSettings(**pair.files())) as started:
            refusal(channel(started, ca))
            assert started.dataplane.heads == []


def test_a_router_that_cannot_have_its_certificate(server: Pair, tmp_path: Path) -> None:
    """It ends, and its last words name the file."""
    tls = TlsSettings(key=str(tmp_path / "gone"), cert=str(server.cert))
    settings = RouterSettings(run_dir="", host="127.0.0.1", grpc_port=0, rest_port=0, tls=tls)

    async def start() -> None:
        await GrpcFront(FakeDataplane(), settings, Metrics(settings)).start()

    with pytest.raises(StartError) as caught:
        asyncio.run(start())
    assert str(caught.value.problems[0]).startswith(f"tls.key: {tmp_path / 'gone'} cannot be read")


# -- peers that speak something else ------------------------------------------------------------------


def test_a_client_without_tls(fronts: Fronts) -> None:
    """Stock gRPC, HTTP/1 and nonsense: closed at once, and told in the log."""
    for first in (PREFACE, b"GET / HTTP/1.1\r\n\r\n", b"\0"):
        with capture_logs() as logs, connect(fronts) as found:
            found.sendall(first)
            with contextlib.suppress(ConnectionResetError):
                assert found.recv(100) == b""
        assert why(logs) == {"it speaks without TLS, and must speak with it"}
    with capture_logs() as logs:
        refusal(grpc.insecure_channel(f"127.0.0.1:{fronts.grpc.port}", options=OPTIONS))
    assert why(logs) == {"it speaks without TLS, and must speak with it"}


def test_a_client_with_tls_where_there_is_none(ca: Authority) -> None:
    """Closed at once, too."""
    with serving() as started:
        refusal(channel(started, ca))
        until(lambda: not started.grpc._server.listener.links)


def test_protocols_by_alpn(fronts: Fronts, ca: Authority) -> None:
    """Who offers others without h2 is refused by its alert; who offers nothing is let in, as it speaks HTTP/2."""
    for offered in (["http/1.1"], ["grpc-exp", "h3"]):
        with (
            capture_logs() as logs,
            connect(fronts) as plain,
            pytest.raises(ssl.SSLError, match=r"(?i)no application protocol"),
        ):
            context(ca, *offered).wrap_socket(plain, server_hostname="localhost")
        assert why(logs) == {f"it offers {', '.join(offered)} by ALPN, and must offer h2"}
    for offered in ([], ["h2"], ["http/1.1", "h2"]):
        client = Secure(fronts, context(ca, *offered))
        assert isinstance(client.socket, ssl.SSLSocket)
        assert client.socket.selected_alpn_protocol() == ("h2" if offered else None)
        assert client.call(message(b"x")).body == message(b"x")
        client.socket.close()


def test_http_1_through_tls(fronts: Fronts, ca: Authority) -> None:
    """In words that a person understands."""
    with secured(fronts, context(ca)) as found:
        found.sendall(b"GET / HTTP/1.1\r\n\r\n")
        assert b"This port speaks gRPC" in found.recv(1000)
        assert told_when_it_ended(found)


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion:DeprecationWarning")
def test_an_old_tls(fronts: Fronts, ca: Authority) -> None:
    """TLS 1.1 is refused."""
    made = context(ca, "h2")
    made.set_ciphers("ALL:@SECLEVEL=0")
    made.minimum_version = made.maximum_version = ssl.TLSVersion.TLSv1_1
    with capture_logs() as logs, connect(fronts) as plain, pytest.raises(ssl.SSLError):
        made.wrap_socket(plain, server_hostname="localhost")
    assert why(logs) == {"it speaks no TLS 1.2 or later"}


def test_damaged_records(fronts: Fronts, ca: Authority) -> None:
    """What is no record ends its connection, and no other."""
    other = Secure(fronts, context(ca, "h2"))
    client = Secure(fronts, context(ca, "h2"))
    with capture_logs() as logs:
        with socket.socket(fileno=client.socket.detach()) as raw:
            raw.settimeout(10)
            raw.sendall(b"\x17\x03\x03\0\x20" + bytes(32))
            with contextlib.suppress(ConnectionResetError):
                while raw.recv(2**16):
                    pass
        until(lambda: why(logs))
    assert why(logs) == {"decryption failed or bad record mac"}
    assert other.call(message(b"x")).body == message(b"x")
    other.socket.close()


def test_endless_new_keys(ca: Authority, server: Pair) -> None:
    """A client that does nothing but ask for new keys is sent away."""
    with serving(tls=TlsSettings(**server.files())) as started:
        started.grpc._server.listener.limits = Limits(control_bytes=100)
        where = f"127.0.0.1:{started.grpc.port}"
        with (
            capture_logs() as logs,
            subprocess.Popen(
                ["openssl", "s_client", "-connect", where, "-alpn", "h2", "-tls1_3"],
                bufsize=0,  # nothing is left to be written when it is closed
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            ) as client,
        ):
            assert client.stdin is not None
            until(lambda: any(link._open for link in started.grpc._server.listener.links))

            def sent_away() -> set[str]:
                with contextlib.suppress(BrokenPipeError):
                    client.stdin.write(b"K\n")
                return why(logs)

            until(sent_away)
            client.kill()
        assert why(logs) == {"it asks for too many new keys"}


# -- the handshake ------------------------------------------------------------------------------------


def test_who_connects_and_says_nothing(ca: Authority, server: Pair) -> None:
    """Holds up nobody, counts as a connection from the first moment, and is sent away when its time is over."""
    with (
        serving(tls=TlsSettings(**server.files()), max_connections=21) as started,
        contextlib.ExitStack() as stack,
    ):
        listener = started.grpc._server.listener
        silent = [stack.enter_context(connect(started)) for _ in range(20)]
        for one in silent[:10]:
            one.sendall(b"\x16\x03\x01")
        until(lambda: len(listener.links) == 20)
        with channel(started, ca) as found:
            assert found.unary_unary(PREDICT)(b"x", timeout=10) == b"x"
            with capture_logs() as logs:
                silent.append(stack.enter_context(connect(started)))
                gone = select.select(silent, [], [], 10)[0]
                with contextlib.suppress(ConnectionResetError):
                    assert [one.recv(1) for one in gone] == [b""]
                silent.remove(gone[0])
            assert why(logs) == {"21 connections are open, and for this one nothing runs"}
        until(lambda: len(listener.links) == 20)
        with capture_logs() as logs:
            listener.limits = Limits(greeting_s=0.1)
            for one in silent:
                with contextlib.suppress(ConnectionResetError):
                    assert one.recv(1) == b""
        assert why(logs) == {"the TLS handshake was not done in time"}
        assert not listener.links


def test_who_says_nothing_after_the_handshake(ca: Authority, server: Pair) -> None:
    """The time is for what comes after it, too."""
    with serving(tls=TlsSettings(**server.files())) as started, secured(started, context(ca, "h2")) as found:
        listener = started.grpc._server.listener
        (link,) = listener.links
        until(lambda: link._open)  # the client is done with the handshake before the server is
        listener.limits = link.connection.limits = Limits(greeting_s=0.1)
        assert told_when_it_ended(found)


def test_a_handshake_byte_by_byte(fronts: Fronts, ca: Authority) -> None:
    """However it is cut, it is one."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = context(ca, "h2").wrap_bio(incoming, outgoing, server_hostname="localhost")
    with connect(fronts) as plain:
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        while True:
            try:
                client.do_handshake()
            except ssl.SSLWantReadError:
                for byte in outgoing.read():
                    plain.sendall(bytes([byte]))
                incoming.write(plain.recv(2**16))
            else:
                break
        client.write(PREFACE + b"\0\0\0\x04\0\0\0\0\0")
        for byte in outgoing.read():
            plain.sendall(bytes([byte]))
        incoming.write(plain.recv(2**16))
        said = b""
        while len(said) < 9:
            try:
                said += client.read(2**14)
            except ssl.SSLWantReadError:
                incoming.write(plain.recv(2**16))
        assert said[3:4] == b"\x04"  # SETTINGS


def test_signing_holds_up_nobody(fronts: Fronts, ca: Authority, monkeypatch: pytest.MonkeyPatch) -> None:
    """A handshake that lasts, in its thread: others are answered, then it goes on, whoever has gone meanwhile."""
    before = channel(fronts, ca)
    assert before.unary_unary(PREDICT)(b"x", timeout=10) == b"x"
    began, go_on = threading.Event(), threading.Event()
    shake = TlsSession.shake

    def slow(session: TlsSession) -> bool:
        began.set()
        assert go_on.wait(20)
        return shake(session)

    monkeypatch.setattr(TlsSession, "shake", slow)
    gone, slow_one = connect(fronts), channel(fronts, ca)
    client = context(ca, "h2").wrap_bio(ssl.MemoryBIO(), out := ssl.MemoryBIO(), server_hostname="localhost")
    with pytest.raises(ssl.SSLWantReadError):
        client.do_handshake()
    gone.sendall(out.read())
    waits = slow_one.unary_unary(PREDICT).future(b"later", timeout=20)
    assert began.wait(10)
    for _ in range(100):
        assert before.unary_unary(PREDICT)(b"x", timeout=10) == b"x"
    gone.close()
    assert not waits.done()
    go_on.set()
    assert waits.result() == b"later"
    before.close()
    slow_one.close()


# -- flow control -----------------------------------------------------------------------------------


def test_what_the_socket_does_not_take_is_counted(fronts: Fronts, ca: Authority) -> None:
    """A client whose windows are open and which does not read: its answer counts until it has gone, and others are answered."""
    client = Secure(fronts, context(ca, "h2"))
    client.h2.update_settings({SettingCodes.INITIAL_WINDOW_SIZE: 2**30})
    client.h2.increment_flow_control_window(2**30)
    client.flush()
    number = client.begin()
    client.data(number, message(bytes(30 * 2**20)), end=True)
    (link,) = fronts.grpc._server.listener.links
    until(lambda: link.connection.paused)
    assert 20 * 2**20 < fronts.dataplane.memory.used <= 31 * 2**20
    with channel(fronts, ca) as other:
        assert other.unary_unary(PREDICT)(bytes(2**20), timeout=10) == bytes(2**20)
    assert len(client.answer(number).body) == 30 * 2**20 + 5
    until(lambda: fronts.dataplane.memory.used == 0)
    client.socket.close()


def test_a_stream_whose_window_is_shut(fronts: Fronts, ca: Authority) -> None:
    """Its answer waits for it; others of its connection pass it."""
    client = Secure(fronts, context(ca, "h2"))
    client.h2.update_settings({SettingCodes.INITIAL_WINDOW_SIZE: 1000})
    client.flush()
    shut = client.begin()
    client.data(shut, message(bytes(100_000)), end=True)
    until(lambda: fronts.dataplane.memory.used >= 100_000)
    assert client.call(message(b"small")).body == message(b"small")
    assert client.answer(shut).body == message(bytes(100_000))
    client.socket.close()


def test_what_a_large_message_leaves_behind(fronts: Fronts, ca: Authority) -> None:
    """The library's buffers do not grow with a message: they are there as long as the connection."""
    pieces: list[int] = []
    with channel(fronts, ca) as found:
        found.unary_unary(PREDICT)(b"x", timeout=10)
        (link,) = fronts.grpc._server.listener.links
        encrypt = link._session.encrypt

        def noted(data: Any) -> bytes:
            pieces.append(len(data))
            return encrypt(data)

        link._gathered._output._seal = noted
        assert found.unary_unary(PREDICT)(bytes(10 * 2**20), timeout=20) == bytes(10 * 2**20)
    assert sum(pieces) > 10 * 2**20
    assert max(pieces) <= 2**15


# -- the end, and another certificate -----------------------------------------------------------------


def test_an_end_tells_clients_and_answers_what_runs(ca: Authority, server: Pair) -> None:
    """GOAWAY first; the answer of what ran; then TLS says that nothing follows."""
    started = Fronts(tls=TlsSettings(**server.files()))
    client = Secure(started, context(ca, "h2"))
    running = client.begin()
    client.data(running, message(b"wait"), end=True)
    until(lambda: started.dataplane.waiting == 1)
    silent = connect(started)
    quiet = asyncio.run_coroutine_threadsafe(started.grpc.quiesce(20), started.loop)
    while client.goaway is None:
        client.step()
    assert client.goaway == 0
    late = Secure(started, context(ca, "h2"))
    assert late.call(message(b"x")).code is Code.UNAVAILABLE
    started.loop.call_soon_threadsafe(started.dataplane.release.set)
    quiet.result(10)
    closing = asyncio.run_coroutine_threadsafe(started.grpc.close(), started.loop)
    said = b""
    while got := client.socket.recv(2**16):  # an end that was not said would raise
        said += got
    assert message(b"wait") in said
    client.socket.close()
    late.socket.close()
    closing.result(10)
    silent.close()
    assert not started.grpc._server.listener.links
    started.close()


def ended_without_reading(fronts: Fronts, ca: Authority) -> socket.socket:
    """A client with 30 MiB to read that says by TLS that it has ended, and does nothing any more."""
    client = Secure(fronts, context(ca, "h2"))
    client.h2.update_settings({SettingCodes.INITIAL_WINDOW_SIZE: 2**30})
    client.h2.increment_flow_control_window(2**30)
    client.flush()
    client.data(client.begin(), message(bytes(30 * 2**20)), end=True)
    (link,) = fronts.grpc._server.listener.links
    until(lambda: link.connection.paused)
    assert isinstance(client.socket, ssl.SSLSocket)
    with contextlib.suppress(ssl.SSLError):  # what comes is no answer to that
        client.socket.unwrap()
    until(link._transport.is_closing)
    return client.socket


def test_who_ends_tls_and_does_not_read(ca: Authority, server: Pair) -> None:
    """What waits for it is dropped at once, its connection in time, and others are looked after as before."""
    with serving(tls=TlsSettings(**server.files())) as started, capture_logs() as logs:
        listener = started.grpc._server.listener
        with ended_without_reading(started, ca):
            until(lambda: 0 < started.dataplane.memory.used < 2**20)
            listener.limits = Limits(greeting_s=1.0)
            with connect(started) as silent, contextlib.suppress(ConnectionResetError):
                assert silent.recv(1) == b""
            until(lambda: not listener.links)
            assert started.dataplane.memory.used == 0
        assert not [line for line in logs if line["event"] == "connection failed"]


def test_who_has_gone_is_not_waited_for(ca: Authority, server: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of clients that have begun a handshake and gone none is done, so that who comes later has its own."""
    shaken = []
    shake = TlsSession.shake
    monkeypatch.setattr(TlsSession, "shake", lambda session: (shaken.append(session), shake(session))[1])
    hello = ssl.MemoryBIO()
    with contextlib.suppress(ssl.SSLWantReadError):
        context(ca, "h2").wrap_bio(ssl.MemoryBIO(), hello, server_hostname="localhost").do_handshake()
    first = hello.read()
    with serving(tls=TlsSettings(**server.files())) as started:
        listener = started.grpc._server.listener
        held, go_on = threading.Event(), threading.Event()
        started.loop.call_soon_threadsafe(listener.in_thread, lambda: (held.set(), go_on.wait(120)))
        assert held.wait(30)
        gone = [connect(started) for _ in range(20)]
        for client in gone:
            client.sendall(first)
        until(lambda: len(listener.links) == 20)
        listener.limits = Limits(greeting_s=0.1)
        for client in gone:
            client.close()
        until(lambda: not listener.links)
        listener.limits = Limits()
        started.loop.call_soon_threadsafe(go_on.set)  # behind what cancels their steps, a turn later
        Secure(started, context(ca, "h2")).socket.close()
        assert len({id(session) for session in shaken}) == 1, "steps of the last one alone"


def test_an_end_while_one_has_ended_tls_and_does_not_read(ca: Authority, server: Pair) -> None:
    """It does not hold up the server's, nor does who broke TLS and stays."""
    started = Fronts(tls=TlsSettings(**server.files()))
    with capture_logs() as logs, ended_without_reading(started, ca):
        broken = Secure(started, context(ca, "h2"))
        with socket.socket(fileno=broken.socket.detach()) as raw:
            raw.sendall(b"\x17\x03\x03\0\x20" + bytes(32))
            until(lambda: why(logs))
            started.run(started.grpc.quiesce(0))
            started.close()
        assert not [line for line in logs if line["event"] == "connection failed"]
    assert started.dataplane.memory.used == 0


@pytest.mark.parametrize("work", ["tick", "end"])
def test_a_connection_that_fails(ca: Authority, server: Pair, work: str) -> None:
    """It is ended by itself, at any of what is done with all: the others have what is due to them."""
    started = Fronts(tls=TlsSettings(**server.files()))
    listener = started.grpc._server.listener
    clients = [Secure(started, context(ca, "h2")) for _ in range(3)]
    until(lambda: [link.connection.greeted for link in listener.links] == 3 * [True])
    first, *others = list(listener.links)
    ticked: list[object] = []
    first.connection.go_away = lambda: 1 / 0 if work == "end" else None
    first.tick = lambda _now_s: 1 / 0 if work == "tick" else None
    for link in others:
        link.tick = lambda _now_s, link=link: ticked.append(link)
    with capture_logs() as logs:
        if work == "tick":
            until(lambda: ticked.count(others[0]) >= 2)
            assert list(listener.links) == others
        started.run(started.grpc.quiesce(0))
        until(lambda: len(listener.links) == 2)
        for client in clients:
            while client.goaway is None and not client.closed:
                try:
                    client.step()
                except ssl.SSLEOFError:
                    client.closed = True
            client.socket.close()
        assert [client.goaway for client in clients].count(0) == 2
        started.close()
    assert [line["event"] for line in logs].count("connection failed") == 1


def served(fronts: Fronts, ca: Authority) -> bytes | None:
    """The certificate that a new connection is shown."""
    with secured(fronts, context(ca, "h2")) as found:
        return found.getpeercert(binary_form=True)


def test_another_certificate(ca: Authority, tmp_path: Path) -> None:
    """New connections are shown the new one; those that there are go on, with what they run. A broken one changes nothing."""
    key, cert = tmp_path / "key", tmp_path / "cert"

    def renew(pair: Pair, digest: str) -> TlsSettings:
        key.write_bytes(pair.key.read_bytes())
        cert.write_bytes(pair.cert.read_bytes())
        return TlsSettings(key=str(key), cert=str(cert), digest=digest)

    def settings(tls: TlsSettings | None) -> RouterSettings:
        return RouterSettings(run_dir="", host="127.0.0.1", grpc_port=0, rest_port=0, tls=tls)

    async def configure(tls: TlsSettings | None) -> None:
        started.grpc.configure(settings(tls))

    first, second = ca.issue("server"), ca.issue("server")
    with serving(tls=renew(first, "1")) as started, channel(started, ca) as found:
        call = found.unary_unary(PREDICT)
        running = call.future(b"wait", timeout=30)
        until(lambda: started.dataplane.waiting == 1)
        (link,) = started.grpc._server.listener.links
        before = served(started, ca)
        started.run(configure(renew(second, "2")))
        assert served(started, ca) not in (None, before)
        key.write_bytes(first.key.read_bytes())
        with capture_logs() as logs:
            started.run(configure(TlsSettings(key=str(key), cert=str(cert), digest="3")))
        assert logs[0]["key"] == "tls.key"
        assert "is not the key of the certificate" in logs[0]["why"]
        assert served(started, ca) != before
        assert call(b"x", timeout=10) == b"x"
        started.loop.call_soon_threadsafe(started.dataplane.release.set)
        assert running.result() == b"wait"
        assert link in started.grpc._server.listener.links
        started.run(configure(None))  # from now on in clear
        with grpc.insecure_channel(f"127.0.0.1:{started.grpc.port}", options=OPTIONS) as clear:
            assert clear.unary_unary(PREDICT)(b"x", timeout=10) == b"x"
        assert call(b"x", timeout=10) == b"x"
