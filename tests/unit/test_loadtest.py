"""The load test's figures, requests and words; no server."""

from __future__ import annotations

import asyncio
import errno
import json
import math
import re
import select
import socket
import struct
import time
from array import array
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from mpspool.cli import main
from mpspool.core import tfs
from mpspool.core.errors import Code
from mpspool.loadtest import command, figures, plot, records, report, requests, server
from mpspool.loadtest.command import BenchError
from mpspool.loadtest.figures import Level, failures_of, figure, percentile, run_of
from mpspool.loadtest.link import Link, UnreachableError
from mpspool.loadtest.loops import loop_for
from mpspool.loadtest.messages import Answer, Ask, Failure, Job, Phase, Result
from mpspool.loadtest.options import Options, Trial
from mpspool.loadtest.progress import Progress
from mpspool.loadtest.records import RecordError
from mpspool.loadtest.request import Request
from mpspool.loadtest.requests import RequestError
from mpspool.loadtest.tally import Tally
from mpspool.loadtest.timer import Timer
from mpspool.loadtest.wire import Call

# As tf.io.TFRecordWriter has written it: a PredictionLog for the model "old" with x = [3], and one of Regress.
RECORDS = bytes.fromhex(
    "200000000000000029eda950321e0a1c0a050a036f6c6412130a0178120e08011204120208012a040000404021ce118e"
    "020000000000000078270b341a00c2d48d8c"
)


def result(latencies_ms: list[float], *, seconds: float = 1.0, **others: object) -> Result:
    latencies_s = array("f", [value / 1000 for value in latencies_ms]).tobytes()
    right = len(latencies_ms)
    found = Result(seconds=seconds, sent=right, right=right, in_time=right, latencies_s=latencies_s)
    for name, value in others.items():
        setattr(found, name, value)
    return found


@given(values=st.lists(st.floats(0, 1e6, width=32), min_size=1, max_size=400), part=st.floats(0.01, 1))
def test_a_percentile_is_one_of_the_values(values: list[float], part: float) -> None:
    """At least that part of all are not above it, and of those below it this is not true."""
    ordered = sorted(values)
    found = percentile(ordered, part)
    if found is None:
        assert part < 1
        assert part * len(values) > len(values) - 1 - 1e-6
        return
    assert found in values
    assert sum(value <= found for value in values) >= part * len(values) - 1e-6
    assert sum(value < found for value in values) < part * len(values)


def test_percentiles_of_few_are_not_told() -> None:
    """p99.9 needs a thousand answers, or it would be the largest."""
    assert percentile(list(range(1000)), 0.999) == 998
    assert percentile(list(range(999)), 0.999) is None
    assert percentile([], 0.5) is None
    assert percentile([7.0], 1) == 7.0


def test_a_stall_is_in_the_percentiles() -> None:
    """100 requests a second for 10 s, one stall of 1 s: counted from when each was due, 10 % of them waited for it."""
    due = np.arange(1000) / 100
    answered = np.where((due >= 5) & (due < 6), 6.0, due) + 0.001
    run = run_of([result(list((answered - due) * 1000))])
    assert run.figures["p50"] == pytest.approx(1, abs=0.1)
    assert run.figures["p95"] == pytest.approx(501, abs=15)
    assert run.figures["p99"] == pytest.approx(901, abs=15)
    assert run.figures["max_ms"] == pytest.approx(1001, abs=1)


def test_processes_are_one_run() -> None:
    """Counts add up, latencies are those of all, and the busiest process counts."""
    failures = [Failure("UNAVAILABLE", "gone", 2)]
    lazy = result([1.0] * 150, cpu_s=0.1, waited_s=0.1, failures=failures, sent=152, unsent=3)
    busy = result(
        [3.0] * 50,
        cpu_s=0.6,
        waited_s=0.35,
        failures=failures,
        sent=52,
        unsent=4,
        lateness_s=array("f", [0.001] * 200).tobytes(),
    )
    run = run_of([lazy, busy])
    assert (run.sent, run.unsent, run.right, run.failed) == (204, 7, 200, {"UNAVAILABLE": 4})
    assert run.figures["rate"] == 200
    assert run.figures["mean_ms"] == pytest.approx(1.5)
    assert (run.figures["p50"], run.figures["p90"]) == (pytest.approx(1), pytest.approx(3))
    assert (run.busy, run.waited) == (pytest.approx(0.95), pytest.approx(0.35))
    assert run.late_ms == pytest.approx(1)


def test_answers_that_differ_between_processes_are_wrong() -> None:
    """Each process compares its own; what two have compared to is compared here."""
    found = failures_of([result([1.0], lengths={0: 7, 1: 8}), result([1.0], lengths={0: 7, 1: 9})])
    assert [(one.code, one.count) for one in found] == [("WRONG", 1)]


def test_median_and_spread() -> None:
    """The spread is how far the repeats are apart, as a part of the median; what is not known is left out."""
    assert figure([10.0, 12.0, 9.0]) == figures.Figure(10.0, 0.3)
    assert figure([10.0, None]) == figures.Figure(10.0)
    assert figure([None]) == figures.Figure(None)


def test_a_percentile_is_known_where_all_repeats_know_it() -> None:
    """The largest is that of all: it would be the smaller beside the p99 of one. Repeats without answers do not count."""
    slow, quick, nothing = run_of([result([90.0] * 200)]), run_of([result([1.0] * 50)]), run_of([result([])])
    some = Level(1, True, [slow, quick, quick])
    assert some.figure("p99").median is None
    assert (some.figure("p90").median, some.figure("max_ms").median) == (1, 1)
    assert Level(1, True, [slow, nothing]).figure("p99").median == pytest.approx(90)


def test_a_generator_that_was_the_limit_says_so() -> None:
    """By its own time, and by how late requests were sent against how long answers took."""
    slow = [100.0] * 200
    assert not Level(8, False, [run_of([result(slow, cpu_s=0.5)])]).limits()
    assert "busy 95%" in Level(8, False, [run_of([result(slow, cpu_s=0.95)])]).limits()[0]
    waits = Level(8, False, [run_of([result(slow, cpu_s=0.3, waited_s=0.65)])]).limits()[0]
    assert "65% of it waiting" in waits
    late = array("f", [0.002] * 200).tobytes()
    assert not Level(200, True, [run_of([result(slow, lateness_s=late)])]).limits()
    (told,) = Level(200, True, [run_of([result([5.0] * 200, lateness_s=late)])]).limits()
    assert told == "the generator sent late: 2 ms at p99, of 5 ms in all"


