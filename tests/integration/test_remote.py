"""Versions come from a store whole or not at all: fsspec's memory, and a web server on loopback that fails in many ways."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from mpspool.core import process, settings
from mpspool.core.rundir import RunDir
from mpspool.core.settings import RemoteSettings, VersionPolicy
from mpspool.core.states import VersionPhase
from mpspool.supervisor.config.schema import PoolConfig
from mpspool.supervisor.orders import Orders
from mpspool.supervisor.planning import remotes
from mpspool.supervisor.pool.versions import RECORDS, ModelRecord, Records, VersionRecord
from mpspool.supervisor.remote.cache import Cache
from mpspool.supervisor.remote.fetch import Fetcher, Outcome, Watchdog, in_use, once
from mpspool.supervisor.remote.listing import InUse
from mpspool.supervisor.remote.store import Store, StoreError
from tests.configuration import load_config
from tests.conftest import short_dir
from tests.polling import until
from tests.pool import CLI, ROOT, cli, processes_of
from tests.web import WebServer, serving

LATEST = VersionPolicy()
FILES = {
    "saved_model.pb": b"\x08\x01\x12\x00",
    "variables/variables.index": b"index" * 1000 + bytes.fromhex("57fb808b247547db"),
    "assets/words with blanks.txt": b"words",
    "variables/variables.data-00000-of-00001": bytes(range(256)) * 400,
}


def export(base: Path, number: int, files: dict[str, bytes] = FILES) -> Path:
    for name, content in files.items():
        (base / str(number) / name).parent.mkdir(parents=True, exist_ok=True)
        (base / str(number) / name).write_bytes(content)
    return base / str(number)


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def cached(folder: Path) -> list[int]:
    """The versions in a cache; nothing that is not whole is there."""
    assert not list(folder.glob("*.partial"))
    return sorted(int(path.name) for path in folder.iterdir() if path.is_dir())


class Cached:
    """A fetcher and its cache."""

    def __init__(self, folder: Path, url: str, policy: VersionPolicy = LATEST) -> None:
        self.folder = folder
        self.use: InUse | None = InUse()
        asked = RemoteSettings(run_dir="", model="m", url=url, folder=str(folder), policy=policy)
        self._fetcher = Fetcher(asked, lambda: self.use, Watchdog(lambda _why: None), settle_s=0.01)

    def look(self) -> Outcome:
        return self._fetcher.look()


@pytest.fixture
def remote(tmp_path: Path) -> Path:
    (tmp_path / "remote").mkdir()
    return tmp_path / "remote"


@pytest.fixture
def web(remote: Path) -> Iterator[WebServer]:
    with serving(remote) as server:
        yield server


@pytest.fixture
def cache(tmp_path: Path, web: WebServer) -> Cached:
    return Cached(tmp_path / "cache", web.url)


@pytest.fixture
def memory() -> Iterator[MemoryFileSystem]:
    files = fsspec.filesystem("memory")
    yield files
    files.store.clear()
    files.pseudo_dirs[:] = [""]


def test_the_newest_version_is_copied_from_memory(tmp_path: Path, memory: MemoryFileSystem) -> None:
    """All of its files and no other version's; the next look copies nothing; a newer one is copied beside it."""
    for number in (1, 2, 10):
        for name, content in FILES.items():
            memory.pipe(f"/models/m/{number}/{name}", content)
    memory.pipe("/models/m/incoming.11/saved_model.pb", b"x")
    there = Cached(tmp_path / "cache", "memory://models/m")
    assert there.look() == Outcome([10])
    assert cached(there.folder) == [10]
    assert contents(there.folder / "10") == FILES
    assert there.look() == Outcome()
    memory.pipe("/models/m/11/saved_model.pb", FILES["saved_model.pb"])
    assert there.look() == Outcome([11])
    assert cached(there.folder) == [10, 11]


