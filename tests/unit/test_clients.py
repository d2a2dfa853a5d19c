"""Who asks, as the data plane counts it and `mpspool clients` shows it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner, Result

from mpspool.cli import main
from mpspool.core.control import ControlServer, Message
from mpspool.core.errors import Code, PoolError
from mpspool.core.messages import Outcome
from mpspool.core.messages import Result as WorkerResult
from mpspool.core.rundir import RunDir
from mpspool.core.settings import SchedulingSettings
from mpspool.router.app import Control
from mpspool.router.clients import PART, Clients
from mpspool.router.fronts.http2.headers import RequestHead
from mpspool.supervisor import ask, lock
from tests.conftest import short_dir
from tests.unit.test_dataplane import (
    GONE,
    MODEL,
    PREDICT,
    SETTINGS,
    Scene,
    in_parts,
    play,
    rows_request,
    rows_response,
    settle,
)

BY_TENANT = msgspec.structs.replace(SETTINGS, scheduling=SchedulingSettings(fair_by="metadata:tenant"))
ENDED = {"ended": True}
BEGAN = "looking for 5 s; Ctrl-C ends it and shows what there is"


def told(found: Clients) -> dict[tuple[str, str], dict[str, Any]]:
    """By client and model, what is counted of both and is not 0, but for times."""
    rows = [row for piece in found.told() for row in piece["clients"]]
    whole = ("asked", "answered", "refused", "failed", "waited")
    return {(row["client"], row["model"]): {name: row[name] for name in whole if row[name]} for row in rows}


def test_what_becomes_of_each_clients_requests(tmp_path: Path) -> None:
    """Answered, refused at the door or in the queue, failed, given up: each counts once, for its client alone."""

    async def story(scene: Scene) -> None:
        scene.dataplane.want([{**MODEL, "queue": {"max_queued_requests": 3}}], {})
        before = scene.ask(metadata={"tenant": "before"})
        await settle()
        with scene.dataplane.looking() as found:
            floods = [scene.ask(metadata={"tenant": "flood"}) for _ in range(2)]
            await settle()
            with pytest.raises(PoolError, match="is full"):
                await scene.ask(metadata={"tenant": "flood"})  # at the door
            other = scene.ask(metadata={"tenant": "other"})
            with pytest.raises(PoolError, match="another client"):
                await floods.pop()  # it made room for the other one
            assert told(found) == {
                ("flood", "m"): {"asked": 3, "refused": 2, "waited": 1},
                ("other", "m"): {"asked": 1},
            }
            worker = scene.hello(0)
            await settle()
            scene.answer(worker, scene.link.dispatches(worker)[-1])
            await settle()
            for dispatch in scene.link.dispatches(worker)[1:]:
                scene.answer(worker, dispatch, Code.INVALID_ARGUMENT)
            with pytest.raises(PoolError):
                await other
            given_up = scene.ask(metadata={"tenant": "other"})
            await settle()
            given_up.cancel()
            with pytest.raises(asyncio.CancelledError):
                await given_up
            assert told(found)["other", "m"] == {"asked": 2, "failed": 2, "waited": 2}
            del scene.recorder.codes[:]
        assert "before" not in {client for client, _ in told(found)}
        assert await before == b"answer"

    play(tmp_path, story, BY_TENANT)


def test_what_was_waited_and_taken(tmp_path: Path) -> None:
    """The mean and the longest can be had, and what the device was held for, from what the worker says."""

    async def story(scene: Scene) -> None:
        worker = scene.hello(0)
        with scene.dataplane.looking() as found:
            for _ in range(2):
                asked = scene.ask(metadata={"tenant": "a"})
                await settle()
                scene.answer(worker, scene.link.dispatches(worker)[-1], run_us=4_000)
                await asked
        (piece,) = found.told()
        (row,) = piece["clients"]
        assert row["effective_s"] == sum(scene.recorder.effective_s) > 0
        assert 0 < row["longest_s"] <= row["waited_s"] < 2 * row["longest_s"] + 1e-9
        assert (row["waited"], row["answered"]) == (2, 2)

    play(tmp_path, story, BY_TENANT)


@pytest.mark.parametrize(
    ("fair_by", "client"), [("none", "127.0.0.1"), ("peer", "127.0.0.1"), ("metadata:tenant", "shop")]
)
def test_who_a_client_is(tmp_path: Path, fair_by: str, client: str) -> None:
    """By what they share by; where they do not, each has its address. What model it is for may not be known."""
    scheduling = SchedulingSettings(fair_by=fair_by)

    async def story(scene: Scene) -> None:
        scene.dataplane.want([MODEL], {})
        scene.hello(0)
        with scene.dataplane.looking() as found:
            asked = scene.ask(metadata={"tenant": "shop"})
            await settle()
            asked.cancel()
            with pytest.raises(PoolError):
                await scene.ask(metadata={"tenant": "shop", "x-mpspool-priority": "high"})
            head, nonsense = RequestHead(metadata={"tenant": "shop"}, peer="127.0.0.1:4711"), b"\xff"
            admission = scene.dataplane.admit(PREDICT, 1, nonsense, head)
            with pytest.raises(PoolError):
                await scene.dataplane.call(PREDICT, nonsense, 0, admission, head)
            with pytest.raises(PoolError):
                scene.dataplane.admit(PREDICT, 2**40, rows_request(1), head)
            scene.dataplane.draining = True
            with pytest.raises(PoolError, match="shutting down"):
                await scene.ask(metadata={"tenant": "shop"})
        await settle()
        assert told(found) == {
            (client, "m"): {"asked": 3, "refused": 1, "failed": 2, "waited": 1},
            (client, ""): {"asked": 2, "failed": 2},
        }

    play(tmp_path, story, msgspec.structs.replace(SETTINGS, scheduling=scheduling))


def test_a_request_in_parts_is_one(tmp_path: Path) -> None:
    async def story(scene: Scene) -> None:
        with scene.dataplane.looking() as found:
            workers, asked = in_parts(scene)
            await settle()
            for worker in workers:
                (dispatch,) = scene.link.dispatches(worker)
                start, stop = dispatch.requests[0].rows or (0, 0)
                outcome = Outcome(Code.OK, rows_response(start, stop), "", 1, 10, 1)
                result = WorkerResult(scene.dataplane.epoch, dispatch.dispatch, [outcome], 1, 20)
                scene.link.receive(worker, result, [])
            await asked
        assert told(found) == {("127.0.0.1", "m"): {"asked": 1, "answered": 1, "waited": 1}}

    play(tmp_path, story)


def test_one_that_moves_to_the_next_version_is_one(tmp_path: Path) -> None:
    async def story(scene: Scene) -> None:
        scene.dataplane.want([MODEL], {})
        last = scene.hello(0, "LOADING")
        with scene.dataplane.looking() as found:
            asked = scene.ask()
            await settle()
            scene.dataplane.want([{**MODEL, **GONE}, {**MODEL, "version": 2}], {})
            scene.end(last)
            await settle()
            worker = scene.hello(1, version=2)
            await settle()
            scene.answer(worker, scene.link.dispatches(worker)[-1])
            await asked
        assert told(found) == {("127.0.0.1", "m"): {"asked": 1, "answered": 1, "waited": 1}}

    play(tmp_path, story)


def test_each_look_counts_what_came_since_it_began(tmp_path: Path) -> None:
    """Several may look at once."""

    async def story(scene: Scene) -> None:
        worker = scene.hello(0)

        async def answered() -> None:
            asked = scene.ask()
            await settle()
            scene.answer(worker, scene.link.dispatches(worker)[-1])
            await asked

        with scene.dataplane.looking() as first:
            await answered()
            with scene.dataplane.looking() as second:
                await answered()
            await answered()
        await answered()
        counts = [told(found)["127.0.0.1", "m"]["answered"] for found in (first, second)]
        assert counts == [3, 1]

    play(tmp_path, story)


def test_who_is_too_many_is_counted_with_others() -> None:
    """Names are the clients' own to make up; those that are known already stay known."""
    found = Clients(most=2)
    for client in "abcab":
        found.asks(client, "m")
    found.asks("d", "m")
    (named, others) = found.told()
    assert [(row["client"], row["asked"]) for row in named["clients"]] == [("a", 2), ("b", 2)]
    assert [(row["client"], row["model"], row["asked"]) for row in others["clients"]] == [(None, None, 2)]