def test_what_was_due_and_not_sent_is_told() -> None:
    """Where it is more than 1 % of what was sent, in all repeats together: no latency has it."""

    def limits(*unsent: int) -> list[str]:
        return Level(200, True, [run_of([result([5.0] * 200, unsent=count)]) for count in unsent]).limits()

    assert limits(0, 4) == []
    assert limits(0, 5) == ["the generator did not send what was due: 5 requests of 405"]


@pytest.mark.parametrize("poisson", [False, True], ids=["uniform", "poisson"])
def test_what_is_due_while_the_generator_stands_still_at_the_end_is_counted(poisson: bool) -> None:
    """With what was sent it is what is sent without that."""
    phase = Phase(0.3, rate=4000, poisson=poisson, seed=3)

    async def run(stall_s: float) -> Result:
        loop = loop_for(Job("h", 1, b"", [b"x"], 0, 0.1, any_answer=False), phase, {})
        loop._connected = True  # there is nobody: each is lost when it is sent
        asyncio.get_running_loop().call_later(0.05, time.sleep, stall_s)
        return await loop.run(phase, lambda _: None)

    stalled, other = asyncio.run(run(0.35)), asyncio.run(run(0.0))
    assert stalled.sent + stalled.unsent == other.sent + other.unsent
    assert stalled.unsent > 400
    assert len(stalled.lateness_s) == 4 * stalled.sent
    if not poisson:
        assert other.sent + other.unsent == 1200


def test_what_was_due_before_ctrl_c_is_all_that_can_be_unsent() -> None:
    """What would have been due later is not."""
    phase = Phase(60, rate=1000, poisson=False)

    async def run() -> Result:
        loop = loop_for(Job("h", 1, b"", [b"x"], 0, 0.1, any_answer=False), phase, {})
        loop._connected = True
        asyncio.get_running_loop().call_later(0.05, loop.stop)
        return await loop.run(phase, lambda _: None)

    found = asyncio.run(run())
    assert found.sent + found.unsent <= 1000 * found.seconds + 1 < 20_000


METRICS = """\
# HELP mpspool_request_seconds Predict, from arrival to answer.
# TYPE mpspool_request_seconds histogram
mpspool_request_seconds_bucket{{model="m",version="1",le="+Inf"}} {count}
mpspool_request_seconds_count{{model="m",version="1"}} {count}
mpspool_request_seconds_sum{{model="m",version="1"}} {total}
mpspool_request_seconds_count{{model="other",version="1"}} 1e9
mpspool_request_seconds_sum{{model="other",version="1"}} 1e9
mpspool_queue_seconds_count{{model="m",version="1"}} {count}
mpspool_queue_seconds_sum{{model="m",version="1"}} {queue}
mpspool_worker_parse_seconds_count{{model="m",version="1"}} {count}
mpspool_worker_parse_seconds_sum{{model="m",version="1"}} 0.0
mpspool_worker_run_seconds_count{{model="m",version="1"}} {count}
mpspool_worker_run_seconds_sum{{model="m",version="1"}} {run}
mpspool_effective_seconds_count{{model="m",version="1"}} {count}
mpspool_effective_seconds_sum{{model="m",version="1"}} {effective}
# TYPE mpspool_worker_busy_seconds counter
mpspool_worker_busy_seconds_total{{device="cpu0",model="m",slot="0",version="1"}} {busy}
mpspool_worker_busy_seconds_total{{device="cpu0",model="m",slot="1",version="1"}} {busy}
"""


def snapshot(**values: float) -> server.Snapshot:
    return server.read(METRICS.format(**values), "m", 1)


def test_the_servers_own_times() -> None:
    """They are the differences of its metrics, of this model alone; what is left is transport and client."""
    before = snapshot(count=100, total=5.0, queue=1.0, run=3.0, effective=2.0, busy=1.0)
    after = snapshot(count=300, total=7.0, queue=1.4, run=4.0, effective=2.6, busy=1.5)
    found = server.breakdown([(before, after)], 2.0, 12.0)
    assert found["counted"] == 200
    expected = {"queue": 2, "parse": 0, "compute": 5, "serialise": 0, "beside": 2, "rest": 3, "outside": 2}
    assert {name: found[name] for name in expected} == pytest.approx(expected)
    assert found["slots_busy"] == pytest.approx(0.25)
    assert "rows" not in found


def test_slots_are_busy_all_the_time_at_most() -> None:
    """Also where they run on after the last answer, for calls whose deadlines were over by then."""
    before = snapshot(count=100, total=5.0, queue=1.0, run=3.0, effective=2.0, busy=1.0)
    after = snapshot(count=300, total=7.0, queue=1.4, run=4.0, effective=2.6, busy=3.2)
    assert server.breakdown([(before, after)], 2.0, 12.0)["slots_busy"] == 1.0


def test_slots_of_versions_that_nobody_asks_are_not_idle() -> None:
    """Of two that are served only the one that answers is busy; both, where both were asked."""

    def both(first: float, second: float) -> server.Snapshot:
        texts = [
            METRICS.format(count=100 * busy, total=1.0, queue=1.0, run=busy, effective=1.0, busy=busy)
            for busy in (first, second)
        ]
        return server.read(texts[0] + texts[1].replace('version="1"', 'version="2"'), "m", None)

    found = server.breakdown([(both(1, 1), both(1, 2))], 2.0, 12.0)
    assert (found["slots_busy"], found["counted"]) == (pytest.approx(0.5), 100)
    assert server.breakdown([(both(1, 1), both(2, 1.5))], 2.0, 12.0)["slots_busy"] == pytest.approx(0.375)