def test_versions_come_over_http(cache: Cached, remote: Path) -> None:
    """From a listing of links, names with blanks too; specific versions where the policy names them."""
    for number in (1, 2, 3):
        export(remote, number)
    (remote / "notes.html").write_text('<a href="4/">not a listing of ours</a>')
    assert cache.look() == Outcome([3])
    assert contents(cache.folder / "3") == FILES


def test_the_policy_says_what_is_copied(tmp_path: Path, remote: Path, web: WebServer) -> None:
    """Those that it names, and what is missing is said when none of them is there."""
    for number in (1, 2, 3):
        export(remote, number)
    some = Cached(tmp_path / "some", web.url, VersionPolicy(specific=(1, 2)))
    assert sorted(some.look().copied) == [1, 2]
    none = Cached(tmp_path / "none", web.url, VersionPolicy(specific=(7,)))
    assert "there is no version 7" in none.look().problem


def test_a_file_that_is_cut_off_is_never_there(cache: Cached, remote: Path, web: WebServer) -> None:
    """The server closes in the middle: the older version comes instead, the newer one when it can be had whole."""
    export(remote, 1)
    export(remote, 2)
    web.cut.add("/2/variables/variables.data-00000-of-00001")
    outcome = cache.look()
    assert outcome.copied == [1]
    assert "version 2" in outcome.problem
    assert "variables.data-00000-of-00001" in outcome.problem
    assert cached(cache.folder) == [1]
    web.cut.clear()
    assert cache.look() == Outcome([2])
    assert contents(cache.folder / "2") == FILES


def test_a_file_that_is_not_found_leaves_nothing(cache: Cached, remote: Path, web: WebServer) -> None:
    """404 in the middle of a version: it says which file."""
    export(remote, 1)
    web.missing.add("/1/variables/variables.index")
    outcome = cache.look()
    assert outcome.copied == []
    assert "/1/variables/variables.index" in outcome.problem
    assert cached(cache.folder) == []


def test_a_listing_that_changes_meanwhile_is_waited_for(cache: Cached, remote: Path, web: WebServer) -> None:
    """A file that comes, or changes, while the others are copied: nothing is there until it stays as it is."""
    export(remote, 1)

    def grow(path: str) -> None:
        if path.endswith("variables.index"):
            (remote / "1" / "variables" / f"more{len(web.got)}").write_bytes(b"more")

    web.on_get = grow
    assert cache.look() == Outcome()
    assert cached(cache.folder) == []
    web.on_get = lambda _path: None
    assert cache.look() == Outcome([1])
    assert contents(cache.folder / "1") == contents(remote / "1")


def test_a_version_without_a_saved_model_is_waited_for(cache: Cached, remote: Path, web: WebServer) -> None:
    """None of its files is copied; the version before it comes meanwhile."""
    export(remote, 1)
    export(remote, 2, {"variables/variables.index": b"index"})
    assert cache.look() == Outcome([1])
    assert not [path for path in web.files_got() if path.startswith("/2/")]
    export(remote, 2)
    assert cache.look() == Outcome([2])


def test_a_wrong_checksum_is_refused(cache: Cached, remote: Path, web: WebServer) -> None:
    """Where the store tells an MD5, the copy has it."""
    export(remote, 1)
    web.wrong.add("/1/saved_model.pb")
    assert "MD5" in cache.look().problem
    assert cached(cache.folder) == []


def test_what_is_copied_outlasts_the_store(cache: Cached, remote: Path, web: WebServer) -> None:
    """The store is away, or empty, or shows something else: what was copied stays, and the reason is told."""
    export(remote, 1)
    assert cache.look() == Outcome([1])
    shutil.rmtree(remote / "1")
    assert "there is no version" in cache.look().problem
    web.server_close()
    assert web.url in cache.look().problem
    assert cached(cache.folder) == [1]


def test_a_version_that_was_exported_again_is_copied_again(cache: Cached, remote: Path) -> None:
    """Unless it is served: then it stays as it was, for its workers may have to be started again."""
    export(remote, 1)
    cache.look()
    other = {**FILES, "assets/words with blanks.txt": b"other words"}
    cache.use = InUse(served=frozenset({1}))
    export(remote, 1, other)
    assert cache.look() == Outcome()
    assert contents(cache.folder / "1") == FILES
    cache.use = InUse(failed=frozenset({1}))
    assert cache.look() == Outcome([1])
    assert contents(cache.folder / "1") == other


