"""The versions of a pool's models, from the folders in a base path to the slots of their workers."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from mpspool.core.ids import ModelVersion
from mpspool.core.rundir import RunDir
from mpspool.core.settings import (
    BatchingSettings,
    ModelSettings,
    MpsSettings,
    PoolSettings,
    RemoteSettings,
    RouterSettings,
    SlotSettings,
    VersionBatching,
    VersionPolicy,
)
from mpspool.core.states import VersionPhase
from mpspool.supervisor.pool.base_paths import BasePath
from mpspool.supervisor.pool.servables import Servables
from mpspool.supervisor.pool.versions import Fact
from mpspool.supervisor.version_folders import BATCHING_FILE, WARMUP_FILE

GRAPH = b"\x08\x01\x12\x00"
SLOTS = [SlotSettings(device="gpu0", slot=number) for number in range(2)]
READY = Fact(ready=2)


def export(base: Path, number: int, *, recorded: bool = False, batching: str = "") -> Path:
    """A version's folder with a SavedModel that looks whole, and with recorded requests or parameters of batching."""
    folder = base / f"incoming.{number}"
    (folder / WARMUP_FILE.parent).mkdir(parents=True)
    (folder / "saved_model.pb").write_bytes(GRAPH)
    if recorded:
        (folder / WARMUP_FILE).write_bytes(b"records")
    if batching:
        (folder / BATCHING_FILE).write_text(batching)
    return folder.rename(base / str(number))


class Watching:
    """Servables of one model that look at its base path ten times a second, and the facts that they are told."""

    def __init__(self, servables: Servables) -> None:
        self.servables = servables
        self.facts: dict[ModelVersion, Fact] = {}

    async def until(self, done: Callable[[], Any], timeout_s: float = 20) -> None:
        """Steps on until something is so; workers that are to leave are gone at once."""
        async with asyncio.timeout(timeout_s):
            while not done():
                self.servables.step(self.facts, time.monotonic())
                leaving = [m for m, version in self.servables if version.phase is VersionPhase.LEAVING]
                for worker in [w for w in self.servables.places if w.model_version in leaving]:
                    self.servables.vacated(worker)
                for model in leaving:
                    self.facts.pop(model, None)
                await asyncio.sleep(0.01)

    async def serves(self, number: int) -> None:
        """All workers of a version have come, and it is served."""
        await self.until(lambda: self.phase(number) in (VersionPhase.LOADING, VersionPhase.SERVING))
        self.facts[ModelVersion("m", number)] = READY
        await self.until(lambda: self.phase(number) is VersionPhase.SERVING)

    def phase(self, number: int) -> VersionPhase | None:
        """Of a version; None where it is not there."""
        version = self.servables.of("m").get(number)
        return None if version is None else version.phase

    def settings(self, number: int) -> ModelSettings:
        """Of a version's workers."""
        return next(model for worker, (model, _) in self.servables.places.items() if worker.version == number)

    def go_through(self, story: Callable[[Watching], Awaitable[None]]) -> None:
        """What happens while the base path is watched, from when version 1 is served."""

        async def watched() -> None:
            watcher = asyncio.create_task(self.servables.watch_for_ever())
            try:
                await self.serves(1)
                await story(self)
            finally:
                watcher.cancel()

        asyncio.run(watched())

    async def records_then_serves_another(self, base: Path) -> None:
        """Requests are recorded for version 1 while it is served, and version 2 comes after it, without any of its own."""
        (base / "1" / WARMUP_FILE).write_bytes(b"records")
        export(base, 2)
        await self.serves(2)


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    """With its folders."""
    found = RunDir(tmp_path / "run")
    for folder in found.folders():
        folder.mkdir()
    return found


@pytest.fixture
def base(tmp_path: Path) -> Path:
    """A base path with version 1."""
    (tmp_path / "m").mkdir()
    export(tmp_path / "m", 1)
    return tmp_path / "m"


