"""A UNIX socket that clients are told of by its path."""

from __future__ import annotations

import contextlib
import os
import socket
import stat
from pathlib import Path

from mpspool.core.rundir import MAX_SOCKET_PATH_BYTES


def refusal(path: str) -> str:
    """Why nobody can listen there; "" where it can be tried."""
    if len(os.fsencode(path)) > MAX_SOCKET_PATH_BYTES:
        return f"{path} is longer than the {MAX_SOCKET_PATH_BYTES} bytes that a UNIX socket's path may have"
    if not Path(path).parent.is_dir():
        return f"{Path(path).parent} is no folder; make it, or name another socket"
    try:
        is_socket = stat.S_ISSOCK(os.lstat(path).st_mode)
    except OSError:
        return ""
    if not is_socket:
        return f"{path} is there, and is no socket; name another"
    return f"another server listens on {path}; end it, or name another socket" if _answers(path) else ""


def bind(path: str) -> socket.socket:
    """In place of one that a process which is gone has left there. Raises OSError."""
    if why := refusal(path):
        raise OSError(why)
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
    bound = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        bound.bind(path)
    except OSError:
        bound.close()
        raise
    return bound


def _answers(path: str) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(path)
        except OSError:
            return False
    return True
