"""What the command line asks a pool that runs elsewhere: its status and models, what its router sees, to get ready, to stop."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time
from collections.abc import Callable, Collection, Generator, Iterator
from pathlib import Path
from typing import Any

import msgspec

from mpspool.core import control, settings
from mpspool.core.control import ControlError, Message
from mpspool.core.ids import ModelVersion
from mpspool.core.rundir import RunDir
from mpspool.core.settings import ModelSettings, PoolSettings, TlsSettings
from mpspool.core.states import VersionPhase
from mpspool.supervisor import lock, programs, report
from mpspool.supervisor.commands import readiness
from mpspool.supervisor.commands.errors import NoModelError, NoPoolError
from mpspool.supervisor.pool.versions import RECORDS, Records, Versions
from mpspool.supervisor.ports import client_address

_POLL_S = 0.1
_SILENCE_S = 2.5
# Who looks at what the router sees is told something at least every second.
_UNSEEN_S = 10.0
# A pool process or router that was killed is back by then, on a busy machine, too.
PATIENCE_S = 10.0
_ENDING_S = 3.0
# After the grace time: supervisord, and MPS daemons that quit.
STOP_MARGIN_S = 30.0


def status(run: RunDir) -> Message:
    """The pool's status, with each worker's memory. Raises NoPoolError."""
    end = time.monotonic() + PATIENCE_S
    while True:
        try:
            return control.call(run.pool_control, "status", memory=True)
        except (ControlError, ValueError) as error:
            pid = lock.holder(run)
            if not pid:
                raise NoPoolError(no_pool(run)) from error
            if time.monotonic() > end:
                raise NoPoolError(f"the pool of process {pid} does not answer: {error}") from error
        time.sleep(_POLL_S)


def call(
    run: RunDir,
    op: str,
    again: type[Exception] | tuple[type[Exception], ...],
    timeout_s: float,
    **arguments: Any,
) -> Message:
    """Asks the pool process once more after such an error: one that was killed, or that a reload replaces, is back soon.

    Raises:
        NoPoolError: there is none.
        ControlError, ValueError: another error, or it is not back in time.
    """
    end = time.monotonic() + PATIENCE_S
    while True:
        try:
            return control.call(run.pool_control, op, timeout_s=timeout_s, **arguments)
        except (ControlError, ValueError) as error:
            if not lock.holder(run):
                raise NoPoolError(no_pool(run)) from error
            if not isinstance(error, again) or time.monotonic() > end:
                raise
        time.sleep(_POLL_S)


def no_pool(run: RunDir) -> str:
    return f"no pool runs in {run.root}; start one with `mpspool start`, or name its folder with --run-dir"


def why_no_router(run: RunDir, error: Exception, until_s: float) -> str:
    """Why a router does not answer; "" where there is a pool that may only be starting it, until then (CLOCK_MONOTONIC)."""
    pid = lock.holder(run)
    if not pid:
        return no_pool(run)
    if time.monotonic() <= until_s:
        return ""
    look = f"{report.program()} status{report.elsewhere(str(run.root))}"
    return f"the router of the pool of process {pid} does not answer ({error}); see `{look}`"


def observed(run: RunDir, op: str, for_s: float) -> Generator[Message, None, None]:
    """What the router tells, by such an operation, of what it sees from now on, without the last, `ended`.

    Args:
        run: where the pool is; it may only be starting its router.
        op: of the router's.
        for_s: for how long it is to look.

    Raises:
        NoPoolError: there is no pool, or its router does not answer.
        ControlError: the router went away before the end.
    """
    until_s = time.monotonic() + PATIENCE_S
    began = False
    while True:
        try:
            for piece in _told(run, op, for_s):
                began = True
                yield piece
        except ControlError as error:
            if began:
                raise
            if why := why_no_router(run, error, until_s):
                raise NoPoolError(why) from error
        else:
            return
        time.sleep(_POLL_S)


def _told(run: RunDir, op: str, for_s: float) -> Generator[Message, None, None]:
    """What the router answers, without the last. Raises ControlError."""
    try:
        for piece in control.stream(run.router_control, op, timeout_s=_UNSEEN_S, for_s=for_s):
            if "ended" in piece:
                return
            yield piece
    except ValueError as error:
        raise ControlError("the end of what it said is missing") from error
    raise ControlError("it closed the connection")


def why_not_ready(
    run: RunDir, wanted: Collection[ModelVersion], timeout_s: float, say: Callable[[str], object]
) -> str:
    """Waits until a pool is ready, also while there is none yet.

    Args:
        run: where the pool is, or will be.
        wanted: the versions that are to be served; without any, what readiness.verdict() says.
        timeout_s: how long to wait.
        say: told once that there is no pool yet.

    Returns:
        "" when it is; else why not: the time is over, readiness.verdict() says so, or the pool
        that was there has failed. One that was told to end has not: the next one is waited for.
    """
    end = time.monotonic() + timeout_s
    seen, told = 0, False
    last: Message | None = None
    while time.monotonic() < end:
        for last in _statuses(run, end):
            if (verdict := readiness.verdict(last, wanted)) is not None:
                return verdict
            seen = last["pool"]["pid"]
        holder = lock.holder(run)
        if seen and holder != seen:
            if lock.failed(run, seen):
                logs = f"{report.program()} logs{report.elsewhere(str(run.root))}"
                return f"the pool of process {seen} has failed; see `{logs}`"
            seen, last = 0, None
        if not (seen or holder) and not told:
            told = True
            say(f"{no_pool(run)}; waiting for one")
        seen = seen or holder
        time.sleep(_POLL_S)
    what = readiness.unready(last, wanted) if last else no_pool(run)
    return f"not ready after {timeout_s:g} s: {what}"


def _statuses(run: RunDir, end: float) -> Iterator[Message]:
    """The pool's statuses until it goes away or the time is over."""
    with (
        contextlib.suppress(ControlError, ValueError),
        contextlib.closing(control.stream(run.pool_control, "watch", timeout_s=_SILENCE_S)) as found,
    ):
        for item in found:
            yield item
            if time.monotonic() > end:
                return


