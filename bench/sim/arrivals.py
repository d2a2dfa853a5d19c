"""Who asks for what, and when: independent requests, bursts, clients that wait for their answers, traces."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import msgspec
import numpy as np

from bench.sim.service import Service
from bench.sim.trace import Request

_CHUNK = 4096


@dataclass(frozen=True, slots=True)
class Stream:
    """A part of the load.

    Attributes:
        service: what is asked for.
        share: of all requests, by the sum of the shares.
        client: whose they are.
        clients: between so many they are divided evenly, each with a number behind its name; 1: the name as it is.
        priority, deadline_ms: of each.
    """

    service: Service
    share: float
    client: str = ""
    clients: int = 1
    priority: int = 0
    deadline_ms: float = 0.0


class Load(Protocol):
    """A source of requests. The same seed gives the same ones whatever becomes of them."""

    def requests(self, seconds: float, seed: int) -> Iterator[Request]:
        """Those that come whatever becomes of others, in the order of their times."""

    def after(self, request: Request, now_s: float) -> Request | None:
        """What this request's client asks for next, now that it has its answer or refusal."""


@dataclass(frozen=True, slots=True)
class Open:
    """Requests that come at random, independent of each other and of the answers.

    Attributes:
        streams: what is asked for.
        rate: requests a second, over all streams.
        burst: the rate in bursts, by that between them; 1: there are none.
        burst_s, between_s: their mean lengths.
    """

    streams: tuple[Stream, ...]
    rate: float
    burst: float = 1.0
    burst_s: float = 0.1
    between_s: float = 0.9

    def requests(self, seconds: float, seed: int) -> Iterator[Request]:
        random = np.random.default_rng([seed, 0])
        draw = _Draw(self.streams, seed)
        if self.burst == 1.0:
            yield from draw.at(_poisson(random, self.rate, 0.0, seconds))
            return
        mean = (self.between_s + self.burst * self.burst_s) / (self.between_s + self.burst_s)
        start_s, bursting = 0.0, False
        while start_s < seconds:
            end_s = min(seconds, start_s + random.exponential(self.burst_s if bursting else self.between_s))
            rate = self.rate / mean * (self.burst if bursting else 1.0)
            yield from draw.at(_poisson(random, rate, start_s, end_s))
            start_s, bursting = end_s, not bursting

    def after(self, request: Request, now_s: float) -> None:
        """Nothing."""


def _poisson(random: np.random.Generator, rate: float, start_s: float, end_s: float) -> list[float]:
    count = random.poisson(rate * (end_s - start_s))
    return sorted(random.uniform(start_s, end_s, count).tolist())


class Closed:
    """Clients that each wait for an answer, think, and ask again.

    Args:
        streams: what they ask for, each client in turns at random.
        clients: how many there are.
        think_s: the mean of an exponential time between an answer and the next request.
    """

    def __init__(self, streams: tuple[Stream, ...], clients: int, think_s: float = 0.0) -> None:
        self._streams, self._clients, self._think_s = streams, clients, think_s
        self._seconds = 0.0
        self._random = np.random.default_rng(0)
        self._next: dict[str, Iterator[Request]] = {}

    def requests(self, seconds: float, seed: int) -> Iterator[Request]:
        self._seconds = seconds
        self._random = np.random.default_rng([seed, 1])
        names = [f"c{number}" for number in range(self._clients)]
        self._next = {
            name: _Draw(self._streams, seed * 100_003 + number).at(itertools.repeat(0.0))
            for number, name in enumerate(names)
        }
        # They do not start at once: the first wave would be one batch.
        starts = sorted(self._random.uniform(0.0, 0.1, self._clients).tolist())
        return (self._of(name, at_s) for name, at_s in zip(names, starts, strict=True))

    def after(self, request: Request, now_s: float) -> Request | None:
        at_s = now_s + (float(self._random.exponential(self._think_s)) if self._think_s else 0.0)
        return self._of(request.client, at_s) if at_s < self._seconds else None

    def _of(self, name: str, at_s: float) -> Request:
        return msgspec.structs.replace(next(self._next[name]), client=name, time=at_s)


@dataclass(frozen=True, slots=True)
class Replay:
    """A trace.

    Attributes:
        trace: requests in the order of their times.
        speed: it is played so many times as fast.
    """

    trace: Sequence[Request]
    speed: float = 1.0

    def requests(self, seconds: float, seed: int) -> Iterator[Request]:
        del seed
        for request in self.trace:
            if request.time >= seconds * self.speed:
                return
            yield msgspec.structs.replace(request, time=request.time / self.speed)

    def after(self, request: Request, now_s: float) -> None:
        """Nothing."""


class _Draw:
    """Draws what is asked for. What does not depend on the times is drawn by itself: it stays the same at every rate."""

    def __init__(self, streams: Sequence[Stream], seed: int) -> None:
        self._streams = streams
        self._random = np.random.default_rng([seed, 2])
        shares = np.array([stream.share for stream in streams])
        self._ends = np.cumsum(shares / shares.sum())
        self._row_ends = [np.cumsum([w for _, w in stream.service.rows]) for stream in streams]
        self._drawn = self._draw()

    def at(self, times: Iterator[float] | list[float]) -> Iterator[Request]:
        for at_s, (stream, rows, cost_us, client) in zip(times, self._drawn, strict=False):
            yield Request(
                time=at_s,
                model=stream.service.name,
                rows=rows,
                bytes=rows * stream.service.row_bytes,
                cost_us=cost_us,
                client=client,
                priority=stream.priority,
                deadline_ms=stream.deadline_ms,
            )

    def _draw(self) -> Iterator[tuple[Stream, int, float, str]]:
        size = 16
        while True:
            which = np.searchsorted(self._ends, self._random.random(size), side="right").tolist()
            rows_at = self._random.random(size).tolist()
            normal = self._random.standard_normal(size).tolist()
            waits = self._random.standard_exponential(size).tolist()
            clients = self._random.random(size).tolist()
            for n, number in enumerate(which):
                stream = self._streams[min(number, len(self._streams) - 1)]
                service = stream.service
                rows = service.rows[0][0]
                if len(service.rows) > 1:
                    ends = self._row_ends[min(number, len(self._streams) - 1)]
                    rows = service.rows[int(np.searchsorted(ends, rows_at[n] * ends[-1], side="right"))][0]
                factor = 1.0
                if service.exponential:
                    factor = waits[n]
                elif service.sigma:
                    factor = float(np.exp(service.sigma * normal[n] - service.sigma**2 / 2))
                client = stream.client
                if stream.clients > 1:
                    client += str(int(clients[n] * stream.clients))
                yield stream, rows, factor * service.alone_ns(rows) / 1000, client
            size = _CHUNK
