"""The simulation itself: nothing is lost, devices share as they should, and queues are as long as theory says."""

from __future__ import annotations

import dataclasses
import functools
import importlib
import itertools
import json
import math
import os
import subprocess
import sys
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest
from matplotlib.figure import Figure

from bench.sim import __main__ as command
from bench.sim import cell, compare, costs, trace
from bench.sim.__main__ import main
from bench.sim.arrivals import Closed, Load, Open, Replay, Stream
from bench.sim.cell import Capacity, Cell
from bench.sim.device import Device
from bench.sim.engine import Record, Simulation
from bench.sim.figures import Device as DeviceFigures
from bench.sim.figures import Figures, Part, fair_division, jain
from bench.sim.job import Outcome
from bench.sim.scenario import Options, legend
from bench.sim.scenarios import fleet, flood, ocr, replay
from bench.sim.service import Linear, Pool, Service, divide
from bench.sim.setup import Setup
from bench.sim.trace import Request
from mpspool.core.settings import BatchingSettings
from mpspool.router.scheduling.policy import Waiting

MS = 1_000_000
SHORT = Service("short", Linear(4), Linear(1), Linear(1), sigma=0.4, rows=((1, 1.0), (3, 1.0)))
LONG = Service("long", Linear(20), Linear(2), sigma=0.4)
BATCHED = Service(
    "batched", Linear(3, 0.5), batching=BatchingSettings(max_batch_size=8, batch_timeout_us=1000)
)
POOL = Pool(2, (SHORT, LONG, BATCHED), parallel=1.5, loss=0.05)
STREAMS = (
    Stream(SHORT, 6.0, "c", 5, deadline_ms=60),
    Stream(LONG, 1.0, priority=1),
    Stream(BATCHED, 3.0, deadline_ms=40),
)
SETUPS = (
    Setup("plain"),
    Setup("sjf", policy="sjf", running=2, long=1, fair=True),
    Setup("edf", policy="edf", dispatch="round_robin", refuse_late=False),
    Setup("apart", apart=True, max_requests=5),
)


def simulate(
    load: Load, pool: Pool = POOL, setup: Setup = SETUPS[0], seconds: float = 2.0, seed: int = 1
) -> Record:
    return Simulation(pool, setup, load, seconds, seed).run()


@pytest.mark.parametrize("setup", SETUPS, ids=lambda setup: setup.title)
@pytest.mark.parametrize("rate", [200.0, 900.0])
def test_every_request_ends_exactly_once(setup: Setup, rate: float) -> None:
    """Answered, expired or refused: under little and too much load alike, and no sooner than it can be."""
    load = Open(STREAMS, rate, burst=3.0)
    record = simulate(load, setup=setup)
    asked = Counter(map(repr, load.requests(2.0, 1)))
    assert Counter(repr(one.request) for one in record.ended) == asked
    for one in record.ended:
        assert one.at_s >= one.request.time - 1e-9
        if one.outcome is Outcome.ANSWERED:
            assert one.queue_s > -1e-6
            assert one.overlap_s > -1e-6


def test_the_same_seed_gives_the_same_figures() -> None:
    """And another seed others."""
    cell = Cell(POOL, SETUPS[1], Open(STREAMS, 300.0, burst=3.0), 1.0)
    assert cell.run() == cell.run()
    assert cell.run() != Cell(POOL, SETUPS[1], Open(STREAMS, 300.0, burst=3.0), 1.0, seed=2).run()


def test_every_setup_sees_the_same_requests() -> None:
    """What is drawn depends on neither the rate nor what becomes of it."""
    slow = list(Open(STREAMS, 100.0).requests(1.0, 1))
    fast = list(Open(STREAMS, 200.0).requests(1.0, 1))
    assert [(one.model, one.cost_us) for one in slow] == [
        (one.model, one.cost_us) for one in fast[: len(slow)]
    ]


def ends(device: Device[str], until_ns: int = 10**12) -> dict[str, float]:
    """Milliseconds, of all that is on it."""
    found: dict[str, float] = {}
    while (due_ns := device.due_ns()) is not None and due_ns <= until_ns:
        found |= dict.fromkeys(device.ended(due_ns), due_ns / MS)
    return found


def test_two_jobs_that_overlap_share_the_device() -> None:
    """Two of 50 ms take 100 ms each; the device has done 100 ms of work, and 100 ms were spent waiting."""
    device = Device[str]("gpu")
    for name in "ab":
        device.enter(0, 50 * MS, 1.0, name)
    assert ends(device) == {"a": pytest.approx(100), "b": pytest.approx(100)}
    assert (device.work_ns, device.overlap_ns, device.busy_ns) == pytest.approx(
        (100 * MS, 100 * MS, 100 * MS)
    )


def test_a_job_that_comes_later_overlaps_for_a_part() -> None:
    """One of 50 ms is joined after 30 ms: they share for 40 ms, and the second has the rest to itself."""
    device = Device[str]("gpu")
    device.enter(0, 50 * MS, 1.0, "a")
    device.enter(30 * MS, 50 * MS, 1.0, "b")
    assert ends(device) == {"a": pytest.approx(70), "b": pytest.approx(100)}


def test_what_a_device_runs_in_parallel_and_what_overlap_costs() -> None:
    """Three of width 1 on a device for two run at two thirds; with a loss of 10 % each, by 1.2 slower."""
    device = Device[str]("gpu", parallel=2.0)
    for name in "abc":
        device.enter(0, 50 * MS, 1.0, name)
    assert ends(device) == dict.fromkeys("abc", pytest.approx(75))
    device = Device[str]("gpu", parallel=2.0, loss=0.1)
    for name in "abc":
        device.enter(0, 50 * MS, 1.0, name)
    assert ends(device) == dict.fromkeys("abc", pytest.approx(90))
    device = Device[str]("gpu", parallel=2.0)
    device.enter(0, 50 * MS, 0.5, "narrow")
    device.enter(0, 50 * MS, 1.5, "wide")
    assert ends(device) == dict.fromkeys(("narrow", "wide"), pytest.approx(50))


