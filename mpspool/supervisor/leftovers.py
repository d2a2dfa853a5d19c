"""What a killed pool may leave in its run folder: processes, sockets, progress pages, settings.

Its processes are known by what supervisord put into their environment, its own socket's address, and
supervisord itself by its configuration file.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import time
from collections.abc import Iterable
from pathlib import Path

import msgspec

from mpspool.core import process, settings
from mpspool.core.rundir import RunDir
from mpspool.core.settings import MpsSettings
from mpspool.mps import leftovers as mps_leftovers
from mpspool.mps.control import Control
from mpspool.supervisor.programs import MPS_PREFIX, SUPERVISORD

# The MPS wrapper turns SIGTERM into an orderly `quit`, which takes a while.
_TERM_S = 8.0
_KILL_S = 5.0
_POLL_S = 0.02


def find(run: RunDir) -> list[int]:
    """The living processes of this run folder, but for us and our ancestors."""
    mark = b"SUPERVISOR_SERVER_URL=unix://" + os.fsencode(run.supervisord_socket)
    conf = os.fsencode(run.supervisord_conf)
    spared = set(_ancestors())
    return [
        pid
        for pid in (int(entry) for entry in os.listdir("/proc") if entry.isdigit())
        if pid not in spared
        and (
            mark in process.strings(pid, "environ") or _is_supervisord(process.strings(pid, "cmdline"), conf)
        )
        and process.alive(pid)
    ]


def _is_supervisord(command: list[bytes], conf: bytes) -> bool:
    return SUPERVISORD.encode() in command and conf in command


def _ancestors() -> Iterable[int]:
    pid = os.getpid()
    while pid:
        yield pid
        found = process.stat(pid)
        pid = found.ppid if found else 0


def end(run: RunDir) -> list[int]:
    """Ends every process of this run folder: MPS by `quit`, the rest by SIGTERM and then SIGKILL.

    Returns:
        The pids that were found.
    """
    daemons = {found.pid for pipe in _pipes(run) for found in mps_leftovers.find(pipe)}
    pids = [pid for pid in find(run) if pid not in daemons]
    for signum, limit_s in ((signal.SIGTERM, _TERM_S), (signal.SIGKILL, _KILL_S)):
        for pid in filter(process.alive, pids):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signum)
        if gone(pids, limit_s):
            break
    for file in run.settings.glob(f"{MPS_PREFIX}*.json"):
        with contextlib.suppress(OSError, msgspec.DecodeError):
            daemon = settings.load(file, MpsSettings)
            if not daemon.external:
                mps_leftovers.end(Path(daemon.pipe_dir), Control.of(daemon, os.environ))
    return [*pids, *daemons]


def gone(pids: Iterable[int], limit_s: float) -> bool:
    """Waits until none of them lives, at most so long."""
    deadline = time.monotonic() + limit_s
    while any(process.alive(pid) for pid in pids):
        if time.monotonic() > deadline:
            return False
        time.sleep(_POLL_S)
    return True


def remove_files(run: RunDir) -> None:
    """Removes what only a running pool needs; logs stay."""
    remove_sockets(run)
    for path in (run.supervisord_conf, run.root / "supervisord.pid"):
        path.unlink(missing_ok=True)
    for folder in (run.programs, run.settings):
        for path in folder.iterdir() if folder.is_dir() else ():
            path.unlink(missing_ok=True)


def put_logs_aside(run: RunDir) -> None:
    """Keeps the logs of the pool before, and none older, in a folder of their own, where that can be done."""
    logs = [path for path in run.logs.iterdir() if path.is_file()]
    if not logs:
        return
    shutil.rmtree(run.logs_before, ignore_errors=True)
    with contextlib.suppress(OSError):
        run.logs_before.mkdir(mode=0o700, exist_ok=True)
        for path in logs:
            path.rename(run.logs_before / path.name)


def remove_sockets(run: RunDir) -> None:
    """Removes the sockets and progress pages: all that means something only while a pool runs.

    Those of an MPS daemon, which takes them along when it quits, are left by one that was killed in a hurry.
    """
    for path in (*run.sockets(), *run.progress.glob("*")):
        path.unlink(missing_ok=True)
    for pipe in _pipes(run):
        shutil.rmtree(pipe, ignore_errors=True)


def _pipes(run: RunDir) -> list[Path]:
    return [path for path in run.mps.glob("*/pipe") if path.is_dir()]