def test_it_is_told_in_pieces() -> None:
    found = Clients()
    for number in range(PART + 1):
        found.asks(str(number), "m")
    assert [len(piece["clients"]) for piece in found.told()] == [PART, 1]


def test_it_is_told_until_the_time_is_over(tmp_path: Path) -> None:
    """All so far, and for how long that is."""

    async def story(scene: Scene) -> None:
        scene.dataplane.want([MODEL], {})
        pieces = Control(scene.dataplane).clients({"for_s": 0.3})
        begun = await anext(pieces)
        assert (begun["by"], begun["simulated"]) == ("metadata:tenant", "")
        asked = scene.ask(metadata={"tenant": "a"})
        (row,) = (await anext(pieces))["clients"]
        assert (row["client"], row["asked"]) == ("a", 1)
        assert begun["seconds"] < (await anext(pieces))["seconds"] >= 0.3
        assert [piece async for piece in pieces] == [ENDED]
        asked.cancel()

    play(tmp_path, story, BY_TENANT)


# -- the command ----------------------------------------------------------------------------------


def row(client: str | None, model: str | None, **counts: float) -> Message:
    names = ("asked", "answered", "refused", "failed", "waited", "waited_s", "longest_s", "effective_s")
    return {"client": client, "model": model, **dict.fromkeys(names, 0), **counts}


