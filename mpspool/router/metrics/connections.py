"""What Prometheus reads of the connections of gRPC clients."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from mpspool.router.fronts.http2.listener import Listener


class ConnectionCollector(Collector):
    """Args:
    listener: whose connections they are.
    """

    def __init__(self, listener: Listener) -> None:
        self._listener = listener

    def collect(self) -> Iterator[Metric]:
        listener = self._listener
        yield GaugeMetricFamily(
            "mpspool_connections", "Connections of gRPC clients that are open.", value=len(listener.links)
        )
        yield GaugeMetricFamily(
            "mpspool_connections_limit",
            "max_connections: one more is closed.",
            value=listener.max_connections,
        )
        bad = CounterMetricFamily(
            "mpspool_bad_connections",
            "Connections on which something was wrong, by HTTP/2's code for the first of it; INADEQUATE_SECURITY is a TLS "
            "handshake that failed.",
            labels=("code",),
        )
        for code, count in listener.complaints.counts.items():
            bad.add_metric((code,), count)
        yield bad
