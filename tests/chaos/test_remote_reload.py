"""A reload under load of models whose versions come from a store: what copies them comes, changes and goes with them.

One pool with two workers serves the module from a folder; each test leaves it as its file was at the start.
"""

from __future__ import annotations

import os
import shutil
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from tests.conftest import PoolStarter, short_dir
from tests.polling import until
from tests.pool import Load, Pool, cli
from tests.reloading import File, alike, ask, predict, refused, reload
from tests.web import WebServer, serving

LoadStarter = Callable[..., Load]
MODEL = "half_plus_two"
OTHER = "other"
FETCHER = f"fetch.{OTHER}"


@pytest.fixture(scope="module")
def root(model_dir: Callable[[str], Path]) -> Iterator[Path]:
    """With "local", what the pool serves at first, and "remote", what the web server shows: versions 1 to 3 each."""
    with short_dir() as folder:
        for number in (1, 2, 3):
            shutil.copytree(model_dir(MODEL) / "1", folder / "local" / str(number))
            shutil.copytree(model_dir(MODEL) / "1", folder / "remote" / str(number))
        yield folder


@pytest.fixture(scope="module")
def web(root: Path) -> Iterator[WebServer]:
    with serving(root / "remote") as server:
        yield server


@pytest.fixture(scope="module")
def file(root: Path) -> File:
    return File(root / "pool.yaml", root / "local")


@pytest.fixture(scope="module")
def write(file: File, root: Path, web: WebServer) -> Callable[..., None]:
    """Writes the file: with what the other model is, where it is to be; from the web server, where nothing else is said."""

    def write(*, cache: str = "cache", poll_s: float = 0.3, **other: Any) -> None:
        models = {MODEL: {}, **({OTHER: {"base_path": web.url, "cpu_slots": 1, **other}} if other else {})}
        file.write(models, cache_dir=str(root / cache), remote_poll_wait_seconds=poll_s)

    return write


@pytest.fixture(scope="module")
def pool(start_module_pool: PoolStarter, file: File, write: Callable[..., None]) -> Pool:
    write()
    return start_module_pool(file.path).wait()


@pytest.fixture
def running(pool: Pool, root: Path, write: Callable[..., None], load: LoadStarter) -> Iterator[Load]:
    """Requests to the model from the folder: none fails, and its workers are not touched."""
    write()
    reload(pool)
    shutil.rmtree(root / "cache", ignore_errors=True)
    before = pool.workers()
    running = load(pool, MODEL)
    pool.serves_on()
    yield running
    pool.serves_on()
    running.end_clean()
    assert alike(before, pool.workers()) == before.keys()


def fetcher(pool: Pool) -> int:
    """The pid of what copies; 0 where nothing does."""
    return next((item["pid"] for item in pool.status()["processes"] if item["name"] == FETCHER), 0)


def serves(pool: Pool, number: int) -> bool:
    """Whether the other model serves this version alone."""
    (model,) = (model for model in pool.status()["models"] if model["name"] == OTHER)
    return {one["version"]: one["state"] for one in model["versions"]} == {number: "AVAILABLE"}


def test_a_model_from_a_store_comes_and_goes(
    pool: Pool, root: Path, write: Callable[..., None], running: Load
) -> None:
    """It is copied before anything changes, watched from then on, and what copies it goes with it."""
    write(version_policy="latest")
    told = reload(pool)
    assert "copying what is new from http://" in told
    assert "is added" in told
    assert serves(pool, 3)
    assert predict(pool, OTHER) == [2.5, 3.0]
    shutil.copytree(root / "remote" / "3", root / "remote" / "incoming")
    (root / "remote" / "incoming").rename(root / "remote" / "4")
    try:
        until(lambda: serves(pool, 4), 60, "a new version is copied and served")
    finally:
        shutil.rmtree(root / "remote" / "4")
    write()
    assert "is taken out" in reload(pool)
    assert not fetcher(pool)
    assert not list((pool.run_dir / "programs").glob(f"{FETCHER}*"))
    assert "NOT_FOUND" in predict(pool, OTHER)


def test_what_copies_and_hangs_is_ended(pool: Pool, write: Callable[..., None], running: Load) -> None:
    """Kill -STOP of it: a reload that ends it is taken up all the same, and another comes in its place."""
    write(version_policy="latest")
    reload(pool)
    hung = fetcher(pool)
    os.kill(hung, signal.SIGSTOP)
    write(version_policy="latest", poll_s=0.5)
    reload(pool)
    assert fetcher(pool) not in (0, hung)