def erlang_c_wait_s(rate: float, service_s: float, servers: int) -> float:
    """The mean wait in an M/M/c queue."""
    load = rate * service_s
    last = load**servers / math.factorial(servers) * servers / (servers - load)
    waits = last / (sum(load**k / math.factorial(k) for k in range(servers)) + last)
    return waits * service_s / (servers - load)


@pytest.mark.parametrize(("servers", "use"), [(1, 0.6), (4, 0.8)])
def test_waits_are_those_of_an_m_m_c_queue(servers: int, use: float) -> None:
    """Exponential jobs on as many devices, in order of arrival, without a link: Erlang's formula."""
    service = Service("m", Linear(10), exponential=True)
    pool = Pool(servers, (service,), link_us=0.0, credits=1)
    rate = use * servers * 100.0
    load = Open((Stream(service, 1.0),), rate)
    record = simulate(load, pool, Setup("fifo"), 24_000 / rate, seed=3)
    waits = [one.queue_s for one in record.ended]
    assert np.mean(waits) == pytest.approx(erlang_c_wait_s(rate, 0.01, servers), rel=0.1)


def test_closed_clients_wait_for_their_answers() -> None:
    """Three clients without a pause on two devices: never more than three at once, and both are always busy."""
    service = Service("m", Linear(10))
    record = simulate(Closed((Stream(service, 1.0),), 3), Pool(2, (service,), link_us=0.0))
    changes = sorted(
        [(one.request.time, 1) for one in record.ended] + [(one.at_s, -1) for one in record.ended]
    )
    assert max(np.cumsum([change for _, change in changes])) <= 3
    assert sum(device.busy_ns for device in record.devices) / 1e9 == pytest.approx(4.0, rel=0.05)


def test_requests_of_a_batch_end_together() -> None:
    """Eight that come at once to one worker run as one, for what eight rows take."""
    requests = [Request(time=0.0, model="batched") for _ in range(8)]
    record = simulate(Replay(requests), Pool(1, (BATCHED,), link_us=0.0))
    assert record.batches == {"batched": [8]}
    assert [one.latency_s for one in record.ended] == pytest.approx([0.007] * 8)


def in_parts(**settings: Any) -> Service:
    """Of 1 ms a row; a run has 4 rows."""
    batching = BatchingSettings(max_batch_size=20, max_execution_batch_size=4, **settings)
    return Service("large", Linear(0, 1), batching=batching)


def test_a_large_request_runs_in_parts_on_several_workers() -> None:
    """16 rows are four parts: on two workers in half the time, and one answer with the work of all."""
    service = in_parts()
    request = Request(time=0.0, model="large", rows=16, bytes=100)
    record = simulate(Replay([request]), Pool(2, (service,), link_us=0.0))
    assert record.batches == {"large": [4, 4, 4, 4]}
    (one,) = record.ended
    assert (one.request, one.outcome) == (request, Outcome.ANSWERED)
    assert (one.latency_s, one.alone_s, one.queue_s) == pytest.approx((0.008, 0.016, -0.008))


@pytest.mark.parametrize("method", ["REST Predict", "MultiInference"])
def test_what_the_router_does_not_take_apart_runs_on_one_worker(method: str) -> None:
    """As long as it takes, and as a full batch."""
    request = Request(time=0.0, model="large", signature=f"{method} serving_default", rows=16)
    record = simulate(Replay([request]), Pool(2, (in_parts(),), link_us=0.0))
    assert [one.latency_s for one in record.ended] == pytest.approx([0.016])
    assert record.batches == {"large": [4]}


def test_what_is_late_has_no_part_in_a_batch() -> None:
    """It waits with its worker, behind a batch that takes three times as long as those before it did."""
    service = Service("m", Linear(0, 1), batching=BatchingSettings(max_batch_size=8))
    requests = [Request(time=n / 10, model="m", rows=8) for n in range(4)]
    requests += [
        Request(time=0.4, model="m", rows=8, cost_us=24_000),
        Request(time=0.401, model="m", rows=4, deadline_ms=19),
        Request(time=0.401, model="m", rows=4),
    ]
    record = simulate(Replay(requests), Pool(1, (service,), link_us=0.0))
    assert record.batches == {"m": [8] * 5 + [4]}
    assert Counter(one.outcome for one in record.ended) == {Outcome.ANSWERED: 6, Outcome.EXPIRED: 1}


@pytest.mark.parametrize("deadline_ms", [0.0, 6.0])
def test_a_request_in_parts_ends_once(deadline_ms: float) -> None:
    """Answered whole, or not at all: as one that has expired when its first part has, or is refused when no room is for all."""
    service = in_parts(max_enqueued_batches=100 if deadline_ms else 4)
    requests = [
        Request(time=n / 200, model="large", rows=4 * (1 + n % 5), deadline_ms=deadline_ms)
        for n in range(400)
    ]
    setup = Setup("plain", refuse_late=False)
    record = simulate(Replay(requests), Pool(2, (service,)), setup, seconds=3.0)
    assert Counter(map(repr, requests)) == Counter(repr(one.request) for one in record.ended)
    outcomes = {one.outcome for one in record.ended}
    assert outcomes == {Outcome.ANSWERED, Outcome.EXPIRED if deadline_ms else Outcome.REFUSED_FULL}


def test_padding_takes_its_time() -> None:
    """Three rows run as four where those are the sizes."""
    service = in_parts(allowed_batch_sizes=[2, 4])
    record = simulate(Replay([Request(time=0.0, model="large", rows=3)]), Pool(1, (service,), link_us=0.0))
    assert [one.latency_s for one in record.ended] == pytest.approx([0.004])
    assert record.batches == {"large": [3]}


