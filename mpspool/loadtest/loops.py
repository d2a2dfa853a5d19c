"""The two ways to send: so many at a time, or at so many a second whatever becomes of them."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
from abc import ABC, abstractmethod
from collections.abc import Callable
from time import monotonic

from mpspool.core.errors import Code
from mpspool.loadtest.link import Link, UnreachableError, secure
from mpspool.loadtest.messages import Job, Phase, Progress, Result
from mpspool.loadtest.request import Request
from mpspool.loadtest.tally import Tally, Use
from mpspool.loadtest.timer import Timer
from mpspool.loadtest.wire import LAST_STREAM, Call

# How often deadlines are looked at: so many times in one, within bounds.
_LOOKS = 20
_LEAST_TICK_S, _MOST_TICK_S = 0.005, 0.05
_WORD_S = 0.25
# Of what is due in an open loop before answers are looked at again.
_SENT_AT_ONCE = 32
_NOT_IN_TIME = "no answer in time"


class Loop(ABC):
    """Connections to the server, and one phase after another over them.

    Args:
        job: what is sent, and where to.
        phase: the first one; the others may differ in how long they are, and when they begin.
        lengths: of the answers that there have been, by request.
        last_stream: the highest stream id on one connection.
    """

    def __init__(
        self, job: Job, phase: Phase, lengths: dict[int, int], *, last_stream: int = LAST_STREAM
    ) -> None:
        self._deadline_s = job.deadline_s
        self._any_answer = job.any_answer
        requests = [Request(job.block, message, n) for n, message in enumerate(job.messages)]
        first = job.first % len(requests)
        self._turn = itertools.cycle(requests[first:] + requests[:first])
        self._lengths = lengths
        secured = secure(job.tls)
        self._links = [
            Link(
                job.host,
                job.port,
                self._finished,
                self._ready,
                self._unreachable,
                last_stream=last_stream,
                secure=secured,
            )
            for _ in range(self.width(phase))
        ]
        self._phase = phase
        self._connected = False
        self._sending = False
        self._in_flight = 0
        self._refused: list[Call] = []
        self._drained = asyncio.Event()
        self._stopped = asyncio.Event()
        self._tally = Tally(lengths, any_answer=job.any_answer)

    async def run(self, phase: Phase, say: Callable[[Progress], None]) -> Result:
        """Sends for a while, and waits for what it has sent: as long as the deadline at most."""
        try:
            await self._connect()
        except UnreachableError as error:
            return Result(error=str(error))
        self._phase = phase
        tally = self._tally = Tally(self._lengths, any_answer=self._any_answer)
        self._drained.clear()
        use, began = Use(), phase.begin_s or monotonic()
        ticker = asyncio.create_task(self._tick(say))
        self._sending = True
        self._begin(began)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(began + phase.seconds - monotonic()):
                await self._stopped.wait()
        self._sending = False
        self._end()
        cpu_s, waited_s = use.so_far()
        seconds, in_time = monotonic() - began, tally.right
        if self._in_flight and not self._stopped.is_set():
            await self._drained.wait()
        ticker.cancel()
        return Result(
            seconds=seconds,
            whole_s=monotonic() - began,
            sent=tally.sent - self._in_flight,
            unsent=self._unsent(),
            right=tally.right,
            in_time=in_time,
            latencies_s=tally.latencies.tobytes(),
            lateness_s=tally.lateness.tobytes(),
            stream_waits=tally.stream_waits,
            failures=tally.failures(),
            lengths=self._lengths,
            cpu_s=cpu_s,
            waited_s=waited_s,
        )

    def stop(self) -> None:
        """For good: the phase that runs ends without what is on its way."""
        self._stopped.set()
        self._drained.set()

    def close(self) -> None:
        for link in self._links:
            link.close()

    async def _connect(self) -> None:
        if not self._connected:
            await asyncio.gather(*(link.connect() for link in self._links))
            self._connected = True

    async def _tick(self, say: Callable[[Progress], None]) -> None:
        """Deadlines, and now and then a word of how far it is."""
        tick_s = min(max(self._deadline_s / _LOOKS, _LEAST_TICK_S), _MOST_TICK_S)
        word_at = monotonic() + _WORD_S
        while True:
            await asyncio.sleep(tick_s)
            now = monotonic()
            before = now - self._deadline_s
            expired = [(link, call) for link in self._links for call in link.expire(before)]
            waiting, self._refused = self._refused, []
            for call in waiting:
                if call.sent > before:
                    self._refused.append(call)
                else:
                    expired.append((self._links[0], call))
            for link, call in expired:
                call.code, call.text, call.refused = Code.DEADLINE_EXCEEDED, _NOT_IN_TIME, False
                self._finished(link, call, now)
            if now >= word_at:
                word_at = now + _WORD_S
                say(Progress(self._tally.sent, self._tally.right, self._tally.failed))

    def _start(self, link: Link, due: float, now: float) -> None:
        self._tally.sent += 1
        self._in_flight += 1
        link.start(Call(next(self._turn), due, now))

    def _finished(self, link: Link, call: Call, now: float) -> None:
        if call.refused and not call.again:
            self._once_more(link, call)
            return
        if call.code == Code.OK and now - call.sent > self._deadline_s:
            call.code, call.text = Code.DEADLINE_EXCEEDED, _NOT_IN_TIME
        self._in_flight -= 1
        self._tally.over(call, now)
        if self._sending:
            self._next(link, now)
        elif not self._in_flight:
            self._drained.set()

    def _once_more(self, link: Link, call: Call) -> None:
        """A call that the server has refused unseen is sent again, as gRPC's clients do."""
        same = Call(call.request, call.due, call.sent)
        same.again = True
        if link.usable:
            link.start(same)
        else:
            self._refused.append(same)

    def _ready(self, link: Link) -> None:
        waiting, self._refused = self._refused, []
        for call in waiting:
            link.start(call)
        if self._sending:
            self._next(link, monotonic())

    def _unreachable(self, why: str) -> None:
        """What waited for a connection, to be sent again, fails as it does with gRPC's clients, or goes by another one."""
        now = monotonic()
        waiting, self._refused = self._refused, []
        usable = next((link for link in self._links if link.usable), None)
        for call in waiting:
            if usable is not None:
                usable.start(call)
                continue
            call.code, call.text = Code.UNAVAILABLE, why
            self._finished(self._links[0], call, now)
        if self._sending:
            self._miss(why)

    @staticmethod
    @abstractmethod
    def width(phase: Phase) -> int:
        """How many connections it takes."""

    @abstractmethod
    def _begin(self, began: float) -> None:
        """Starts to send."""

    @abstractmethod
    def _end(self) -> None:
        """Sends nothing more."""

    @abstractmethod
    def _unsent(self) -> int:
        """How many were due before its end and were not sent; asked once nothing is on its way, for it may take a while."""

    @abstractmethod
    def _next(self, link: Link, now: float) -> None:
        """A call is over on that connection, or it can be used again."""

    @abstractmethod
    def _miss(self, why: str) -> None:
        """A connection could not be made."""


