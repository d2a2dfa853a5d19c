"""Wires the router: link, data plane, fronts and control socket on one event loop."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import faulthandler
import functools
import gc
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path

import msgspec

from mpspool.core import log, process, settings
from mpspool.core.allocator import keep_bodies
from mpspool.core.control import ControlServer, Message, Watch
from mpspool.core.errors import PoolError, StartError
from mpspool.core.rundir import RunDir
from mpspool.core.settings import RouterSettings
from mpspool.router.dataplane import Dataplane
from mpspool.router.fronts import sockets
from mpspool.router.fronts.reload import PoolReload
from mpspool.router.fronts.rest import LAST_CALLS_S, RestFront
from mpspool.router.fronts.tfs_grpc import GrpcFront
from mpspool.router.link import Link
from mpspool.router.metrics.exposition import Metrics

logger = log.get("router")

# A port that was taken between the check and the start may be free by then.
_AGAIN_S = 1.0
# Told at once: bodies, and bytes of them after which no other is begun.
_BODIES = 8
_BODY_BYTES = 2**20
# From one look at what has arrived to the next, while it is recorded.
_ARRIVALS_S = 0.1
# From one time that is told who asks to the next.
_CLIENTS_S = 0.5


class Control:
    """The control socket's operations.

    Args:
        refusals: what is told of them in the snapshot.
        configure: takes the settings that the pool goes by; None for the data plane's own.
    """

    def __init__(
        self,
        dataplane: Dataplane,
        refusals: Callable[[], Sequence[Message]] = tuple,
        configure: Callable[[RouterSettings], None] | None = None,
    ) -> None:
        self._dataplane = dataplane
        self._refusals = refusals
        self._configure = configure or dataplane.configure
        self.watch = Watch(self.snapshot)
        dataplane.on_change(self.watch.changed)

    async def snapshot(self, _request: Message) -> Message:
        return {**self._dataplane.snapshot(), "refusals": list(self._refusals())}

    async def signatures(self, request: Message) -> Message:
        """A model's serialised SignatureDefMap, in base64; empty where it has none.

        Of one "version" whether it takes requests or not, else of what answers those that name none.
        """
        try:
            found = self._dataplane.signatures(request["model"], request.get("version"))
        except PoolError:
            found = b""
        return {"signatures": base64.b64encode(found).decode()}

    async def models(self, request: Message) -> Message:
        if given := request.get("settings"):
            self._configure(msgspec.convert(given, RouterSettings))
        _want(self._dataplane, request)
        return {}

    async def condemn(self, request: Message) -> Message:
        self._dataplane.condemn(
            request["device"],
            request["workers"],
            request["culprits"],
            request["reason"],
            comes_back=request["comes_back"],
        )
        return {}

    async def devices(self, request: Message) -> Message:
        self._dataplane.devices(request["devices"])
        return {}

    async def clear(self, request: Message) -> Message:
        self._dataplane.clear(request["device"], request["since_s"])
        return {}

    async def tasks(self, request: Message) -> AsyncIterator[Message]:
        """Piece by piece, and what else there is to do between two of them."""
        for piece in self._dataplane.tasks(request["last_s"]):
            yield piece
            await asyncio.sleep(0)

    async def arrivals(self, request: Message) -> AsyncIterator[Message]:
        """What arrives in the next so many seconds, once it is over; at the end what is not, and `ended`."""
        end_s = time.monotonic() + request["for_s"]
        with self._dataplane.accounts.recording() as found:
            while True:
                for piece in found.pieces():
                    yield piece
                    await asyncio.sleep(0)
                if (left_s := end_s - time.monotonic()) <= 0:
                    break
                await asyncio.sleep(min(_ARRIVALS_S, left_s))
        for piece in found.pieces(last=True):
            yield piece
        yield {"ended": True}

    async def clients(self, request: Message) -> AsyncIterator[Message]:
        """Who asks in the next so many seconds, as Clients.told() has it: all so far, from now on again and again, each time with
        `seconds` behind it, for how long that is; at the end `ended`.
        """
        began_s = time.monotonic()
        with self._dataplane.accounts.looking() as found:
            while True:
                seconds = time.monotonic() - began_s
                for piece in found.told():
                    yield piece
                    await asyncio.sleep(0)
                yield {"seconds": seconds, "by": found.by, "simulated": found.simulated}
                if (left_s := request["for_s"] - seconds) <= 0:
                    break
                await asyncio.sleep(min(_CLIENTS_S, left_s))
        yield {"ended": True}

    async def capture(self, request: Message) -> AsyncIterator[Message]:
        """Requests that a model answers, so many or for so long: "requests", each the version that answered, its method, in base64
        its body, and whether more of that follows. So many are those of "version": the one that is asked for, or that answers most
        of what names none, now.
        """
        end_s = time.monotonic() + request["for_s"]
        name, asked = request["model"], request["version"]
        with self._dataplane.accounts.capturing(name, asked, request["count"]) as found:
            while True:
                requests: list[tuple[int, int, str, bool]] = []
                size = 0
                while len(requests) < _BODIES and size < _BODY_BYTES and (taken := found.take()) is not None:
                    version, method, body, more = taken
                    requests.append((version, method.value, base64.b64encode(body).decode(), more))
                    size += len(body)
                present = self._dataplane.answers_most(name) if asked is None else asked
                yield {"requests": requests, "version": present}
                if not requests and (found.has_all_of(present) or time.monotonic() > end_s):
                    return
                await asyncio.sleep(0 if requests else _ARRIVALS_S)

    async def drain(self, request: Message) -> Message:
        return {"left": await self._dataplane.drain(request["timeout_s"])}


async def _latencies(metrics: Metrics, _request: Message) -> Message:
    return metrics.latencies()


def _want(dataplane: Dataplane, told: Message) -> None:
    dataplane.want(told["models"], told["restarts"], told["slots"])


def _recall(run_dir: RunDir, dataplane: Dataplane) -> None:
    """What a router before this one was told: the pool process may be away, and workers say nothing of routes."""
    with contextlib.suppress(OSError, msgspec.DecodeError):
        _want(dataplane, msgspec.json.decode(run_dir.router_models.read_bytes()))


async def serve(config: RouterSettings) -> None:
    """Runs until SIGTERM or SIGINT. Raises StartError where a port cannot be had."""
    run_dir = RunDir(Path(config.run_dir))
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for signum in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(signum, stop.set)
    metrics = Metrics(config)
    dataplane = Dataplane(config, metrics, lambda receive: Link(run_dir.router_socket, receive))
    metrics.observe(dataplane)
    _recall(run_dir, dataplane)
    has_grpc = config.grpc_port or config.grpc_socket_path
    grpc = GrpcFront(dataplane, config, metrics, PoolReload(run_dir.pool_control)) if has_grpc else None
    rest = RestFront(dataplane, config, metrics) if config.rest_port else None
    if grpc is not None:
        metrics.observe_connections("grpc", grpc.listener)
    if rest is not None:
        metrics.observe_connections("http", rest.listener)

    def configure(settings: RouterSettings) -> None:
        dataplane.configure(settings)
        for front in (grpc, rest):
            if front is not None:
                front.configure(settings)

    control_ops = Control(dataplane, metrics.refusals, configure)
    control = ControlServer(
        run_dir.router_control,
        {
            "snapshot": control_ops.snapshot,
            "signatures": control_ops.signatures,
            "models": control_ops.models,
            "condemn": control_ops.condemn,
            "clear": control_ops.clear,
            "devices": control_ops.devices,
            "tasks": control_ops.tasks,
            "arrivals": control_ops.arrivals,
            "capture": control_ops.capture,
            "clients": control_ops.clients,
            "drain": control_ops.drain,
            "latencies": functools.partial(_latencies, metrics),
            "watch": control_ops.watch,
        },
    )
    try:
        for front in (grpc, rest):
            if front is not None:
                await front.start()
        run_dir.set_last_words("router", "")
        await control.start()
        # What start-up made lives as long as we do: the collector need not look at it again and again.
        gc.freeze()
        gc.set_threshold(50_000, 20, 20)
        log.get("router").info("serving", grpc_port=config.grpc_port, rest_port=config.rest_port)
        await stop.wait()
        dataplane.draining = True
        if grpc is not None:
            await grpc.quiesce(LAST_CALLS_S)
    finally:
        for front in (grpc, rest):  # probes over HTTP are answered to the last moment
            if front is not None:
                await front.close()
        await control.close()
        await dataplane.close()


def main(settings_file: str) -> int:
    """`python -m mpspool.router SETTINGS`."""
    log.configure(process="router")
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    keep_bodies()
    process.raise_open_files()
    config = settings.load(Path(settings_file), RouterSettings)
    if (most := sockets.connections(config.max_connections)) < config.max_connections:
        logger.warning(
            "each front has fewer connections than max_connections: too few files may be open (ulimit -Hn)",
            connections=most,
            max_connections=config.max_connections,
        )
    try:
        import uvloop

        uvloop.run(serve(config))
    except StartError as error:
        RunDir(Path(config.run_dir)).set_last_words("router", str(error))
        print(error, file=sys.stderr)
        time.sleep(_AGAIN_S)  # supervisord starts us again at once
        return 1
    return 0
