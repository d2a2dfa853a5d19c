"""What arrives, as it is recorded: by the router, from the data plane on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest

from mpspool.core.errors import Code, PoolError
from mpspool.core.ids import ModelVersion
from mpspool.core.messages import Outcome, Result
from mpspool.router import arrivals
from mpspool.router.app import Control
from mpspool.router.arrivals import PART, Arrivals
from mpspool.router.memory import Admission, Memory
from mpspool.router.scheduling.entry import Entry
from tests.unit.test_dataplane import (
    GONE,
    MODEL,
    Scene,
    batching_model,
    in_parts,
    play,
    rows_request,
    rows_response,
    settle,
)

S = 10**9
MEMORY = Memory(10**6)


def arrive(found: Arrivals, client: str = "10.0.0.1", **fields: Any) -> Admission:
    """A request of two rows, 3 s after the recording was begun; what it holds until it is over."""
    body = rows_request(2)
    admission = MEMORY.admit(len(body))
    given = {"signature": "serving_default", "body": body, "arrived_ns": 13 * S} | fields
    found.arrived(Entry(ModelVersion("m", 4), **given), admission, client)
    return admission


def rows(found: Arrivals, *, last: bool = False) -> list[dict[str, Any]]:
    return [row for piece in found.pieces(last=last) for row in piece["requests"]]


def test_a_row_says_what_a_simulation_has_to_know() -> None:
    """And leaves out what is as usual; it is told once, when the request is over."""
    found = Arrivals(10 * S)
    plain = arrive(found, client="")
    full = arrive(found, signature="other", priority=-2, deadline_ns=13 * S + 250_000_000)
    assert rows(found) == []
    full.release()
    length = len(rows_request(2))
    usual = {"time": 3.0, "model": "m", "version": 4, "rows": 2, "bytes": length}
    urgent = {"signature": "other", "client": "1", "priority": -2, "deadline_ms": 250.0}
    assert rows(found) == [usual | urgent]
    plain.release()
    assert rows(found) == [usual]
    assert rows(found, last=True) == []


def test_a_client_is_a_number() -> None:
    """Each its own, none where it has no name; and its name is not told."""
    found = Arrivals(0)
    for client in ("alice", "", "bob", "alice"):
        arrive(found, client)
    told = rows(found, last=True)
    assert [row.get("client") for row in told] == ["1", None, "2", "1"]
    assert "alice" not in str(told)


def test_too_many_clients_are_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their names are made up by clients, and what is kept of them is bounded."""
    monkeypatch.setattr(arrivals, "_MAX_CLIENTS", 2)
    found = Arrivals(0)
    for client in "abcdb":
        arrive(found, client)
    assert [row["client"] for row in rows(found, last=True)] == ["1", "2", "0", "0", "2"]


def test_what_is_too_much_is_counted() -> None:
    """Of those that nobody has taken yet; there is room again when they are taken."""
    found = Arrivals(0, size=2)
    held = [arrive(found) for _ in range(5)]
    (piece,) = found.pieces()
    assert (piece["requests"], piece["dropped"]) == ([], 3)
    for one in held:
        one.release()
    assert len(rows(found)) == 2
    arrive(found)
    (piece,) = found.pieces(last=True)
    assert (len(piece["requests"]), piece["dropped"]) == (1, 3)


def test_a_long_name_is_cut() -> None:
    """The name of a signature is as long as a client likes."""
    found = Arrivals(0)
    arrive(found, signature="x" * 10**6)
    assert len(rows(found, last=True)[0]["signature"]) == 200


def test_it_is_told_piece_by_piece() -> None:
    """None is long to make, and what ends between two of them is in neither, but in the next look's."""
    found = Arrivals(0, simulated="gpus")
    held = [arrive(found) for _ in range(2 * PART + 2)]
    for one in held[:-1]:
        one.release()
    lengths = []
    for piece in found.pieces():
        lengths.append(len(piece["requests"]))
        held[-1].release()
        assert piece["simulated"] == "gpus"
    assert lengths == [PART, PART, 1]
    assert len(rows(found)) == 1


