"""`mpspool bench` against real servers: grpcio's own, and a pool."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import pty
import re
import signal
import socket
import subprocess
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import grpc.aio
import msgspec
import psutil
import pytest
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import StreamEnded

from mpspool.core import tfs
from mpspool.core.client_tls import ClientTls
from mpspool.core.errors import Code
from mpspool.core.http2_frames import PUSH_PROMISE, frame
from mpspool.loadtest import fleet, generator
from mpspool.loadtest.figures import run_of
from mpspool.loadtest.loops import loop_for
from mpspool.loadtest.messages import Answer, Ask, Job, Phase, Progress, Result
from mpspool.loadtest.request import header_block
from tests.conftest import PoolStarter
from tests.polling import until
from tests.pool import CLI, ROOT, Pool, cli

Answerer = Callable[[bytes, Any], Awaitable[bytes]]
PREDICT = f"/{tfs.PREDICTION_SERVICE}/Predict"


def response(*values: float) -> bytes:
    found = tfs.PredictResponse()
    found.outputs["y"].dtype = 1
    found.outputs["y"].tensor_shape.dim.add().size = len(values)
    found.outputs["y"].float_val.extend(values)
    return bytes(found.SerializeToString())


RIGHT = response(2.0)


def metadata() -> bytes:
    signatures = tfs.SignatureDefMap()
    info = signatures.signature_def[tfs.DEFAULT_SIGNATURE].inputs["x"]
    info.name, info.dtype = "x:0", 1
    info.tensor_shape.dim.add().size = -1
    found = tfs.GetModelMetadataResponse()
    found.metadata[tfs.SIGNATURE_DEF].value = signatures.SerializeToString()
    return bytes(found.SerializeToString())


class Server:
    """grpcio's aio server on the event loop of a thread."""

    def __init__(self, options: list[tuple[str, Any]]) -> None:
        self.answer: Answerer = always(RIGHT)
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever)
        self._thread.start()
        self._options = [
            ("grpc.max_receive_message_length", -1),
            ("grpc.max_send_message_length", -1),
            *options,
        ]
        self.port = 0
        self.start()

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(30)

    def start(self) -> None:
        self.run(self._start())

    async def _start(self) -> None:
        async def predict(body: bytes, context: Any) -> bytes:
            return await self.answer(body, context)

        self._server = grpc.aio.server(options=self._options)
        handlers = {
            "Predict": grpc.unary_unary_rpc_method_handler(predict),
            "GetModelMetadata": grpc.unary_unary_rpc_method_handler(always(metadata())),
        }
        self._server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(tfs.PREDICTION_SERVICE, handlers),)
        )
        self.port = self._server.add_insecure_port(f"127.0.0.1:{self.port}")
        await self._server.start()

    def stop(self) -> None:
        self.run(self._server.stop(None))

    def close(self) -> None:
        self.stop()
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()


def always(body: bytes) -> Answerer:
    async def answer(_body: bytes, _context: Any) -> bytes:
        return body

    return answer


@pytest.fixture
def server() -> Iterator[Server]:
    found = Server([])
    yield found
    found.close()


def job(port: int, messages: list[bytes], **others: Any) -> Job:
    deadline_s = others.pop("deadline_s", 20.0)
    block = header_block(PREDICT, f"127.0.0.1:{port}", [], deadline_s)
    return Job("127.0.0.1", port, block, messages, 0, deadline_s, any_answer=others.pop("any_answer", False))


@contextlib.asynccontextmanager
async def loading(order: Job, phase: Phase, **others: Any) -> AsyncIterator[Callable[..., Awaitable[Result]]]:
    loop = loop_for(order, phase, {}, **others)
    try:
        yield lambda watch=lambda _: None: loop.run(phase, watch)
    finally:
        loop.close()
        await asyncio.sleep(0)


def load(order: Job, phase: Phase, **others: Any) -> Result:
    async def run() -> Result:
        async with asyncio.timeout(40), loading(order, phase, **others) as go:
            return await go()

    return asyncio.run(run())