@pytest.mark.parametrize(
    ("was", "is_now"),
    [
        ('version="1"', 'version="2"'),  # another version answers by now
        ('slot="1"', 'slot="2"'),  # a slot went, and another came
        (" 1.5", " 0.5"),  # a worker took the place of another
    ],
    ids=["version", "slot", "worker"],
)
def test_workers_that_come_and_go_take_their_busy_time_with_them(was: str, is_now: str) -> None:
    """How busy the slots were is not known then, and not told; all else is."""
    before = METRICS.format(count=100, total=5.0, queue=1.0, run=3.0, effective=2.0, busy=1.0)
    after = METRICS.format(count=300, total=7.0, queue=1.4, run=4.0, effective=2.6, busy=1.5)
    lines = [
        line.replace(was, is_now) if line.startswith("mpspool_worker_busy") else line
        for line in after.splitlines()
    ]
    pair = (server.read(before, "m", None), server.read("\n".join(lines) + "\n", "m", None))
    found = server.breakdown([pair], 2.0, 12.0)
    assert found["counted"] == 200
    assert "slots_busy" not in found


def test_a_server_that_was_restarted_counts_anew() -> None:
    """Its counters are smaller than before: they are what has been since."""
    before = snapshot(count=100, total=5.0, queue=1.0, run=3.0, effective=2.0, busy=1.0)
    after = snapshot(count=10, total=0.1, queue=0.0, run=0.05, effective=0.05, busy=0.1)
    assert server.breakdown([(before, after)], 1.0, 12.0)["compute"] == pytest.approx(5)


@pytest.mark.parametrize("count", [90, 150])
def test_a_server_that_was_restarted_counts_all_anew(count: int) -> None:
    """Also what is larger by now than it was: a mean is of a sum and a count of one process."""
    before = snapshot(count=100, total=0.5, queue=0.2, run=0.1, effective=0.1, busy=1.0)
    after = snapshot(count=count, total=0.9, queue=0.09, run=0.45, effective=0.45, busy=0.5)
    found = server.breakdown([(before, after)], 1.0, 12.0)
    assert found["counted"] == count
    assert (found["compute"], found["queue"]) == (pytest.approx(450 / count), pytest.approx(90 / count))


def test_a_version_that_is_told_no_more_makes_others_no_larger() -> None:
    """Its counts have gone, and what the other one had been asked before is still not of this load."""
    text = METRICS.format(count=300, total=7.0, queue=1.4, run=4.0, effective=2.6, busy=1.5)
    first = METRICS.format(count=100, total=5.0, queue=1.0, run=3.0, effective=2.0, busy=1.0)
    both = first + first.replace('version="1"', 'version="2"')
    pair = (server.read(both, "m", None), server.read(text, "m", None))
    assert server.breakdown([pair], 2.0, 12.0)["counted"] == 200


def test_metrics_of_others_are_not_ours() -> None:
    """A page that is no metrics, or none of mpspool's, says so; a model that was not asked has no times."""
    with pytest.raises(server.MetricsError, match="mpspool"):
        server.read("process_cpu_seconds_total 3\n", "m", None)
    with pytest.raises(server.MetricsError, match="no metrics"):
        server.read("<html>", "m", None)
    nothing = server.read(METRICS.format(count=1, total=1, queue=1, run=1, effective=1, busy=1), "x", None)
    assert server.breakdown([(nothing, nothing)], 1.0, 1.0) == {}


def test_version_0_is_a_version() -> None:
    """Of the metrics its own count, and not those of all versions."""
    text = METRICS.format(count=1, total=1, queue=1, run=1, effective=1, busy=1)
    assert not server.read(text, "m", 0).sums
    assert server.read(text, "m", None).sums


def test_metrics_that_are_none_are_named() -> None:
    """By the address that was asked, with the one that it takes."""
    with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor(1) as pool:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/healthz"
        pool.submit(_answer_once, listener, b"ok")
        with pytest.raises(
            server.MetricsError, match=f"^{url}: what is there is no metrics.*; mpspool's are at"
        ):
            server.fetch(url, "m", None)


def _answer_once(listener: socket.socket, body: bytes) -> None:
    with listener.accept()[0] as connection:
        connection.recv(4096)
        connection.sendall(b"HTTP/1.0 200 OK\r\n\r\n" + body)


@pytest.mark.parametrize("phase", [Phase(1, in_flight=1), Phase(1, rate=1)], ids=["closed", "open"])
def test_an_answer_after_the_deadline_is_none(phase: Phase) -> None:
    """It counts from when the request was sent, whenever deadlines are looked at; an answer in time is right."""
    loop = loop_for(Job("h", 1, b"", [b"x"], 0, 0.1, any_answer=False), phase, {})
    for took_s in (0.09, 0.11):
        call = Call(Request(b"", b"x"), 6.0, 7.0)
        call.code, call.length = Code.OK, 9
        loop._finished(loop._links[0], call, call.sent + took_s)
    assert loop._tally.right == 1
    assert loop._tally.failures() == [Failure("DEADLINE_EXCEEDED", "no answer in time", 1)]


@pytest.mark.parametrize("phase", [Phase(1, in_flight=1), Phase(1, rate=1)], ids=["closed", "open"])
def test_what_was_refused_unseen_does_not_wait_for_a_server_that_has_gone(phase: Phase) -> None:
    """It is sent once more where there is a connection, and fails where none can be made: the phase is over then."""
    loop = loop_for(Job("h", 1, b"", [b"x"], 0, 60.0, any_answer=False), phase, {})
    call = Call(Request(b"", b"x"), 6.0, 7.0)
    call.code, call.text, call.refused = Code.UNAVAILABLE, "the server ends the connection", True
    loop._in_flight = 1
    loop._finished(loop._links[0], call, 7.1)
    assert not loop._drained.is_set()
    loop._unreachable("nobody is there")
    assert loop._drained.is_set()
    assert loop._tally.failures() == [Failure("UNAVAILABLE", "nobody is there", 1)]


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused"), "Connection refused"),
        (
            OSError(errno.EMFILE, "Too many open files"),
            "Too many open files; raise `ulimit -n`, or have fewer",
        ),
    ],
)
def test_a_connection_that_cannot_be_had(monkeypatch: pytest.MonkeyPatch, error: OSError, text: str) -> None:
    """It says where, an IPv6 address in brackets, and why, and where it is files what to do."""

    async def fail(*_: object, **__: object) -> None:
        raise error

    async def connect() -> None:
        monkeypatch.setattr(asyncio.get_running_loop(), "create_connection", fail)
        await Link("::1", 8500, lambda *_: None).connect()

    with pytest.raises(UnreachableError, match=re.escape(f"cannot connect to [::1]:8500: {text}")):
        asyncio.run(connect())