def stop(run: RunDir, timeout_s: float) -> str:
    """Asks the foreground process to end and waits until nothing is left.

    Returns:
        "" when nothing is left, else what is.

    Raises:
        NoPoolError: none runs there; what a killed one left has been cleared.
    """
    from mpspool.supervisor import leftovers

    pid = lock.holder(run)
    if not pid:
        if pids := leftovers.end(run):
            if not lock.holder(run):  # else a pool has been started meanwhile
                leftovers.remove_sockets(run)
            raise NoPoolError(f"ended what a killed pool had left: {', '.join(map(str, pids))}")
        raise NoPoolError(f"no pool runs in {run.root}: nothing to stop")
    if not _terminated(pid, run.lock, timeout_s):
        return f"process {pid} is still there after {timeout_s:g} s; see {run.logs}"
    if lock.holder(run) == pid:
        return (
            f"the pool in {run.root} runs on: process {pid}, which holds its lock, is not to be seen from here;"
            " stop it in the container, or pid namespace, that it was started in"
        )
    if not leftovers.gone(leftovers.find(run), _ENDING_S):
        return f"still running: {', '.join(map(str, leftovers.find(run)))}"
    sockets = [str(path) for path in run.sockets() if path.exists()]
    return f"still there: {', '.join(sockets)}" if sockets else ""


def _terminated(pid: int, held: Path, timeout_s: float) -> bool:
    """SIGTERM by pidfd, if the process has this file open; whether it is gone in time, or never was ours."""
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        if not _has_open(pid, held):  # it has just ended, or has its number in another pid namespace
            return True
        signal.pidfd_send_signal(pidfd, signal.SIGTERM)
        ended, _, _ = select.select([pidfd], [], [], timeout_s)
        return bool(ended)
    except ProcessLookupError:
        return True
    finally:
        os.close(pidfd)


