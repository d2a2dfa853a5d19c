"""What Prometheus reads of clients' connections."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from mpspool.router.fronts.complaints import Complaints


class Connected(Protocol):
    """What is asked of a port.

    Attributes:
        open_connections: how many there are.
        max_connections: at once.
        complaints: of bad ones.
    """

    max_connections: int
    complaints: Complaints

    @property
    def open_connections(self) -> int: ...


class ConnectionCollector(Collector):
    """Tells the ports apart by the label `front`."""

    def __init__(self) -> None:
        self._fronts: dict[str, Connected] = {}

    def add(self, front: str, connected: Connected) -> None:
        self._fronts[front] = connected

    def collect(self) -> Iterator[Metric]:
        count = GaugeMetricFamily(
            "mpspool_connections", "Connections of clients that are open.", labels=("front",)
        )
        limit = GaugeMetricFamily(
            "mpspool_connections_limit",
            "max_connections: where so many are open, one is closed for each that comes.",
            labels=("front",),
        )
        bad = CounterMetricFamily(
            "mpspool_bad_connections",
            "Connections on which something was wrong, by what it was first: of gRPC HTTP/2's code, INADEQUATE_SECURITY for a "
            "TLS handshake that failed; of HTTP BAD_REQUEST, REFUSED or STALLED.",
            labels=("front", "code"),
        )
        for front, connected in self._fronts.items():
            count.add_metric((front,), connected.open_connections)
            limit.add_metric((front,), connected.max_connections)
            for code, times in connected.complaints.counts.items():
                bad.add_metric((front, code), times)
        yield from (count, limit, bad)