@pytest.mark.parametrize("spoken", [False, True])
def test_tls_is_not_what_is_wrong_with_who_has_spoken_without(spoken: bool) -> None:
    """A server that ends the first connection may want it; one that has accepted one, and ends the next, does not."""
    left = [b"\0\0\0\4\0\0\0\0\0"] if spoken else []  # SETTINGS

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(24)
        if left:
            writer.write(left.pop())
            await writer.drain()
            await ready.wait()
        writer.transport.abort()

    async def run() -> str:
        told: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        async with await asyncio.start_server(serve, "127.0.0.1", 0) as listener:
            port = listener.sockets[0].getsockname()[1]
            link = Link("127.0.0.1", port, lambda *_: None, lambda _: ready.set(), told.set_result)
            try:
                await link.connect()
                return await told
            except UnreachableError as error:
                return str(error)
            finally:
                link.close()

    ready = asyncio.Event()
    why = asyncio.run(run())
    assert "the connection is lost" in why
    assert ("it may want TLS" in why) == (not spoken)


@pytest.mark.parametrize("any_answer", [False, True])
def test_an_empty_answer_is_wrong_and_says_nothing_of_others(any_answer: bool) -> None:
    """However often it comes, and though it be the first: it is not what the others are compared with."""
    tally = Tally({}, any_answer=any_answer)
    for length in (0, 0, 57, 57, 0):
        call = Call(Request(b"", b"x"), 0.0, 0.0)
        call.code, call.length = Code.OK, length
        tally.over(call, 1.0)
    assert (tally.right, tally.failed) == (2, 3)
    (failure,) = tally.failures()
    assert (failure.code, failure.text) == ("WRONG", "status OK and no answer")


def test_more_processes_are_advised_where_they_would_send(monkeypatch: pytest.MonkeyPatch) -> None:
    """One request at a time is one process's."""
    monkeypatch.setattr(report.os, "sched_getaffinity", lambda _: set(range(8)))
    found = [report._remedy(Options("h", 1, "m", concurrency=levels), 0.95) for levels in ((1,), (1, 8))]
    assert ["--processes" in text for text in found] == [False, True]


def test_records_as_tensorflow_writes_them() -> None:
    """Their checksums hold; of the logs those of Predict are requests."""
    assert records.are_records(RECORDS)
    assert len(list(records.records(RECORDS))) == 2
    (body,) = records.predict_requests(RECORDS)
    request = tfs.PredictRequest.FromString(body)
    assert (request.model_spec.name, list(request.inputs["x"].float_val)) == ("old", [3.0])


@given(at=st.integers(0, len(RECORDS) - 1), bit=st.integers(0, 7))
def test_a_damaged_file_is_told(at: int, bit: int) -> None:
    """One bit that has flipped anywhere is found."""
    damaged = bytearray(RECORDS)
    damaged[at] ^= 1 << bit
    with pytest.raises(RecordError):
        list(records.records(bytes(damaged)))


@given(size=st.integers(1, len(RECORDS) - 1))
def test_a_file_that_is_cut_is_told(size: int) -> None:
    """All but a cut between two records is found."""
    if size == 48:
        assert len(list(records.records(RECORDS[:size]))) == 1
        return
    with pytest.raises(RecordError, match=r"broken off|checksum"):
        list(records.records(RECORDS[:size]))


def signatures(*shape: int, dtype: int = 1, **others: object) -> object:
    found = tfs.SignatureDefMap()
    info = found.signature_def[tfs.DEFAULT_SIGNATURE].inputs["x"]
    info.name, info.dtype = "x:0", dtype
    for size in shape:
        info.tensor_shape.dim.add(size=size)
    info.tensor_shape.unknown_rank = bool(others.get("unknown_rank"))
    return found


def made_up(known: object, rows: int = 1, signature: str = "") -> object:
    body = requests.synthetic("m", known, signature=signature, version=3, rows=rows)
    return tfs.PredictRequest.FromString(body)


@pytest.mark.parametrize("number", [n for n, known in tfs.DATA_TYPES.items() if known.field])
def test_a_request_is_made_of_any_type(number: int) -> None:
    """As many elements as the shape has, with the rows asked for where the first dimension is open."""
    request = made_up(signatures(-1, 3, dtype=number), rows=4)
    tensor = request.inputs["x"]
    assert [dimension.size for dimension in tensor.tensor_shape.dim] == [4, 3]
    assert (request.model_spec.name, request.model_spec.version.value, tensor.dtype) == ("m", 3, number)
    if number == tfs.DT_STRING:
        assert len(tensor.string_val) == 12
    else:
        assert np.frombuffer(tensor.tensor_content, tfs.numpy_dtype(number)).size == 12


@pytest.mark.parametrize(
    ("known", "signature", "text"),
    [
        (signatures(-1, -1), "", "--input"),
        (signatures(unknown_rank=True), "", "any, which leaves open"),
        (signatures(1, dtype=20), "", "resource"),
        (signatures(1), "other", "serving_default"),
        (signatures(-1, 2**31), "", "fewer --rows"),
    ],
)
def test_a_request_that_cannot_be_made_up(known: object, signature: str, text: str) -> None:
    """It says what to give instead."""
    with pytest.raises(RequestError, match=re.escape(text)):
        made_up(known, signature=signature)


def test_rows_that_no_input_has_room_for() -> None:
    """They are refused with the input's name and shape; one row is what there is."""
    with pytest.raises(
        RequestError, match=re.escape("4 rows: the input 'x' has the shape [1, 3]; leave out --rows")
    ):
        made_up(signatures(1, 3), rows=4)
    assert made_up(signatures(1, 3)).inputs["x"].tensor_shape.dim[0].size == 1


def test_requests_of_files(tmp_path: Path) -> None:
    """A folder's files in their order, a serialised request and recorded ones; they are sent to the model named."""
    one = tfs.PredictRequest()
    one.model_spec.name, one.model_spec.signature_name = "old", "sig"
    one.inputs["x"].dtype = 1
    (tmp_path / "a.pb").write_bytes(one.SerializeToString())
    (tmp_path / "b").write_bytes(RECORDS)
    (tmp_path / ".hidden").write_bytes(b"no request")
    found = requests.from_files([tmp_path], "new", signature=None, version=5)
    specs = [tfs.PredictRequest.FromString(body).model_spec for body in found]
    assert [(spec.name, spec.signature_name, spec.version.value) for spec in specs] == [
        ("new", "sig", 5),
        ("new", "", 5),
    ]