def test_old_copies_go(cache: Cached, remote: Path) -> None:
    """What is served stays, and one version to go back to; nothing goes before it is known what is served."""
    for number in range(1, 5):
        export(remote, number)
        cache.use = None
        assert cache.look() == Outcome([number])
    assert cached(cache.folder) == [1, 2, 3, 4]
    cache.use = InUse(served=frozenset({4}))
    cache.look()
    assert cached(cache.folder) == [3, 4]


def test_what_somebody_else_has_brought_stays(cache: Cached, remote: Path, web: WebServer) -> None:
    """A reload brings what another policy means, before it is known here; once the pool has served it, it is as any other."""
    for number in range(1, 5):
        export(remote, number)
    cache.use = InUse(served=frozenset({4}))
    assert cache.look() == Outcome([4])
    assert Cached(cache.folder, web.url, VersionPolicy(specific=(1, 2))).look() == Outcome([2, 1])
    cache.look()
    assert cached(cache.folder) == [1, 2, 4]
    cache.use = InUse(served=frozenset({1, 4}))
    cache.look()
    cache.use = InUse(served=frozenset({4}))
    cache.look()
    assert cached(cache.folder) == [2, 4]


def test_what_nothing_can_take_the_place_of_stays(cache: Cached, remote: Path) -> None:
    """The store has another version, which cannot be copied: the copy that there is could still be served."""
    export(remote, 9)
    assert cache.look() == Outcome([9])
    shutil.rmtree(remote / "9")
    export(remote, 8, {"variables/variables.index": b"index"})
    cache.look()
    assert cached(cache.folder) == [9]


def test_a_version_that_is_served_by_the_time_it_has_come_stays(
    cache: Cached, remote: Path, web: WebServer
) -> None:
    """It had failed when it began to be copied anew, and the pool has tried it again meanwhile."""
    export(remote, 1)
    cache.look()
    export(remote, 1, {**FILES, "assets/words with blanks.txt": b"other words"})
    cache.use = InUse(failed=frozenset({1}))

    def serve(_path: str) -> None:
        cache.use = InUse(served=frozenset({1}))

    web.on_get = serve
    assert cache.look().copied == []
    assert contents(cache.folder / "1") == FILES


def test_an_upload_that_pauses_is_not_whole(cache: Cached, remote: Path, web: WebServer) -> None:
    """Its files look alike twice, but weights are missing: that is told, and it is not copied again until it changes."""
    export(remote, 1)
    shards = [name for name in FILES if "data" in name]
    export(remote, 2, {name: content for name, content in FILES.items() if name not in shards})
    first = cache.look()
    assert first.copied == [1]
    assert "variables.data-00000-of-00001 is missing" in first.problem
    before = len(web.files_got())
    assert cache.look().problem == first.problem
    assert len(web.files_got()) == before
    export(remote, 2)
    assert cache.look() == Outcome([2])


