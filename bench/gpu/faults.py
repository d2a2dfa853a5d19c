"""How long a fault takes: until nothing is sent to what it hit, until the first worker is back, and until all are.

Under a steady load of the compute-heavy model. The times are those of the router's and the pool's own log lines.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from bench.environments import REPOSITORY, BenchError
from bench.gpu.device import Gpu
from bench.gpu.pool import DEVICE, Pool, Setting
from bench.gpu.steady import Steady
from bench.guard import Run
from mpspool.core import control
from mpspool.core.states import PoolState
from mpspool.mps.control import ControlError, daemon_environment
from mpspool.supervisor.commands import simulate
from mpspool.supervisor.commands.errors import CommandError

MODEL = "tower"
MOST_CONTEXTS = 4
_PER_CONTEXT = 2
# Until a fault is seen, until all is well again, and for how long that has to last.
_SEEN_S, _WELL_S, _STABLE_S = 40.0, 180.0, 2.0
_BUSY_S = 20.0
_PROGRAM_S = 60.0


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds from the fault; None for what did not happen.

    Attributes:
        seen_s: until the first line about it in the router's or the pool's log.
        stopped_s: until the router sent nothing more to any worker that was hit.
        first_ready_s, all_ready_s: until one, and each, of the slots that were hit was READY again.
    """

    seen_s: float | None
    stopped_s: float | None
    first_ready_s: float | None
    all_ready_s: float | None


@dataclass(frozen=True, slots=True)
class Recovery:
    """One fault.

    Attributes:
        hit: workers that were replaced, of `workers`.
        right, failed, longest_gap_s: of the load, from the fault to the end of the recovery.
        notes: what CUDA and the MPS daemon said of it.
    """

    what: str
    workers: int
    hit: int
    times: Times
    right: int
    failed: Mapping[str, int]
    longest_gap_s: float
    notes: str

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


Inject = Callable[[Pool], tuple[float, str]]
"""Makes it happen; when it did (time.time()), and what there is to say of it."""


def cases(*, simulated: bool, quick: bool) -> dict[str, Inject]:
    """What is made to fail, by what the tables call it."""
    fault = _simulated_fault if simulated else _client_fault
    found: dict[str, Inject] = {
        "a client faults": fault,
        "a busy worker is shot after terminate_client": _terminate_and_shoot,
        "a busy worker is shot": _shoot,
        "the MPS server is shot": _shoot_server,
        "the MPS daemon is shot": _shoot_daemon,
    }
    return {what: found[what] for what in list(found)[:2]} if quick else found


def measure(
    gpu: Gpu, contexts: int, batch: int, run: Run, *, quick: bool, done: Callable[[Recovery], None]
) -> None:
    """Raises BenchError and whatever else ends a pool's measurement; `done` has had what was measured before."""
    setting = Setting(min(contexts, MOST_CONTEXTS), mps=True)
    with Pool(setting, MODEL, gpu, run) as pool:
        pool.warm(batch, _PER_CONTEXT * setting.contexts, 1.0)
        with Steady(pool.address, batch, _PER_CONTEXT * setting.contexts) as load:
            for what, inject in cases(simulated=gpu.simulated, quick=quick).items():
                recovery = _one(pool, load, what, inject)
                print(f"bench.gpu: {what}: {recovery.times}", flush=True)
                done(recovery)


def _one(pool: Pool, load: Steady, what: str, inject: Inject) -> Recovery:
    before = {name: worker["generation"] for name, worker in pool.workers().items()}
    at, notes = inject(pool)
    pool.until(lambda status: _generations(status) != before, _SEEN_S)
    _settle(pool)
    hit = [name for name, was in before.items() if _generations(pool.status())[name] > was]
    times = timeline(at, hit, _events(pool.run.log_file("router")), _events(pool.run.log_file("pool")))
    # A little further, so that an answer after the recovery ends the gap.
    end = at + (times.all_ready_s or 0.0) + 0.5
    became = load.between(at, end)
    return Recovery(
        what, len(before), len(hit), times, became.right, became.failed, became.longest_gap_s, notes
    )


def _generations(status: Mapping[str, Any]) -> dict[str, int]:
    return {worker["id"]: worker["generation"] for worker in status["workers"]}


def _settle(pool: Pool) -> None:
    """Returns when every worker has been READY for a while. Raises BenchError."""
    end = time.monotonic() + _WELL_S
    since, seen = time.monotonic(), None
    while time.monotonic() < end:
        if not pool.until(lambda status: status["pool"]["state"] == PoolState.RUNNING.value, _WELL_S):
            break
        now = _generations(pool.status())
        if now != seen:
            since, seen = time.monotonic(), now
        elif time.monotonic() - since > _STABLE_S:
            return
        time.sleep(0.1)
    raise BenchError(f"the pool was not whole again within {_WELL_S:g} s: {pool.status()['workers']}")


