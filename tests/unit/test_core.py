"""Ids, lifecycles, the progress page, settings files and the control sockets."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
import os
import re
import select
import socket
import stat
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import uvloop
from hypothesis import given
from hypothesis import strategies as st

from mpspool.core import control, process, progress, settings
from mpspool.core.control import ControlError, ControlServer, Message
from mpspool.core.errors import MAX_ERROR_BYTES, cut
from mpspool.core.ids import WorkerId, escape
from mpspool.core.progress import ProgressReader, ProgressWriter
from mpspool.core.rundir import RunDir, default_run_dir
from mpspool.core.settings import RouterSettings
from mpspool.core.states import (
    SLOT_MOVES,
    WORKER_MOVES,
    InvalidTransitionError,
    Lifecycle,
    SlotState,
    WorkerState,
)
from tests.conftest import short_dir


@given(st.text())
def test_escape_is_reversible_and_safe(name: str) -> None:
    """Any model name becomes a supervisord name and a file name, of which it could be read: no two become the same."""
    safe = escape(name)
    assert re.sub(rb"~(..)", lambda match: bytes.fromhex(match[1].decode()), safe.encode()).decode() == name
    assert not set(safe) & set(":/ %~") - {"~"}


@given(st.text(min_size=1), st.integers(0, 2**63), st.integers(0, 100))
def test_worker_ids_parse_back(model: str, version: int, slot: int) -> None:
    """An id's text gives the id back, whatever the model is called; its program name is that text, escaped."""
    worker = WorkerId(model, version, "gpu3", slot)
    assert WorkerId.parse(str(worker)) == worker
    assert worker.program == "worker." + escape(str(worker))


def test_lifecycle_refuses_what_its_table_does_not_allow() -> None:
    """An illegal move raises with the history that led to it."""
    life = Lifecycle("w", WORKER_MOVES, WorkerState.STARTING)
    life.to(WorkerState.LOADING, "go")
    with pytest.raises(
        InvalidTransitionError, match=r"LOADING cannot become READY .*STARTING .*LOADING \(go\)"
    ):
        life.to(WorkerState.READY, "too early")


@pytest.mark.parametrize(("states", "moves"), [(WorkerState, WORKER_MOVES), (SlotState, SLOT_MOVES)])
def test_tables_are_complete(states: type, moves: dict) -> None:  # type: ignore[type-arg]
    """Every state has its row."""
    assert set(states) == set(moves)


def test_progress_survives_its_writer(tmp_path: Path) -> None:
    """What a process stored before kill -9 can be read after it."""
    page = tmp_path / "page"
    script = (
        "import os, signal, sys; from pathlib import Path; from mpspool.core.progress import ProgressWriter\n"
        f"w = ProgressWriter(Path({str(page)!r})); w.start(7, 2); os.kill(os.getpid(), signal.SIGKILL)"
    )
    subprocess.run([sys.executable, "-c", script], check=False, cwd=Path(__file__).parents[2])
    reader = ProgressReader(page)
    found = reader.read()
    reader.close()
    assert (found.dispatch, found.index) == (7, 2)
    assert found.beat_ns <= found.started_ns


def test_progress_is_idle_between_requests(tmp_path: Path) -> None:
    """A finished request is nobody's suspect."""
    writer = ProgressWriter(tmp_path / "page")
    reader = ProgressReader(tmp_path / "page")
    writer.start(7, 0)
    writer.finish()
    assert reader.read().dispatch == 0
    reader.close()
    writer.close()
    assert not (tmp_path / "page").exists()


