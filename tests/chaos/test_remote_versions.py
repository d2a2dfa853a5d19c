"""Versions come from a store under load, in every way that goes well or wrong: no client notices.

One pool with two workers serves the module from a web server on loopback, and is asked to look at it all the time.
"""

from __future__ import annotations

import os
import shutil
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import PoolStarter, short_dir
from tests.polling import until
from tests.pool import ROOT, Load, Pool, cli
from tests.web import WebServer, serving

LoadStarter = Callable[..., Load]
MODEL = "half_plus_two"
FETCHER = f"fetch.{MODEL}"
WORKERS = ("--cpu-slots", 2, "--intra-op-threads", 1, "--inter-op-threads", 1)
OFTEN = ("--file-system-poll-wait-seconds", 0.2)


def environment(cache: Path) -> dict[str, str]:
    return {"MPSPOOL_CACHE_DIR": str(cache), "MPSPOOL_REMOTE_POLL_WAIT_SECONDS": "0.3"}


@pytest.fixture(scope="module")
def remote(model_dir: Callable[[str], Path]) -> Iterator[Path]:
    """What the web server shows: version 1."""
    with short_dir() as root:
        shutil.copytree(model_dir(MODEL) / "1", root / MODEL / "1")
        yield root / MODEL


@pytest.fixture(scope="module")
def web(remote: Path) -> Iterator[WebServer]:
    with serving(remote.parent) as server:
        yield server


@pytest.fixture(scope="module")
def cache() -> Iterator[Path]:
    with short_dir() as root:
        yield root


@pytest.fixture(scope="module")
def pool(start_module_pool: PoolStarter, web: WebServer, cache: Path) -> Pool:
    model = f"{MODEL}={web.url}/{MODEL}"
    return start_module_pool("--model", model, *WORKERS, *OFTEN, env=environment(cache)).wait()


def newest(remote: Path) -> int:
    return max(int(folder.name) for folder in remote.iterdir() if folder.name.isdigit())


def states(pool: Pool) -> dict[int, str]:
    (model,) = pool.status()["models"]
    return {version["version"]: version["state"] for version in model["versions"]}


def serves(pool: Pool, number: int) -> None:
    until(lambda: states(pool) == {number: "AVAILABLE"}, 60, f"version {number} serves alone")


def problem(pool: Pool) -> str:
    """What the process that copies says of itself in the status; "" while all is well."""
    (fetcher,) = (item for item in pool.status()["processes"] if item["name"] == FETCHER)
    return str(fetcher.get("error", ""))


def copies(cache: Path) -> list[str]:
    """What there is in the cache, whole or not."""
    (folder,) = cache.iterdir()
    return sorted(path.name for path in folder.iterdir() if path.is_dir())


def copied(pool: Pool) -> list[int]:
    return [event["version"] for event in pool.events(FETCHER) if event["event"] == "copied"]


def test_a_new_version_is_copied_and_takes_over(
    pool: Pool, remote: Path, cache: Path, load: LoadStarter
) -> None:
    """From the web server; the one before stays for a rollback, which works, and none older."""
    old = newest(remote)
    running = load(pool, MODEL)
    pool.serves_on()
    for number in (old + 1, old + 2):
        shutil.copytree(remote / str(old), remote / f"incoming.{number}")
        (remote / f"incoming.{number}").rename(remote / str(number))
        serves(pool, number)
    until(lambda: copies(cache) == [str(old + 1), str(old + 2)], 20, "the oldest copy is removed")
    assert cli("rollback", MODEL, "--run-dir", pool.run_dir).returncode == 0
    serves(pool, old + 1)
    assert cli("load", MODEL, "--run-dir", pool.run_dir).returncode == 0
    serves(pool, old + 2)
    pool.serves_on()
    running.end_clean()
    assert not problem(pool)


def test_a_version_that_comes_cut_off_is_never_served(
    pool: Pool, remote: Path, web: WebServer, cache: Path, load: LoadStarter
) -> None:
    """The server closes in the middle of its weights: status and log say so, the old one serves on; whole, it takes over."""
    old = newest(remote)
    running = load(pool, MODEL)
    pool.serves_on()
    (weights,) = (remote / str(old)).rglob("variables.data*")
    web.cut.add(f"/{MODEL}/{old + 1}/{weights.relative_to(remote / str(old))}")
    shutil.copytree(remote / str(old), remote / str(old + 1))
    why = until(lambda: problem(pool), 30, "it says what is wrong")
    assert weights.name in why
    assert f"version {old + 1}" in why
    assert why in cli("status", "--run-dir", pool.run_dir).stdout.replace("\n", "")
    assert [event for event in pool.events(FETCHER) if event.get("why") == why]
    pool.serves_on()
    assert states(pool) == {old: "AVAILABLE"}
    assert old + 1 not in copied(pool)
    web.cut.clear()
    serves(pool, old + 1)
    until(lambda: not problem(pool), 20, "nothing is wrong any more")
    pool.serves_on()
    running.end_clean()


