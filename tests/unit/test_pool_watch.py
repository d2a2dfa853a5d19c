"""What the pool process says of itself, before it knows and after. supervisord is played over its socket."""

from __future__ import annotations

import asyncio
import contextlib
import socketserver
import threading
import xmlrpc.client
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any
from xmlrpc.server import SimpleXMLRPCDispatcher, SimpleXMLRPCRequestHandler

import pytest

from mpspool.core.control import Message, astream
from mpspool.core.rundir import RunDir
from mpspool.core.settings import PoolSettings, RouterSettings
from mpspool.supervisor.pool import pool as pool_process
from mpspool.supervisor.pool import router_link
from tests.conftest import short_dir

ROUTER = {"name": "router", "statename": "RUNNING", "pid": 7, "exitstatus": 0, "spawnerr": ""}


class _Handler(SimpleXMLRPCRequestHandler):
    disable_nagle_algorithm = False  # there is none on a UNIX socket

    def log_request(self, *_args: Any) -> None:
        pass


class LateSupervisord(SimpleXMLRPCDispatcher, socketserver.ThreadingUnixStreamServer):
    """Runs a router, and says so once it may, and was asked twice."""

    daemon_threads = True

    def __init__(self, path: Path) -> None:
        SimpleXMLRPCDispatcher.__init__(self)
        socketserver.ThreadingUnixStreamServer.__init__(self, str(path), _Handler)
        self.asked, self.may_answer = threading.Event(), threading.Event()

    def _dispatch(self, method: str, params: Any) -> Any:
        if method == "supervisor.getAllProcessInfo":
            if not self.asked.is_set():
                self.asked.set()
                raise xmlrpc.client.Fault(30, "FAILED")
            self.may_answer.wait(10)
            return [ROUTER]
        raise xmlrpc.client.Fault(10, "BAD_NAME")


@pytest.fixture
def run() -> Iterator[RunDir]:
    with short_dir() as root:
        folder = RunDir(root)
        for path in folder.folders():
            path.mkdir(exist_ok=True)
        yield folder


@pytest.fixture
def supervisord(run: RunDir) -> Iterator[LateSupervisord]:
    with LateSupervisord(run.supervisord_socket) as server:
        threading.Thread(target=server.serve_forever, args=[0.01]).start()
        yield server
        server.may_answer.set()
        server.shutdown()


async def _next(statuses: AsyncIterator[Message]) -> Message:
    return await anext(statuses)


def test_a_new_pool_process_says_nothing_before_it_has_looked(
    run: RunDir, supervisord: LateSupervisord, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its first word names what runs: a successor that named nothing would make the watchers forget it."""
    monkeypatch.setattr(router_link, "_SETTLE_S", 0.05)  # there is no router here
    config = PoolSettings(
        run_dir=str(run.root),
        mps="off",
        models=[],
        mps_daemons=[],
        router=RouterSettings(run_dir=str(run.root), host="127.0.0.1", grpc_port=0, rest_port=0),
    )

    async def scenario() -> None:
        pool = asyncio.create_task(pool_process.Pool(config).serve())
        try:
            await asyncio.to_thread(supervisord.asked.wait, 10)
            async with (
                asyncio.timeout(20),
                contextlib.aclosing(astream(run.pool_control, "watch")) as statuses,
            ):
                first = asyncio.create_task(_next(statuses))
                assert not (await asyncio.wait([first], timeout=0.5))[0]
                supervisord.may_answer.set()
                assert [process["name"] for process in (await first)["processes"]] == ["router"]
        finally:
            pool.cancel()
            await asyncio.gather(pool, return_exceptions=True)

    asyncio.run(scenario())