@pytest.mark.parametrize(
    "phase",
    [
        Phase(0.5, in_flight=1),
        Phase(0.5, in_flight=7, streams=3),
        Phase(0.5, rate=300, connections=3),
        Phase(0.5, rate=300, poisson=False),
    ],
    ids=["one", "streams", "poisson", "uniform"],
)
def test_all_is_answered(server: Server, phase: Phase) -> None:
    """Whatever is sent is answered right; an open loop has as many to send as it was told to."""
    found = load(job(server.port, [b"a", b"bb"]), phase)
    assert found.error == ""
    assert found.sent == found.right > 10
    assert not found.failures
    assert found.lengths == {0: len(RIGHT) + 5, 1: len(RIGHT) + 5}
    assert len(found.latencies_s) == 4 * found.right
    if phase.rate:
        due = found.sent + found.unsent
        assert due == (150 if not phase.poisson else pytest.approx(150, abs=60))
        assert len(found.lateness_s) == 4 * found.sent


def test_as_many_are_in_flight_as_it_was_told(server: Server) -> None:
    """A closed loop has so many requests in flight, and never more."""
    now, most = 0, 0

    async def count(_body: bytes, _context: Any) -> bytes:
        nonlocal now, most
        now += 1
        most = max(most, now)
        await asyncio.sleep(0.005)
        while most < 11:  # the others may take their time to come
            await asyncio.sleep(0.005)
        now -= 1
        return RIGHT

    server.answer = count
    load(job(server.port, [b"a"]), Phase(0.5, in_flight=11, streams=4))
    assert most == 11


@pytest.mark.parametrize("size", [3_000_000, 200_000])
def test_large_messages(server: Server, size: int) -> None:
    """Requests and answers beyond all default windows arrive whole, several at a time on one connection."""

    async def echo(body: bytes, _context: Any) -> bytes:
        assert body == bytes(size)
        return body

    server.answer = echo
    found = load(job(server.port, [bytes(size)]), Phase(0.5, in_flight=4, streams=4))
    assert found.right == found.sent >= 4
    assert found.lengths == {0: size + 5}


def test_failures_are_counted_by_code(server: Server) -> None:
    """Of every ten one is refused and one has another answer; texts that differ in numbers are one."""
    turn = iter(range(10**6))

    async def fail(_body: bytes, context: Any) -> bytes:
        match next(turn) % 10:
            case 3:
                await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, f"no room {next(turn)}")
            case 6:
                return response(1.0, 2.0)
        return RIGHT

    server.answer = fail
    found = load(job(server.port, [b"a"]), Phase(0.5, in_flight=1))
    counts = {failure.code: failure.count for failure in found.failures}
    assert set(counts) == {"RESOURCE_EXHAUSTED", "WRONG"}
    assert len(found.failures) == 2
    assert found.right + sum(counts.values()) == found.sent
    any_answer = load(job(server.port, [b"a"], any_answer=True), Phase(0.5, in_flight=1))
    assert {failure.code for failure in any_answer.failures} == {"RESOURCE_EXHAUSTED"}


def test_a_stall_is_seen_in_an_open_loop_and_hardly_in_a_closed_one(server: Server) -> None:
    """A server that stalls once for 1 s of 3: an open loop counts it for all that were due, a closed one for those in flight."""
    stalled = threading.Event()

    async def stall(_body: bytes, _context: Any) -> bytes:
        if not stalled.is_set() and time.monotonic() > stall_at:
            stalled.set()
            time.sleep(1)  # noqa: ASYNC251 - the whole server stands still
        return RIGHT

    server.answer = stall
    found = {}
    for name, phase in {
        "open": Phase(3, rate=100, poisson=False, connections=4),
        "closed": Phase(3, in_flight=1),
    }.items():
        stalled.clear()
        stall_at = time.monotonic() + 1
        result = load(job(server.port, [b"a"]), phase)
        assert result.right == result.sent
        found[name] = run_of([result]).figures
    # A third of the time, evenly: of those due in it the first waited for a second.
    p90 = found["open"]["p90"] or 0
    assert (found["open"]["p50"] or 0) < 600 < p90
    assert (found["closed"]["p90"] or 0) < p90
    assert (found["closed"]["max_ms"] or 0) > 900


def test_deadlines_are_kept_without_the_server(server: Server) -> None:
    """A server that never answers: each request is over at its deadline, and the phase ends."""
    forever = asyncio.run_coroutine_threadsafe(_event(), server.loop).result()
    asked = 0

    async def never(_body: bytes, _context: Any) -> bytes:
        nonlocal asked
        asked += 1
        await forever.wait()
        return RIGHT

    server.answer = never
    began = time.monotonic()
    found = load(job(server.port, [b"a"], deadline_s=0.2), Phase(0.9, in_flight=2))
    assert time.monotonic() - began < 20
    assert found.sent >= asked, "with what was on its way at the end"
    assert found.whole_s > 0.19 * found.sent / 2, "two at a time"
    assert {failure.code for failure in found.failures} == {"DEADLINE_EXCEEDED"}
    assert found.sent == sum(failure.count for failure in found.failures) >= 4


