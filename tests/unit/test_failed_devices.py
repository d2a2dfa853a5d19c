"""What the data plane does when a device fails for all workers on it: before the pool's verdict, after it, without it."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

import pytest

from mpspool.core import messages
from mpspool.core.messages import Dispatch, Hello
from mpspool.core.progress import ProgressWriter
from mpspool.router.app import Control
from tests.unit.test_dataplane import Scene, play, settle

REASON = "CUDA fails with CUDA_ERROR_ILLEGAL_ADDRESS"


def hello(scene: Scene, device: int, slot: int, state: str = "READY", generation: int = 1) -> bytes:
    worker = f"m@1.gpu{device}.{slot}"
    identity = messages.worker_identity(worker, generation)
    page = scene.folder / f"{worker}.{generation}"
    if not page.exists():
        scene.pages.append(ProgressWriter(page))
    failed = REASON if state == "FAILED" else ""
    scene.link.receive(
        identity,
        Hello(
            *(messages.PROTOCOL, 0, worker, generation, os.getpid(), state, 2, str(page)),
            domain=f"gpu{device}",
            failed=failed,
            signatures=b"s",
        ),
        [],
    )
    return identity


def start(scene: Scene, identity: bytes, dispatch: Dispatch) -> None:
    """The worker's page says that it runs the first request of the dispatch."""
    worker = scene.dataplane._workers.get(identity)
    assert worker is not None
    pages = {page._path.name: page for page in scene.pages}
    pages[f"{worker.id}.{worker.generation}"].start(dispatch.dispatch, 0)


async def ask_of_one_that_dies(scene: Scene) -> tuple[asyncio.Task[bytes], bytes]:
    """A request whose worker dies while it runs, and the other worker on its device."""
    dies, lives = hello(scene, 0, 0), hello(scene, 0, 1)
    asked = scene.ask()
    await settle()
    dies, lives = (dies, lives) if scene.link.dispatches(dies) else (lives, dies)
    start(scene, dies, scene.link.dispatches(dies)[0])
    worker = scene.dataplane._workers.get(dies)
    assert worker is not None
    scene.dataplane._workers.lose(worker, "died")
    return asked, lives


def test_nothing_is_sent_to_a_device_that_has_failed(tmp_path: Path) -> None:
    """Not to the other workers on it either; those of other devices go on."""

    async def story(scene: Scene) -> None:
        first, second, other = (hello(scene, *place) for place in ((0, 0), (0, 1), (1, 0)))
        hello(scene, 0, 0, "FAILED")
        asked = [scene.ask() for _ in range(6)]
        await settle()
        assert not scene.link.dispatches(first)
        assert not scene.link.dispatches(second)
        done: set[int] = set()
        while pending := [d for d in scene.link.dispatches(other) if d.dispatch not in done]:
            for dispatch in pending:
                done.add(dispatch.dispatch)
                scene.answer(other, dispatch)
            await settle()
        assert await asyncio.gather(*asked) == [b"answer"] * 6

    play(tmp_path, story)


@pytest.mark.parametrize("named", [True, False])
def test_the_verdict(tmp_path: Path, named: bool) -> None:
    """What the culprit ran is a suspect, and so is what every other ran where nobody is named; all run elsewhere."""

    async def story(scene: Scene) -> None:
        ill, hit = hello(scene, 0, 0), hello(scene, 0, 1)
        asked = [scene.ask(), scene.ask()]
        await settle()
        for identity in (ill, hit):
            start(scene, identity, scene.link.dispatches(identity)[0])
        hello(scene, 0, 0, "FAILED")
        control = Control(scene.dataplane)
        generations = {"m@1.gpu0.0": 1, "m@1.gpu0.1": 1}
        culprits = ["m@1.gpu0.0"] if named else None
        await control.condemn(
            {
                "device": "gpu0",
                "workers": generations,
                "culprits": culprits,
                "reason": "gpu0: FAULT",
                "comes_back": False,
            }
        )
        snapshot = await control.snapshot({})
        assert {(w["state"], w["hung"]) for w in snapshot["workers"]} == {("FAILED", "gpu0: FAULT")}
        other = hello(scene, 1, 0)
        await settle()
        alone = [len(d.requests) for d in scene.link.dispatches(other)]
        assert alone[0] == 1
        done: set[int] = set()
        while pending := [d for d in scene.link.dispatches(other) if d.dispatch not in done]:
            assert len(pending) == 1 or named, "suspects run one at a time"
            for dispatch in pending:
                done.add(dispatch.dispatch)
                scene.answer(other, dispatch)
            await settle()
        assert await asyncio.gather(*asked) == [b"answer"] * 2

    play(tmp_path, story)