def test_who_runs_a_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One whose heart beats, and no other; not one that has gone."""
    page = tmp_path / "page"
    assert not progress.runs_a_request(page)
    page.touch()
    assert not progress.runs_a_request(page), "it is only being made"
    writer = ProgressWriter(page)
    assert not progress.runs_a_request(page)
    writer.start(7, 0)
    assert progress.runs_a_request(page)
    monkeypatch.setattr(progress, "_ALIVE_NS", 0)
    assert not progress.runs_a_request(page), "it stands still"
    writer.close()
    assert not progress.runs_a_request(page)


def test_settings_are_private_and_whole(tmp_path: Path) -> None:
    """A settings file comes back as written and only its owner can read it."""
    written = RouterSettings(run_dir="/r", host="::1", grpc_port=1, rest_port=0)
    settings.save(tmp_path / "router.json", written)
    assert settings.load(tmp_path / "router.json", RouterSettings) == written
    assert stat.S_IMODE((tmp_path / "router.json").stat().st_mode) == 0o600
    assert os.listdir(tmp_path) == ["router.json"]


def test_long_run_folders_are_measured() -> None:
    """The longest socket path counts what supervisord appends while binding."""
    assert (
        RunDir(Path("/" + "x" * 100)).longest_socket_bytes() > 107 > RunDir(Path("/x")).longest_socket_bytes()
    )


def test_last_words_are_one_line(tmp_path: Path) -> None:
    """Left, replaced and taken back; none are no error."""
    run = RunDir(tmp_path)
    run.progress.mkdir()
    assert run.last_words("router") == ""
    run.set_last_words("router", "no port\nno address\n")
    assert run.last_words("router") == "no port; no address"
    assert run.last_words("pool") == ""
    for _ in range(2):
        run.set_last_words("router", "")
        assert run.last_words("router") == ""


def test_last_words_may_be_lost(tmp_path: Path) -> None:
    """Where they cannot be written, or not be taken back, nobody fails for it."""
    run = RunDir(tmp_path)
    run.error_file("router").mkdir(parents=True)
    for words in ("no port", ""):
        run.set_last_words("router", words)
        assert run.last_words("router") == ""


def test_cut_is_tensorflow_servings() -> None:
    """1024 bytes, then the mark; no character is cut in two."""
    assert cut("x" * MAX_ERROR_BYTES) == "x" * MAX_ERROR_BYTES
    assert cut("x" * 2000) == "x" * MAX_ERROR_BYTES + "...TRUNCATED"
    assert cut("\u6a21" * 341) == "\u6a21" * 341
    assert cut("\u6a21" * 342) == "\u6a21" * 341 + "...TRUNCATED"


def test_error_texts_can_be_sent() -> None:
    """Half a character, which a client's JSON may hold, is replaced: no message to a worker or a client takes it."""
    assert cut("\ud800 and \udcff, \u00e9") == "? and ?, \u00e9"


def test_control_call_stream_and_errors() -> None:
    """Answers, streams, a handler's failure and an absent server, each as the asker sees it."""

    async def double(request: Message) -> Message:
        return {"twice": 2 * request["n"]}

    async def count(request: Message) -> AsyncIterator[Message]:
        for n in range(request["n"]):
            yield {"n": n}

    async def fail(request: Message) -> Message:
        raise ValueError("no")

    async def scenario(path: Path) -> None:
        server = ControlServer(path, {"double": double, "count": count, "fail": fail})
        await server.start()
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert await control.acall(path, "double", n=4) == {"twice": 8}
        assert await asyncio.to_thread(control.call, path, "double", n=1) == {"twice": 2}
        streamed = await asyncio.to_thread(lambda: [a["n"] for a in control.stream(path, "count", n=3)])
        assert streamed == [0, 1, 2]
        for op, text in (("fail", "ValueError: no"), ("unknown", "not a request of ours")):
            with pytest.raises(ControlError, match=text):
                await control.acall(path, op)
        await server.close()
        assert not path.exists()
        with pytest.raises(ControlError, match="nobody answers"):
            await control.acall(path, "double", n=1)

    with short_dir() as root:
        asyncio.run(scenario(root / "c.sock"))


