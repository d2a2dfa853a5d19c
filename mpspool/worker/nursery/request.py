"""What a launcher asks of the nursery, as it comes in (what is said: worker/launcher.py)."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from mpspool.worker import launcher
from mpspool.worker.nursery.staleness import Environment

_MAX_REQUEST_BYTES = 16 * 2**20


@dataclass(frozen=True, slots=True)
class Request:
    """What a launcher asks for. The descriptors are ours to close.

    Attributes:
        settings: the worker's settings file.
        environment: the worker's whole environment.
        streams: standard input, output and error.
        lifeline: the launcher holds the other end for as long as the worker may live.
    """

    settings: Path
    environment: Environment
    streams: tuple[int, ...]
    lifeline: int

    @classmethod
    def receive(cls, connection: socket.socket) -> Self:
        """Raises OSError, and ValueError for what is not a request."""
        limit = launcher.DESCRIPTORS
        data, descriptors, flags, _ = socket.recv_fds(connection, 4096, limit, socket.MSG_CMSG_CLOEXEC)
        try:
            _check(data, descriptors, flags)
            file, *streams, lifeline = descriptors
            path, environment = _parse(file)
        except BaseException:
            close_all(descriptors)
            raise
        os.close(file)
        return cls(path, environment, tuple(streams), lifeline)

    def close(self) -> None:
        close_all([*self.streams, self.lifeline])


def _check(data: bytes, descriptors: Sequence[int], flags: int) -> None:
    if not data:
        raise ConnectionResetError("the launcher has gone")
    whole = len(descriptors) == launcher.DESCRIPTORS and not flags & socket.MSG_CTRUNC
    if data != launcher.PROTOCOL or not whole:
        raise ValueError("not a request that this nursery understands")


def _parse(file: int) -> tuple[Path, Environment]:
    size = os.fstat(file).st_size
    if not 0 < size <= _MAX_REQUEST_BYTES:
        raise ValueError(f"a request of {size} bytes")
    path, *variables = os.pread(file, size, 0).split(b"\0")
    pairs = (variable.partition(b"=") for variable in variables)
    return Path(os.fsdecode(path)), {name: value for name, _, value in pairs if name}


def close_all(descriptors: Iterable[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)
