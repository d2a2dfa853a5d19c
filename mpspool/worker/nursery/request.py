"""What a launcher asks of the nursery, as it comes in (what is said: worker/launcher.py)."""

from __future__ import annotations

import mmap
import os
import re
import socket
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from mpspool.core.descriptors import receive
from mpspool.worker import launcher
from mpspool.worker.nursery import staleness
from mpspool.worker.nursery.staleness import Environment

_MAX_MESSAGE_BYTES = 4096
_MAX_REQUEST_BYTES = 16 * 2**20
_VARIABLE = re.compile(rb"\0([^\0=]+)=([^\0]*)")


@dataclass(frozen=True, slots=True)
class Request:
    """What a launcher asks for. The descriptors are ours to close.

    Attributes:
        settings: the worker's settings file.
        at_import: what the environment has of the variables that are read at import. The others may be the
            model's secrets, so the nursery, whose memory every later child inherits, never has them in its own.
        file: the request.
        streams: standard input, output and error.
        lifeline: the launcher holds the other end for as long as the worker may live.
    """

    settings: Path
    at_import: Environment
    file: int
    streams: tuple[int, ...]
    lifeline: int

    @classmethod
    def receive(cls, connection: socket.socket) -> Self:
        """Raises OSError, and ValueError for what is not a request."""
        data, descriptors, flags = receive(connection, _MAX_MESSAGE_BYTES, launcher.DESCRIPTORS)
        try:
            _check(data, descriptors, flags)
            file, *streams, lifeline = descriptors
            path, at_import = _glance(file)
        except BaseException:
            close_all(descriptors)
            raise
        return cls(path, at_import, file, tuple(streams), lifeline)

    def environment(self) -> Environment:
        """The worker's whole environment, for the child. Raises OSError."""
        _, *variables = os.pread(self.file, os.fstat(self.file).st_size, 0).split(b"\0")
        pairs = (variable.partition(b"=") for variable in variables)
        return {name: value for name, _, value in pairs if name}

    def close(self) -> None:
        close_all([self.file, *self.streams, self.lifeline])


def _check(data: bytes, descriptors: Sequence[int], flags: int) -> None:
    if not data:
        raise ConnectionResetError("the launcher has gone")
    whole = len(descriptors) == launcher.DESCRIPTORS and not flags & socket.MSG_CTRUNC
    if data != launcher.PROTOCOL or not whole:
        raise ValueError("not a request that this nursery understands")


def _glance(file: int) -> tuple[Path, Environment]:
    """The path and what is read at import; the rest is only seen through memory that is given back."""
    size = os.fstat(file).st_size
    if not 0 < size <= _MAX_REQUEST_BYTES:
        raise ValueError(f"a request of {size} bytes")
    with mmap.mmap(-1, size) as text:
        os.preadv(file, [text], 0)
        end = text.find(b"\0")
        path = text[: size if end < 0 else end]
        variables = _VARIABLE.finditer(text)
        at_import = {found[1]: found[2] for found in variables if staleness.read_at_import(found[1])}
        return Path(os.fsdecode(path)), at_import


def close_all(descriptors: Iterable[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)