async def recorded(scene: Scene, for_s: float = 60.0) -> AsyncGenerator[list[dict[str, Any]], None]:
    """The requests of each piece of a recording; at the end None of them."""
    async for piece in Control(scene.dataplane).arrivals({"for_s": for_s}):
        yield piece.get("requests", [])


def test_what_arrives_is_recorded(tmp_path: Path) -> None:
    """Once it is over, with what its worker took: of a batch its part by rows, of parts their sum."""

    async def story(scene: Scene) -> None:
        scene.dataplane.want([batching_model()], {})
        worker = scene.hello(0)
        pieces = recorded(scene)
        assert await anext(pieces) == []
        asked = [scene.ask(body=rows_request(1))]
        await settle()
        asked += [scene.ask(body=rows_request(1)), scene.ask(body=rows_request(3), deadline_ns=2**62)]
        await settle()
        assert await anext(pieces) == []
        for _ in range(2):
            scene.answer(worker, scene.link.dispatches(worker)[-1])
            await settle()
        await asyncio.gather(*asked)
        found = await anext(pieces)
        assert [(row["model"], row["version"], row["rows"]) for row in found] == [
            ("m", 1, rows) for rows in (1, 1, 3)
        ]
        assert [row["cost_us"] for row in found] == [12, 24 / 4, 24 * 3 / 4]
        assert [row["time"] for row in found] == sorted(row["time"] for row in found)
        assert ["deadline_ms" in row for row in found] == [False, False, True]
        assert {row["client"] for row in found} == {"1"}
        await pieces.aclose()

    play(tmp_path, story)


def test_a_large_request_is_one_row(tmp_path: Path) -> None:
    """With the sum of what its parts took."""

    async def story(scene: Scene) -> None:
        pieces = recorded(scene)
        await anext(pieces)
        workers, asked = in_parts(scene)
        await settle()
        for worker in workers:
            (dispatch,) = scene.link.dispatches(worker)
            start, stop = dispatch.requests[0].rows or (0, 0)
            outcome = Outcome(Code.OK, rows_response(start, stop), "", 1, 10, 1)
            scene.link.receive(worker, Result(scene.dataplane.epoch, dispatch.dispatch, [outcome], 1, 20), [])
        await asked
        (row,) = await anext(pieces)
        assert (row["rows"], row["cost_us"]) == (7, 40)
        await pieces.aclose()

    play(tmp_path, story)


def test_what_moves_to_the_next_version_is_one_row(tmp_path: Path) -> None:
    """As it arrived, with what the next version's worker took for it."""

    async def story(scene: Scene) -> None:
        scene.dataplane.want([MODEL], {})
        last = scene.hello(0, "LOADING")
        pieces = recorded(scene)
        await anext(pieces)
        asked = scene.ask()
        await settle()
        scene.dataplane.want([{**MODEL, **GONE}, {**MODEL, "version": 2}], {})
        scene.end(last)
        await settle()
        assert await anext(pieces) == []
        worker = scene.hello(1, version=2)
        await settle()
        scene.answer(worker, scene.link.dispatches(worker)[-1])
        await asked
        (row,) = await anext(pieces)
        assert (row["version"], row["cost_us"]) == (1, 12)
        await pieces.aclose()

    play(tmp_path, story)


def test_what_is_refused_or_under_way_is_recorded_without_its_cost(tmp_path: Path) -> None:
    """For it is part of the load all the same; a recording that ended, or that nobody reads, notes nothing more."""

    async def story(scene: Scene) -> None:
        scene.dataplane.want([{**MODEL, "queue": {"max_queued_requests": 1}}], {})
        pieces = recorded(scene, 0.05)
        assert await anext(pieces) == []
        waits, refused = scene.ask(), scene.ask()
        await settle()
        with pytest.raises(PoolError):
            await refused
        found = [row for piece in [piece async for piece in pieces] for row in piece]
        assert ["cost_us" in row for row in found] == [False, False]
        assert not scene.dataplane.accounts._recordings
        abandoned = recorded(scene)
        await anext(abandoned)
        assert len(scene.dataplane.accounts._recordings) == 1
        await abandoned.aclose()
        waits.cancel()

    play(tmp_path, story)