def test_what_comes_at_once_fills_no_queue_while_workers_are_idle() -> None:
    """As in the router: three for two workers, of which one may wait."""
    requests = [Request(time=0.0, model="short", cost_us=1e6) for _ in range(8)]
    pool = Pool(2, (dataclasses.replace(SHORT, batching=None),), credits=1)
    record = simulate(Replay(requests), pool, Setup("bounded", max_requests=1))
    assert Counter(one.outcome for one in record.ended) == {
        Outcome.ANSWERED: 3,
        Outcome.REFUSED_FULL: 5,
    }


def test_apart_each_worker_makes_its_own_batches() -> None:
    """The same eight, divided over two workers: two batches of four."""
    requests = [Request(time=0.0, model="batched") for _ in range(8)]
    record = simulate(Replay(requests), Pool(2, (BATCHED,)), Setup("apart", apart=True))
    assert record.batches == {"batched": [4, 4]}


@pytest.mark.parametrize("name", ["trace.jsonl", "trace.csv"])
def test_a_trace_is_read_as_it_was_written(tmp_path: Path, name: str) -> None:
    """Times count from the first request; played, it gives what was played when it was recorded."""
    requests = list(Open(STREAMS, 200.0).requests(1.0, 1))
    trace.write(tmp_path / name, requests)
    found = trace.read(tmp_path / name)
    assert found == [msgspec.structs.replace(one, time=one.time - requests[0].time) for one in requests]
    assert len(simulate(Replay(found, speed=2.0)).ended) == len(requests)


def test_a_table_that_a_spreadsheet_saved_is_read(tmp_path: Path) -> None:
    """It begins with a byte order mark."""
    (tmp_path / "t.csv").write_text("time,model\n1,ä\n2,ä\n", encoding="utf-8-sig")
    assert trace.read(tmp_path / "t.csv") == [Request(time=n, model="ä") for n in (0, 1)]


def test_capacity_is_where_the_limit_is_met() -> None:
    """A worker of 10 ms a job bears less than 100 a second, and more the more its clients put up with."""
    service = Service("m", Linear(10))
    cell = Cell(Pool(1, (service,)), Setup("fifo"), Open((Stream(service, 1.0),), 120.0), 10.0)
    patient, hasty = (Capacity(cell, {"m": limit_ms}, 5.0).run() for limit_ms in (100.0, 30.0))
    assert 20 < hasty < patient < 100


def test_what_has_not_begun_is_not_run_after_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor after Ctrl-C: nobody waits for cells that nobody looks at."""
    over = threading.Event()

    class Threads(ThreadPoolExecutor):
        def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
            super().shutdown(wait=False, cancel_futures=cancel_futures)
            over.set()
            super().shutdown(wait=wait)

    def fail() -> None:
        raise KeyboardInterrupt

    ran: list[int] = []
    monkeypatch.setattr(cell, "ProcessPoolExecutor", lambda _: Threads(1))
    runs = [fail, lambda: over.wait(10), *(lambda n=n: ran.append(n) for n in range(3))]
    tasks: Any = {(n,): SimpleNamespace(run=run) for n, run in enumerate(runs)}
    with pytest.raises(KeyboardInterrupt):
        cell.run_all(tasks, 2, lambda _: None)
    assert not ran


def test_ctrl_c_has_the_exit_status_of_a_shell(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """And no traceback."""

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "run_all", interrupted)
    assert main(["--scenario", "priority", "--results", str(tmp_path)]) == 130
    assert "priority was interrupted" in capsys.readouterr().err


def test_divisions() -> None:
    """Slots by load, shares by max-min, and Jain's index."""
    assert divide(8, {"a": 5.0, "b": 1.0, "c": 0.1}) == {"a": 6, "b": 1, "c": 1}
    assert divide(5, {"a": 0.0, "b": 0.0}) == {"a": 3, "b": 2}
    assert fair_division(10.0, {"a": 1.0, "b": 20.0, "c": 5.0}) == {"a": 1.0, "b": 4.5, "c": 4.5}
    assert jain([2.0, 2.0]) == 1.0
    assert jain([4.0, 0.0]) == 0.5


def longest_body_first(waiting: object) -> float:
    """A policy of one's own."""
    return -getattr(waiting, "size", 0)


def test_the_command_writes_a_table_figures_and_a_plot(tmp_path: Path) -> None:
    """With a policy of one's own beside the scenario's."""
    said = ["--scenario", "priority", "--seconds", "0.3", "--processes", "1", "--results", str(tmp_path)]
    assert main([*said, "--policy", f"{__name__}:longest_body_first"]) == 0
    assert {file.name for file in tmp_path.iterdir()} == {"priority.md", "priority.json", "priority.png"}
    assert "longest_body_first" in (tmp_path / "priority.md").read_text()


def arrival(waiting: Waiting) -> float:
    """A policy of one's own that orders as fifo does."""
    return waiting.arrived_s


@pytest.mark.parametrize("name", [*command.SCENARIOS, "trace"])
def test_a_policy_of_ones_own_runs_by_the_rules_of_fifo(tmp_path: Path, name: str) -> None:
    """In every scenario and each of its tables: on the same pool, under the same load, within the same bounds; where clients share, too."""
    (tmp_path / "t.jsonl").write_text(MINIMAL.replace('"a"', '"a", "client": "1"'))
    module = importlib.import_module(f"bench.sim.scenarios.{command.SCENARIOS.get(name, 'replay')}")
    own = f"{__name__}:arrival"
    tasks = module.tasks(Options(policy=own, trace=tmp_path / "t.jsonl" if name == "trace" else None))
    run = [task.cell if isinstance(task, Capacity) else task for task in tasks.values()]

    def rules(policy: str) -> list[tuple[object, ...]]:
        return [
            (
                one.pool,
                dataclasses.replace(one.setup, title="", policy=""),
                list(itertools.islice(one.load.requests(one.seconds, one.seed), 50)),
                one.seconds,
            )
            for one in run
            if one.setup.policy == policy
        ]

    assert rules(own)
    usual = rules("fifo")
    assert [one for one in rules(own) if one not in usual] == []
    shares = any(one.setup.fair for one in run if one.setup.policy == own)
    assert shares == (name in {"flood", "trace"})