def test_without_a_pool_process_there_is_no_verdict(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a while all on the device are given up; workers that come later are not."""
    monkeypatch.setattr("mpspool.router.fault_domains.VERDICT_S", 0.05)

    async def story(scene: Scene) -> None:
        ill, hit = hello(scene, 0, 0), hello(scene, 0, 1)
        asked = scene.ask()
        await settle()
        holder = next(w for w in (ill, hit) if scene.link.dispatches(w))
        hello(scene, 0, 0, "FAILED")
        control = Control(scene.dataplane)
        async with asyncio.timeout(5):
            while not all(w["hung"] for w in (await control.snapshot({}))["workers"]):
                await asyncio.sleep(0.01)
        new = hello(scene, 0, 0 if holder == ill else 1, generation=2)
        await settle()
        scene.answer(new, scene.link.dispatches(new)[0])
        assert await asked == b"answer"
        found = {w["id"]: w["hung"] for w in (await control.snapshot({}))["workers"] if w["generation"] == 2}
        assert list(found.values()) == [""]

    play(tmp_path, story)


def test_a_verdict_comes_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What joins after it is not given up when its time would have been over."""
    monkeypatch.setattr("mpspool.router.fault_domains.VERDICT_S", 0.05)

    async def story(scene: Scene) -> None:
        hello(scene, 0, 0)
        hello(scene, 0, 0, "FAILED")
        control = Control(scene.dataplane)
        await control.condemn(
            {
                "device": "gpu0",
                "workers": {"m@1.gpu0.0": 1},
                "culprits": None,
                "reason": "gpu0: FAULT",
                "comes_back": False,
            }
        )
        hello(scene, 0, 0, generation=2)
        await asyncio.sleep(0.1)
        assert [w["hung"] for w in (await control.snapshot({}))["workers"]] == [""]

    play(tmp_path, story)


def test_a_suspect_waits_until_its_device_is_known_to_be_well(tmp_path: Path) -> None:
    """Its worker died, and what ended that may be about to end the next one: that would not be the request's fault."""

    async def story(scene: Scene) -> None:
        asked, lives = await ask_of_one_that_dies(scene)
        await settle()
        assert not scene.link.dispatches(lives)
        await Control(scene.dataplane).clear({"device": "gpu0", "since_s": time.monotonic()})
        await settle()
        scene.answer(lives, scene.link.dispatches(lives)[0])
        assert await asked == b"answer"

    play(tmp_path, story)


def test_nobody_has_to_say_that_a_device_is_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a pool process the suspect runs all the same, a little later."""
    monkeypatch.setattr("mpspool.router.fault_domains.VERDICT_S", 0.05)

    async def story(scene: Scene) -> None:
        asked, lives = await ask_of_one_that_dies(scene)
        async with asyncio.timeout(5):
            while not scene.link.dispatches(lives):
                await asyncio.sleep(0.01)
        scene.answer(lives, scene.link.dispatches(lives)[0])
        assert await asked == b"answer"

    play(tmp_path, story)


def test_a_suspect_does_not_take_the_last_device_down(tmp_path: Path) -> None:
    """While its device is on its way back, it waits; whoever else asks is answered by the other device."""

    async def story(scene: Scene) -> None:
        ill = hello(scene, 0, 0)
        suspect = scene.ask()
        await settle()
        start(scene, ill, scene.link.dispatches(ill)[0])
        control = Control(scene.dataplane)
        verdict = {
            "device": "gpu0",
            "workers": {"m@1.gpu0.0": 1},
            "culprits": None,
            "reason": "gpu0: FAULT",
            "comes_back": True,
        }
        await control.condemn(verdict)
        other = hello(scene, 1, 0)
        await settle()
        assert not scene.link.dispatches(other)
        back = hello(scene, 0, 0, generation=2)
        await settle()
        holder = next(w for w in (other, back) if scene.link.dispatches(w))
        scene.answer(holder, scene.link.dispatches(holder)[0])
        assert await suspect == b"answer"

    play(tmp_path, story)