@pytest.mark.parametrize("data", [b"", b"no request", b"\xff" * 40, RECORDS[:-1], RECORDS[48:]])
def test_a_file_that_is_no_request(tmp_path: Path, data: bytes) -> None:
    """It is refused by its name, also for having nothing to send."""
    (tmp_path / "x").write_bytes(data)
    with pytest.raises(RequestError, match=r"/x"):
        requests.from_files([tmp_path / "x"], "m", signature=None, version=None)


def test_a_folder_that_cannot_be_read_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As a file is."""

    def refused(_: Path) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(Path, "iterdir", refused)
    with pytest.raises(RequestError, match=f"{re.escape(str(tmp_path))}: .*Permission denied"):
        requests.from_files([tmp_path], "m", signature=None, version=None)


def test_processes_share_a_level() -> None:
    """They send together what was asked for; at even times they take turns."""
    options = Options("h", 1, "m", concurrency=(7,), processes=3)
    assert [phase.in_flight for phase in options.phases(7, 1.0)] == [3, 2, 2]
    assert [phase.in_flight for phase in options.phases(2, 1.0)] == [1, 1]
    options = Options("h", 1, "m", rates=(90.0,), poisson=False, processes=3, connections=4)
    phases = options.phases(90, 1.0, begin_s=100.0)
    assert [phase.connections for phase in phases] == [2, 1, 1]
    assert [phase.rate for phase in phases] == [30, 30, 30]
    assert [phase.begin_s for phase in phases] == pytest.approx([100, 100 + 1 / 90, 100 + 2 / 90])
    seeds = [phase.seed for seed in (0, 1, 2) for phase in options.phases(90, 1.0, seed=seed)]
    assert len(set(seeds)) == 9


@pytest.mark.parametrize(
    ("args", "text"),
    [
        (["--concurrency", "1", "--rate", "1"], "either --concurrency or --rate"),
        (
            ["--concurrency", "1,x"],
            "'1,x' must be a whole number of requests in flight, above 0 and at most 10000000, or several with commas",
        ),
        (
            ["--rate", "abc"],
            "'abc' must be a number of requests a second, above 0 and at most 10000000, or several with commas",
        ),
        (["--rate", "0"], "'0' must be a number of requests a second, above 0"),
        (["--rate", "1,nan"], "'1,nan' must be a number of requests a second, above 0"),
        (["--arrivals", "uniform"], "--arrivals goes with --rate"),
        (["--rate", "1", "--streams-per-connection", "2"], "goes with --concurrency"),
        (["--input", "1", "--rows", "2"], "--rows goes"),
        (["--input", "1", "--request", "."], "either --input or --request"),
        (["--metadata", "x"], "KEY=VALUE"),
        (["--metadata", "grpc-x=1", "--address", "127.0.0.1:1"], "no key of metadata"),
        (["--address", "host:port"], "the port 'port' is no number from 1 to 65535"),
        (["--address", "host:74036"], "the port '74036' is no number from 1 to 65535"),
        (["--address", "host:0"], "the port '0' is no number from 1 to 65535"),
        (["--address", "host:٨٥٠٠"], "is no number from 1 to 65535"),
        (["--version", str(2**63)], "not in the range"),
        (["--model", "m\udcff"], r"'m\udcff' has bytes that are no UTF-8"),
        (["--signature", "s\udcff"], r"'s\udcff' has bytes that are no UTF-8"),
        (["--metrics", "127.0.0.1:8501/metrics"], "127.0.0.1:8501/metrics: give it as http://HOST:PORT/PATH"),
        (["--plot", "x.what"], "no kind of picture"),
        (["--plot", "x.pgf"], "no kind of picture"),
        (["--json", "x.png", "--plot", "./x.png"], "--json and --plot both name 'x.png'"),
        (
            ["--json", "/none/x.json"],
            "cannot write '/none/x.json': there is no folder '/none'; name another file",
        ),
    ],
)
def test_options_that_do_not_go(args: list[str], text: str) -> None:
    """Each is a usage error, with exit status 2, before anything is sent."""
    done = CliRunner().invoke(main, ["bench", "--model", "m", "--address", "127.0.0.1:1", *args])
    assert done.exit_code == 2, done.output
    assert text in done.output.replace("\n", " ")


@pytest.mark.parametrize("where", ["mpspool.supervisor.ports.with_port", "mpspool.loadtest.command.run"])
def test_ctrl_c_beside_the_load(monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    """While it begins, and while the report is made: the exit status is that of Ctrl-C under load."""

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(where, interrupted)
    done = CliRunner().invoke(main, ["bench", "--model", "m", "--address", "127.0.0.1:1"])
    assert (done.exit_code, done.output) == (130, "")


@pytest.mark.parametrize(
    ("args", "text"),
    [
        (["m", "--version", str(2**63)], "not in the range"),
        (["m\udcff"], r"'m\udcff' has bytes that are no UTF-8"),
        (["m", "--signature", "s\udcff"], r"'s\udcff' has bytes that are no UTF-8"),
    ],
)
def test_what_predict_cannot_send(args: list[str], text: str) -> None:
    """It is a usage error, as with bench."""
    done = CliRunner().invoke(main, ["predict", *args, "--input", "1", "--address", "127.0.0.1:1"])
    assert done.exit_code == 2, done.output
    assert text in done.output


class StandIn:
    """A fleet whose phases have these results, one after the other."""

    def __init__(self, *results: Result) -> None:
        self._results = iter(results)

    async def ask(self, order: Ask) -> Answer:
        found = tfs.PredictResponse()
        found.model_spec.version.value = 0
        found.outputs["y"].dtype = 1
        return Answer(0, "", found.SerializeToString())

    async def load(self, jobs: list[Job]) -> None:
        pass

    async def run(self, phases: list[Phase], watch: object) -> list[Result]:
        return [next(self._results)]

    def stop(self) -> None:
        pass


def benched(options: Options, *results: Result) -> Any:
    """A bench of which all levels have run, each warmed up with the first of its results."""

    async def run() -> None:
        for number, wanted in enumerate(options.levels):
            await bench._level(number, wanted, Progress(options, None, lambda _: None))

    bench: Any = command._Bench(options)
    bench._fleet = StandIn(*results)
    asyncio.run(run())
    return bench


def test_a_repeat_in_which_nothing_was_due_counts() -> None:
    """Of an open loop: what three repeats say is not the rate of the one in which there was a request."""
    options = Options("h", 1, "m", rates=(0.2,), repeat=3)
    (found,) = benched(options, result([]), result([1.0]), result([]), result([]))._levels
    assert [run.figures["rate"] for run in found.runs] == [1, 0, 0]
    assert found.figure("rate").median == 0
    assert (found.runs[1].figures["max_ms"], found.runs[1].cpu_us) == (None, None)


def test_a_level_at_which_nothing_was_due_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    """In a note with what it takes; as the error where there is no other."""
    idle = result([])
    options = Options("h", 1, "m", rates=(0.01, 50.0), repeat=1, seconds=0.5)
    bench = benched(options, idle, idle, idle, result([1.0]))
    assert bench.report() == 0
    told = "at 0.01/s nothing was due in 1 x 0.5 s: give --seconds 200 or more"
    assert f"note: {told}" in capsys.readouterr().out
    bench = benched(Options("h", 1, "m", rates=(0.01,), repeat=2, seconds=0.5), idle, idle, idle)
    with pytest.raises(BenchError, match=r"at 0\.01/s nothing was due in 2 x 0\.5 s"):
        bench.report()


@pytest.mark.parametrize("at_s", [1e15, 1e300, math.inf])
def test_a_time_that_never_comes(at_s: float) -> None:
    """The first arrival at a rate that is next to none: it is no error, and not now."""
    timer = Timer()
    timer.set(at_s)
    assert select.select([timer.fd], [], [], 0)[0] == []
    timer.close()


@pytest.mark.parametrize("rate", [1e-9, 5e-324])
def test_a_rate_that_no_time_is_enough_for(rate: float) -> None:
    """What --seconds does not take is not what is advised."""
    bench = benched(Options("h", 1, "m", rates=(rate,), repeat=1), result([]), result([]))
    with pytest.raises(BenchError, match=r"give a higher --rate$"):
        bench.report()


def test_a_level_at_which_nothing_was_sent_says_what_was_due() -> None:
    """More --seconds are not what it takes."""
    bench = benched(Options("h", 1, "m", rates=(50.0,), repeat=1), result([]), result([], unsent=12))
    with pytest.raises(
        BenchError, match="at 50/s nothing was sent, for the generator stood still: 12 were due"
    ):
        bench.report()


def test_the_version_that_answers_may_be_0(tmp_path: Path) -> None:
    """It is not one that the server does not tell."""
    (tmp_path / "x").write_bytes(RECORDS)
    bench: Any = command._Bench(Options("h", 1, "m", concurrency=(1,), request_files=(tmp_path / "x",)))
    bench._fleet = StandIn()
    asyncio.run(bench._prepare())
    assert bench._trial.version == 0


def test_nothing_is_asked_after_ctrl_c(tmp_path: Path) -> None:
    """Also where it comes before all generators are there."""

    class Interrupted(StandIn):
        async def __aenter__(self) -> None:
            bench._interrupt()

        async def __aexit__(self, *_: object) -> None:
            pass

    (tmp_path / "x").write_bytes(RECORDS)
    bench: Any = command._Bench(Options("h", 1, "m", concurrency=(1,), request_files=(tmp_path / "x",)))
    bench._fleet = Interrupted()
    asyncio.run(bench.run())
    assert bench._trial.version is None


def test_ctrl_c_does_not_wait_for_metrics() -> None:
    """A server that does not tell them keeps nobody, neither when they are asked at that time nor afterwards."""

    async def run() -> None:
        asyncio.get_running_loop().call_later(0.1, bench._interrupt)
        assert await bench._look() is None
        assert await bench._look() is None

    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/metrics"
        bench: Any = command._Bench(Options("h", 1, "m", concurrency=(1,), metrics_url=url))
        bench._fleet = StandIn()
        began = time.monotonic()
        asyncio.run(run())
        assert time.monotonic() - began < 9, "less than what they are waited for"
    assert bench.interrupted


def test_json_on_standard_output_is_alone_there(capsys: pytest.CaptureFixture[str]) -> None:
    """What is for people goes to standard error."""
    options = Options("h", 1, "m", concurrency=(1,), repeat=1, json_file=Path("-"))
    bench = benched(options, result([1.0]), result([1.0]))
    report.print_head(options, [3], "{}", 0.1)
    assert bench.report() == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["levels"][0]["right"] == 1
    assert "an answer: {}" in err
    assert "req/s" in err


def test_files_are_kept_where_nobody_takes_the_tables(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As where standard output goes to a program that has ended."""

    def gone(*_: object) -> None:
        raise BrokenPipeError

    monkeypatch.setattr(report, "print_levels", gone)
    files = {"json_file": tmp_path / "a.json", "plot_file": tmp_path / "a.svg"}
    bench = benched(Options("h", 1, "m", concurrency=(1,), repeat=1, **files), result([1.0]), result([1.0]))
    with pytest.raises(BrokenPipeError):
        bench.report()
    assert json.loads(files["json_file"].read_text())["levels"][0]["right"] == 1
    assert files["plot_file"].stat().st_size


