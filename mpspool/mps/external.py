"""An MPS daemon that somebody else runs: where it is, whose it is, and whether it can know our workers.

It is asked, and never started or ended. Its lists name clients by the pids of its own pid namespace.
"""

from __future__ import annotations

import os
import socket
import stat
import struct
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from mpspool.mps.control import Control, ControlError
from mpspool.mps.leftovers import DEFAULT_PIPE_DIR

# The daemon's socket in its pipe folder.
CONTROL = "control"
_DEFAULT_LOG_DIR = "/var/log/nvidia-mps"
_PIPE = "CUDA_MPS_PIPE_DIRECTORY"
_LOG = "CUDA_MPS_LOG_DIRECTORY"
# Which kind the real one is, is not documented; the other is refused before the daemon hears of it.
_KINDS = (socket.SOCK_STREAM, socket.SOCK_SEQPACKET)
_CONNECT_S = 2.0
# What the kernel shows for a user or process that has no number here.
_OVERFLOW_UID = 65534
_OR_OWN = "or have a daemon of our own (mps: {mode: own})"


@dataclass(frozen=True, slots=True)
class Folders:
    """A daemon's folders.

    Attributes:
        owner: for people, who runs it; "" where that is not known.
        near: whether it can know our workers, and meets them in shared memory; None where nobody can see.
    """

    pipe_dir: str
    log_dir: str
    owner: str = ""
    near: bool | None = None


@dataclass(frozen=True, slots=True)
class Peer:
    """Who listens on a socket: as the kernel says it in our namespaces, pid 0 for a process that is not in ours."""

    pid: int
    uid: int


def folders(pipe_directory: str, environ: Mapping[str, str]) -> Folders:
    """Where the daemon is: as configured, else as CUDA itself looks for it.

    Its log folder is named by the environment, or is one of the two usual ones.
    """
    pipe = pipe_directory or environ.get(_PIPE) or DEFAULT_PIPE_DIR
    neighbour = Path(pipe).with_name("log")
    log = environ.get(_LOG) or (str(neighbour) if neighbour.is_dir() else _DEFAULT_LOG_DIR)
    return Folders(os.path.abspath(pipe), os.path.abspath(log))


def check(pipe_dir: str, control: Control, uid: int) -> str:
    """Why no worker of ours can be its client, and what to do; "" where nothing is known to be in the way.

    Args:
        pipe_dir: its pipe folder.
        control: asks it.
        uid: who our workers are.
    """
    start_it = "start it there, name its folder (mps.pipe_directory), or set mps: {mode: own}"
    path = Path(pipe_dir) / CONTROL
    try:
        is_socket = stat.S_ISSOCK(path.stat().st_mode)
    except FileNotFoundError:
        what = f"no {CONTROL} socket in {pipe_dir}" if Path(pipe_dir).is_dir() else f"no folder {pipe_dir}"
        return f"external, but there is {what}: no MPS daemon runs on it; {start_it}"
    except OSError as error:
        return (
            f"external, but {path} cannot be reached ({error.strerror}); have its owner let user {uid} into the folder,"
            " or set mps: {mode: own}"
        )
    if not is_socket:
        return f"external, but {path} is no socket; {start_it}"
    try:
        control.server_list()
    except ControlError as error:
        return f"external, but the MPS daemon on {pipe_dir} does not answer ({error}); {start_it}"
    found = peer(pipe_dir)
    if found is not None and found.uid not in (0, uid, _OVERFLOW_UID):
        return (
            f"external, but the MPS daemon on {pipe_dir} belongs to user {found.uid}, who alone can be its client, and"
            f" we are {uid}; run the pool as that user, or set mps: {{mode: own}}"
        )
    return f"external, but {reason}" if (reason := elsewhere(pipe_dir, found)) else ""


def look(found: Folders) -> Folders:
    """With who runs the daemon there, and whether that is near."""
    who = peer(found.pipe_dir)
    if who is None:
        return found
    owner = f"process {who.pid} of user {who.uid}" if who.pid else f"a process of user {who.uid}"
    shared = _shared(who)
    return replace(found, owner=owner, near=False if False in shared else None if None in shared else True)


def elsewhere(pipe_dir: str, found: Peer | None = None) -> str:
    """Why the daemon can have none of our workers, or list them, and what to do; "" where it can, or nobody knows.

    Args:
        pipe_dir: its pipe folder.
        found: who listens there, where that is known already.
    """
    found = found or peer(pipe_dir)
    if found is None:
        return ""
    pids, memory = _shared(found)
    if pids is False:
        return (
            f"the MPS daemon on {pipe_dir} is in another pid namespace, and names its clients by numbers that are not"
            " ours: whether a worker is one cannot be known; share its pid namespace (in a pod hostPID: true),"
            f" {_OR_OWN}"
        )
    if memory is False:
        return (
            f"the MPS daemon on {pipe_dir} is in another IPC namespace, with a /dev/shm of its own, where it meets its"
            " clients: no worker can be one; share its IPC namespace (in a pod hostIPC: true, docker run --ipc=host),"
            f" {_OR_OWN}"
        )
    return ""


def peer(pipe_dir: str) -> Peer | None:
    """Who listens on its control socket; None where nobody does, or the kernel does not say.

    The daemon may log a connection that asks nothing.
    """
    for kind in _KINDS:
        with socket.socket(socket.AF_UNIX, kind) as connection:
            connection.settimeout(_CONNECT_S)
            try:
                connection.connect(os.path.join(pipe_dir, CONTROL))
                found = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
            except OSError:
                continue
            pid, uid, _ = struct.unpack("3i", found)
            return Peer(pid, uid)
    return None


def _shared(found: Peer) -> tuple[bool | None, bool | None]:
    """Whether it is in our pid namespace, and whether it has our shared memory; None where we may not look.

    NVIDIA's device plugin mounts one /dev/shm into pods that keep their own IPC namespaces, and MPS works there.
    """
    if not found.pid:
        return False, None
    ipc = _same(found.pid, "ns/ipc")
    return _same(found.pid, "ns/pid"), bool(_same(found.pid, "root/dev/shm")) if ipc is False else ipc


def _same(pid: int, path: str) -> bool | None:
    """Whether another process and we have the same there, below /proc/PID; None where we may not look."""
    try:
        return os.path.samestat(os.stat(f"/proc/{pid}/{path}"), os.stat(f"/proc/self/{path}"))
    except OSError:
        return None
