"""How many connections the fronts may have of the files that may be open."""

from __future__ import annotations

import resource

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