def level(wanted: float, *, is_open: bool = False, failed: int = 0) -> Level:
    refused = [Failure("UNAVAILABLE", "full", failed)] if failed else []
    runs = [run_of([result([1.7 * repeat] * 2000, sent=2001)]) for repeat in (1, 2)]
    runs.append(run_of([result([6.8] * 2000, sent=2001 + failed, unsent=2 * is_open, failures=refused)]))
    told = dict.fromkeys(("queue", "parse", "compute", "beside", "serialise", "rest", "outside"), 0.5)
    failure = Failure("RESOURCE_EXHAUSTED", "[no] room", 1)
    return Level(wanted, is_open, runs, [failure], {**told, "counted": 9000.0, "rows": 3.0})


def test_the_report(capsys: pytest.CaptureFixture[str]) -> None:
    """A row for each level with medians and spreads, failures with their texts, and whose requests were counted."""
    report.print_levels(Options("h", 1, "m", concurrency=(1, 8)), [level(1), level(8)], ["a note"])
    text = capsys.readouterr().out
    assert re.search(r"^ +8 +6,003 +6,000 +0 +2,000 +3.40 +3.40", text, re.MULTILINE)
    assert re.search(r"^ +0% +150% +150%", text, re.MULTILINE)
    assert "1 x RESOURCE_EXHAUSTED: [no] room" in text
    assert "counted 9,000 requests, and 6,003 were ours" in text
    assert "rows: of a batch" in text
    assert "note: a note" in text