def test_a_policy_that_orders_as_fifo_does_bears_a_flood_as_fifo_does() -> None:
    """The same figures where clients share; without, but for the longer dispatches that only fifo itself has in a backlog."""
    own = f"{__name__}:arrival"
    found = {key: task.run() for key, task in flood.tasks(Options(policy=own, seconds=2.0)).items()}
    assert found["client", f"{own}, clients share"] == found["client", "fifo, clients share"]
    for table, fifo in (("client", "fifo"), ("model", "no limit")):
        mine, its = found[table, own].all, found[table, fifo].all
        assert mine.mean_ms == pytest.approx(its.mean_ms, rel=0.02)
        assert mine.refused_full == pytest.approx(its.refused_full, abs=0.02)
    asked = {key: task.run() for key, task in flood.tasks(Options(policy="fifo", seconds=0.5)).items()}
    assert asked["model", "fifo"] == asked["model", "no limit"]


def too_curious(waiting: object) -> float:
    """A policy of one's own that fails where nothing is known."""
    return float(getattr(waiting, "cost_s", 0))


MINIMAL = '{"time": 0.5, "model": "a"}\n{"time": 0.1, "model": "b"}\n{"time": 0.9, "model": "a"}\n'


def play(tmp_path: Path, text: str, *args: str, name: str = "trace.jsonl") -> str:
    """The table of a trace, played on a device with two workers."""
    (tmp_path / name).write_text(text)
    small = ["--gpus", "1", "--slots", "2", "--processes", "1", "--results", str(tmp_path)]
    assert main(["--trace", str(tmp_path / name), *small, *args]) == 0
    return (tmp_path / "trace.md").read_text()


def test_the_command_plays_a_trace_of_times_and_models(tmp_path: Path) -> None:
    """That is all that must be there; a mean of 1 ms stands for the costs, and the slots are divided by it."""
    found = play(tmp_path, MINIMAL)
    assert "trace.jsonl: 3 requests in 0.8 s, 3.75 a second: a 2, b 1." in found
    assert "1 device with 2 workers (b 1, a 1)." in found
    assert titles(found) == [
        "fifo",
        "sjf",
        "sjf, slow lane 1",
        "fifo, at most 1",
        "fifo, batching",
        "sjf, batching",
    ]
    assert (tmp_path / "trace.png").read_bytes().startswith(b"\x89PNG")
    found = play(tmp_path, "time,model\n7,a\n8,a\n", "--rate", "5", name="trace.csv")
    assert "trace.csv: 2 requests in 1 s, 2 a second: a 2.\nPlayed 2.5 times as fast, 5 a second." in found
    assert "What a decision costs" not in found


def test_the_workers_of_each_model_can_be_said(tmp_path: Path) -> None:
    """In any order; and are in the report and its figures."""
    found = play(tmp_path, MINIMAL, "--slots", "a=1,b=3")
    assert "1 device with 4 workers (b 3, a 1)." in found
    assert "sjf, slow lane 2" in titles(found)
    assert json.loads((tmp_path / "trace.json").read_text())["options"]["slots_of"] == {"a": 1, "b": 3}


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ("a=1", "--slots has no workers of b, which the trace asks for; add b=1, or give the number of all"),
        ("a=1,b=1,c=2", "--slots has c, of which the trace has no request; leave out what is none of b, a"),
    ],
)
def test_workers_are_of_the_models_of_the_trace(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], said: str, why: str
) -> None:
    """Of all of them, and of no other; exit status 2, and no files."""
    (tmp_path / "t.jsonl").write_text(MINIMAL)
    folder = tmp_path / "results"
    assert main(["--trace", str(tmp_path / "t.jsonl"), "--slots", said, "--results", str(folder)]) == 2
    assert f"bench.sim: {why}" in capsys.readouterr().err
    assert not folder.exists()


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ("a=2,b", "'b' is no model with a whole number of 1 or more; give one for each, as in"),
        ("a=0", "'a=0' is no model with a whole number of 1 or more"),
        ("=2", "'=2' is no model with a whole number of 1 or more"),
        ("a=1,a=2", "'a' is there twice; give one number for each model"),
        ("a=1", "--slots with the workers of each model is for --trace"),
    ],
)
def test_workers_of_models_are_said_in_one_way(
    capsys: pytest.CaptureFixture[str], said: str, why: str
) -> None:
    """What is wrong, and how it is right; of a scenario's own models nothing can be said."""
    with pytest.raises(SystemExit) as error:
        main(["--scenario", "flood", "--slots", said])
    assert error.value.code == 2
    assert why in capsys.readouterr().err


def titles(report: str) -> list[str]:
    """Of its rows."""
    return [row[""] for row in cells(report)]


def cells(report: str) -> list[dict[str, str]]:
    """The rows of its table, by column."""
    header, _, *rows = [
        [cell.strip() for cell in line[2:-2].split("|")] for line in report.splitlines() if line[:1] == "|"
    ]
    return [dict(zip(header, row, strict=True)) for row in rows]


def test_a_trace_that_is_played_faster_is_over_sooner(tmp_path: Path) -> None:
    """What is asked for in a second is what --rate says, and answers are counted over that time alone."""
    steady = "".join(f'{{"time": {n / 100}, "model": "a", "cost_us": 500}}\n' for n in range(1000))
    fifo = cells(play(tmp_path, steady, "--rate", "800"))[0]
    assert float(fifo["asked/s"]) == pytest.approx(800, rel=0.02)
    assert float(fifo["answers/s"]) == pytest.approx(800, rel=0.02)
    assert fifo["unanswered at the end"] == "0 %"
    fifo = cells(play(tmp_path, steady, "--seconds", "1000"))[0]
    assert float(fifo["asked/s"]) == pytest.approx(100, rel=0.02)