async def _event() -> asyncio.Event:
    return asyncio.Event()


@pytest.mark.parametrize(
    "phase", [Phase(2, in_flight=3), Phase(2, rate=200, connections=3)], ids=["closed", "open"]
)
def test_a_server_that_goes_away_and_comes_back(server: Server, phase: Phase) -> None:
    """What was asked meanwhile has failed as UNAVAILABLE, and afterwards all is answered."""
    order = job(server.port, [b"a"])

    async def run() -> Result:
        async with loading(order, phase) as go:
            seen: list[Progress] = []
            running = asyncio.create_task(go(seen.append))
            while not (seen and seen[-1].right):
                await asyncio.sleep(0.02)
            await asyncio.to_thread(server.stop)
            while not seen[-1].failed:
                await asyncio.sleep(0.02)
            await asyncio.to_thread(server.start)
            before = seen[-1].right
            while seen[-1].right <= before + 10 and not running.done():
                await asyncio.sleep(0.02)
            return await running

    found = asyncio.run(run())
    # A handler that ran when it was stopped has been cancelled.
    assert {"UNAVAILABLE"} <= {failure.code for failure in found.failures} <= {"UNAVAILABLE", "CANCELLED"}
    assert found.right + sum(failure.count for failure in found.failures) == found.sent
    assert found.right > 10


def test_connections_that_the_server_ends_are_made_anew() -> None:
    """A server that ends each connection after 100 ms (GOAWAY): nothing fails."""
    server = Server([("grpc.max_connection_age_ms", 100), ("grpc.max_connection_age_grace_ms", 5000)])
    try:
        found = load(job(server.port, [b"a"]), Phase(1.0, in_flight=4, streams=2))
    finally:
        server.close()
    assert not found.failures
    assert found.right == found.sent > 20


def test_stream_ids_that_are_used_up(server: Server) -> None:
    """At the last stream id another connection is made, and nothing fails."""
    found = load(job(server.port, [b"a"]), Phase(0.5, in_flight=3, streams=3), last_stream=41)
    assert not found.failures
    assert found.right == found.sent > 21


def test_a_server_that_answers_and_breaks_the_protocol() -> None:
    """In one write, on each connection: what it has answered counts, the other call is lost, and the phase ends."""
    over = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        where = listener.getsockname()
        thread = threading.Thread(target=_answer_one_and_push, args=(listener, over))
        thread.start()
        try:
            order = job(where[1], [b"a"], any_answer=True)
            found = load(order, Phase(0.5, in_flight=2, streams=2))
        finally:
            over.set()
            socket.create_connection(where).close()
            thread.join()
    (failure,) = found.failures
    assert (failure.code, failure.count) == ("UNAVAILABLE", found.right)
    assert found.sent == 2 * found.right > 0


def _answer_one_and_push(listener: socket.socket, over: threading.Event) -> None:
    """Of two calls on each connection."""
    while not over.is_set():
        with listener.accept()[0] as connection, contextlib.suppress(ConnectionError):
            h2 = H2Connection(H2Configuration(client_side=False))
            h2.initiate_connection()
            asked: list[int] = []
            while data := connection.recv(2**16):
                asked += [one.stream_id for one in h2.receive_data(data) if isinstance(one, StreamEnded)]
                if len(asked) == 2:
                    h2.send_headers(asked[0], [(":status", "200")])
                    h2.send_data(asked[0], bytes(5))
                    h2.send_headers(asked[0], [("grpc-status", "0")], end_stream=True)
                    connection.sendall(h2.data_to_send() + frame(PUSH_PROMISE, 4, asked[1], bytes(4)))
                    break
                connection.sendall(h2.data_to_send())


def test_nobody_there() -> None:
    """No server, or none that speaks HTTP/2: the phase is not run, and says why."""
    with socket.socket() as bound:  # and does not listen
        bound.bind(("127.0.0.1", 0))
        order = job(bound.getsockname()[1], [b"a"])
        assert "cannot connect" in load(order, Phase(1, in_flight=1)).error
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=_speak_http1, args=(listener,))
        thread.start()
        found = load(job(listener.getsockname()[1], [b"a"]), Phase(1, in_flight=1))
        thread.join()
    assert "does not speak HTTP/2" in found.error