def length(seconds: float = 2.0, by: str = "metadata:tenant", simulated: str = "") -> Message:
    return {"seconds": seconds, "by": by, "simulated": simulated}


@pytest.fixture
def run() -> Iterator[RunDir]:
    with short_dir() as root:
        yield RunDir(root)


def shown(run: RunDir, pieces: list[Message], *args: str) -> tuple[Result, list[Message]]:
    """The command, on a router that tells this; and what that was asked."""
    asked = []

    async def tell(request: Message) -> AsyncIterator[Message]:
        asked.append(request)
        for piece in pieces:
            yield piece

    async def scenario() -> Result:
        server = ControlServer(run.router_control, {"clients": tell})
        await server.start()
        try:
            command = ["clients", "--run-dir", str(run.root), *args]
            return await asyncio.to_thread(CliRunner().invoke, main, command)
        finally:
            await server.close()

    return asyncio.run(scenario()), asked


_ENDS = {"asked": 2000, "answered": 900, "refused": 1000, "failed": 60, "waited": 960}
FLOOD = row("flood", "m", **_ENDS, waited_s=9.6, longest_s=0.25, effective_s=1.5)
OTHER = row("other", "m", asked=3, answered=3, waited=3, waited_s=0.003, longest_s=0.002, effective_s=0.5)


def test_the_table(run: RunDir) -> None:
    """The last that was told: rates, what is open, times and shares; whoever asks most is first."""
    pieces = [{"clients": [row("old", "m", asked=1)]}, length(), {"clients": [OTHER]}, {"clients": [FLOOD]}]
    done, asked = shown(run, [*pieces, length(simulated="gpus"), ENDED], "--for", "2s")
    assert (done.exit_code, asked) == (0, [{"for_s": 2}])
    first, titles, _, *rows = done.stdout.splitlines()
    assert first == "2,003 requests in 2 s, from 2 clients, which share by metadata:tenant, SIMULATED gpus"
    assert titles.split()[:4] == ["client", "model", "asked/s", "answered/s"]
    assert rows[0].split() == ["flood", "m", "1,000", "450", "500", "30", "40", "10.0", "250.0", "75%"]
    assert rows[1].split() == ["other", "m", "1.5", "1.5", "0", "0", "0", "1.0", "2.0", "25%"]
    assert len(rows) == 2