def test_the_store_goes_away_and_comes_back(
    pool: Pool, remote: Path, web: WebServer, load: LoadStarter
) -> None:
    """What is served is served on; the process that copies says so, and is there again when it is killed."""
    old = newest(remote)
    running = load(pool, MODEL)
    pool.serves_on()
    remote.rename(remote.with_name("elsewhere"))
    assert "is not there" in until(lambda: problem(pool), 20, "it says that the store is away")
    killed = pool.process_pid(FETCHER)
    os.kill(killed, signal.SIGKILL)
    os.kill(pool.process_pid("pool"), signal.SIGKILL)
    until(lambda: pool.process_pid(FETCHER) not in (0, killed), 20, "it is there again")
    pool.serves_on()
    assert states(pool) == {old: "AVAILABLE"}
    remote.with_name("elsewhere").rename(remote)
    until(lambda: not problem(pool), 20, "nothing is wrong any more")
    running.end_clean()


def test_a_store_that_hangs_costs_no_request(
    pool: Pool, remote: Path, web: WebServer, load: LoadStarter
) -> None:
    """A new version stands still in the middle: the old one serves on, and the new one when the store goes on."""
    old = newest(remote)
    running = load(pool, MODEL)
    pool.serves_on()
    hangs, goes_on = threading.Event(), threading.Event()

    def hang(path: str) -> None:
        if path == f"/{MODEL}/{old + 1}/saved_model.pb":
            hangs.set()
            goes_on.wait(60)

    web.on_get = hang
    shutil.copytree(remote / str(old), remote / str(old + 1))
    try:
        assert hangs.wait(30)
        pool.serves_on()
        assert states(pool) == {old: "AVAILABLE"}
    finally:
        web.on_get = lambda _path: None
        goes_on.set()
    serves(pool, old + 1)
    pool.serves_on()
    running.end_clean()


def test_a_pool_ends_while_its_store_hangs(
    start_pool: PoolStarter, model_dir: Callable[[str], Path], tmp_path: Path
) -> None:
    """SIGTERM in the middle of a new version's copy: it ends as ever, and what copies with it; only what is whole is left."""
    shutil.copytree(model_dir(MODEL) / "1", tmp_path / "remote" / "1")
    hangs, goes_on = threading.Event(), threading.Event()

    def hang(path: str) -> None:
        if path == "/2/saved_model.pb":
            hangs.set()
            goes_on.wait(120)

    with serving(tmp_path / "remote") as web:
        web.on_get = hang
        pool = start_pool(
            "--model", f"{MODEL}={web.url}", *WORKERS, *OFTEN, env=environment(tmp_path / "cache")
        )
        try:
            pool.wait()
            shutil.copytree(tmp_path / "remote" / "1", tmp_path / "remote" / "2")
            assert hangs.wait(30)
            assert pool.stop() == 0
            pool.assert_nothing_left()
        finally:
            goes_on.set()
    assert sorted({*copies(tmp_path / "cache")} - {"2.partial"}) == ["1"]


def test_a_disk_that_is_full_costs_no_request(
    start_pool: PoolStarter, model_dir: Callable[[str], Path], load: LoadStarter, tmp_path: Path
) -> None:
    """ENOSPC in the middle of a new version: nothing of it is left, status and log say why, and it is tried again."""
    shutil.copytree(model_dir(MODEL) / "1", tmp_path / "remote" / "1")
    fakes = os.pathsep.join([str(ROOT / "tests" / "fakes" / "full_store"), os.environ.get("PYTHONPATH", "")])
    env: dict[str, Any] = {**environment(tmp_path / "cache"), "PYTHONPATH": fakes}
    pool = start_pool("--model", f"{MODEL}=full://{tmp_path / 'remote'}", *WORKERS, *OFTEN, env=env).wait()
    running = load(pool, MODEL)
    pool.serves_on()
    (tmp_path / "remote" / "disk_is_full").touch()
    shutil.copytree(tmp_path / "remote" / "1", tmp_path / "remote" / "2")
    why = until(lambda: problem(pool), 20, "it says that the disk is full")
    assert "No space left on device" in why
    assert [event for event in pool.events(FETCHER) if event.get("why") == why]
    pool.serves_on()
    assert states(pool) == {1: "AVAILABLE"}
    until(lambda: copies(tmp_path / "cache") == ["1"], 20, "nothing of version 2 is left")
    (tmp_path / "remote" / "disk_is_full").unlink()
    serves(pool, 2)
    until(lambda: not problem(pool), 20, "nothing is wrong any more")
    pool.serves_on()
    running.end_clean()