def _speak_http1(listener: socket.socket) -> None:
    with listener.accept()[0] as connection:
        connection.recv(4096)
        connection.sendall(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")


def test_one_call(server: Server) -> None:
    """What is asked before the load has its answer whole, or the status."""
    block = header_block(PREDICT, "x", [], 5.0)
    found = asyncio.run(generator.ask(Ask("127.0.0.1", server.port, block, b"x", 5.0)))
    assert (found.code, found.body) == (0, RIGHT)
    block = header_block("/no.such/Method", "x", [], 5.0)
    found = asyncio.run(generator.ask(Ask("127.0.0.1", server.port, block, b"x", 5.0)))
    assert found.code == Code.UNIMPLEMENTED


def test_a_generator_that_dies_is_told() -> None:
    """A process that ends by itself is an error, and not a wait without end."""

    async def run() -> None:
        async with fleet.Fleet(1) as found:
            found._processes[0].kill()
            await found.run([Phase(1, in_flight=1)], lambda _: None)

    with pytest.raises(fleet.GeneratorLostError, match="has ended"):
        asyncio.run(run())


def test_a_generator_that_fails_says_why(tmp_path: Path) -> None:
    """As where a file of TLS has gone since the last level."""
    gone = str(tmp_path / "gone.pem")
    tls = ClientTls(cert=gone, key=gone)

    async def run() -> tuple[Answer, list[Result]]:
        async with fleet.Fleet(1) as found, asyncio.timeout(30):
            answer = await found.ask(Ask("127.0.0.1", 1, b"", b"a", 5.0, tls))
            await found.load([msgspec.structs.replace(job(1, [b"a"]), tls=tls)])
            return answer, await found.run([Phase(1, in_flight=1)], lambda _: None)

    answer, (result,) = asyncio.run(run())
    assert "gone.pem" in answer.text
    assert "gone.pem" in result.error


def bench(server: Server, *args: object) -> subprocess.CompletedProcess[str]:
    return cli("bench", "--model", "m", "--address", f"127.0.0.1:{server.port}", *args)


@contextlib.contextmanager
def benching(server: Server, *args: object) -> Iterator[subprocess.Popen[str]]:
    """As bench(), in a session of its own, as a terminal's, and not waited for."""
    command = [*CLI, "bench", "--model", "m", "--address", f"127.0.0.1:{server.port}", *map(str, args)]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT, start_new_session=True
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


SHORT = ("--seconds", 0.3, "--repeat", 2, "--warmup", 0.1)


def test_a_terminal_has_a_bar(server: Server) -> None:
    """With the phase that runs, and what was right and what failed of it so far; it is gone at the end."""

    async def sometimes(_body: bytes, context: Any) -> bytes:
        if next(asked) % 10 == 9:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "busy")
        return RIGHT

    asked = itertools.count()
    server.answer = sometimes
    terminal, end = pty.openpty()
    address = f"127.0.0.1:{server.port}"
    times = ("--warmup", "0.6", "--seconds", "1", "--repeat", "2")
    command = [*CLI, "bench", "--model", "m", "--address", address, *times, "--concurrency", "2"]
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=end,
        env={**os.environ, "TERM": "xterm", "COLUMNS": "100"},
    )
    os.close(end)
    shown = b""
    with open(terminal, "rb", buffering=0) as read, contextlib.suppress(OSError):  # EIO is its end
        while part := read.read(4096):
            shown += part
    assert process.wait(timeout=60) == 1, "some requests failed"
    lines = re.split(r"[\r\n]+", re.sub(r"\x1b\[[\d;?]*[A-Za-z]", "", shown.decode()))
    assert any(line.startswith("2 in flight, warming up") for line in lines)
    assert any(
        re.fullmatch(r"2 in flight, 2 of 2 \S+ +\S+ [\d,]+ right, [\d,]+ failed *", line) for line in lines
    )
    assert not lines[-1].strip()


