"""How many connections the fronts may have of the files that may be open, and how an address that cannot be had is told."""

from __future__ import annotations

import errno
import os
import resource
import socket

import pytest

from mpspool.router.fronts import sockets


@pytest.mark.parametrize(
    ("files", "wanted", "found"),
    [
        (2**20, 10_000, 10_000),
        (resource.RLIM_INFINITY, 10_000, 10_000),
        (20_000, 10_000, 7_500),
        (1024, 10_000, 384),
        (1024, 50, 50),
        (256, 10_000, 1),
    ],
)
def test_connections(monkeypatch: pytest.MonkeyPatch, files: int, wanted: int, found: int) -> None:
    """Both fronts leave a fourth, and no fewer than 256, for workers; each has some."""
    monkeypatch.setattr(resource, "getrlimit", lambda _: (files, files))
    assert sockets.connections(wanted) == found


@pytest.mark.parametrize(
    ("host", "error", "told"),
    [
        (
            "127.0.0.1",
            OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE)),
            "127.0.0.1:8501: Address already in use",
        ),
        ("::1", OSError(errno.EADDRNOTAVAIL, "::1 has no address"), "[::1]:8501: ::1 has no address"),
        (
            "nowhere",
            socket.gaierror(socket.EAI_NONAME, "Name or service not known"),
            "nowhere:8501: Name or service not known",
        ),
        ("localhost", OSError("no more"), "localhost:8501: no more"),
    ],
)
def test_why_a_port_cannot_be_had(host: str, error: OSError, told: str) -> None:
    """The address as people write it; of a name that stands for nothing, what the resolver says."""
    problem = sockets.cannot_bind("rest_port", host, 8501, error)
    assert str(problem) == f"rest_port: cannot listen on {told}"