def timeline(
    at: float, hit: Sequence[str], router: Sequence[Mapping[str, Any]], pool: Sequence[Mapping[str, Any]]
) -> Times:
    """From the log lines of router and pool. Pure.

    Args:
        at: when the fault was made, time.time().
        hit: the ids of the workers that were replaced.
        router: its log lines, "at" being each one's time.
        pool: the same of the pool process.
    """
    # The router names a worker with its generation, the pool without.
    later = [
        {**line, "worker": worker}
        for line in router
        if line["at"] >= at and (worker := line.get("worker", "").partition("#")[0]) in hit
    ]
    ours = [line for line in pool if line["at"] >= at]
    failed = _times(later, ("device failed",))
    given_up = {
        name: first
        for name in hit
        if (first := _first(_times((line for line in later if line["worker"] == name), _GIVEN_UP)))
    }
    # A failed device is closed for all its workers at once, otherwise each goes by itself.
    stopped = [*failed[:1], *([max(given_up.values())] if len(given_up) == len(hit) and hit else [])]
    back = {
        name: times[-1]
        for name in hit
        if (times := _times((line for line in ours if line.get("worker") == name), ("worker ready",)))
    }
    seen = sorted([*_times(later, ("device failed", *_GIVEN_UP)), *_times(ours, _SEEN)])
    whole = len(back) == len(hit) and bool(hit)

    def since(moment: float | None) -> float | None:
        return None if moment is None else moment - at

    return Times(
        since(_first(seen)),
        since(min(stopped, default=None)),
        since(min(back.values(), default=None)),
        since(max(back.values()) if whole else None),
    )


_GIVEN_UP = ("worker lost", "worker left")
_SEEN = ("GPU failed", "worker ended", "not attached", "worker hangs")


def _first(times: Sequence[float]) -> float | None:
    return times[0] if times else None


def _times(lines: Iterable[Mapping[str, Any]], events: Sequence[str]) -> list[float]:
    return [line["at"] for line in lines if line.get("event") in events]


def _events(log: Path) -> list[dict[str, Any]]:
    found = []
    for line in log.read_text(errors="replace").splitlines():
        if line.startswith("{"):
            event = json.loads(line)
            found.append({**event, "at": datetime.fromisoformat(event["timestamp"]).timestamp()})
    return found


# -- making it happen -----------------------------------------------------------------------------


def _client_fault(pool: Pool) -> tuple[float, str]:
    """A program of its own, a client of the same daemon, writes to an address that is not mapped."""
    daemon = pool.daemon
    assert daemon is not None
    environment = daemon_environment(daemon, os.environ) | {"PYTHONPATH": str(REPOSITORY)}
    with subprocess.Popen(
        [sys.executable, "-P", "-m", "bench.gpu.faulter"],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as program:
        assert program.stdout is not None
        attached = json.loads(program.stdout.readline() or "{}")
        listed = "attached" in attached and _is_client(pool, attached["attached"])
        if not listed:
            program.kill()
            why = attached.get("failed", "it is not in the MPS daemon's client list")
            raise BenchError(f"the program that faults did not come to it: {why}")
        try:
            said = json.loads(program.communicate("\n", timeout=_PROGRAM_S)[0])
        except subprocess.TimeoutExpired as error:
            program.kill()
            raise BenchError("the program that faults did not end") from error
    if not said.get("cuda_error"):
        raise BenchError("the program that faults ended without a CUDA error")
    return said["at"], f"CUDA error {said['cuda_error']} in the client that faulted"


def _is_client(pool: Pool, pid: int) -> bool:
    daemon = pool.control()
    return any(pid in daemon.client_list(server) for server in daemon.server_list())


def _simulated_fault(pool: Pool) -> tuple[float, str]:
    """As `mpspool simulate fault` does it."""
    at = time.time()
    try:
        said = simulate.fault(pool.run, DEVICE, "server-fault")
    except CommandError as error:
        raise BenchError(str(error)) from error
    return at, f"{said}, telling it so included"


def _shoot(pool: Pool) -> tuple[float, str]:
    worker = _busy(pool)
    at = time.time()
    os.kill(worker["pid"], signal.SIGKILL)
    return at, _server_says(pool)


def _terminate_and_shoot(pool: Pool) -> tuple[float, str]:
    worker, daemon = _busy(pool), pool.control()
    server = next(one for one in daemon.server_list() if worker["pid"] in daemon.client_list(one))
    at = time.time()
    try:
        daemon.terminate_client(server, worker["pid"])
        said = f"terminate_client answered 0 after {time.time() - at:.2f} s"
    except ControlError as error:
        said = f"terminate_client: {error}"
    try:
        os.kill(worker["pid"], signal.SIGKILL)
    except ProcessLookupError:
        said += ", the worker had ended by then"
    return at, f"{said}; {_server_says(pool)}"


def _shoot_server(pool: Pool) -> tuple[float, str]:
    (server,) = pool.control().server_list()
    at = time.time()
    os.kill(server, signal.SIGKILL)
    return at, ""


def _shoot_daemon(pool: Pool) -> tuple[float, str]:
    pid = next(one["pid"] for one in pool.status()["processes"] if one["name"] == f"mps.{DEVICE}")
    at = time.time()
    os.kill(pid, signal.SIGKILL)
    return at, ""


def _busy(pool: Pool) -> dict[str, Any]:
    """A worker that runs a request now. Raises BenchError."""
    workers = pool.workers()
    end = time.monotonic() + _BUSY_S
    while time.monotonic() < end:
        snapshot = control.call(pool.run.router_control, "snapshot")
        running = {one["id"]: one["running_s"] for one in snapshot["workers"]}
        if any(running.values()):
            return workers[max(running, key=lambda name: running[name])]
    raise BenchError("no worker was busy")


def _server_says(pool: Pool) -> str:
    """The status of the MPS server just after."""
    daemon = pool.control()
    try:
        said = [daemon.server_status(server) for server in daemon.server_list()]
    except ControlError as error:
        return f"the MPS daemon says: {error}"
    return f"its MPS server: {', '.join(said) or 'none'}"