@contextlib.contextmanager
def watching(
    run: RunDir,
    base: Path,
    max_clients: int = 0,
    poll_s: float = 0.1,
    remotes: Sequence[RemoteSettings] = (),
    **changes: Any,
) -> Iterator[Watching]:
    """Servables with that base path, to be watched in `with`, on a GPU whose MPS takes so many; `changes` to the model."""
    model = ModelSettings(
        name="m", version=1, path=str(base / "1"), base_path=str(base), **{"slots": SLOTS, **changes}
    )
    front: dict[str, Any] = {"run_dir": str(run.root), "host": "127.0.0.1", "grpc_port": 1, "rest_port": 0}
    daemon = MpsSettings(
        device="gpu0",
        gpu_uuid="GPU-0",
        pipe_dir="/p",
        log_dir="/l",
        server_log="",
        control=[],
        max_clients=max_clients,
    )
    config = PoolSettings(
        run_dir=str(run.root),
        mps="on",
        models=[model],
        mps_daemons=[daemon],
        router=RouterSettings(**front),
        poll_s=poll_s,
        remotes=list(remotes),
    )
    servables = Servables(run, config, lambda: None)
    try:
        yield Watching(servables)
    finally:
        servables.close()


def test_folders_are_looked_into_off_the_event_loop(
    run: RunDir, base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file system that hangs holds up nobody, also where a new version is warmed with what was recorded of another."""
    loops, (stat, exists) = threading.get_ident(), (os.stat, os.path.exists)
    seen: list[tuple[bool, str]] = []

    def spy(what: Callable[..., Any]) -> Callable[..., Any]:
        def spied(path: Any, *args: Any, **kwargs: Any) -> Any:
            seen.append(
                (threading.get_ident() == loops, os.fspath(path) if not isinstance(path, int) else "")
            )
            return what(path, *args, **kwargs)

        return spied

    with watching(run, base) as pool:
        monkeypatch.setattr(os, "stat", spy(stat))
        monkeypatch.setattr(os.path, "exists", spy(exists))
        pool.go_through(lambda pool: pool.records_then_serves_another(base))
        monkeypatch.undo()
        assert pool.settings(2).warmup == str(base / "1" / WARMUP_FILE)
    assert any(WARMUP_FILE.name in path for _, path in seen)
    assert not [path for on_loop, path in seen if on_loop and path.startswith(str(base))]


def test_a_model_is_complete_with_what_its_labels_stand_for(run: RunDir, base: Path) -> None:
    """That is to come, or may be before all has been looked at; once all of it has been served nothing is any more.

    A pool process that takes the place of another goes on from there.
    """
    labels = {"stable": 1, "new": 2, "absent": 9}
    policy = VersionPolicy(specific=(1, 2, 3, 9))
    export(base, 2)

    def to_come(servables: Servables) -> list[int]:
        (found,) = {tuple(one.to_come) for one in servables.all()}
        return list(found)

    async def story(pool: Watching) -> None:
        await pool.until(lambda: pool.phase(2) is VersionPhase.LOADING)
        await pool.until(lambda: to_come(pool.servables) == [2])  # there is no version 9
        await pool.serves(2)
        await pool.until(lambda: to_come(pool.servables) == [])
        shutil.rmtree(base / "2")
        await pool.until(lambda: pool.phase(2) is None)
        export(base, 2)
        await pool.until(lambda: pool.phase(2) is VersionPhase.LOADING)
        assert to_come(pool.servables) == []

    with watching(run, base, policy=policy, labels=labels) as pool:
        assert to_come(pool.servables) == [1, 2, 9]
        pool.go_through(story)
    with watching(run, base, policy=policy, labels=labels) as pool:
        assert to_come(pool.servables) == []


def test_a_label_for_what_cannot_be_served_is_not_waited_for(run: RunDir, base: Path) -> None:
    """However often it is tried again."""
    export(base, 2)

    async def story(pool: Watching) -> None:
        await pool.until(lambda: pool.phase(2) is VersionPhase.LOADING)
        assert [one.to_come for one in pool.servables.all()] == [[2]] * 2
        pool.facts[ModelVersion("m", 2)] = Fact(reason="it does not load")
        await pool.until(lambda: pool.phase(2) is VersionPhase.FAILED)
        await pool.until(lambda: not any(one.to_come for one in pool.servables.all()))

    with watching(run, base, policy=VersionPolicy(latest=2), labels={"new": 2}) as pool:
        pool.go_through(story)


def test_without_an_interval_nobody_looks_again(run: RunDir, base: Path) -> None:
    """The looks end by themselves, with what was there at the start."""

    async def story(pool: Watching) -> None:
        async with asyncio.timeout(20):
            await pool.servables._watch("m")
        await pool.serves(1)

    with watching(run, base, poll_s=0) as pool:
        asyncio.run(story(pool))
        assert {version.number for _, version in pool.servables} == {1}


def test_without_an_interval_a_broken_version_is_told(run: RunDir, base: Path) -> None:
    """It may be on its way for some seconds: so long is looked."""
    broken = export(base, 2)
    (broken / "saved_model.pb").write_bytes(GRAPH[:2])

    async def story(pool: Watching) -> None:
        async with asyncio.timeout(20):
            await pool.servables._watch("m")
        await pool.serves(1)

    with watching(run, base, poll_s=0, policy=VersionPolicy(all=True)) as pool:
        asyncio.run(story(pool))
        assert [(model.version, version.phase) for model, version in pool.servables] == [
            (1, VersionPhase.SERVING),
            (2, VersionPhase.FAILED),
        ]


def test_without_an_interval_what_comes_from_a_store_is_seen(
    run: RunDir, base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As often as the store is looked at, and once more soon after a version has come."""
    looks, looked = [], BasePath.look

    def look(path: BasePath, *args: Any, **kwargs: Any) -> Any:
        found = looked(path, *args, **kwargs)
        looks.append(found)
        if len(looks) == 1:
            export(base, 2)
        return found

    async def story(pool: Watching) -> None:
        await pool.serves(2)

    monkeypatch.setattr(BasePath, "look", look)
    remote = RemoteSettings(run_dir=str(run.root), model="m", url="s3://b/m", folder=str(base), poll_s=600)
    with watching(run, base, poll_s=0, remotes=[remote]) as pool:
        pool.go_through(story)
    assert len(looks) == 3


def test_a_successor_warms_workers_as_before(run: RunDir, base: Path) -> None:
    """With what was recorded for another version, too, which may have gone by then."""
    with watching(run, base) as pool:
        pool.go_through(lambda pool: pool.records_then_serves_another(base))
    with watching(run, base) as pool:
        assert pool.settings(2).warmup == str(base / "1" / WARMUP_FILE)


@pytest.mark.parametrize("recorded", [True, False])
def test_a_version_is_warmed_with_its_own_requests_where_it_has_some(
    run: RunDir, base: Path, recorded: bool
) -> None:
    """And where nobody has any, with none."""
    export(base, 2, recorded=recorded)
    if recorded:
        (base / "1" / WARMUP_FILE).write_bytes(b"records")

    async def story(pool: Watching) -> None:
        await pool.serves(2)

    with watching(run, base) as pool:
        pool.go_through(story)
        assert pool.settings(2).warmup == ""


def test_each_version_is_batched_as_its_own_folder_says(run: RunDir, base: Path) -> None:
    """With what the pool file says before that; one with a file that is of no use fails, until that is mended, and the
    one before it serves on. A pool process that follows knows the same.
    """
    said = VersionBatching(given={"adaptive": True}, without=BatchingSettings(adaptive=True))
    own = BatchingSettings(max_batch_size=8, allowed_batch_sizes=[4, 8], adaptive=True)

    async def story(pool: Watching) -> None:
        assert pool.settings(1).batching is None
        export(base, 2, batching="max_batch_size { value: 8 }\nallowed_batch_sizes: [4, 8]")
        await pool.serves(2)
        assert pool.settings(2).batching == own
        folder = export(base, 3, batching="max_batch_size { value: 8 }\nallowed_batch_sizes: [4]")
        third = ModelVersion("m", 3)
        await pool.until(lambda: dict(pool.servables).get(third))
        failed = dict(pool.servables)[third]
        assert failed.phase is VersionPhase.FAILED
        assert failed.reason.startswith(f"{folder / BATCHING_FILE} line 2: allowed_batch_sizes ends with 4")
        assert dict(pool.servables)[ModelVersion("m", 2)].phase is VersionPhase.SERVING
        (folder / BATCHING_FILE).unlink()
        await pool.serves(3)
        assert pool.settings(3).batching == said.without

    with watching(run, base, version_batching=said) as pool:
        pool.go_through(story)
    with watching(run, base, version_batching=said) as successor:
        known = {model.version: model.batching for model, _ in successor.servables.places.values()}
        assert known[3] == said.without
        assert known.get(2, own) == own


@pytest.mark.parametrize("how", ["fails", "fails with its device", "is taken out and back while it leaves"])
def test_what_is_loaded_again_is_batched_as_its_folder_says_by_then(
    run: RunDir, base: Path, how: str
) -> None:
    """Its workers are given what is there now, not what the former ones were given."""
    first = ModelVersion("m", 1)

    async def story(pool: Watching) -> None:
        assert pool.settings(1).batching is None
        if how == "is taken out and back while it leaves":
            await pool.servables.unload({"model": "m"})
            pool.servables.step(pool.facts, time.monotonic())
            assert pool.phase(1) is VersionPhase.LEAVING
        else:
            pool.facts[first] = Fact(reason="it was lost")
            await pool.until(lambda: pool.phase(1) is VersionPhase.FAILED)
        if how == "fails with its device":
            del pool.facts[first]
        (base / "1" / BATCHING_FILE).write_text("max_batch_size { value: 8 }")
        await pool.servables.load({"model": "m"})
        await pool.serves(1)
        assert pool.settings(1).batching == BatchingSettings(max_batch_size=8)

    with watching(run, base, version_batching=VersionBatching()) as pool:
        pool.go_through(story)


def test_a_model_that_is_put_back_is_loaded_from_its_new_base_path(run: RunDir, base: Path) -> None:
    """Also where the former version of that number has yet to leave."""
    (base.parent / "other").mkdir()
    there = export(base.parent / "other", 1)
    with watching(run, base) as pool:
        places, config = dict(pool.servables.places), pool.servables._config
    taken_out = Servables(run, msgspec.structs.replace(config, models=[]), lambda: None, places)
    taken_out.step({}, time.monotonic())
    taken_out.close()
    (model,) = config.models
    moved = msgspec.structs.replace(model, base_path=str(there.parent), path=str(there))
    back = Watching(Servables(run, msgspec.structs.replace(config, models=[moved]), lambda: None, places))

    async def story(pool: Watching) -> None:
        assert pool.settings(1).path == str(there)

    try:
        assert back.phase(1) is VersionPhase.LEAVING
        back.go_through(story)
    finally:
        back.servables.close()


def test_a_file_of_batching_is_not_read_unasked(run: RunDir, base: Path) -> None:
    """Without per_model all versions are batched alike."""

    async def story(pool: Watching) -> None:
        export(base, 2, batching="nonsense")
        await pool.serves(2)

    with watching(run, base, batching=BatchingSettings(max_batch_size=3)) as pool:
        pool.go_through(story)
        assert pool.settings(2).batching == BatchingSettings(max_batch_size=3)


def test_versions_do_not_push_a_gpu_beyond_what_mps_takes(run: RunDir, base: Path) -> None:
    """One for which there is no room says so, and what to do; it comes as soon as another has gone."""
    third = ModelVersion("m", 3)

    async def story(pool: Watching) -> None:
        export(base, 2)
        await pool.serves(2)
        export(base, 3)
        await pool.until(lambda: dict(pool.servables).get(third))
        waiting = dict(pool.servables)[third]
        assert waiting.phase is VersionPhase.FAILED
        assert waiting.reason == (
            "no room on gpu0: 2 more workers beside 4 would be more than the 4 clients that MPS takes; unload a"
            " version, keep fewer by version_policy, or start with fewer contexts_per_gpu"
        )
        assert third not in {worker.model_version for worker in pool.servables.places}
        shutil.rmtree(base / "1")
        await pool.serves(3)
        assert len(pool.servables.places) == 4

    with watching(run, base, max_clients=4, policy=VersionPolicy(all=True)) as pool:
        pool.go_through(story)


def test_where_nothing_is_older_what_comes_is_told(run: RunDir, base: Path) -> None:
    """A bad release is on its way: to hear that there is no older folder would not help."""

    async def story(pool: Watching) -> None:
        assert "there is no older folder" in (await pool.servables.rollback({"model": "m"}))["error"]
        export(base, 2)
        await pool.until(lambda: ModelVersion("m", 2) in dict(pool.servables))
        assert (
            "version 2 of m is meant to take over" in (await pool.servables.rollback({"model": "m"}))["error"]
        )

    with watching(run, base) as pool:
        pool.go_through(story)


def test_slot_by_slot_a_version_needs_no_more_than_there_is(run: RunDir, base: Path) -> None:
    """Its workers take the places of the other's: MPS never has more clients than before."""

    async def story(pool: Watching) -> None:
        export(base, 2)
        await pool.serves(2)

    with watching(run, base, max_clients=2, swap="rolling") as pool:
        pool.go_through(story)


def test_going_back_waits_for_what_comes(run: RunDir, base: Path) -> None:
    """While a newer version is loaded it says so, and what to do; when that is left out, the one before is found and comes."""

    async def story(pool: Watching) -> None:
        export(base, 2)
        await pool.serves(2)
        export(base, 3)
        await pool.until(lambda: ModelVersion("m", 3) in dict(pool.servables))
        told = await pool.servables.rollback({"model": "m"})
        assert told["error"] == (
            "version 3 of m is meant to take over: wait for it, or leave it out first with `mpspool unload m@3`"
        )
        assert "error" not in await pool.servables.unload({"model": "m", "version": 3})
        await pool.until(lambda: ModelVersion("m", 3) not in dict(pool.servables))
        assert (await pool.servables.rollback({"model": "m"}))["to"] == 1
        await pool.serves(1)

    with watching(run, base) as pool:
        pool.go_through(story)


def test_a_model_whose_base_path_has_gone_can_be_unloaded(run: RunDir, base: Path) -> None:
    """Though nothing of it can be loaded, which says what is missing."""

    async def story(pool: Watching) -> None:
        shutil.rmtree(base)
        for order in (pool.servables.load, pool.servables.rollback):
            told = await order({"model": "m"})
            assert (
                told["error"]
                == f"{base} cannot be read: No such file or directory; have it back, then try again"
            )
        assert (
            "there is no version 2 of m"
            in (await pool.servables.unload({"model": "m", "version": 2}))["error"]
        )
        assert "error" not in await pool.servables.unload({"model": "m", "version": 1})
        await pool.until(lambda: not list(pool.servables))

    with watching(run, base) as pool:
        pool.go_through(story)


@pytest.mark.parametrize("route", [{"labels": {"\udcf6": 1}}, {"metadata": [["x-name", "J\udcf6rg", 1]]}])
def test_a_route_with_bytes_that_are_no_text_is_refused(
    run: RunDir, base: Path, route: dict[str, Any]
) -> None:
    """As a terminal of another encoding gives them; nothing of it is kept, and the next one is recorded."""

    async def story(pool: Watching) -> None:
        await pool.serves(1)
        answer = await pool.servables.set_route({"model": "m", "route": route})
        assert "bytes that are no UTF-8" in answer["error"]
        assert "error" not in await pool.servables.set_route({"model": "m", "route": {"labels": {"new": 1}}})

    with watching(run, base) as pool:
        pool.go_through(story)


def test_nothing_is_ordered_of_a_model_that_leaves(run: RunDir, base: Path) -> None:
    """It says so; of one that there never was it names those that there are."""

    async def orders(servables: Servables) -> list[str]:
        asked = (servables.unload, servables.load, servables.rollback, servables.set_route)
        return [(await order({"model": "m"}))["error"] for order in asked]

    with watching(run, base) as pool:
        places = dict(pool.servables.places)
        config = pool.servables._config
    servables = Servables(run, msgspec.structs.replace(config, models=[]), lambda: None, places)
    try:
        told = asyncio.run(orders(servables))
        assert told == 4 * ["model 'm' is not configured any more, and leaves"]
        unknown = asyncio.run(servables.load({"model": "x"}))
        assert unknown == {"error": "there is no model 'x'; there are none"}
    finally:
        servables.close()