def test_nothing_happens_while_a_trace_is_silent() -> None:
    """A year between two requests is no year of looks at the deadlines, and those after it are looked at, too."""

    class Counted(Simulation):
        events = 0

        def at(self, at_ns: int, call: Any, what: object) -> None:
            self.events += 1
            assert self.events < 100
            super().at(at_ns, call, what)

    times = (0.0, 0.01, 3e7, 3e7 + 0.01)
    load = Replay([Request(time=at_s, model="long", cost_us=3e5, deadline_ms=100) for at_s in times])
    record = Counted(Pool(1, (LONG,)), Setup("late ones kept", refuse_late=False), load, 4e7, 1).run()
    assert [round(one.at_s - one.request.time, 3) for one in record.ended] == [0.1, 0.19, 0.1, 0.19]
    assert {one.outcome for one in record.ended} == {Outcome.EXPIRED}


def test_what_was_never_answered_shows(tmp_path: Path) -> None:
    """What still waited at the end; a model none of whose requests was answered; one that nobody asked for in time."""
    busy = "".join(f'{{"time": {n / 1000}, "model": "a", "cost_us": 4000}}\n' for n in range(1000))
    hopeless = "".join(
        f'{{"time": {n / 20}, "model": "b", "cost_us": 9000, "deadline_ms": 1}}\n' for n in range(20)
    )
    found = play(tmp_path, busy + hopeless + '{"time": 0.01, "model": "c"}\n')
    fifo = cells(found)[0]
    assert float(fifo["asked/s"]) == pytest.approx(1020, rel=0.02)
    assert fifo["unanswered at the end"] == "89 %"
    assert fifo["a p99"].endswith(", 89 % unanswered")
    assert fifo["b p99"] == "none of 17 answered"
    assert fifo["c p99"] == "none asked"
    assert "**Every row: 5 % or more was left unanswered.**" in found


def test_one_request_is_no_overload(tmp_path: Path) -> None:
    """The last of a trace arrives when it ends, and so is never answered by then; two may be one."""
    idle = "".join(f'{{"time": {n / 10}, "model": "a", "cost_us": 5000}}\n' for n in range(12))
    found = play(tmp_path, idle)
    assert cells(found)[0]["unanswered at the end"] == "10 %"
    assert cells(found)[0]["a p99"] == "5.1"
    assert "was left unanswered" not in found
    found = play(tmp_path, idle + '{"time": 1.1, "model": "a", "cost_us": 5000}\n')
    assert cells(found)[0]["a p99"].endswith(", 18 % unanswered")
    assert "**Every row: 5 % or more was left unanswered.**" in found


def test_names_mean_nothing_to_matplotlib(tmp_path: Path) -> None:
    """Neither "$" in a model's nor a leading "_" in a policy's."""
    play(tmp_path, MINIMAL.replace('"a"', '"$\\\\frac$"'))
    assert (tmp_path / "trace.png").read_bytes().startswith(b"\x89PNG")
    figure = Figure()
    axes = figure.subplots()
    names = ["_mine:first", "$\\frac$"]
    legend(figure, axes.plot([[1, 2]]), names, loc="lower center")
    figure.savefig(tmp_path / "legend.png")
    assert [text.get_text() for text in figure.legends[0].get_texts()] == names


def test_capacity_is_compared_with_fifo_and_drawn_from_nothing() -> None:
    """In the table of `ocr` and in its plot, where times have plain numbers beside them."""
    part = Part(*[250.0] * len(dataclasses.fields(Part)))
    services = dict.fromkeys(("cnn", "rnn_en", "rnn_zh"), part)
    every = Figures(part, services, {}, {}, [DeviceFigures(0.5, 0.4, 0.1)], 1.0)
    found: dict[cell.Key, Any] = {
        key: {"fifo": 200.0, "sjf": 250.0}.get(str(key[1]), 150.0) if key[0] == "capacity" else every
        for key in ocr.tasks(Options())
    }
    rows = [line for line in ocr.lines(found, Options()) if line.startswith(("| fifo |", "| sjf |"))]
    assert "200 (+0%)" in rows[0]
    assert "250 (+25%)" in rows[1]
    figure = Figure()
    ocr.draw(found, Options(), figure)
    figure.canvas.draw()
    *_, zh, _, _, capacity = figure.axes
    assert capacity.get_ylim()[0] == 0
    assert {label.get_text() for label in zh.get_yticklabels()} >= {"200"}
    assert not any("$" in label.get_text() for label in zh.get_yticklabels(which="both"))


def test_a_name_ends_no_cell(tmp_path: Path) -> None:
    """Whatever is in it: each row has as many cells as the header."""
    found = play(
        tmp_path, '{"time": 1, "model": "a|b"}\n{"time": 2, "model": "a|b"}\n{"time": 1.5, "model": "c"}\n'
    )
    rows = [line for line in found.splitlines() if line[:1] == "|"]
    assert r" a\|b p99 |" in rows[0]
    assert len({row.replace(r"\|", "").count("|") for row in rows}) == 1


def test_what_cannot_differ_has_no_row() -> None:
    """Limits are within the workers on a device; round robin takes several of a model, edf deadlines, shares clients."""

    def setups(slots: int, gpus: int = 1, **what: bool) -> list[str]:
        pool = Pool(gpus, (SHORT,), {"short": slots})
        return [setup.title for setup in compare.setups(pool, "", **what)]

    assert setups(1, deadlines=False) == ["fifo", "sjf", "fifo, batching", "sjf, batching"]
    assert setups(1) == ["fifo", "sjf", "edf", "fifo, batching", "sjf, batching", "edf, batching"]
    assert "fifo, round robin" in setups(1, gpus=2)
    assert {"sjf, slow lane 1", "fifo, at most 1", "fifo, round robin"} < set(setups(2))
    assert {"sjf, slow lane 2", "sjf, slow lane 4", "fifo, at most 6"} < set(setups(8))
    shares = {"fifo, clients share", "fifo, batching, clients share"}
    assert not shares & set(setups(8))
    assert shares < set(setups(8, clients=True))