def test_a_policy_may_mean_what_has_not_been_copied(
    pool: Pool, write: Callable[..., None], running: Load
) -> None:
    """It is copied first, though what copies by the former policy runs; from then on the new one counts."""
    write(version_policy="latest")
    reload(pool)
    before = fetcher(pool)
    write(version_policy=2)
    told = reload(pool)
    assert "copying what is new from" in told
    assert "version_policy holds at once" in told
    until(lambda: serves(pool, 2), 60, "the version that the policy means serves alone")
    assert fetcher(pool) not in (0, before)
    write(version_policy=9)
    assert "there is no version 9, which version_policy names" in refused(pool)
    assert serves(pool, 2)


def test_what_is_as_it_was_is_not_copied_again(
    pool: Pool, write: Callable[..., None], web: WebServer, running: Load
) -> None:
    """Another interval: the process that copies comes anew, with it; another label: it stays."""
    write(version_policy="latest")
    reload(pool)
    before = fetcher(pool)
    copied = web.got.count("/3/saved_model.pb")
    write(version_policy="latest", version_labels={"stable": 3})
    assert "copying" not in reload(pool)
    assert fetcher(pool) == before
    write(version_policy="latest", version_labels={"stable": 3}, poll_s=0)
    assert "remote_poll_wait_seconds holds at once" in reload(pool)
    assert not fetcher(pool)
    write(version_policy="latest", version_labels={"stable": 3})
    reload(pool)
    until(lambda: fetcher(pool) not in (0, before), 20, "it is there again")
    assert web.got.count("/3/saved_model.pb") == copied
    assert serves(pool, 3)


def test_a_base_path_moves_to_a_folder_and_to_another_cache(
    pool: Pool, root: Path, file: File, write: Callable[..., None], running: Load
) -> None:
    """What is served is served on; what copies goes with the remote base path, and comes with it."""
    write(version_policy="latest")
    reload(pool)
    (worker,) = (worker for worker in pool.workers() if worker.startswith(OTHER))
    before = pool.workers()[worker]
    write(version_policy="latest", base_path=str(file.base))
    assert "base_path holds at once" in reload(pool)
    assert not fetcher(pool)
    write(version_policy="latest", cache="elsewhere")
    assert "copying what is new" in reload(pool)
    until(lambda: fetcher(pool), 20, "what copies is there")
    assert [path.name for path in (root / "elsewhere").glob("*/3")] == ["3"]
    write(version_policy="latest")
    assert "cache_dir holds at once" in reload(pool)
    assert alike({worker: before}, pool.workers()) == {worker}


def test_a_store_that_is_away_is_a_bad_configuration(
    pool: Pool, root: Path, write: Callable[..., None], web: WebServer, running: Load
) -> None:
    """Nothing is changed where nothing of it has been copied before."""
    write(version_policy="latest", base_path=f"{web.url}/nowhere")
    error = refused(pool)
    assert f"models.{OTHER}.base_path" in error
    assert f"{web.url}/nowhere" in error
    assert not fetcher(pool)


def test_clients_reload_from_a_store(
    pool: Pool, write: Callable[..., None], web: WebServer, running: Load, file: File
) -> None:
    """Answered when it has been copied and is AVAILABLE, however long the store takes; what is away is refused."""
    hangs, goes_on = threading.Event(), threading.Event()

    def hang(path: str) -> None:
        if path.endswith("saved_model.pb"):
            hangs.set()
            goes_on.wait(120)

    served = {MODEL: str(file.base), OTHER: web.url}
    web.on_get = hang
    asked: list[Any] = []
    asking = threading.Thread(target=lambda: asked.append(ask(pool, served, timeout_s=240)))
    asking.start()
    try:
        assert hangs.wait(60)
        assert "NOT_FOUND" in predict(pool, OTHER)
        assert not asked
    finally:
        web.on_get = lambda _path: None
        goes_on.set()
        asking.join()
    assert asked[0].status.error_code == 0
    assert predict(pool, OTHER) == [2.5, 3.0]
    with pytest.raises(grpc.RpcError) as caught:
        ask(pool, {**served, "third": f"{web.url}/nowhere"})
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert f"{web.url}/nowhere" in caught.value.details()
    assert serves(pool, 3)


def test_the_pool_process_is_killed_while_it_takes_up_another_store(
    pool: Pool, write: Callable[..., None], running: Load
) -> None:
    """Whichever configuration its successor finds, what copies is there, and by what that says."""
    write(version_policy="latest")
    reload(pool)
    write(version_policy=2)
    asking = threading.Thread(target=lambda: cli("reload", "--run-dir", pool.run_dir, "--no-wait"))
    asking.start()
    ended = pool.process_pid("pool")
    before = fetcher(pool)
    until(lambda: not asking.is_alive() or fetcher(pool) != before, 60, "it is taken up")
    os.kill(ended, signal.SIGKILL)
    asking.join()
    reload(pool)
    until(lambda: serves(pool, 2), 60, "the version that the policy means serves alone")
    until(lambda: fetcher(pool), 20, "what copies is there")
