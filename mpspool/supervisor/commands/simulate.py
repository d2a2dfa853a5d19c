"""Tells the stand-in of a GPU to fail, in a pool that runs on stand-ins."""

from __future__ import annotations

import contextlib
import os

import msgspec

from mpspool.core import control, settings, slot_lock
from mpspool.core.ids import WORKER_PREFIX, WorkerId
from mpspool.core.rundir import RunDir
from mpspool.core.settings import MpsSettings, PoolSettings, WorkerSettings
from mpspool.core.states import DomainState
from mpspool.mps.control import Control, ControlError
from mpspool.supervisor import lock, programs
from mpspool.supervisor.commands import ask
from mpspool.supervisor.commands.errors import CommandError
from mpspool.supervisor.report import elsewhere, program

_ANSWER_S = 5.0


def fault(
    run: RunDir, device: str, kind: str, *, worker: str | None = None, seconds: float | None = None
) -> str:
    """Has it happen, and returns what was done, as a line for people.

    Args:
        run: where the pool is.
        device: "gpu0".
        kind: one of mpspool.mps.simulated.FAULTS.
        worker: of that device: whose doing it is, of a kind that takes a PID; None for what the stand-in chooses.
        seconds: how long it lasts, of a kind that takes SECONDS; None for good.

    Raises:
        CommandError: no pool runs there, it has no such device or worker, that is no stand-in or lost, or it does not
            do it.
    """
    daemon = _daemon(run, device)
    words = ["simulate_fault", kind]
    if worker is not None:
        words.append(str(_pid(run, device, worker)))
    if seconds is not None:
        words.append(f"{seconds:g}")
    try:
        said = Control.of(daemon, os.environ).raw(" ".join(words)).strip()
    except ControlError as error:
        logs = f"{program()} logs {programs.mps_program(device)}{elsewhere(str(run.root))}"
        raise CommandError(f"{device} did not fail: {error}; see `{logs}`") from error
    return f"{said} on {device}" + (f", {worker}" if worker else "")


def _pid(run: RunDir, device: str, worker: str) -> int:
    """Of the process that is a client of the device. Raises CommandError."""
    there = [str(known) for known in _workers(run) if known.device == device]
    if worker not in there:
        raise CommandError(f"{device} has no worker {worker!r}; it has: {', '.join(there) or 'none'}")
    if pid := slot_lock.holder(run.lock_file(WorkerId.parse(worker).program)):
        return pid
    raise CommandError(f"{worker} does not run; see `{program()} status{elsewhere(str(run.root))}`")


def _workers(run: RunDir) -> list[WorkerId]:
    """Those that have been started, of the versions that are there."""
    found = []
    for file in sorted(run.settings.glob(f"{WORKER_PREFIX}*.json")):
        with contextlib.suppress(OSError, msgspec.DecodeError):
            found.append(WorkerId.parse(settings.load(file, WorkerSettings).worker))
    return found


def _daemon(run: RunDir, device: str) -> MpsSettings:
    """Of the stand-in. Raises CommandError."""
    if not lock.holder(run):
        raise CommandError(ask.no_pool(run))
    try:
        pool = settings.load(run.settings_file(programs.POOL), PoolSettings)
    except (OSError, msgspec.DecodeError) as error:
        raise CommandError(
            f"the pool in {run.root} is only starting; wait for it with `mpspool wait`"
        ) from error
    known = [daemon.device for daemon in pool.mps_daemons]
    if not any(daemon.simulated for daemon in pool.mps_daemons):
        why = f"the pool in {run.root} has no GPUs: its workers run on the CPU"
        if known:
            why = f"the GPUs of the pool in {run.root} are real: {', '.join(known)}"
        elif any(slot.gpu_uuid for model in pool.models for slot in model.slots):
            why = f"no GPU of the pool in {run.root} is a stand-in under MPS"
        raise CommandError(f"{device} cannot be told to fail: {why}; start a pool with --simulate-gpus N")
    for daemon in pool.mps_daemons:
        if daemon.device == device:
            _require_there(run, device)
            return daemon
    raise CommandError(f"the pool in {run.root} has no device {device!r}; it has: {', '.join(known)}")


def _require_there(run: RunDir, device: str) -> None:
    """Raises CommandError for a device that the pool has lost; one that does not answer is not asked twice."""
    with contextlib.suppress(control.ControlError, ValueError):
        for found in control.call(run.pool_control, "status", timeout_s=_ANSWER_S)["devices"]:
            if found["device"] == device and found["state"] == DomainState.LOST.value:
                raise CommandError(
                    f"{device} is lost already ({found['error']}): nothing runs on it until the pool is started again"
                )
