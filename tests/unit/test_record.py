"""`mpspool record`: what the router tells becomes a trace, or an error that says why there is none."""

from __future__ import annotations

import asyncio
import json
import resource
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from bench.sim import trace
from bench.sim.trace import Request
from mpspool.cli import main
from mpspool.core.control import ControlServer, Message
from mpspool.core.rundir import RunDir
from mpspool.supervisor import lock
from mpspool.supervisor.commands import ask, record
from mpspool.supervisor.commands.errors import CommandError
from tests.conftest import short_dir

ROWS = [
    {"time": 0.25, "model": "a", "version": 3, "rows": 2, "bytes": 80, "cost_us": 900.5, "client": "1"},
    {"time": 0.125, "model": "b", "version": 1, "rows": 1, "bytes": 40, "priority": 5, "deadline_ms": 99.5},
    {"time": 0.5, "model": "a", "version": 3, "rows": 1, "bytes": 40, "signature": "other"},
]
ENDED = {"ended": True}


def piece(*rows: dict[str, Any], dropped: int = 0, simulated: str = "") -> Message:
    return {"requests": list(rows), "dropped": dropped, "simulated": simulated}


@pytest.fixture
def run() -> Iterator[RunDir]:
    with short_dir() as root:
        yield RunDir(root)


def recorded(
    run: RunDir, pieces: list[Message], output: Path, *args: str, workers: tuple[str, ...] = ()
) -> tuple[Result, list[Message]]:
    """The command on a router that tells this, in a pool with these workers, each a device and a model, of version 1 or as it says, and two of an idle model, each pinned to two CPUs; and what that was asked."""
    asked = []

    async def arrivals(request: Message) -> AsyncIterator[Message]:
        asked.append(request)
        for one in pieces:
            yield one

    async def status(_: Message) -> AsyncIterator[Message]:
        there = []
        for cpu, one in enumerate((*workers, "gpu0 idle", "gpu7 idle")):
            device, name = one.split(" ", 1)
            model, _, version = name.partition("@")
            place = {"device": device, "cpus": [cpu, cpu + 1]}
            there.append({"model": model, "version": int(version or 1), **place})
        yield {"workers": there}

    async def scenario() -> Result:
        server = ControlServer(run.router_control, {"arrivals": arrivals})
        pool = ControlServer(run.pool_control, {"status": status})
        await server.start()
        await pool.start()
        command = ["record", "--run-dir", str(run.root), "-o", str(output), *args]
        try:
            return await asyncio.to_thread(CliRunner().invoke, main, command)
        finally:
            await pool.close()
            await server.close()

    return asyncio.run(scenario()), asked


def test_what_is_told_is_a_trace(run: RunDir, tmp_path: Path) -> None:
    """A line for each request, which the simulation reads; what was there before is replaced; how to go on is said."""
    output = tmp_path / "a day.jsonl"
    output.write_text("old\n")
    pieces = [piece(), piece(*ROWS[:2]), piece(ROWS[2], dropped=1234, simulated="gpus"), ENDED]
    done, asked = recorded(run, pieces, output, "--for", "2m", workers=2 * ("gpu0 a", "gpu1 a"))
    assert (done.exit_code, asked) == (0, [{"for_s": 120}])
    assert "Ctrl-C ends it" in done.stdout
    assert "3 requests in 120 s, 0.025 a second: a 2, b 1" in done.stdout
    assert ": a 2, b 1, SIMULATED gpus\n1,234 more came faster" in done.stdout
    assert f"python -m bench.sim --trace '{output}' --gpus 2 --slots 2\n" in done.stdout
    assert [json.loads(line) for line in output.read_text().splitlines()] == ROWS
    assert trace.read(output) == [
        Request(**{**row, "time": row["time"] - 0.125}) for row in (ROWS[1], ROWS[0], ROWS[2])
    ]


@pytest.mark.parametrize(
    ("workers", "said"),
    [
        (("gpu0 a", "gpu1 a", "gpu0 b", "gpu1 a", "gpu0 a", "gpu1 b"), "--gpus 2 --slots a=2,b=1"),
        (("gpu0 a", "gpu0 a", "gpu0 b", "gpu1 a", "gpu1 b", "gpu1 b"), "--gpus 2 --slots 3"),
        (("gpu0 a", "gpu1 b"), "--gpus 2 --slots 1"),
        (("gpu0 a", "gpu0 a"), "--gpus 1 --slots 2"),
        (("gpu0 a", "gpu0 a", "gpu0 b", "gpu0 a@2"), "--gpus 1 --slots a=2,b=1"),
        (("cpu0 a", "cpu0 b"), "--gpus 1 --slots a=1,b=1 --parallel 3"),
        (("cpu0 a", "cpu0 a", "cpu1 a"), "--gpus 2 --slots 2 --parallel 3"),
        (("cpu0 a", "cpu0 a", "cpu0 other"), "--gpus 1 --slots 2 --parallel 3"),
        (("cpu0 a", "gpu0 b"), "--gpus 2 --slots 1"),
    ],
)
def test_the_workers_of_each_model_are_said_where_all_devices_have_the_same(
    run: RunDir, tmp_path: Path, workers: tuple[str, ...], said: str
) -> None:
    """As many as any device has otherwise, and where a model of the trace has gone; those of a version that takes another's place are not both counted. CPU slots run at full speed on as many CPUs as they have."""
    output = tmp_path / "t.jsonl"
    done, _ = recorded(run, [piece(*ROWS), ENDED], output, workers=workers)
    assert f"--trace {output} {said}\n" in done.stdout