@pytest.mark.parametrize("is_read", [False, True])
def test_what_a_server_that_ends_has_not_taken_can_be_asked_again(is_read: bool) -> None:
    with short_dir() as root, socket.socket(socket.AF_UNIX) as server:
        server.bind(str(root / "c.sock"))
        server.listen()
        with ThreadPoolExecutor() as threads:
            asked = threads.submit(control.call, root / "c.sock", "double", n=1)
            connection, _ = server.accept()
            with connection:
                assert select.select([connection], [], [], 10)[0]
                if is_read:
                    connection.recv(100)
            with pytest.raises(control.NotTakenError):
                asked.result()


def test_what_a_server_that_ends_has_taken_may_have_been_done() -> None:
    async def scenario(path: Path) -> None:
        begun = asyncio.Event()

        async def hang(_request: Message) -> Message:
            begun.set()
            await asyncio.Event().wait()
            return {}

        server = ControlServer(path, {"hang": hang})
        await server.start()
        asked = asyncio.create_task(asyncio.to_thread(control.call, path, "hang"))
        await begun.wait()
        await server.close()
        with pytest.raises(ControlError) as unanswered:
            await asked
        assert not isinstance(unanswered.value, control.NotTakenError)

    with short_dir() as root:
        asyncio.run(scenario(root / "c.sock"))


def test_a_stream_ends_when_its_asker_goes_away() -> None:
    """Without a collector: it may have something to give back."""

    async def scenario(path: Path) -> None:
        ended = asyncio.Event()

        async def count(_request: Message) -> AsyncIterator[Message]:
            try:
                while True:
                    yield {}
                    await asyncio.sleep(0.001)
            finally:
                ended.set()

        server = ControlServer(path, {"count": count})
        await server.start()
        gc.disable()
        try:
            async with contextlib.aclosing(control.astream(path, "count")) as answers:
                await anext(answers)
            async with asyncio.timeout(5):
                await ended.wait()
        finally:
            gc.enable()
            await server.close()

    with short_dir() as root:
        asyncio.run(scenario(root / "c.sock"))


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
def test_an_asker_that_goes_at_once_is_no_failure(run: Callable[..., None]) -> None:
    """One that was killed, say: nothing is logged, on the router's loop neither."""

    async def scenario(path: Path) -> None:
        answered = asyncio.Event()

        async def ask(_request: Message) -> Message:
            await asyncio.sleep(0.05)  # until the loop knows that it has gone
            asyncio.get_running_loop().call_soon(answered.set)
            return {}

        failures: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _loop, context: failures.append(context))
        server = ControlServer(path, {"ask": ask})
        await server.start()
        with socket.socket(socket.AF_UNIX) as asker:
            asker.connect(str(path))
            asker.sendall(b'{"op": "ask"}\n')
        await answered.wait()
        await server.close()
        assert not failures

    with short_dir() as root:
        run(scenario(root / "c.sock"))


def test_die_with_parent() -> None:
    """A child that asked for it is gone when its parent is killed."""
    script = """
import os, sys, time
from mpspool.core import process
parent = os.getpid()
child = os.fork()
if child == 0:
    process.die_with_parent(parent)
    print(os.getpid(), flush=True)
    time.sleep(60)
time.sleep(60)
"""
    parent = subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2]
    )
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    assert process.alive(child)
    assert child in process.descendants(os.getpid())
    parent.kill()
    parent.wait()
    parent.stdout.close()
    from tests.polling import until

    until(lambda: not process.alive(child), 5)


def test_the_default_run_folder_is_the_users_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Under XDG_RUNTIME_DIR, else under the temp folder."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/run/user/7")
    assert default_run_dir() == Path("/run/user/7/mpspool")
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    assert default_run_dir() == Path(tempfile.gettempdir()) / f"mpspool-{os.getuid()}"


def test_the_default_run_folder_where_nothing_temporary_can_be_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It has a name all the same: commands that are given another folder ask for it."""
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    monkeypatch.setattr(tempfile, "gettempdir", nowhere)
    assert default_run_dir() == Path(f"/tmp/mpspool-{os.getuid()}")


def nowhere() -> str:
    raise FileNotFoundError(errno.ENOENT, "No usable temporary directory found in ['/tmp']")