def test_that_workers_came_and_went_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    """In place of how busy they were; nothing where that is known."""
    known = level(8)
    known.server["slots_busy"] = 0.5
    report.print_levels(Options("h", 1, "m", concurrency=(1, 8)), [level(1), known], [])
    text = capsys.readouterr().out
    assert "at 1 the model's workers came, went or were replaced" in text
    assert "at 8 the model's workers" not in text


@pytest.mark.parametrize("columns", [20, 60, 160])
def test_a_narrow_report_has_all_digits(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], columns: int
) -> None:
    """Of all numbers; a row may be wider than the terminal then."""
    monkeypatch.setattr(report, "_PLAIN_COLUMNS", columns)
    report.print_levels(Options("h", 1, "m", rates=(1234567.0,)), [level(1234567, is_open=True)], [])
    text = capsys.readouterr().out
    assert re.search(r"^1234567/s( !)? +6,003 .* 2,000 ", text, re.MULTILINE)
    assert "…" not in text


def test_calls_that_waited_for_a_stream_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    """With how many, and what to give instead."""
    waits = run_of([result([1.0] * 10, stream_waits=3), result([1.0] * 10, stream_waits=4)])
    report.print_levels(Options("h", 1, "m", concurrency=(8,)), [Level(8, False, [waits])], [])
    text = capsys.readouterr().out
    assert "at 8 calls waited for a stream: 7 of 20" in text
    assert "fewer --streams-per-connection" in text


def test_that_latencies_are_of_fewer_repeats_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    """Where others had no right answer, as in an overload; nothing where all had some, or none had."""
    some, none = run_of([result([1.0] * 10)]), run_of([result([], sent=9)])
    counts = {4.0: (some, some), 8.0: (none, some, none), 16.0: (none, none)}
    levels = [Level(wanted, True, list(runs)) for wanted, runs in counts.items()]
    report.print_levels(Options("h", 1, "m", rates=tuple(counts)), levels, [])
    notes = [line for line in capsys.readouterr().out.splitlines() if "repeats:" in line]
    assert notes == ["note: at 8/s latencies are of 1 of 3 repeats: the rest had no right answer"]


TRIAL = Trial(datetime(2026, 3, 4, 14, 2, 41, 250_000, timezone(timedelta(hours=5))), (38,), 7, "scale")


def test_the_report_for_scripts() -> None:
    """All figures of all repeats as JSON, with null for what is not known; what was asked, of whom and when."""
    metadata = (("x-mpspool-priority", "5"), ("authorization", "Bearer secret"))
    options = Options("h", 1, "m", rates=(5.0,), rows=64, metadata=metadata)
    text = report.for_scripts(options, TRIAL, [level(5, is_open=True)], interrupted=True, error="")
    found = json.loads(text)
    assert (found["loop"], found["arrivals"], found["interrupted"]) == ("open", "poisson", True)
    assert (found["began"], found["version"], found["signature"]) == ("2026-03-04T14:02:41+05:00", 7, "scale")
    assert (found["rows"], found["request_files"], found["request_bytes"]) == (64, [], [38])
    assert found["metadata"] == [["x-mpspool-priority", "5"], ["authorization", None]]
    assert "secret" not in text
    (told,) = found["levels"]
    assert (told["rate"], told["median"]["p99"], told["server_ms"]["queue"]) == (5, pytest.approx(3.4), 0.5)
    assert (told["sent"], told["unsent"], [run["unsent"] for run in told["runs"]]) == (6003, 2, [0, 0, 2])
    assert [run["figures"]["p50"] for run in told["runs"]] == pytest.approx([1.7, 3.4, 6.8])


@pytest.mark.parametrize("given", [{"document": [1]}, {"request_files": (Path("a.pb"),)}])
def test_rows_are_those_of_a_request_that_was_made_up(given: dict[str, Any]) -> None:
    """Of others they are not known; files are named."""
    options = Options("h", 1, "m", concurrency=(1,), **given)
    found = json.loads(report.for_scripts(options, TRIAL, [], interrupted=False, error=""))
    assert (found["rows"], found["request_files"]) == (None, list(map(str, given.get("request_files", ()))))


@pytest.mark.parametrize("levels", [(1, 8), (1,)])
def test_the_picture(tmp_path: Path, levels: tuple[int, ...]) -> None:
    """It is a PNG, which says what was asked, and when."""
    options = Options("h", 1, "m", concurrency=levels, rows=64, deadline_s=0.5)
    plot.check(tmp_path / "out.png")
    plot.draw(options, TRIAL, list(map(level, levels)), tmp_path / "out.png")
    assert struct.unpack(">II", (tmp_path / "out.png").read_bytes()[16:24]) > (1000, 400)
    title = plot.picture(options, TRIAL, [level(1)]).get_suptitle()
    assert "m: closed loop" in title
    assert "median of 3 of 5 x 5 s, cut short, bands" in title
    assert "made up, 64 rows; deadline 0.5 s; 2026-03-04 14:02:41 UTC+0500" in title


def test_the_picture_says_what_was_measured() -> None:
    """All that was asked for, or less: fewer repeats, or one that was interrupted."""

    def said(repeat: int, seconds: float) -> str:
        options = Options("h", 1, "m", concurrency=(1, 8), repeat=repeat, seconds=seconds)
        return plot.picture(options, TRIAL, [level(1), level(8)]).get_suptitle()

    assert "median of 3 x 1 s, bands" in said(3, 1.0)
    assert "median of 3 of 4 x 1 s, cut short, bands" in said(4, 1.0)
    assert "median of 3 of 3 x 20 s, cut short, bands" in said(3, 20.0)
    once = level(1)
    del once.runs[1:]
    title = plot.picture(
        Options("h", 1, "m", concurrency=(1,), repeat=1, seconds=1.0), TRIAL, [once]
    ).get_suptitle()
    assert "m: closed loop, 1 x 1 s\n" in title