def test_the_command(server: Server, tmp_path: Path) -> None:
    """Two processes, two levels, a table, JSON and a picture; metadata reaches the server with each request."""
    seen: set[Any] = set()

    async def look(_body: bytes, context: Any) -> bytes:
        if not seen:  # as behind somebody else's load
            await asyncio.sleep(1)
        seen.add(dict(context.invocation_metadata()).get("x-mpspool-priority"))
        return RIGHT

    server.answer = look
    files = "--json", tmp_path / "a.json", "--plot", tmp_path / "a.png"
    done = bench(
        server, *SHORT, "--concurrency", "1,4", "--processes", 2, "--metadata", "x-mpspool-priority=1", *files
    )
    assert done.returncode == 0, done.stderr + done.stdout
    assert re.search(r'^an answer, after \d+\.\d s: {"y": \[2\.0\]}$', done.stdout, re.MULTILINE)
    assert "4 in flight, 2 of 2" in done.stderr
    assert seen == {"1"}
    found = json.loads((tmp_path / "a.json").read_text())
    assert [level["in_flight"] for level in found["levels"]] == [1, 4]
    assert (found["version"], found["signature"]) == (None, None)
    for level in found["levels"]:
        assert level["sent"] == level["right"] > 0
        assert len(level["runs"]) == 2
        assert level["server_ms"] == {}
    assert (tmp_path / "a.png").stat().st_size > 10_000


def test_failures_make_the_exit_status(server: Server) -> None:
    """1 where requests failed after a first good answer, 0 where that was allowed."""
    turn = iter(range(10**6))

    async def fail(_body: bytes, context: Any) -> bytes:
        if next(turn) % 7 == 3:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "come again")
        return RIGHT

    server.answer = fail
    done = bench(server, *SHORT, "--rate", 100)
    assert done.returncode == 1
    assert "UNAVAILABLE: come again" in done.stdout
    assert bench(server, *SHORT, "--rate", 100, "--allow-failures").returncode == 0


def test_nothing_is_loaded_before_an_answer_is_right(server: Server) -> None:
    """A first answer that is none, or that fails, ends it, with what the server said."""
    server.answer = always(b"\xff\xff")
    done = bench(server, *SHORT)
    assert (done.returncode, done.stdout) == (1, "")
    assert "no PredictResponse" in done.stderr

    async def refuse(_body: bytes, context: Any) -> bytes:
        return await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "x must be 7")

    server.answer = refuse
    done = bench(server, *SHORT)
    assert done.returncode == 1
    assert "INVALID_ARGUMENT: x must be 7" in done.stderr
    assert "made up from the signature: give one that the model takes, with --input" in done.stderr
    done = bench(server, *SHORT, "--input", "[[[1, 2]]]")
    assert done.returncode == 1
    assert "INVALID_ARGUMENT: x must be 7" in done.stderr
    assert "made up" not in done.stderr
    assert 'Input "x": the shape is [1, 1, 2], but the model takes [' in " ".join(done.stderr.split())


def test_what_a_request_was_made_with_is_named_where_it_is_refused(server: Server) -> None:
    """Rows and metadata, which may be what the server does not take; it does not say that inputs are."""

    async def refuse(_body: bytes, context: Any) -> bytes:
        return await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "5000 is no priority")

    server.answer = refuse
    done = bench(server, *SHORT, "--metadata", "x-mpspool-priority=5000", "--rows", 2000)
    assert done.returncode == 1
    assert "INVALID_ARGUMENT: 5000 is no priority" in done.stderr
    words = " ".join(done.stderr.split())
    assert (
        "from the signature, with --rows 2000 and --metadata x-mpspool-priority: where these are right,"
        in words
    )


def test_a_file_that_cannot_be_written_keeps_nothing_else(server: Server, tmp_path: Path) -> None:
    """The table is printed and the picture drawn; what is missing, and why, is said."""
    plot = tmp_path / "a.png"
    done = bench(server, *SHORT, "--concurrency", 1, "--json", "/dev/full", "--plot", plot)
    assert done.returncode == 1
    assert "req/s" in done.stdout
    assert "cannot write '/dev/full': No space left on device" in done.stderr
    assert plot.stat().st_size > 10_000