def test_names_are_said_as_a_shell_takes_them(run: RunDir, tmp_path: Path) -> None:
    """Whatever is in them; what the option would take for two is not said."""
    output = tmp_path / "t.jsonl"
    for name, said in (("a b=c", "'a b=c=1'"), ("a,b", "1")):
        rows = [{**row, "model": name} for row in ROWS]
        done, _ = recorded(run, [piece(*rows), ENDED], output, workers=(f"gpu0 {name}",))
        assert f" --gpus 1 --slots {said}\n" in done.stdout


def test_figures_are_written_out(run: RunDir, tmp_path: Path) -> None:
    """Of a long time, and of many requests, as elsewhere: in no power of ten."""
    rows = [{**ROWS[2], "time": one / 1000} for one in range(2000)]
    done, _ = recorded(run, [piece(*rows), ENDED], tmp_path / "t.jsonl", "--for", "1s")
    assert "2,000 requests in 1 s, 2,000 a second: a 2,000" in done.stdout
    done, _ = recorded(run, [piece(*ROWS), ENDED], tmp_path / "t.jsonl", "--for", "30m")
    assert "3 requests in 1,800 s, 0.00167 a second" in done.stdout


def test_one_request_is_one(run: RunDir, tmp_path: Path) -> None:
    """It tells no rate: nothing is said of playing it."""
    done, _ = recorded(
        run, [piece(ROWS[0]), ENDED], tmp_path / "t.jsonl", "--for", "10s", workers=("cpu0 a",)
    )
    assert done.exit_code == 0
    assert done.stdout.splitlines()[1:] == ["1 request in 10 s, 0.1 a second: a 1"]


def test_nothing_told_is_no_trace(run: RunDir, tmp_path: Path) -> None:
    """And what was there stays."""
    output = tmp_path / "day.jsonl"
    output.write_text("old\n")
    done, _ = recorded(run, [piece(), piece(), ENDED], output)
    assert done.exit_code == 1
    assert "no trace was written: nothing arrived in " in done.stderr
    assert output.read_text() == "old\n"


@pytest.mark.parametrize(
    ("pieces", "said"),
    [
        ([piece(), piece(ROWS[0])], "the router went away before the end (it closed the connection)"),
        ([piece(), piece(ROWS[0]), {"error": "ValueError: no"}], "(ValueError: no)"),
    ],
)
def test_a_router_that_goes_away_leaves_what_there_is(
    run: RunDir, tmp_path: Path, pieces: list[Message], said: str
) -> None:
    """The trace ends there, and the command says so."""
    done, _ = recorded(run, pieces, tmp_path / "t.jsonl")
    assert done.exit_code == 1
    assert said in done.stderr
    assert "the trace ends there" in done.stderr
    assert json.loads((tmp_path / "t.jsonl").read_text()) == ROWS[0]


def test_ctrl_c_keeps_what_there_is(run: RunDir, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is an end like any other."""

    def told(*_: object) -> Iterator[Message]:
        yield piece(ROWS[0])
        raise KeyboardInterrupt

    monkeypatch.setattr(ask, "observed", told)
    record.record(run, 3600, tmp_path / "t.jsonl")
    assert json.loads((tmp_path / "t.jsonl").read_text()) == ROWS[0]


def test_without_a_pool_it_says_so(run: RunDir, tmp_path: Path) -> None:
    """With what to do; a pool whose router is silent is another matter."""
    done = CliRunner().invoke(main, ["record", "--run-dir", str(run.root), "-o", str(tmp_path / "t.jsonl")])
    assert done.exit_code == 1
    assert f"no pool runs in {run.root}; start one with `mpspool start`" in done.stderr
    assert not list(tmp_path.iterdir())


def test_a_router_that_does_not_answer(run: RunDir, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The pool is named, and where to look."""
    monkeypatch.setattr(lock, "holder", lambda _: 4711)
    monkeypatch.setattr(ask, "PATIENCE_S", 0.0)
    with pytest.raises(CommandError, match="the router of the pool of process 4711 does not answer"):
        record.record(run, 1, tmp_path / "t.jsonl")


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--for", "soon"], "'--for': 'soon' is no time"),
        (["--for", "0.5ms"], "'--for': 0.0005 is not in the range x>=0.001"),
        (["-o", "/nowhere/t.jsonl"], "cannot write '/nowhere/t.jsonl': there is no folder '/nowhere'"),
        (["-o", "t.csv"], "'t.csv': a trace is recorded as JSON lines; name it .jsonl"),
    ],
)
def test_what_cannot_be_is_said_before_anything_is_asked(run: RunDir, args: list[str], said: str) -> None:
    """With its value and the remedy; exit status 2."""
    done = CliRunner().invoke(main, ["record", "--run-dir", str(run.root), *args])
    assert (done.exit_code, said in done.stderr) == (2, True), done.stderr


def test_a_full_disk_is_told(run: RunDir) -> None:
    """Though it was there to be written to."""
    done, _ = recorded(run, [piece(), piece(ROWS[0]), ENDED], Path("/dev/full"))
    assert done.exit_code == 1
    assert "no trace was written: cannot write '/dev/full': No space left on device" in done.stderr


def test_a_disk_that_fills_up_leaves_whole_lines(run: RunDir, tmp_path: Path) -> None:
    """What fits is in the trace and counted; of the line that does not, nothing is there."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    output = tmp_path / "t.jsonl"
    room = sum(len(json.dumps(row)) + 1 for row in ROWS[:2]) + 10
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, limits[1]))
    try:
        done, _ = recorded(run, [piece(), piece(*ROWS), ENDED], output)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert done.exit_code == 1
    assert "File too large: the trace ends there" in done.stderr
    assert [json.loads(line) for line in output.read_text().splitlines()] == ROWS[:2]
    assert "2 requests in " in done.stdout