class ClosedLoop(Loop):
    """So many in flight: the next one is sent when one is over."""

    @staticmethod
    def width(phase: Phase) -> int:
        return -(-phase.in_flight // phase.streams)

    def _begin(self, began: float) -> None:
        self._wanted = dict.fromkeys(self._links, self._phase.streams)
        self._wanted[self._links[-1]] -= len(self._links) * self._phase.streams - self._phase.in_flight
        for link in self._links:
            self._next(link, began)

    def _end(self) -> None:
        pass

    def _unsent(self) -> int:
        return 0

    def _next(self, link: Link, now: float) -> None:
        wanted = self._wanted[link]
        while link.calls < wanted and link.usable:
            self._start(link, now, now)

    def _miss(self, why: str) -> None:
        # A client would have asked, and been told.
        self._tally.lost(why)


class OpenLoop(Loop):
    """At so many a second, over the connections in turn. What is late is late from when it was due."""

    @staticmethod
    def width(phase: Phase) -> int:
        return phase.connections

    def _begin(self, began: float) -> None:
        phase = self._phase
        self._timer = Timer()
        self._why = "there is no connection"
        self._at = 0
        self._gap = 1 / phase.rate
        self._random = random.Random(phase.seed)  # noqa: S311 - arrivals, not secrets
        # Not the one that would be due at the end, but for a rounding.
        self._until = began + phase.seconds - self._gap / 1000
        self._due = self._after(began) if phase.poisson else began
        asyncio.get_running_loop().add_reader(self._timer.fd, self._send_due)
        self._timer.set(self._due)

    def _end(self) -> None:
        asyncio.get_running_loop().remove_reader(self._timer.fd)
        self._timer.close()
        if self._stopped.is_set():
            self._until = min(self._until, monotonic())

    def _unsent(self) -> int:
        count, due = 0, self._due
        while due < self._until:
            count += 1
            due = self._after(due)
        return count

    def _after(self, due: float) -> float:
        """When the next one is due."""
        return due + (self._random.expovariate(self._phase.rate) if self._phase.poisson else self._gap)

    def _send_due(self) -> None:
        due, tally = self._due, self._tally
        for _ in range(_SENT_AT_ONCE):
            now = monotonic()
            if due > now:
                break
            if due >= self._until:
                self._due = due
                self._timer.stop()
                return
            tally.lateness.append(now - due)
            link = self._link()
            if link is None:
                tally.lost(self._why)
            else:
                self._start(link, due, now)
            due = self._after(due)
        self._due = due
        self._timer.set(due)

    def _link(self) -> Link | None:
        """The next one that can be used."""
        links = self._links
        for _ in links:
            self._at = (self._at + 1) % len(links)
            if links[self._at].usable:
                return links[self._at]
        return None

    def _next(self, link: Link, now: float) -> None:
        pass

    def _miss(self, why: str) -> None:
        self._why = why


def loop_for(job: Job, phase: Phase, lengths: dict[int, int], *, last_stream: int = LAST_STREAM) -> Loop:
    """What can run phases of this form."""
    kind = OpenLoop if phase.rate else ClosedLoop
    return kind(job, phase, lengths, last_stream=last_stream)