def test_more_than_was_announced_is_not_taken(
    tmp_path: Path, memory: MemoryFileSystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store that sends without an end would fill the disk: it is left at the first byte too many."""
    for name, content in FILES.items():
        memory.pipe(f"/m/1/{name}", content)
    told: list[int] = []

    def endless(_path: str, target: str, callback: Any) -> None:
        with Path(target).open("wb") as file:
            for _ in range(1000):
                callback.relative_update(file.write(bytes(2**16)))
                told.append(file.tell())

    monkeypatch.setattr(memory, "get_file", endless)
    there = Cached(tmp_path / "cache", "memory://m")
    assert "more came than the" in there.look().problem
    assert len(told) < 10


def test_what_an_end_in_the_middle_has_left_is_removed(cache: Cached, remote: Path) -> None:
    """A partial copy is removed at the next look; a version without its record is copied anew."""
    export(remote, 1)
    export(cache.folder, 7).rename(cache.folder / "7.partial")
    export(cache.folder, 1, {"saved_model.pb": b"old"})
    assert cache.look() == Outcome([1])
    assert cached(cache.folder) == [1]
    assert contents(cache.folder / "1") == FILES


@pytest.mark.parametrize("name", ["%2e%2e", "%2e%2e%2fescaped", "..%2f..%2fescaped", "%2fetc%2fpasswd"])
def test_a_name_that_leads_elsewhere_is_refused(
    cache: Cached, remote: Path, web: WebServer, name: str, tmp_path: Path
) -> None:
    """A page's links are not trusted: the version is refused, and nothing is written anywhere."""
    folder = export(remote, 1)
    (folder / "index.html").write_text(f'<a href="saved_model.pb">x</a> <a href="{name}">y</a>')
    before = sorted(tmp_path.rglob("*"))
    assert "no name of a file in it" in cache.look().problem
    after = [path for path in sorted(tmp_path.rglob("*")) if cache.folder not in (path, *path.parents)]
    assert after == before


def test_links_that_begin_with_a_dot_are_files(cache: Cached, remote: Path) -> None:
    """As on the pages of some web servers."""
    export(remote, 7)
    for folder in (remote, *(path for path in remote.rglob("*") if path.is_dir())):
        links = ["./", "../", *(f"./{quote(path.name)}{'/' * path.is_dir()}" for path in folder.iterdir())]
        (folder / "index.html").write_text("".join(f'<a href="{link}">x</a>' for link in links))
    assert cache.look() == Outcome([7])
    assert contents(cache.folder / "7") == FILES


def test_links_to_elsewhere_are_no_files(cache: Cached, remote: Path, web: WebServer) -> None:
    """To the folder above, to other servers, and those that sort the page."""
    folder = export(remote, 1, {"saved_model.pb": FILES["saved_model.pb"]})
    links = ["../", "/", "./", "?C=N;O=D", "http://127.0.0.1:1/1/saved_model.pb", "/2/saved_model.pb"]
    page = "".join(f'<a href="{link}">x</a>' for link in [*links, "saved_model.pb"])
    (folder / "index.html").write_text(page)
    assert cache.look() == Outcome([1])
    assert [path.name for path in (cache.folder / "1").iterdir()] == ["saved_model.pb"]


def test_symbolic_links_are_not_followed(tmp_path: Path, remote: Path) -> None:
    """Of a store that has some."""
    folder = export(remote, 1)
    (folder / "assets" / "passwd").symlink_to("/etc/passwd")
    store = Store("memory://")
    store._files, store._path = fsspec.filesystem("file"), str(remote)
    with pytest.raises(StoreError, match="links are not followed"):
        store.listing(store.versions()[1])


def test_two_do_not_copy_to_one_cache(tmp_path: Path, cache: Cached, remote: Path, web: WebServer) -> None:
    """Whoever comes second leaves it to the first."""
    export(remote, 1)
    second = Cached(cache.folder, web.url)
    found: list[Outcome] = []
    web.on_get = lambda path: found.append(second.look()) if path.endswith(".pb") and not found else None
    assert cache.look() == Outcome([1])
    (told,) = found
    assert told.copied == []
    assert told.problem == f"{web.url}: another process copies to {cache.folder} now"


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("s3://bucket/models", "s3fs: pip install 'mpspool[s3]'"),
        ("gs://bucket/models", "gcsfs: pip install 'mpspool[gs]'"),
        ("abfs://c@account/models", "adlfs: pip install 'mpspool[abfs]'"),
        ("hdfs://name/models", "pyarrow: pip install 'mpspool[hdfs]'"),
        ("nowhere://models", "Protocol not known: nowhere"),
    ],
)
def test_a_package_that_is_missing_is_named(url: str, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With how to get it."""
    for package in ("s3fs", "gcsfs", "adlfs", "pyarrow", "pyarrow.fs"):
        monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(StoreError) as caught:
        Store(url)
    assert words in str(caught.value)


def test_a_copy_that_is_short_is_refused(
    tmp_path: Path, memory: MemoryFileSystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a library that does not notice it: the size is checked against the listing."""
    for name, content in FILES.items():
        memory.pipe(f"/m/1/{name}", content)
    monkeypatch.setattr(
        memory, "get_file", lambda path, target, **_: Path(target).write_bytes(memory.cat(path)[:-1])
    )
    there = Cached(tmp_path / "cache", "memory://m")
    assert "were announced" in there.look().problem
    assert cached(there.folder) == []


def test_a_full_disk_leaves_nothing(
    tmp_path: Path, memory: MemoryFileSystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ENOSPC in the middle: what was served stays, it says so, and the next look tries again."""
    memory.pipe("/m/1/saved_model.pb", FILES["saved_model.pb"])
    there = Cached(tmp_path / "cache", "memory://m")
    there.look()
    for name, content in FILES.items():
        memory.pipe(f"/m/2/{name}", content)
    whole = memory.get_file

    def full(path: str, target: str, **kwargs: Any) -> None:
        whole(path, target, **kwargs)
        if path.endswith("variables.index"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(memory, "get_file", full)
    outcome = there.look()
    assert outcome.copied == []
    assert os.strerror(errno.ENOSPC) in outcome.problem
    assert cached(there.folder) == [1]
    monkeypatch.undo()
    assert there.look() == Outcome([2])


def fetching(asked: RemoteSettings) -> list[str]:
    """The command that `mpspool start` runs."""
    return [sys.executable, "-P", "-m", "mpspool.supervisor.remote", "once", settings.encode(asked).decode()]


def fetch(asked: RemoteSettings, *before: str) -> subprocess.CompletedProcess[str]:
    """The process that `mpspool start` starts."""
    return subprocess.run(
        [*before, *fetching(asked)], capture_output=True, text=True, check=False, cwd=ROOT, timeout=60
    )


def outcome(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def small_disk(folder: Path, options: str) -> tuple[list[str], str]:
    """A command that takes a script and the folder, and what the script has to begin with: a tmpfs is there."""
    inside = ["unshare", "-Urm", "sh", "-c"]
    mounted = f'mount -t tmpfs -o {options} none "$0" && '
    folder.mkdir()
    tried = [*inside, mounted + "true", str(folder)]
    if subprocess.run(tried, capture_output=True, check=False).returncode:
        pytest.skip("no file system can be mounted here, not even in a user namespace")
    return inside, mounted


def test_a_full_file_system(remote: Path, web: WebServer, tmp_path: Path) -> None:
    """A real one of a megabyte: too large a version is not begun, and one that the disk cannot hold all the same goes."""
    inside, mounted = small_disk(tmp_path / "small", "size=1m,nr_inodes=12")
    folder = tmp_path / "small" / "cache"
    asked = RemoteSettings(run_dir="", model="m", url=web.url, folder=str(folder))
    run_and_list = mounted + '"$@"; find "$0" -mindepth 2 ! -name .lock >&2'
    export(remote, 1, {"saved_model.pb": b"x" * 2_000_000})
    done = fetch(asked, *inside, run_and_list, str(tmp_path / "small"))
    assert "version 1 takes 2,000,000 bytes" in outcome(done)["problem"]
    assert "cache_dir" in outcome(done)["problem"]
    shutil.rmtree(remote / "1")
    export(remote, 1, {**FILES, **{f"assets/{number}": b"" for number in range(20)}})
    done = fetch(asked, *inside, run_and_list, str(tmp_path / "small"))
    assert os.strerror(errno.ENOSPC) in outcome(done)["problem"]
    assert str(folder / "1") not in done.stderr.splitlines()
    assert not [line for line in done.stderr.splitlines() if ".partial" in line and line.startswith("/")]


def test_a_version_may_take_nearly_all_of_a_disk(remote: Path, web: WebServer, tmp_path: Path) -> None:
    """Its room is given back as it comes: a copy is never refused for what is kept for itself."""
    inside, mounted = small_disk(tmp_path / "small", "size=32m")
    asked = RemoteSettings(run_dir="", model="m", url=web.url, folder=str(tmp_path / "small" / "m"))
    export(remote, 1, {**FILES, "assets/large": bytes(30 * 2**20)})
    done = fetch(asked, *inside, mounted + '"$@"', str(tmp_path / "small"))
    assert outcome(done) == {"copied": [1], "problem": "", "busy": False}


def test_models_do_not_count_on_the_same_room(remote: Path, web: WebServer, tmp_path: Path) -> None:
    """There is room for either of two: the second is refused while the first comes, which nothing happens to."""
    inside, mounted = small_disk(tmp_path / "small", "size=32m")
    commands = {}
    for model in ("first", "second"):
        export(remote / model, 1, {**FILES, "assets/large": bytes(20 * 2**20)})
        asked = RemoteSettings(
            run_dir="", model=model, url=f"{web.url}/{model}", folder=str(tmp_path / "small" / model)
        )
        commands[model] = shlex.join(fetching(asked))
    second = tmp_path / "second.out"
    begun = threading.Event()

    def hold(path: str) -> None:
        if path == "/first/1/assets/large":
            begun.set()
            until(lambda: second.exists() and second.read_bytes().endswith(b"\n"), 30, "the second has ended")
        elif path.startswith("/second/"):
            assert begun.wait(30)

    web.on_get = hold
    script = f"{mounted} {{ {commands['second']} > {second} & {commands['first']}; wait; }}"
    done = subprocess.run(
        [*inside, script, str(tmp_path / "small")],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        timeout=90,
    )
    assert outcome(done) == {"copied": [1], "problem": "", "busy": False}
    refused = json.loads(second.read_text())
    assert refused["copied"] == []
    assert re.search(
        r"version 1 takes 21,[0-9,]+ bytes, and [0-9]{1,2},[0-9]{3},[0-9]{3} can be had", refused["problem"]
    )
    assert "name another folder in cache_dir" in refused["problem"]


def test_the_process_that_copies_says_what_came_of_it(remote: Path, web: WebServer, tmp_path: Path) -> None:
    """On one line, for `mpspool start`; what cannot be written to is named."""
    export(remote, 1)
    asked = RemoteSettings(run_dir="", model="m", url=web.url, folder=str(tmp_path / "cache" / "m"))
    assert outcome(fetch(asked)) == {"copied": [1], "problem": "", "busy": False}
    (tmp_path / "file").write_text("in the way")
    asked = RemoteSettings(run_dir="", model="m", url=web.url, folder=str(tmp_path / "file" / "m"))
    assert "cache_dir" in outcome(fetch(asked))["problem"]


def test_somebody_else_who_only_looks_is_waited_for(
    remote: Path, web: WebServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pool's own process looks at the store just when a reload wants to copy."""
    export(remote, 1)
    others = [True, True]
    held = Cache.held

    @contextlib.contextmanager
    def sometimes(cache: Cache) -> Iterator[bool]:
        with held(cache) as ours:
            yield ours and not (others and others.pop())

    monkeypatch.setattr(Cache, "held", sometimes)
    assert once(
        RemoteSettings(run_dir="", model="m", url=web.url, folder=str(tmp_path / "cache"), poll_s=60.0)
    ) == Outcome([1])
    assert not others


def start_check(cache: Path, url: str, **env: str) -> subprocess.CompletedProcess[str]:
    """`mpspool start --check`, which copies what is to be served and starts nothing."""
    ports = ("--grpc-port", 0, "--rest-port", 0, "--cpu-slots", 1)
    variables = {**os.environ, "MPSPOOL_CACHE_DIR": str(cache), **env}
    with short_dir() as root:
        words = ("start", "--check", "--model", f"m={url}", "--run-dir", root / "run", *ports)
        return cli(*words, env=variables)


def test_the_start_copies_and_does_without_the_store(
    remote: Path, web: WebServer, tmp_path: Path, model_dir: Callable[[str], Path]
) -> None:
    """It says what it copied; where the store is away, that it serves what is there; without anything it refuses."""
    shutil.copytree(model_dir("half_plus_two") / "1", remote / "3")
    done = start_check(tmp_path / "cache", web.url)
    assert done.returncode == 0, done.stderr
    assert f"m: version 3 copied from {web.url} to {tmp_path / 'cache'}/m-" in done.stdout
    assert "m@3:" in done.stdout
    web.missing.add("/")
    done = start_check(tmp_path / "cache", web.url)
    assert done.returncode == 0, done.stderr
    assert "it is not there" in done.stderr
    assert "version 3 is in" in done.stderr
    done = start_check(tmp_path / "empty", web.url)
    assert done.returncode == 2
    assert f"models.m.base_path: in --model m: {web.url} cannot be listed: it is not there" in done.stderr
    assert "nothing was started" in done.stderr


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("file:///models/m", "give its path alone"),
        ("nowhere://models", "Protocol not known: nowhere"),
        ("memory://models", "it is not there"),
        ("https://user:secret@host/m", "https://host/m is given with a user or a password"),
        ("https://token-secret@host/m", "https://host/m is given with a user or a password"),
        ("sftp://user:secret@host/m", "sftp://host/m is given with a user or a password"),
        ("https://host/m?sig=secret", "https://host/m has a query"),
    ],
)
def test_the_start_says_why_a_base_path_is_none(url: str, words: str, tmp_path: Path) -> None:
    """Under the name of its key, with all other errors."""
    done = start_check(tmp_path / "cache", url, MPSPOOL_CPUSETS="nonsense")
    assert done.returncode == 2
    assert "models.m.base_path" in done.stderr
    assert words in done.stderr
    assert "cpusets" in done.stderr
    assert "secret" not in done.stderr + done.stdout


