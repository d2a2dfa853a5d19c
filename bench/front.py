"""What the way in costs: the gRPC front alone, front and router, and the whole pool."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Sequence

from bench.peers import OURS, Peer, Place
from bench.protocols import Tfs

_ECHO = [sys.executable, "-P", "-m", "bench.echo"]


def _front(place: Place) -> list[str]:
    return [*_ECHO, "front", str(place.port)]


def _router(place: Place) -> list[str]:
    return [*_ECHO, "router", str(place.port), str(place.folder)]


LAYERS: Sequence[Peer] = (
    Peer("front", "gRPC front", Tfs(), _front),
    Peer("front_router", "front and router", Tfs(), _router),
    dataclasses.replace(OURS, name="whole", title="whole pool"),
)