def test_clients_of_a_trace_share(tmp_path: Path) -> None:
    """Beside fifo; and how fair each row is."""
    flood = "".join(
        f'{{"time": {n / 1000}, "model": "a", "cost_us": 4000, "client": "{int(n % 20 > 0)}"}}\n'
        for n in range(1000)
    )
    rows = {row[""]: row for row in cells(play(tmp_path, flood))}
    assert float(rows["fifo"]["fairness"]) < 0.9
    assert float(rows["fifo, clients share"]["fairness"]) > 0.95


def test_a_policy_of_ones_own_runs_with_batching_and_without(tmp_path: Path) -> None:
    """As those do that it is compared with."""
    name = f"{__name__}:longest_body_first"
    found = {row[""]: row for row in cells(play(tmp_path, 50 * MINIMAL, "--policy", name))}
    assert not found[name]["rows a batch"]
    assert found[f"{name}, batching"]["rows a batch"].startswith("a ")
    asked = [setup for setup in compare.setups(POOL, "sjf") if setup.policy == "sjf" and not setup.long]
    assert [setup.title for setup in asked] == ["sjf", "sjf, batching"]


def test_the_device_of_a_trace_can_be_said(tmp_path: Path) -> None:
    """And what it is, is in the report."""
    found = play(tmp_path, MINIMAL, "--parallel", "1.5", "--loss", "0")
    assert "A device runs 1.5 jobs at full speed, each overlap costs 0 of its speed." in found
    said = json.loads((tmp_path / "trace.json").read_text())["options"]
    assert (said["parallel"], said["loss"], said["seed"]) == ("1.5", "0.0", "1")
    assert {"rate", "seconds", "policy"}.isdisjoint(said)
    assert compare.loss(Options()) == 0.01


@pytest.mark.parametrize("largest", [32, 40])
def test_the_largest_request_of_a_trace_fits_into_a_batch(tmp_path: Path, largest: int) -> None:
    """As it must in a pool, which refuses what is larger; and the report says how large batches are."""
    text = MINIMAL + f'{{"time": 0.2, "model": "b", "rows": {largest}}}\n'
    why = ", as the largest request has," if largest > 32 else ""
    assert f"With batching, a batch has {largest} rows at most{why} and waits only" in play(tmp_path, text)
    requests = trace.read(tmp_path / "trace.jsonl")
    sizes = [one.batching.max_batch_size for one in costs.of_trace(requests) if one.batching]
    assert sizes == [largest, largest]


def test_a_trace_of_which_nothing_is_answered_has_a_report(tmp_path: Path) -> None:
    """And an empty plot."""
    hopeless = "".join(
        f'{{"time": {n / 20}, "model": "b", "cost_us": 9000, "deadline_ms": 0.01}}\n' for n in range(20)
    )
    assert cells(play(tmp_path, hopeless))[0]["b p99"] == "none of 17 answered"


