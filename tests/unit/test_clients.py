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
from mpspool.core.errors import Code, Lack, PoolError
from mpspool.core.messages import Outcome
from mpspool.core.messages import Result as WorkerResult
from mpspool.core.rundir import RunDir
from mpspool.core.settings import SchedulingSettings
from mpspool.router.app import Control
from mpspool.router.clients import PART, Clients
from mpspool.router.fronts.http2.headers import RequestHead
from mpspool.supervisor import lock
from mpspool.supervisor.commands import ask
from tests.conftest import short_dir
from tests.unit.test_dataplane import (
    GONE,
    MODEL,
    PREDICT,
    SETTINGS,
    Scene,
    batching_model,
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
    whole = ("asked", "answered", "refused", "failed", "left")
    return {(row["client"], row["model"]): {name: row[name] for name in whole if row[name]} for row in rows}


def test_what_becomes_of_each_clients_requests(tmp_path: Path) -> None:
    """Answered, refused at the door or in the queue, failed, given up: each counts once, for its client alone."""

    async def story(scene: Scene) -> None:
        scene.dataplane.want([{**MODEL, "queue": {"max_queued_requests": 3}}], {})
        before = scene.ask(metadata={"tenant": "before"})
        await settle()
        with scene.dataplane.accounts.looking() as found:
            floods = [scene.ask(metadata={"tenant": "flood"}) for _ in range(2)]
            await settle()
            with pytest.raises(PoolError, match="is full"):
                await scene.ask(metadata={"tenant": "flood"})  # at the door
            other = scene.ask(metadata={"tenant": "other"})
            with pytest.raises(PoolError, match="another client"):
                await floods.pop()  # it made room for the other one
            assert told(found) == {
                ("flood", "m"): {"asked": 3, "refused": 2, "left": 1},
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
            assert told(found)["other", "m"] == {"asked": 2, "failed": 2, "left": 2}
        assert "before" not in {client for client, _ in told(found)}
        assert await before == b"answer"

    play(tmp_path, story, BY_TENANT)


def test_what_was_waited_and_taken(tmp_path: Path) -> None:
    """The mean and the longest can be had, and what the device was held for, from what the worker says."""

    async def story(scene: Scene) -> None:
        worker = scene.hello(0)
        with scene.dataplane.accounts.looking() as found:
            for _ in range(2):
                asked = scene.ask(metadata={"tenant": "a"})
                await settle()
                scene.answer(worker, scene.link.dispatches(worker)[-1], run_us=4_000)
                await asked
        (piece,) = found.told()
        (row,) = piece["clients"]
        assert row["effective_s"] == sum(scene.recorder.effective_s) > 0
        assert 0 < row["longest_s"] <= row["waited_s"] < 2 * row["longest_s"] + 1e-9
        assert (row["left"], row["answered"]) == (2, 2)

    play(tmp_path, story, BY_TENANT)


def test_who_shares_a_batch_takes_its_part_of_it(tmp_path: Path) -> None:
    """By rows: a client whose one row goes with another's 99 takes a hundredth of the device."""

    async def story(scene: Scene) -> None:
        scene.dataplane.want([batching_model()], {})
        with scene.dataplane.accounts.looking() as found:
            small, large = (
                scene.ask(body=rows_request(count), metadata={"tenant": tenant})
                for tenant, count in (("small", 1), ("large", 99))
            )
            await settle()
            worker = scene.hello(0)
            await settle()
            (dispatch,) = scene.link.dispatches(worker)
            scene.answer(worker, dispatch, run_us=49_998, runs=[(2, 100, 100_000)])
            await asyncio.gather(small, large)
        took = {row["client"]: row["effective_s"] for piece in found.told() for row in piece["clients"]}
        assert took == {"small": pytest.approx(0.001), "large": pytest.approx(0.099)}

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
        with scene.dataplane.accounts.looking() as found:
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
            (client, "m"): {"asked": 3, "refused": 1, "failed": 2, "left": 1},
            (client, ""): {"asked": 2, "failed": 2},
        }

    play(tmp_path, story, msgspec.structs.replace(SETTINGS, scheduling=scheduling))


def test_a_request_in_parts_is_one(tmp_path: Path) -> None:
    async def story(scene: Scene) -> None:
        with scene.dataplane.accounts.looking() as found:
            workers, asked = in_parts(scene)
            await settle()
            for worker in workers:
                (dispatch,) = scene.link.dispatches(worker)
                start, stop = dispatch.requests[0].rows or (0, 0)
                outcome = Outcome(Code.OK, rows_response(start, stop), "", 1, 10, 1)
                result = WorkerResult(scene.dataplane.epoch, dispatch.dispatch, [outcome], 1, 20)
                scene.link.receive(worker, result, [])
            await asked
        assert told(found) == {("127.0.0.1", "m"): {"asked": 1, "answered": 1, "left": 1}}

    play(tmp_path, story)


def test_one_that_moves_to_the_next_version_is_one(tmp_path: Path) -> None:
    async def story(scene: Scene) -> None:
        scene.dataplane.want([MODEL], {})
        last = scene.hello(0, "LOADING")
        with scene.dataplane.accounts.looking() as found:
            asked = scene.ask()
            await settle()
            scene.dataplane.want([{**MODEL, **GONE}, {**MODEL, "version": 2}], {})
            scene.end(last)
            await settle()
            worker = scene.hello(1, version=2)
            await settle()
            scene.answer(worker, scene.link.dispatches(worker)[-1])
            await asked
        assert told(found) == {("127.0.0.1", "m"): {"asked": 1, "answered": 1, "left": 1}}

    play(tmp_path, story)


def test_what_nobody_waits_for_any_more_took_its_time(tmp_path: Path) -> None:
    """Of a client that gives its requests up while they run, and of parts whose whole has failed, too."""

    async def story(scene: Scene) -> None:
        with scene.dataplane.accounts.looking() as found:
            workers, whole = in_parts(scene)
            await settle()
            scene.answer(workers[0], scene.link.dispatches(workers[0])[0], Code.INTERNAL, run_us=998)
            with pytest.raises(PoolError):
                await whole
            scene.answer(workers[1], scene.link.dispatches(workers[1])[0], run_us=998)
            asked = scene.ask(metadata={"tenant": "a"})
            await settle()
            asked.cancel()
            await settle()
            (worker,) = (one for one in workers if len(scene.link.dispatches(one)) == 2)
            scene.answer(worker, scene.link.dispatches(worker)[1], run_us=1_998)
        rows = {row["client"]: row for piece in found.told() for row in piece["clients"]}
        assert rows["a"]["effective_s"] == pytest.approx(0.002)
        assert 0.0005 < rows[""]["effective_s"] <= 0.002
        assert [rows[client]["failed"] for client in ("", "a")] == [1, 1]

    play(tmp_path, story, BY_TENANT)


def test_parts_that_are_refused_have_not_waited(tmp_path: Path) -> None:
    """No more than a request that is whole."""

    async def story(scene: Scene) -> None:
        parameters = {"max_execution_batch_size": 4, "allowed_batch_sizes": [4], "max_enqueued_batches": 1}
        scene.dataplane.want([batching_model(**parameters)], {})
        scene.hello(0, "LOADING")
        with scene.dataplane.accounts.looking() as found:
            with pytest.raises(PoolError):
                await scene.ask(body=rows_request(7))
            assert told(found) == {("127.0.0.1", "m"): {"asked": 1, "refused": 1}}
            assert scene.recorder.codes == [Code.UNAVAILABLE]
            assert scene.recorder.lacks == [Lack.BATCHES]

    play(tmp_path, story)


def test_a_look_ends_when_its_asker_has_gone(tmp_path: Path) -> None:
    """As when its time is over: nothing is counted for it any more."""

    async def story(scene: Scene) -> None:
        pieces = Control(scene.dataplane).clients({"for_s": 60.0})
        await anext(pieces)
        (found,) = scene.dataplane.accounts._looks
        await pieces.aclose()
        assert scene.dataplane.accounts._looks == []
        scene.hello(0)
        asked = scene.ask()
        await settle()
        asked.cancel()
        await settle()
        assert told(found) == {}

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

        with scene.dataplane.accounts.looking() as first:
            await answered()
            with scene.dataplane.accounts.looking() as second:
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
    names = ("asked", "answered", "refused", "failed", "left", "waited_s", "longest_s", "effective_s")
    return {"client": client, "model": model, **dict.fromkeys(names, 0), **counts}


def length(seconds: float = 2.0, by: str = "metadata:tenant", simulated: str = "") -> Message:
    return {"seconds": seconds, "by": by, "simulated": simulated}


@pytest.fixture
def run() -> Iterator[RunDir]:
    with short_dir() as root:
        yield RunDir(root)


def shown(
    run: RunDir, pieces: list[Message], *args: str, charset: str = "utf-8"
) -> tuple[Result, list[Message]]:
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
            return await asyncio.to_thread(CliRunner(charset).invoke, main, command)
        finally:
            await server.close()

    return asyncio.run(scenario()), asked


_ENDS = {"asked": 2000, "answered": 900, "refused": 1000, "failed": 60, "left": 960}
FLOOD = row("flood", "m", **_ENDS, waited_s=9.6, longest_s=0.25, effective_s=1.5)
OTHER = row("other", "m", asked=3, answered=3, left=3, waited_s=0.003, longest_s=0.002, effective_s=0.5)


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
    """None, one that would move the cursor, markup, one that looks like ours, no model of ours, and all that were too many."""
    names = ["", "\x1b[2J", "[red]", ":smile:", "(others)", " a", None]
    rows = [row(name, "m" if name else name, asked=9 - number) for number, name in enumerate(names)]
    done, _ = shown(run, [{"clients": rows}, length(), ENDED])
    first, _, _, *lines = done.stdout.splitlines()
    assert first.startswith("42 requests in 2 s, from 6 clients and others, ")
    said = ["(no name)", r"'\x1b[2J'", "[red]", ":smile:", "'(others)'", "' a'", "(others)"]
    assert [line.split("  ")[0].strip() for line in lines] == said
    assert "(none of ours)" in lines[0]
    done, _ = shown(run, [{"clients": [row("", "m", asked=5)]}, length(by="none"), ENDED])
    assert "from 1 client, by address; they do not share (scheduling.fair_by: none)" in done.stdout
    assert "(no address)" in done.stdout


def test_a_terminal_that_has_not_all_letters(run: RunDir) -> None:
    pieces = [{"clients": [row("日本", "m", asked=5)]}, length(), ENDED]
    done, _ = shown(run, pieces, charset="latin-1")
    assert done.exit_code == 0
    assert r"\u65e5\u672c" in done.stdout
    assert "日本" in shown(run, pieces)[0].stdout


def test_the_table_is_of_those_that_ask_most(run: RunDir) -> None:
    """All that were too many are among them, by how much they ask together; scripts get all."""
    rows = [row(f"c{number}", "m", asked=number + 1) for number in range(1025)]
    pieces = [{"clients": rows}, {"clients": [row(None, None, asked=2000)]}, length(), ENDED]
    lines = shown(run, pieces)[0].stdout.splitlines()
    expected = ["(others)", *(f"c{number}" for number in reversed(range(1006, 1025)))]
    assert [line.split()[0] for line in lines[3:-1]] == expected
    assert lines[-1] == "and 1,006 rows more, with 253,260 requests a second (--json)"
    found = json.loads(shown(run, pieces, "--json")[0].stdout)
    expected = [None, *(f"c{number}" for number in reversed(range(1025)))]
    assert [one["client"] for one in found["clients"]] == expected


def test_for_scripts(run: RunDir) -> None:
    """Counts as they are, with what is open, times and the share; nobody is no error."""
    idle = row("idle", "m", asked=1)
    pieces = [{"clients": [FLOOD, OTHER, idle]}, length(), ENDED]
    found = json.loads(shown(run, pieces, "--json")[0].stdout)
    assert (found["seconds"], found["fair_by"], found["simulated"]) == (2.0, "metadata:tenant", "")
    flood, other, idle = found["clients"]
    assert flood == {
        "client": "flood",
        "model": "m",
        "asked": 2000,
        "answered": 900,
        "refused": 1000,
        "failed": 60,
        "open": 40,
        "mean_wait_s": 0.01,
        "longest_wait_s": 0.25,
        "effective_s": 1.5,
        "share": 0.75,
    }
    assert (other["open"], other["share"]) == (0, 0.25)
    assert (idle["open"], idle["mean_wait_s"], idle["longest_wait_s"]) == (1, None, None)
    done, _ = shown(run, [length(), ENDED], "--json")
    assert (done.exit_code, json.loads(done.stdout)["clients"]) == (0, [])


def test_what_cannot_be_shown(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody asked; the router went away, and what it had told is shown; there is no pool."""
    done, _ = shown(run, [length(1800.0), ENDED])
    assert done.exit_code == 1
    nobody = "nobody asked for anything in 1,800 s; is the pool under load? --for looks for longer"
    assert done.stderr.splitlines() == [BEGAN, nobody]
    done, _ = shown(run, [{"clients": [FLOOD]}, length()])
    assert (done.exit_code, "2,000 requests in 2 s" in done.stdout) == (1, True)
    assert done.stderr.splitlines()[1:] == ["the router went away before the end (it closed the connection)"]
    done = CliRunner().invoke(main, ["clients", "--run-dir", str(run.root)])
    assert (done.exit_code, "no pool runs in" in done.stderr) == (1, True)
    with lock.held(run):
        monkeypatch.setattr(ask, "PATIENCE_S", 0.0)
        done = CliRunner().invoke(main, ["clients", "--run-dir", str(run.root)])
    assert (done.exit_code, "does not answer" in done.stderr) == (1, True)


def test_ctrl_c_shows_what_there_is(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a round that was not over it is the one before."""

    def interrupted(*pieces: Message) -> Result:
        def told(*_: object) -> Iterator[Message]:
            yield from pieces
            raise KeyboardInterrupt

        monkeypatch.setattr(ask, "observed", told)
        return CliRunner().invoke(main, ["clients", "--run-dir", str(run.root)])

    done = interrupted({"clients": [OTHER]}, length(), {"clients": [FLOOD]})
    assert (done.exit_code, "3 requests in 2 s" in done.stdout) == (0, True)
    done = interrupted({"clients": [FLOOD]})
    assert (done.exit_code, done.stderr) == (1, "the router has not answered yet\n")
