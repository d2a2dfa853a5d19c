"""An MPS daemon as the pool holds it: its wrapper's end is known at once, and what its server's log names."""

from __future__ import annotations

import asyncio
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from mpspool.core.settings import MpsSettings
from mpspool.supervisor.pool.daemon import Answer, Daemon


@pytest.fixture
def daemon(tmp_path: Path) -> Daemon:
    return Daemon(
        MpsSettings(
            device="gpu0",
            gpu_uuid="GPU-1",
            pipe_dir=str(tmp_path / "pipe"),
            log_dir=str(tmp_path),
            server_log=str(tmp_path / "printed"),
            control=["/nowhere/nvidia-cuda-mps-control"],
        )
    )


@pytest.fixture
def wrapper() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "60"]) as child:
        yield child
        child.kill()


def test_the_end_of_its_wrapper_is_told_once(daemon: Daemon, wrapper: subprocess.Popen[bytes]) -> None:
    async def hold() -> None:
        ended = asyncio.Queue[str]()
        assert daemon.hold(wrapper.pid, lambda: ended.put_nowait("ended"))
        assert daemon.wrapper == wrapper.pid
        wrapper.kill()
        async with asyncio.timeout(10):
            await ended.get()
        await asyncio.sleep(0.02)
        assert ended.empty()
        daemon.let_go()
        assert daemon.wrapper == 0

    asyncio.run(hold())


def test_a_wrapper_that_was_let_go_tells_nothing(daemon: Daemon, wrapper: subprocess.Popen[bytes]) -> None:
    async def hold() -> None:
        assert daemon.hold(wrapper.pid, lambda: pytest.fail("it was let go"))
        daemon.let_go()
        wrapper.kill()
        wrapper.wait()
        await asyncio.sleep(0.05)
        assert not daemon.hold(wrapper.pid, lambda: None), "it has ended already"
        daemon.let_go()

    asyncio.run(hold())


def test_a_restart_is_a_signal_to_its_wrapper(daemon: Daemon, wrapper: subprocess.Popen[bytes]) -> None:
    """Which has the daemon quit; where there is none nothing happens."""

    async def hold() -> None:
        daemon.restart()
        daemon.hold(wrapper.pid, lambda: None)
        daemon.restart()
        assert wrapper.wait(10) == -signal.SIGTERM
        daemon.restart()
        daemon.let_go()

    asyncio.run(hold())


def test_a_daemon_that_does_not_run_says_nothing(daemon: Daemon) -> None:
    async def ask() -> None:
        assert daemon.silent_s() < 1
        assert await daemon.ask() is None
        assert await daemon.ask(clients=True) is None
        assert daemon.silent_s() > 0

    asyncio.run(ask())


def test_whom_a_fault_is_laid_to(daemon: Daemon, tmp_path: Path) -> None:
    """Lines that are written just after the fault was seen count, and those of a fault that is over do not."""

    async def read() -> None:
        log = tmp_path / "printed"
        asking = asyncio.create_task(daemon.culprits())
        await asyncio.sleep(0)
        assert daemon.hit() == []
        log.write_text("The following clients have a sticky error set:\n123\n")
        assert daemon.hit() == [123]
        assert await asking == [123]
        daemon.forget_faults()
        assert daemon.hit() == []
        assert await daemon.culprits() == []

    asyncio.run(read())


def test_a_server_that_went_is_told(daemon: Daemon) -> None:
    assert daemon.see_server(Answer({})) == 0
    assert daemon.see_server(Answer({7: "ACTIVE"})) == 0
    assert daemon.see_server(Answer({7: "ACTIVE"})) == 0
    assert daemon.see_server(Answer({8: "ACTIVE"})) == 7
    assert daemon.server == 8
    assert not daemon.server_has_ended(), "one of our own has a wrapper whose end tells it"
