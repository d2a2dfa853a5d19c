"""What becomes of requests, for all who count it: the metrics, and whoever records, captures or looks at who asks."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Final, Protocol, TypeVar

from mpspool.core import messages
from mpspool.core.errors import Code, Lack, PoolError
from mpspool.core.ids import ModelVersion
from mpspool.core.methods import Method
from mpspool.core.settings import BatchingSettings
from mpspool.router.arrivals import Arrivals
from mpspool.router.capture import Capture
from mpspool.router.clients import Clients, Tally
from mpspool.router.pending import Pending
from mpspool.router.scheduling.load import Batch

T = TypeVar("T")

# A class is asked for its members more slowly.
_OK: Final = Code.OK


class Recorder(Protocol):
    """Where finished requests are counted."""

    def finished(
        self,
        method: Method,
        model: str,
        version: int,
        worker: str,
        code: Code,
        total_s: float,
        queue_s: float,
        outcome: messages.Outcome | None,
        effective_s: float = 0.0,
        rows: int = 0,
    ) -> None: ...

    def batch(
        self, model: str, version: int, requests: int, rows: int, padding: int = 0, run_s: float = 0.0
    ) -> None: ...

    def examples(self, model: str, version: int, count: int) -> None: ...

    def loaded(self, model: str, version: int, report: messages.LoadReport) -> None: ...

    def not_loaded(self, model: str, version: int, path: str) -> None: ...

    def lacked(self, model: str, version: int, lack: Lack) -> None: ...

    def forget(self, model: str, version: int) -> None: ...


class Accounts:
    """Tells each of them what they are there for; without anybody who looks, the metrics alone.

    Args:
        recorder: the metrics.
        fair_by: "none", "peer" or "metadata:KEY".
        simulated: what is a stand-in, "" for nothing.
    """

    def __init__(self, recorder: Recorder, fair_by: str, simulated: str) -> None:
        self._recorder = recorder
        self._fair_by = fair_by
        self._simulated = simulated
        self._recordings: list[Arrivals] = []
        self._captures: list[Capture] = []
        self._looks: list[Clients] = []

    # -- who looks --------------------------------------------------------------------------------

    def recording(self) -> AbstractContextManager[Arrivals]:
        """Notes what arrives, until it is left."""
        return _among(self._recordings, Arrivals(time.monotonic_ns(), simulated=self._simulated))

    def looking(self) -> AbstractContextManager[Clients]:
        """Counts who asks, until it is left."""
        return _among(self._looks, Clients(self._fair_by, self._simulated))

    def capturing(self, name: str, version: int | None, count: int) -> AbstractContextManager[Capture]:
        """Keeps what a model answers, in one version or in any, until it is left."""
        return _among(self._captures, Capture(name, version, count))

    # -- requests ---------------------------------------------------------------------------------

    @property
    def wants_names(self) -> bool:
        """Whether asked() or arrived() tell anybody: they want to know what a client is called."""
        return bool(self._looks or self._recordings)

    def asked(self, client: str, model: ModelVersion) -> Sequence[Tally]:
        """A request of that client's has come: where those who look see what becomes of it. One that has moved comes once."""
        return [look.asks(client, model.name) for look in self._looks]

    def arrived(self, entry: Pending, client: str) -> None:
        """That client's is about to be queued, or refused by its queue."""
        for recording in self._recordings:
            recording.arrived(entry, entry.admission, client, entry.examples)

    def refused(
        self, method: Method, model: ModelVersion, error: PoolError, tallies: Sequence[Tally]
    ) -> None:
        """One is, at the door."""
        self._recorder.finished(method, model.name, model.version, "", error.code, 0.0, 0.0, None)
        self._lacked(model, error)
        for tally in tallies:
            tally.ended(error.code, error.lack)

    def failed(self, entry: Pending, error: PoolError) -> None:
        """One that has been let in is answered so, without a worker."""
        self.ended(entry, "", error.code, None, lack=error.lack)
        self._lacked(entry.model, error)

    def ended(
        self,
        entry: Pending,
        worker: str,
        code: Code,
        outcome: messages.Outcome | None,
        effective_s: float = 0.0,
        rows: int = 0,
        lack: Lack | None = None,
    ) -> None:
        """One that has been let in is over. If it is answered, its body is still there.

        Args:
            entry: which one.
            worker: whose the answer is; "" where no worker's, or several ran it.
            code: of the answer.
            outcome: what the worker said; of several the last one.
            effective_s: of devices, that it took.
            rows: of it, that were joined with others' or could have been; 0 where it ran by itself.
            lack: what there was too little of.
        """
        model = entry.model
        total_s = (time.monotonic_ns() - entry.arrived_ns) / 1e9
        queue_s = (entry.sent_ns - entry.arrived_ns) / 1e9 if entry.sent_ns else total_s
        if code is _OK:
            for capture in self._captures:
                capture.answered(model, entry.method, entry.body)
            if entry.examples:
                self._recorder.examples(model.name, model.version, entry.examples)
        self._recorder.finished(
            entry.method,
            model.name,
            model.version,
            worker,
            code,
            total_s,
            queue_s,
            outcome,
            effective_s,
            rows,
        )
        for tally in entry.tallies:
            tally.ended(code, lack)
            tally.waited(queue_s)

    def _lacked(self, model: ModelVersion, error: PoolError) -> None:
        if error.lack is not None:
            self._recorder.lacked(model.name, model.version, error.lack)

    # -- what workers ran -------------------------------------------------------------------------

    def ran(self, batch: Batch, result: messages.Result, batching: BatchingSettings | None) -> None:
        """A dispatch, or what was run of it. `batching`: how its requests were joined, None where they were not."""
        for recording in self._recordings:
            recording.ran(batch, result)
        model = batch.entries[0].model
        for requests, rows, run_us in result.runs:
            padding = batching.padding(rows) if batching is not None else 0
            self._recorder.batch(model.name, model.version, requests, rows, padding, run_us / 1e6)


@contextlib.contextmanager
def _among(those: list[T], one: T) -> Iterator[T]:
    """It is one of those who look, until it is left."""
    those.append(one)
    try:
        yield one
    finally:
        those.remove(one)