def test_names_are_the_clients_own(run: RunDir) -> None:
    """None, one that would move the cursor, one that looks like markup, no model of ours, and all that were too many."""
    rows = [
        row("", "m", asked=5),
        row("\x1b[2J", "", asked=4),
        row("[red]", "m", asked=3),
        row(None, None, asked=9),
    ]
    done, _ = shown(run, [{"clients": rows}, length(), ENDED])
    first, _, _, *lines = done.stdout.splitlines()
    assert first.startswith("21 requests in 2 s, from 3 clients and others, ")
    assert [line.split("  ")[0].strip() for line in lines] == ["(no name)", r"\x1b[2J", "[red]", "(others)"]
    assert "(none of ours)" in lines[1]
    done, _ = shown(run, [{"clients": [row("", "m", asked=5)]}, length(by="none"), ENDED])
    assert "from 1 client, by address; they do not share (scheduling.fair_by: none)" in done.stdout
    assert "(no address)" in done.stdout


def test_the_table_is_of_those_that_ask_most(run: RunDir) -> None:
    """Scripts get all."""
    rows = [row(f"c{number}", "m", asked=number + 1) for number in range(25)]
    pieces = [{"clients": rows}, length(), ENDED]
    lines = shown(run, pieces)[0].stdout.splitlines()
    assert [line.split()[0] for line in lines[3:-1]] == [f"c{number}" for number in reversed(range(5, 25))]
    assert lines[-1] == "and 5 more, with 7.5 requests a second (--json)"
    found = json.loads(shown(run, pieces, "--json")[0].stdout)
    assert [one["client"] for one in found["clients"]] == [f"c{number}" for number in reversed(range(25))]


def test_for_scripts(run: RunDir) -> None:
    """Counts as they are, with what is open and the share; nobody is no error."""
    found = json.loads(shown(run, [{"clients": [FLOOD, OTHER]}, length(), ENDED], "--json")[0].stdout)
    assert (found["seconds"], found["fair_by"], found["simulated"]) == (2.0, "metadata:tenant", "")
    assert found["clients"] == [{**FLOOD, "open": 40, "share": 0.75}, {**OTHER, "open": 0, "share": 0.25}]
    done, _ = shown(run, [length(), ENDED], "--json")
    assert (done.exit_code, json.loads(done.stdout)["clients"]) == (0, [])


def test_what_cannot_be_shown(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody asked; the router went away; there is no pool."""
    done, _ = shown(run, [length(), ENDED])
    assert done.exit_code == 1
    assert done.stderr.splitlines() == [BEGAN, "nobody asked for anything in 2.0 s"]
    done, _ = shown(run, [{"clients": [FLOOD]}, length()])
    assert done.exit_code == 1
    assert done.stderr.splitlines()[1:] == ["the router went away before the end (it closed the connection)"]
    done = CliRunner().invoke(main, ["clients", "--run-dir", str(run.root)])
    assert (done.exit_code, "no pool runs in" in done.stderr) == (1, True)
    with lock.held(run):
        monkeypatch.setattr(ask, "PATIENCE_S", 0.0)
        done = CliRunner().invoke(main, ["clients", "--run-dir", str(run.root)])
    assert (done.exit_code, "does not answer" in done.stderr) == (1, True)


def test_ctrl_c_shows_what_there_is(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a round that was not over it is the one before."""

    def interrupted(*_: object) -> Iterator[Message]:
        yield {"clients": [OTHER]}
        yield length()
        yield {"clients": [FLOOD]}
        raise KeyboardInterrupt

    monkeypatch.setattr(ask, "seen", interrupted)
    done = CliRunner().invoke(main, ["clients", "--run-dir", str(run.root)])
    assert done.exit_code == 0
    assert "3 requests in 2 s" in done.stdout

    def at_once(*_: object) -> Iterator[Message]:
        yield {"clients": [FLOOD]}
        raise KeyboardInterrupt

    monkeypatch.setattr(ask, "seen", at_once)
    done = CliRunner().invoke(main, ["clients", "--run-dir", str(run.root)])
    assert (done.exit_code, done.stderr) == (1, "nobody asked for anything in 0.0 s\n")
