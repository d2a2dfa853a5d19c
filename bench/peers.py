"""Who is measured, and how each starts.

Every server has two model processes or instances with one TensorFlow thread each, and serves the
same SavedModel of the same TensorFlow.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from bench.environments import ENVIRONMENTS, ensure, triton_stub
from bench.protocols import Json, Kserve, Protocol, Tfs

WORKERS = 2
THREADS = 1
_SERVERS = Path(__file__).resolve().parent / "servers"


@dataclass(frozen=True, slots=True)
class Place:
    """Where one server of one model runs.

    Attributes:
        port: its gRPC or HTTP port; the next two are free as well.
        folder: its own temporary folder, with a short path.
        models: the folder of base paths.
        cache: where the environments are.
    """

    model: str
    port: int
    folder: Path
    models: Path
    cache: Path


@dataclass(frozen=True, slots=True)
class Peer:
    """A server that can be measured.

    Attributes:
        title: what the tables call it.
        command: argument list; it may make the peer's environment first, and raises BenchError
            where this machine cannot run it.
        wait: a command that returns once all workers are there, not just the first to answer.
        stop: a command that ends it in good order, where SIGTERM is not the way.
    """

    name: str
    title: str
    protocol: Protocol
    command: Callable[[Place], Sequence[str]]
    environment: Mapping[str, str] = field(default_factory=dict)
    wait: Callable[[Place], Sequence[str]] | None = None
    stop: Callable[[Place], Sequence[str]] | None = None


def python(environment: str, cache: Path) -> str:
    """The interpreter of a peer's environment, which is made if it is not there."""
    return str(ensure(environment, cache) / "bin" / "python")


def mpspool(*arguments: str) -> list[str]:
    """Our own command line, with the interpreter that runs this."""
    return [sys.executable, "-P", "-m", "mpspool", *arguments]


def _pool(place: Place) -> list[str]:
    return mpspool(
        "start",
        *(
            "--cpu-slots",
            str(WORKERS),
            "--intra-op-threads",
            str(THREADS),
            "--inter-op-threads",
            str(THREADS),
        ),
        *("--model", f"{place.model}={place.models / place.model}"),
        *("--grpc-port", str(place.port), "--rest-port", "0", "--run-dir", str(place.folder / "run")),
    )


def _wait_for_pool(place: Place) -> list[str]:
    return mpspool("wait", "--run-dir", str(place.folder / "run"), "--timeout", "60")


def _stop_pool(place: Place) -> list[str]:
    return mpspool("stop", "--run-dir", str(place.folder / "run"), "--timeout", "10")


def _script(name: str, environment: str, *more: Callable[[Place], str]) -> Callable[[Place], Sequence[str]]:
    """A file of servers/ in a peer's environment; its arguments are the port and the workers, then `more`."""

    def command(place: Place) -> list[str]:
        interpreter = python(environment, place.cache)
        arguments = [str(place.port), str(WORKERS), *(argument(place) for argument in more)]
        return [interpreter, str(_SERVERS / name), *arguments]

    return command


def _folder(place: Place) -> str:
    return str(place.folder)


_TRITON = _script(
    "triton_start.py", "triton", _folder, lambda _: triton_stub()[0], lambda _: str(triton_stub()[1])
)

OURS = Peer("mpspool", "mpspool", Tfs(), _pool, wait=_wait_for_pool, stop=_stop_pool)
# As Triton's batcher is set up: no delay, batches of up to 1024, no limit that matters on those that wait.
OURS_BATCHING = replace(
    OURS,
    name="mpspool_batch",
    title="mpspool, batching",
    environment={
        "MPSPOOL_BATCHING": "on",
        "MPSPOOL_BATCHING_MAX_BATCH_SIZE": "1024",
        "MPSPOOL_BATCHING_MAX_ENQUEUED_BATCHES": "10000",
    },
)
GROUPS: Mapping[str, Sequence[Peer]] = {
    "triton": (
        Peer("triton", "Triton, python backend", Kserve(), _TRITON),
        Peer("triton_session", "Triton, our call inside", Kserve(), _TRITON, {"BENCH_CALL": "session"}),
        Peer(
            "triton_batch", "Triton, dynamic batcher", Kserve(batched=True), _TRITON, {"BENCH_BATCHING": "1"}
        ),
        Peer(
            "triton_session_batch",
            "Triton, dynamic batcher, our call inside",
            Kserve(batched=True),
            _TRITON,
            {"BENCH_BATCHING": "1", "BENCH_CALL": "session"},
        ),
    ),
    "mlserver": (Peer("mlserver", "MLServer", Kserve(), _script("mlserver_start.py", "mlserver", _folder)),),
    "litserve": (Peer("litserve", "LitServe", Json(), _script("litserve_start.py", "litserve")),),
    "ray": (Peer("ray", "Ray Serve", Tfs(), _script("ray_start.py", "ray", _folder)),),
}
FOREIGN = frozenset(peer.name for group in GROUPS.values() for peer in group)
assert set(GROUPS) <= set(ENVIRONMENTS)