def test_what_is_not_the_scenarios_own_does_not_replace_the_results(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It goes to ./sim-results; the last line says where."""
    committed = tmp_path / "committed"
    monkeypatch.setattr(command, "_RESULTS", committed)
    monkeypatch.setattr(command, "SCENARIOS", {"fleet": "replay"})  # quicker
    monkeypatch.setattr(
        replay, "_read", functools.cache(lambda _: [Request(time=n, model="a") for n in (0, 1)])
    )
    monkeypatch.setattr(replay, "lines", lambda *_: iter(()))
    monkeypatch.chdir(tmp_path)
    assert main(["--processes", "1"]) == 0
    assert (committed / "fleet.md").exists()
    said = ["--gpus 1", "--slots 2", "--rate 9", "--seconds 2", "--seed 2", "--policy sjf", "--loss 0"]
    for number, one in enumerate(said):
        monkeypatch.setattr(command, "_RESULTS", tmp_path / f"none{number}")
        capsys.readouterr()
        assert main(["--processes", "1", *one.split()]) == 0
        last = capsys.readouterr().out.splitlines()[-1]
        assert last == "written: sim-results/fleet.md, sim-results/fleet.json, sim-results/fleet.png"
    assert {file.name for file in tmp_path.iterdir()} == {"committed", "sim-results"}


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ("--gpus 0", "no whole number of 1 or more"),
        ("--gpus -1", "no whole number of 1 or more"),
        ("--slots two", "no whole number of 1 or more"),
        ("--processes 0", "no whole number of 1 or more"),
        ("--rate -3", "no number above 0"),
        ("--seconds 0", "no number above 0"),
        ("--rate inf", "no number above 0"),
        ("--parallel nan", "no number above 0"),
        ("--loss 2", "no number from 0 to 1"),
    ],
)
def test_a_number_that_cannot_be_is_refused(capsys: pytest.CaptureFixture[str], said: str, why: str) -> None:
    """By its option and value, with what to do; exit status 2."""
    option, value = said.split()
    with pytest.raises(SystemExit) as error:
        main([option, value])
    assert error.value.code == 2
    assert (
        f"argument {option}: '{value}' is {why}; give one, or leave the option out for its default"
        in capsys.readouterr().err
    )


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ("--scenario ocr --seconds 0.01", "ocr: nothing of rnn_en arrived in 0.01 s"),
        ("--scenario priority --seconds 0.01", "priority: nothing of urgent arrived in 0.01 s"),
        ("--scenario deadlines --seconds 0.005", "deadlines: nothing of patient arrived in 0.005 s"),
        ("--scenario batching --seconds 0.01", "batching: nothing arrived in 0.01 s"),
        ("--scenario flood --seconds 0.001", "flood: nothing of the others arrived in 0.001 s"),
        ("--trace {folder}/t.jsonl --seconds 0.001", "trace: nothing arrived in 0.001 s"),
    ],
)
def test_too_short_a_time_is_said_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], said: str, why: str
) -> None:
    """What did not arrive in it, and what to do; exit status 2, and no files."""
    (tmp_path / "t.jsonl").write_text(MINIMAL.replace("0.1", "0.4999"))
    folder = tmp_path / "results"
    words = said.format(folder=tmp_path).split()
    assert main([*words, "--processes", "1", "--results", str(folder)]) == 2
    assert f"bench.sim: {why} (the first 15 % of it does not count); give more --seconds" in (
        capsys.readouterr().err
    )
    assert not list(folder.iterdir())


@pytest.mark.parametrize(
    ("apart_s", "said", "remedy"),
    [
        (1e-9, "", "a trace whose times are in seconds"),
        (1e-9, "--seconds 5", "a trace whose times are in seconds"),
        (0.5, "--rate 1e9", "a lower --rate"),
    ],
)
def test_too_short_a_trace_is_not_helped_by_more_seconds(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], apart_s: float, said: str, remedy: str
) -> None:
    """It is played to its end already."""
    (tmp_path / "t.jsonl").write_text("".join(f'{{"time": {t}, "model": "a"}}\n' for t in (0, apart_s)))
    words = [*said.split(), "--processes", "1", "--results", str(tmp_path)]
    assert main(["--trace", str(tmp_path / "t.jsonl"), *words]) == 2
    told = f"trace: nothing arrived in its time (the first 15 % of it does not count); give {remedy}\n"
    assert told in capsys.readouterr().err


def test_a_folder_that_cannot_be_made_is_said_so_before_anything_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which, why, and what to do; exit status 2."""
    monkeypatch.setattr(command, "run_all", lambda *_: pytest.fail("it ran"))
    (tmp_path / "file").touch()
    folder = tmp_path / "file" / "results"
    assert main(["--scenario", "priority", "--results", str(folder)]) == 2
    assert f"cannot write to {folder}: Not a directory; name another folder with --results" in (
        capsys.readouterr().err
    )


@pytest.mark.parametrize("kind", ["md", "json", "png"])
def test_a_disk_that_is_full_leaves_the_report_on_standard_output(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str
) -> None:
    """Why the files are not there, and what to do; exit status 2."""
    (tmp_path / "a.csv").write_text("time,model\n7,a\n8,a\n7.5,a\n")
    (tmp_path / f"trace.{kind}").symlink_to("/dev/full")
    said = ["--trace", str(tmp_path / "a.csv"), "--results", str(tmp_path), "--processes", "1"]
    assert main(said) == 2
    out, err = capsys.readouterr()
    assert titles(out)
    assert f"cannot write to {tmp_path}: No space left on device; name another folder with --results" in err


def test_a_trace_whose_name_is_no_text_has_a_report(tmp_path: Path) -> None:
    """File systems know bytes alone."""
    found = play(tmp_path, "time,model\n7,a\n8,a\n7.5,a\n", name="t\udcff.csv")
    assert "t\ufffd.csv: 3 requests" in found


def test_a_trace_comes_through_a_pipe(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As of a file that is packed: it is read once."""
    reading, writing = os.pipe()
    os.write(writing, MINIMAL.encode())
    os.close(writing)
    said = ["--gpus", "1", "--processes", "1", "--results", str(tmp_path)]
    assert main(["--trace", f"/dev/fd/{reading}", *said]) == 0
    os.close(reading)
    assert "3 requests in 0.8 s" in capsys.readouterr().out


def test_what_a_batch_costs_is_told_by_requests_of_several_sizes(tmp_path: Path) -> None:
    """The line through what they took: then batches are worth something. Of one size alone nobody knows, and the report says so."""
    lines = [
        {"time": n / 60, "model": "a", "rows": rows, "cost_us": 30_000 + 7_500 * (rows - 1)}
        for n, rows in enumerate([1, 1, 1, 1, 4] * 60)
    ]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    found = play(tmp_path, text, "--gpus", "1", "--slots", "1", "--loss", "0")
    assert (
        "A batch of a takes 22.5 ms and 7.5 ms for each row, as requests of 1 to 4 rows did, and goes on so"
        in found
    )
    rows = {row[""]: row for row in cells(found)}
    assert float(rows["fifo"]["answers/s"]) < 35
    assert float(rows["fifo, batching"]["answers/s"]) > 50
    found = play(tmp_path, "".join(json.dumps({**line, "rows": 1}) + "\n" for line in lines))
    assert (
        "**What it saves to join requests of a is not known: the trace has the costs of one number of rows"
        in found
    )


@pytest.mark.parametrize(
    ("took_ms", "line"),
    [
        ({1: 8, 2: 7}, (7.5, 0)),
        ({1: 1, 2: 4}, (0, 1.5)),
        ({2: 8}, (0, 4)),
        ({}, (0, 1)),
    ],
)
def test_neither_part_of_a_cost_is_below_0(took_ms: dict[int, float], line: tuple[float, float]) -> None:
    requests = [Request(time=0.0, model="a", rows=rows, cost_us=1000 * ms) for rows, ms in took_ms.items()]
    (service,) = costs.of_trace([*requests, Request(time=1.0, model="a", rows=3)])
    base_ms, row_ms = line
    assert [service.alone_ns(rows) / MS for rows in (1, 9)] == pytest.approx(
        [base_ms + row_ms, base_ms + 9 * row_ms]
    )


def test_a_cost_that_a_trace_lacks_is_that_of_its_like() -> None:
    """Of the same model, signature and rows; the report says how many there are."""
    requests = [
        Request(time=0.0, model="a", rows=2, cost_us=9000),
        Request(time=0.1, model="a", rows=2, signature="s", cost_us=4000),
        Request(time=0.2, model="a", rows=1, cost_us=1000),
        Request(time=0.3, model="a", rows=2),
        Request(time=0.4, model="a", rows=2, signature="s"),
    ]
    services = costs.of_trace(requests)
    assert [one.cost_us for one in costs.with_costs(requests, services)] == [9000, 4000, 1000, 9000, 4000]
    assert [*costs.told(requests, services)][-1].startswith("2 of 5 requests have no cost_us: ")


def test_what_a_trace_does_not_tell_is_taken_for_the_mean() -> None:
    """Of what it tells about the same model, by rows; of nothing, a millisecond."""
    requests = [
        Request(time=0.0, model="a", rows=2, cost_us=8000),
        Request(time=0.1, model="a"),
        Request(time=0.2, model="b"),
    ]
    services = {one.name: one for one in costs.of_trace(requests)}
    assert [services[name].alone_ns(1) / MS for name in "ab"] == pytest.approx([4, 1])
    told = costs.with_costs(requests, services.values())
    assert costs.loads_of(told) == pytest.approx({"a": 12, "b": 1})


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("t.jsonl", "", "there is no request in it"),
        ("t.csv", "time,model\n", "there is no request in it"),
        ("t.csv", "time,model\n7,a\n7,b\n", "all of it arrives at time 7"),
        (
            "t.jsonl",
            '{"time": 1, "model": "a"}\n\n{"time": "x", "model": "a"}\n',
            """line 3, '{"time": "x", """,
        ),
        ("t.jsonl", '{"model": "a"}\n', "missing required field `time`"),
        ("t.jsonl", '{"time": 1, "model": "a", "rows": 0}\n', "Expected `int` >= 1 - at `$.rows`"),
        ("t.jsonl", "time,model\n1,a\n", "line 1, 'time,model': "),
        ("t.jsonl", "\x80", "line 1"),
        ("t.csv", "time,model\n1,a\nsoon,a\n", "line 3, 'soon,a': Expected `float`"),
        ("t.csv", "time,model\nnan,a\n", "line 2, 'nan,a': time, cost_us or deadline_ms is not finite"),
        ("t.csv", "time,model\n1,a,b\n", "line 2, '1,a,b': more values than names"),
        ("t.csv", "time,model,rows\n1,a\n", "line 2, '1,a': fewer values than names"),
        ("t.csv", "time,model,rws\n1,a,2\n", "line 1: 'rws' is no name of a trace; did you mean rows?"),
        (
            "t.jsonl",
            '{"time": 1, "model": "a", "priority": 1000}\n',
            "Expected `int` <= 999 - at `$.priority`",
        ),
        ("t.csv", "1,a\n2,a\n", "line 1: '1' is no name of a trace; a line is as"),
        (
            "t.jsonl",
            '{"time": 1, "model": "a"}\n{"time": 2, "model": "a", "deadline": 9}\n',
            """line 2, '{"time": 2, "model": "a", "deadline": 9}': Object contains unknown field `deadline`""",
        ),
        (
            "t.csv",
            "time,model,deadline\n1,a,9\n",
            "line 1: 'deadline' is no name of a trace; did you mean deadline_ms?",
        ),
    ],
)
def test_what_is_no_trace_is_said_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, text: str, said: str
) -> None:
    """The file, the line and what is there; and what a line has to be."""
    (tmp_path / name).write_text(text)
    assert main(["--trace", str(tmp_path / name), "--results", str(tmp_path)]) == 2
    found = capsys.readouterr().err
    assert str(tmp_path / name) in found
    assert said in found
    assert "`mpspool record`" in found
    assert "time, model, version, signature, rows, bytes, cost_us, client, priority, deadline_ms" in found
    assert [file.name for file in tmp_path.iterdir()] == [name]


