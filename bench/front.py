"""What the way in costs: the gRPC front alone, front and router, the whole pool; and grpcio's server beside them."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Sequence

from bench.peers import OURS, Peer, Place
from bench.protocols import Tfs

_ECHO = [sys.executable, "-P", "-m", "bench.echo"]


def _front(place: Place) -> list[str]:
    return [*_ECHO, "front", str(place.port)]


def _grpc_aio(place: Place) -> list[str]:
    return [*_ECHO, "grpc_aio", str(place.port)]


def _router(place: Place) -> list[str]:
    return [*_ECHO, "router", str(place.port), str(place.folder)]


LAYERS: Sequence[Peer] = (
    Peer("grpc_aio", "grpc.aio, echo", Tfs(), _grpc_aio),
    Peer("front", "gRPC front", Tfs(), _front),
    Peer("front_router", "front and router", Tfs(), _router),
    dataclasses.replace(OURS, name="whole", title="whole pool"),
)