def test_an_order_to_end_ends_the_copying(remote: Path, web: WebServer, tmp_path: Path) -> None:
    """SIGTERM while the first version is copied: status 0, nothing left of it but what was whole."""
    export(remote, 1)
    asked, go_on = threading.Event(), threading.Event()

    def hold(path: str) -> None:
        if path.endswith("saved_model.pb"):
            asked.set()
            go_on.wait(60)

    web.on_get = hold
    environ = {**os.environ, "MPSPOOL_CACHE_DIR": str(tmp_path / "cache")}
    with short_dir() as root:
        words = ["start", "--model", f"m={web.url}", "--run-dir", str(root / "run")]
        start = subprocess.Popen([*CLI, *words], cwd=ROOT, env=environ, stderr=subprocess.PIPE)
        assert asked.wait(30)
        copying = [pid for pid, command in processes_of(root / "run").items() if " once " in command]
        assert copying
        start.terminate()
        _, errors = start.communicate(timeout=30)
        until(
            lambda: not any(map(process.alive, copying)),
            10,
            "what copies has gone, and the store still hangs",
        )
        go_on.set()
    assert (start.returncode, errors) == (0, b"")
    (folder,) = (tmp_path / "cache").iterdir()
    assert not (folder / "1").exists()


def configured(tmp_path: Path, **models: str) -> PoolConfig:
    """A pool of models with these base paths."""
    flags = {
        "model": [f"{name}={url}" for name, url in models.items()],
        "run_dir": tmp_path / "run",
        "cache_dir": tmp_path / "cache",
    }
    return load_config(None, flags, {})