def test_a_trace_that_cannot_be_read_is_said_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A file that is not there, and a scenario that plays none."""
    assert main(["--trace", str(tmp_path / "none.jsonl")]) == 2
    assert f"cannot read {tmp_path / 'none.jsonl'}: No such file" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["--trace", "day.jsonl", "--scenario", "ocr"])
    assert "--trace is played instead of a scenario" in capsys.readouterr().err
    for scenario, option in (("ocr", "--loss"), ("fleet,flood", "--rate")):
        with pytest.raises(SystemExit):
            main(["--scenario", scenario, option, "0.1"])
        said = "--rate, --parallel and --loss are for --trace and --scenario fleet"
        assert said in capsys.readouterr().err


def test_deadlines_of_a_fleet_differ_within_a_model() -> None:
    """Or `edf` would be `fifo` there; and each model's parts add up to its own."""
    parts = Counter(stream.service.name for stream in fleet.STREAMS)
    deadlines = {(stream.service.name, stream.deadline_ms) for stream in fleet.STREAMS}
    assert set(parts.values()) == {2}
    assert len(deadlines) == len(fleet.STREAMS)


def test_a_policy_that_is_not_there_is_said_so(capsys: pytest.CaptureFixture[str]) -> None:
    """Before anything runs."""
    for name, said in (
        ("nowhere", "'nowhere' is neither built in ("),
        ("no.where:x", "there is no module no; install it beside mpspool, or put its folder on PYTHONPATH"),
    ):
        with pytest.raises(SystemExit):
            main(["--policy", name])
        assert f"--policy {name}: " in (told := capsys.readouterr().err)
        assert said in told


def test_a_policy_that_fails_is_said_so(tmp_path: Path) -> None:
    """Its row would be taken for its own, and is that of the order of arrival for each request on which it failed."""
    name = f"{__name__}:too_curious"
    found = play(tmp_path, 50 * MINIMAL, "--policy", name)
    assert f"**{name} failed on up to " in found
    assert "in the order of arrival: TypeError: float() argument must be" in found
    assert "failed on" not in play(tmp_path, 50 * MINIMAL, "--policy", f"{__name__}:longest_body_first")


def test_the_policy_of_the_example_runs_as_its_readme_says(tmp_path: Path) -> None:
    """In a clone, without installing it."""
    root = Path(__file__).parents[2]
    lines = (root / "examples" / "policy" / "README.md").read_text().splitlines()
    said = next(line.strip() for line in lines if "python -m bench.sim" in line)
    words = f"{said} --scenario priority --seconds 0.3 --processes 1 --results {tmp_path}"
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    subprocess.run(words, shell=True, cwd=root, env=os.environ | {"PATH": path}, check=True)
    assert "small_first" in (tmp_path / "priority.md").read_text()