@pytest.mark.parametrize("ends", ["interrupted", "a generator dies"])
def test_what_was_measured_before_the_end_stays(server: Server, ends: str, tmp_path: Path) -> None:
    """Of two levels the first is in the report, though the second never comes to its end."""
    asked = threading.Event()
    forever = asyncio.run_coroutine_threadsafe(_event(), server.loop).result()

    async def stall(_body: bytes, context: Any) -> bytes:
        peers.add(context.peer())
        if len(peers) > before_the_second_level + 1:
            asked.set()
            await forever.wait()
        return RIGHT

    peers: set[str] = set()
    before_the_second_level = 2  # connections: the first answer's, and the first level's
    server.answer = stall
    with benching(server, *SHORT, "--concurrency", "1,4") as process:
        assert asked.wait(30)
        if ends == "interrupted":
            os.killpg(process.pid, signal.SIGINT)
        else:
            (child,) = psutil.Process(process.pid).children()
            child.kill()
        out, err = process.communicate(timeout=30)
    assert process.returncode == (130 if ends == "interrupted" else 1), err
    assert "req/s" in out
    assert ("has ended" in out) == (ends != "interrupted")


def test_ctrl_c_before_the_load(server: Server) -> None:
    """While the first answer is waited for, too."""
    asked = threading.Event()
    forever = asyncio.run_coroutine_threadsafe(_event(), server.loop).result()

    async def never(_body: bytes, _context: Any) -> bytes:
        asked.set()
        await forever.wait()
        return RIGHT

    server.answer = never
    with benching(server) as process:
        assert asked.wait(30)
        os.killpg(process.pid, signal.SIGINT)
        out, err = process.communicate(timeout=10)
    assert (process.returncode, out, err) == (130, "", "")


def test_ctrl_c_as_soon_as_there_is_a_generator(server: Server) -> None:
    """It does not see it, and so says nothing."""
    with benching(server) as process:
        until(lambda: psutil.Process(process.pid).children(), 30, "a generator")
        os.killpg(process.pid, signal.SIGINT)
        out, err = process.communicate(timeout=30)
    assert (process.returncode, out, err) == (130, "", "")


@pytest.mark.parametrize("loop", [("--concurrency", 4), ("--rate", 100)], ids=["closed", "open"])
def test_generators_end_with_a_command_that_is_killed(server: Server, loop: tuple[object, ...]) -> None:
    """In the middle of a load, too."""
    asked = itertools.count()
    loaded = threading.Event()

    async def count(_body: bytes, _context: Any) -> bytes:
        if next(asked) > 20:
            loaded.set()
        return RIGHT

    server.answer = count
    with benching(server, "--seconds", 60, "--warmup", 0, "--processes", 2, *loop) as process:
        assert loaded.wait(30)
        generators = psutil.Process(process.pid).children()
        process.kill()
        _, err = process.communicate(timeout=20)  # their standard error is the command's
        _, left = psutil.wait_procs(generators, timeout=20)
    assert len(generators) == 2
    assert (left, err) == ([], "")


def test_ctrl_c_while_metrics_are_waited_for(server: Server) -> None:
    """A server that does not tell them does not keep it."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/metrics"
        with benching(server, "--metrics", url) as process, silent.accept()[0]:
            began = time.monotonic()
            os.killpg(process.pid, signal.SIGINT)
            _, err = process.communicate(timeout=30)
    assert (process.returncode, err) == (130, "")
    assert time.monotonic() - began < 9, "less than what they are waited for"


@pytest.mark.parametrize("loop", [("--concurrency", 4), ("--rate", 100)], ids=["closed", "open"])
def test_ctrl_c_ends_with_what_there_is(server: Server, loop: tuple[object, ...], tmp_path: Path) -> None:
    """The whole terminal is interrupted: the report of what was sent, nothing failed, and exit status 130."""
    file = tmp_path / "a.json"
    asked = 0

    async def count(_body: bytes, _context: Any) -> bytes:
        nonlocal asked
        asked += 1
        return RIGHT

    server.answer = count
    with benching(server, "--seconds", 60, "--warmup", 0, *loop, "--json", file) as process:
        until(lambda: asked > 60, 30, "it sends")
        os.killpg(process.pid, signal.SIGINT)
        out, err = process.communicate(timeout=20)
    assert process.returncode == 130, err
    assert "req/s" in out
    found = json.loads(file.read_text())
    assert found["interrupted"]
    (level,) = found["levels"]
    # The first answer, the one that each connection begins with, and what was on its way are not among them.
    assert level["sent"] == level["right"] >= 25


@pytest.fixture(scope="module")
def pool(start_module_pool: PoolStarter, model_dir: Callable[[str], Path]) -> Pool:
    return start_module_pool(
        "--model", f"half_plus_two={model_dir('half_plus_two')}", "--cpu-slots", 2
    ).wait()


def test_a_pool_in_a_closed_loop(pool: Pool, tmp_path: Path) -> None:
    """Found through its run folder, with its own times beside the client's: they are parts of them."""
    file = tmp_path / "a.json"
    args = "--rows", 3, "--concurrency", "1,8", "--json", file
    done = cli("bench", "--model", "half_plus_two", "--run-dir", pool.run_dir, *SHORT, *args)
    assert done.returncode == 0, done.stderr + done.stdout
    assert '{"y": [2.0, 2.5, 2.25]}' in done.stdout
    found = json.loads(file.read_text())
    assert (found["version"], found["signature"], found["rows"]) == (1, tfs.DEFAULT_SIGNATURE, 3)
    for level in found["levels"]:
        assert level["right"] == level["sent"] == level["server"]["counted"]
        told = level["server_ms"]
        parts = ("queue", "parse", "compute", "serialise", "rest", "outside")
        assert sum(told[part] for part in parts) == pytest.approx(level["median"]["mean_ms"], rel=0.5)
        assert told["compute"] > 0