def test_a_process_that_cannot_be_started_costs_its_model_only(
    remote: Path, web: WebServer, tmp_path: Path
) -> None:
    """The kernel takes no command so long: the other model is copied, and the problem names the one."""
    export(remote / "a", 1)
    asked = configured(tmp_path, a=f"{web.url}/a", b=f"{web.url}/{'b' * 200_000}")
    found = remotes.bring(asked, Orders(), running=False)
    assert [fact.partition(" copied from ")[0] for fact in found.facts] == ["a: version 1"]
    (problem,) = found.problems
    assert problem.path == "models.b.base_path"
    assert os.strerror(errno.E2BIG) in problem.message


def test_what_copies_ends_with_a_start_that_fails(
    remote: Path, web: WebServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C before the second process is there: nothing is left of the first, which the store holds."""
    export(remote / "a", 1)
    asked, go_on = threading.Event(), threading.Event()

    def hold(_path: str) -> None:
        asked.set()
        go_on.wait(60)

    web.on_get = hold
    started: list[subprocess.Popen[str]] = []
    start = remotes._start

    def interrupted(one: RemoteSettings) -> subprocess.Popen[str]:
        if started:
            assert asked.wait(30)
            raise KeyboardInterrupt
        started.append(start(one))
        return started[0]

    monkeypatch.setattr(remotes, "_start", interrupted)
    try:
        with pytest.raises(KeyboardInterrupt):
            remotes.bring(configured(tmp_path, a=f"{web.url}/a", b=f"{web.url}/b"), Orders(), running=False)
        assert started[0].returncode is not None
    finally:
        go_on.set()


def test_what_is_in_use_is_what_the_pool_has_recorded(tmp_path: Path) -> None:
    """Failed, served and unloaded by hand; what is loaded by hand is in use before it has a worker."""
    run = RunDir(tmp_path)
    run.settings.mkdir()
    assert in_use(run, "m") is None
    phases = (VersionPhase.LEAVING, VersionPhase.FAILED, VersionPhase.SERVING, VersionPhase.LOADING)
    versions = [VersionRecord(number=number, path="", phase=phase) for number, phase in enumerate(phases, 1)]
    record = ModelRecord(versions=versions, loaded=[2, 5], unloaded=[3, 6])
    settings.save(run.settings_file(RECORDS), Records(models={"m": record, "idle": ModelRecord()}))
    assert in_use(run, "m") == InUse(frozenset({1, 2, 3, 4, 5}), frozenset({2}), frozenset({6}))
    assert in_use(run, "idle") == InUse()
    assert in_use(run, "other") is None
    run.settings_file(RECORDS).write_text('{"models": ')
    assert in_use(run, "m") is None


def test_the_process_that_copies_gives_way(remote: Path, web: WebServer, tmp_path: Path) -> None:
    """To all others, in a session of its own, and is one process."""
    export(remote, 1)
    asked, go_on = threading.Event(), threading.Event()

    def hold(_path: str) -> None:
        asked.set()
        go_on.wait(60)

    web.on_get = hold
    remotely = RemoteSettings(run_dir="", model="m", url=web.url, folder=str(tmp_path / "m"))
    with subprocess.Popen(fetching(remotely), stdout=subprocess.DEVNULL, cwd=ROOT) as copies:
        try:
            assert asked.wait(30)
            nice = os.getpriority(os.PRIO_PROCESS, 0)
            assert os.getpriority(os.PRIO_PROCESS, copies.pid) == min(19, nice + 10)
            assert os.getsid(copies.pid) == copies.pid
            assert not process.children(copies.pid)
        finally:
            copies.kill()
            go_on.set()


def test_fsspec_is_not_imported_for_local_base_paths() -> None:
    """Not by the command line, its plan or the pool process: only where something is copied."""
    code = (
        "import sys, mpspool.cli, mpspool.supervisor.pool.pool, mpspool.supervisor.planning.preflight;"
        "print('fsspec' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", code], capture_output=True, text=True, check=False, cwd=ROOT, timeout=60
    )
    assert done.stdout.strip() == "False", done.stderr


def test_a_store_that_is_silent_is_left() -> None:
    """The process ends where nothing comes for long; it says so first."""
    code = (
        "import threading\n"
        "from mpspool.supervisor.remote.fetch import Watchdog\n"
        "with Watchdog(lambda why: print(why, flush=True), 0.2):\n"
        "    threading.Event().wait()\n"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", code], capture_output=True, text=True, check=False, cwd=ROOT, timeout=60
    )
    assert (done.returncode, done.stdout.strip()) == (75, "the store has sent nothing for 0.2 s")