def _has_open(pid: int, file: Path) -> bool:
    with contextlib.suppress(OSError):
        for descriptor in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):  # it was closed meanwhile
                if descriptor.samefile(file):
                    return True
    return False


def grpc_address(run: RunDir) -> str:
    """HOST:PORT of the gRPC front of the pool that runs there. Raises NoPoolError where there is none."""
    found = _settings(run).router
    if not found.grpc_port:
        socket = (
            f"; it has a socket, for predict: --address unix:{found.grpc_socket_path}"
            if found.grpc_socket_path
            else ""
        )
        raise NoPoolError(f"the pool in {run.root} has its gRPC front off (grpc_port: 0){socket}")
    return client_address(found.host, found.grpc_port)


def grpc_tls(run: RunDir) -> TlsSettings | None:
    """Of the gRPC front of the pool that runs there; None for clear text. Raises NoPoolError where there is none."""
    return _settings(run).router.tls


def rest_address(run: RunDir) -> str:
    """HOST:PORT of the HTTP front of the pool that runs there, "" where that is off. Raises NoPoolError."""
    found = _settings(run).router
    return client_address(found.host, found.rest_port) if found.rest_port else ""


def model(run: RunDir, name: str, version: int | None) -> ModelSettings:
    """A model of the pool that runs there: of its versions the one that answers most requests which name none, by default.

    Raises:
        NoPoolError: there is none.
        NoModelError: it has no such model, or not in that version.
    """
    models = _settings(run).models
    versions = {found.version: found for one in models if one.name == name for found in _versions(run, one)}
    if not versions and name in {found.name for found in models}:
        raise NoModelError(
            f"no version of {name!r} is there in the pool in {run.root}; see `{report.program()} status{report.elsewhere(str(run.root))}`"
        )
    if not versions:
        known = ", ".join(sorted({found.name for found in models}))
        raise NoModelError(f"the pool in {run.root} has no model {name!r}; it has: {known}")
    wanted = (_answers(run, versions[max(versions)]) or max(versions)) if version is None else version
    if wanted not in versions:
        known = ", ".join(map(str, sorted(versions)))
        raise NoModelError(f"the pool in {run.root} has no version {wanted} of {name!r}; it has: {known}")
    return versions[wanted]


def _answers(run: RunDir, model: ModelSettings) -> int:
    """The version of a model that answers requests which name none, or most of them; 0 for none."""
    with contextlib.suppress(OSError, msgspec.DecodeError, KeyError):
        versions = Versions(model.name, model.policy)
        versions.recall(settings.load(run.settings_file(RECORDS), Records).models[model.name])
        serving = [version for version in versions if version.phase is VersionPhase.SERVING]
        most = max(serving, key=lambda version: (versions.weight(version), version.number), default=None)
        return most.number if most else 0
    return 0


def _versions(run: RunDir, model: ModelSettings) -> list[ModelSettings]:
    """Those of a model that are there, failed or not; what is served first while nobody has said so yet."""
    with contextlib.suppress(OSError, msgspec.DecodeError, KeyError):
        record = settings.load(run.settings_file(RECORDS), Records).models[model.name]
        return [msgspec.structs.replace(model, version=one.number, path=one.path) for one in record.versions]
    return [model]


def _settings(run: RunDir) -> PoolSettings:
    """Of the pool that runs there. Raises NoPoolError."""
    if not lock.holder(run):
        raise NoPoolError(no_pool(run))
    try:
        return settings.load(run.settings_file(programs.POOL), PoolSettings)
    except (OSError, msgspec.DecodeError) as error:
        raise NoPoolError(f"the pool in {run.root} is only starting") from error