def test_what_is_outside_is_of_the_same_requests_as_the_server_s_times() -> None:
    """Of all repeats together: of one slow one with few requests and one quick one with many no median is right."""
    slow, quick = run_of([result([250.0] * 10, sent=10)]), run_of([result([10.0] * 990, sent=990)])
    both = Level(1, False, [slow, quick])
    assert both.mean_ms == pytest.approx(12.4)
    assert both.figure("mean_ms").median == pytest.approx(130)


def test_a_single_rate_is_drawn_with_what_failed() -> None:
    """What was sent has a mark within the axis, and what failed is told at its level, in both panels."""
    options = Options("h", 1, "m", rates=(4000.0,))
    latency, throughput = plot.picture(options, TRIAL, [level(4000, is_open=True, failed=65)]).axes
    (sent,) = [line for line in throughput.lines if line.get_label() == "sent"]
    assert sent.get_marker() not in (None, "None", "")
    assert throughput.get_ylim() == pytest.approx((0, 2101.05))  # room for the mark
    for axes in (latency, throughput):
        assert [label.get_text() for label in axes.get_xticklabels()] == ["4000\n65 of 6,068\nfailed"]


def test_what_is_drawn_as_sent_was_sent() -> None:
    """Where the generator does not keep up, or chance has less due, that is less than was asked for, and no fault of the server's."""
    runs = [run_of([result([1.0] * 200 * count, seconds=2.0)]) for count in (1, 2, 3)]
    options = Options("h", 1, "m", rates=(1e6,))
    _, throughput = plot.picture(options, TRIAL, [Level(1e6, True, runs)]).axes
    (sent,) = [line for line in throughput.lines if line.get_label() == "sent"]
    assert (list(sent.get_xdata()), list(sent.get_ydata())) == ([1e6], [200])
    assert throughput.get_xlabel() == "requests/s asked for"


def test_levels_are_drawn_in_their_order() -> None:
    """In whatever order they ran, for lines go from each to the next."""
    latency, _ = plot.picture(
        Options("h", 1, "m", concurrency=(1, 8, 2)), TRIAL, [level(1), level(8), level(2)]
    ).axes
    assert list(latency.lines[0].get_xdata()) == [1, 2, 8]


def test_many_levels_tell_the_part_that_failed() -> None:
    """There is no room for more beside each other."""
    levels = [level(number, is_open=True, failed=65) for number in range(1, 6)]
    latency, _ = plot.picture(Options("h", 1, "m", rates=(1.0, 2.0, 3.0, 4.0, 5.0)), TRIAL, levels).axes
    assert latency.get_xticklabels()[0].get_text() == "1\n1.07%\nfailed"


def test_levels_at_which_nothing_failed_say_nothing_of_it() -> None:
    """Their marks are their numbers alone."""
    options = Options("h", 1, "m", concurrency=(1, 2))
    latency, _ = plot.picture(options, TRIAL, [level(1), level(2, failed=65)]).axes
    assert [label.get_text() for label in latency.get_xticklabels()] == ["1", "2\n65 of 6,068\nfailed"]


def test_a_picture_of_failures_alone() -> None:
    """There is no latency to draw, and that is no error."""
    nothing = run_of([result([], sent=9, failures=[Failure("UNAVAILABLE", "full", 9)])])
    options = Options("h", 1, "m", rates=(5.0,))
    latency, throughput = plot.picture(options, TRIAL, [Level(5, True, [nothing])]).axes
    assert [text.get_text() for text in latency.texts] == ["no right answers"]
    assert throughput.get_ylim()[1] > 9


def test_a_picture_of_few_right_answers() -> None:
    """It does not say that there were none."""
    few = run_of([result([1.0])])
    latency, _ = plot.picture(Options("h", 1, "m", rates=(5.0,)), TRIAL, [Level(5, True, [few])]).axes
    assert [text.get_text() for text in latency.texts] == ["too few right answers for a percentile"]


def test_a_high_rate_has_all_its_digits() -> None:
    """Wherever a level is named."""
    many = level(1234567, is_open=True, failed=65)
    latency, _ = plot.picture(Options("h", 1, "m", rates=(1234567.0,)), TRIAL, [many]).axes
    assert latency.get_xticklabels()[0].get_text().startswith("1234567\n")
    said: list[str] = []
    shown = Progress(Options("h", 1, "m", rates=(1234567.0,)), None, said.append)
    shown.level(1234567.0)
    shown.ran(many.runs[0])
    assert said[0].startswith("1234567 requests/s,")


def test_latency_has_marks_around_all_of_it() -> None:
    """At 1, 2, 3 and 5 of each power of ten as plain numbers, over bands and medians; the axis says that it is logarithmic."""
    latency, _ = plot.picture(Options("h", 1, "m", concurrency=(1,)), TRIAL, [level(1)]).axes
    assert [label.get_text() for label in latency.get_yticklabels()] == ["1", "2", "3", "5", "10"]
    assert latency.get_ylim() == (1, 10)
    assert latency.get_ylabel() == "latency, ms (log scale)"


@pytest.mark.parametrize(
    ("least", "most", "marks"),
    [
        (3.4, 3.4, [3, 5]),
        (2, 2, [1, 2, 3]),
        (1, 1, [0.5, 1, 2]),
        (3.01, 4.99, [2, 3, 5, 10]),
        (0.3, 0.6, [0.2, 0.3, 0.5, 1]),
        (10, 99_000, [1, 10, 100, 1000, 10_000, 100_000, 1_000_000]),
        (0.04, 0.09, [0.03, 0.05, 0.1]),
        (7, 120_000, [1, 10, 100, 1000, 10_000, 100_000, 1_000_000]),
    ],
)
def test_marks(least: float, most: float, marks: list[float]) -> None:
    """From below the least to above the most, so that a point on either is whole; of a wide range powers of ten alone."""
    assert plot.marks(least, most) == pytest.approx(marks)


def test_no_matplotlib(monkeypatch: pytest.MonkeyPatch) -> None:
    """The picture is refused before the load, with what to install."""
    monkeypatch.setitem(__import__("sys").modules, "matplotlib", None)
    done = CliRunner().invoke(main, ["bench", "--model", "m", "--address", "127.0.0.1:1", "--plot", "x.png"])
    assert done.exit_code == 2
    assert "pip install" in done.output