def test_a_pool_in_an_open_loop(pool: Pool, tmp_path: Path) -> None:
    """Requests of a file go out at their rate, to a version that is named."""
    request = tfs.PredictRequest()
    request.model_spec.name = "recorded"
    request.inputs["x"].dtype = 1
    request.inputs["x"].tensor_shape.dim.add().size = 2
    request.inputs["x"].float_val.extend([1, 2])
    (tmp_path / "request.pb").write_bytes(request.SerializeToString())
    file = tmp_path / "a.json"
    args = (
        "--rate",
        100,
        "--arrivals",
        "uniform",
        "--request",
        tmp_path / "request.pb",
        "--version",
        1,
        "--json",
        file,
    )
    done = cli("bench", "--model", "half_plus_two", "--run-dir", pool.run_dir, *SHORT, *args)
    assert done.returncode == 0, done.stderr + done.stdout
    assert '{"y": [2.5, 3.0]}' in done.stdout
    (level,) = json.loads(file.read_text())["levels"]
    assert level["right"] == level["sent"] > 0
    assert level["sent"] + level["unsent"] == 60


def test_a_model_that_does_not_exist(pool: Pool) -> None:
    """It says so before any load, with exit status 1."""
    done = cli("bench", "--model", "nothing", "--run-dir", pool.run_dir, *SHORT)
    assert (done.returncode, done.stdout) == (1, "")
    assert (
        "NOT_FOUND: Servable not found for request: Latest(nothing); the pool has: half_plus_two"
        in done.stderr
    )


@pytest.mark.parametrize("command", ["bench", "predict"])
def test_tls_is_asked_of_who_has_none(pool: Pool, server: Server, command: str) -> None:
    """Of a pool, which says nothing before a client has, and of grpcio's server, which does: each says what to leave out."""
    options = {"bench": ("--model", "half", *SHORT), "predict": ("half", "--input", "[1]")}[command]
    for address in (pool.address, f"127.0.0.1:{server.port}"):
        done = cli(command, *options, "--address", address, "--tls")
        assert done.returncode == 1
        assert "without TLS" in done.stderr
        assert "leave out --tls, --ca, --cert, --key and --server-name" in done.stderr


def test_inputs_as_predict_takes_them(pool: Pool) -> None:
    """JSON that fits is sent; what does not is refused with the input's name."""
    found = cli("bench", "--model", "half_plus_two", "--run-dir", pool.run_dir, *SHORT, "--input", "[4]")
    assert found.returncode == 0, found.stderr
    assert '{"y": [4.0]}' in found.stdout
    found = cli("bench", "--model", "half_plus_two", "--run-dir", pool.run_dir, *SHORT, "--input", '{"z": 1}')
    assert found.returncode == 1
    assert '"z"' in found.stderr


def test_metrics_that_are_asked_for_must_be_there(pool: Pool) -> None:
    """A --metrics that has none of ours is an error, and not a report without them."""
    done = cli(
        "bench",
        "--model",
        "half_plus_two",
        "--run-dir",
        pool.run_dir,
        *SHORT,
        "--metrics",
        f"http://127.0.0.1:{pool.rest_port}/healthz",
    )
    assert done.returncode == 1
    assert "metrics" in done.stderr
