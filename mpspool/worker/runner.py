"""Runs dispatches: request by request, or together as far as their shapes allow."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import ParamSpec, TypeVar

import msgspec
import numpy as np

from mpspool.core import log, messages
from mpspool.core.errors import Code, PoolError, cut
from mpspool.core.messages import INLINE_MAX_BYTES, Dispatch, Outcome, Request
from mpspool.core.progress import WHOLE, ProgressWriter
from mpspool.core.settings import BatchingSettings
from mpspool.worker.batch import Batching, Unsplittable, part, unsplittable
from mpspool.worker.call import Call, Kind
from mpspool.worker.device_failure import DeviceFailedError
from mpspool.worker.engine.base import Array
from mpspool.worker.link import Ran
from mpspool.worker.predict import Predictor
from mpspool.worker.run_sizes import RunSizes

logger = log.get("worker")

P = ParamSpec("P")
T = TypeVar("T")

# Before each run of a request of several, and before its answer is written: begins its time anew on the progress page.
# Raises PoolError where its deadline has passed.
GoOn = Callable[[], None]

# A choice of outputs is the client's: so many are remembered.
_MAX_REMEMBERED = 1024

# A run that takes so many times as long as its clock says mostly waits for something, and that counts, too.
_WAITING = 4

# So many of a run that failed are run one by one at once.
_FEW = 3

_EXPIRED = Outcome(Code.DEADLINE_EXCEEDED, message="Deadline exceeded before the request was run")


class Runner:
    """The runs of one model version. Not thread-safe.

    Args:
        predictor: of it.
        batching: how requests are joined.
        progress: where others see what is running.
        clock_ns: by which runs are compared, as device.run_clock_ns has it; None where they are not.
    """

    def __init__(
        self,
        predictor: Predictor,
        batching: BatchingSettings | None,
        progress: ProgressWriter,
        clock_ns: Callable[[], int] | None = None,
    ) -> None:
        self._predictor = predictor
        self._batching = Batching(batching or BatchingSettings())
        # Also what is sent by itself: the model may take no other numbers of rows than are allowed.
        self._pads = batching is not None
        self._sizes = RunSizes()
        self._clock_ns = clock_ns
        self._progress = progress
        # Signatures with outputs: of which a run of several told that they cannot share one, or was refused.
        self._apart: set[tuple[str, tuple[str, ...]]] = set()
        self._refused: set[tuple[str, tuple[str, ...]]] = set()
        # Of the dispatch that is being run, see Result.
        self._runs: list[tuple[int, int, int]] = []
        self._found_apart = False

    def run(self, dispatch: Dispatch, bodies: Sequence[bytes], frames: list[bytes]) -> Ran:
        """Runs a dispatch. Whatever a request raises is its own answer and never another's.

        Args:
            dispatch: what to run.
            bodies: of its requests.
            frames: long responses are added to these.

        Raises:
            DeviceFailedError: it has not been run to its end; as far as the page tells, it still runs.
        """
        self._runs, self._found_apart = [], False
        if dispatch.together and len(bodies) > 1:
            outcomes = self._together(dispatch, bodies)
        else:
            run = functools.partial(self._read_and_run, together=dispatch.together)
            outcomes = [
                self._outcome(dispatch, index, functools.partial(run, request, body))
                for index, (request, body) in enumerate(zip(dispatch.requests, bodies, strict=True))
            ]
        outcomes = [
            _framed(outcome, frames) if outcome.body and len(outcome.body) > INLINE_MAX_BYTES else outcome
            for outcome in outcomes
        ]
        return Ran(outcomes, self._runs, dispatch.together and self._found_apart)

    def answer(self, body: bytes, method: int) -> None:
        """Runs a request that nobody waits for as it runs for a client: padded, and in parts where it has too many rows for one run.

        One of more rows than a client's may have runs as it is: it was recorded when they might.

        Raises:
            PoolError: as for a client; and what the engine raises.
        """
        call = self._predictor.read(body, method)
        rows = self._batching.rows(call) if self._pads else 0
        if rows > self._batching.max_rows:
            call.encode(self._predictor.run(call.kind, call.inputs()))
            return
        in_parts = rows > self._batching.run_rows and not call.kind.response.whole
        for one in self._batching.parts(call, rows) if in_parts else [call]:
            self._alone(one, 0, lambda: None, together=False)

    def _outcome(self, dispatch: Dispatch, index: int, answer: Callable[[GoOn], Outcome]) -> Outcome:
        """One request's answer, or why it has none."""
        if _expired(dispatch.requests[index], time.monotonic_ns()):
            return _EXPIRED
        self._progress.start(dispatch.dispatch, index)
        outcome = _try(answer, functools.partial(self._go_on, dispatch, index))
        self._progress.finish()
        return outcome

    def _go_on(self, dispatch: Dispatch, index: int) -> None:
        """See GoOn."""
        if _expired(dispatch.requests[index], time.monotonic_ns()):
            raise PoolError(Code.DEADLINE_EXCEEDED, "Deadline exceeded while the request was run")
        self._progress.start(dispatch.dispatch, index)

    def _read_and_run(self, request: Request, body: bytes, go_on: GoOn, *, together: bool) -> Outcome:
        start = time.perf_counter_ns()
        call = self._read(request, body)
        if _expired(request, time.monotonic_ns()):  # large JSON takes its time to read
            return _EXPIRED
        return self._alone(call, time.perf_counter_ns() - start, go_on, together=together)

    def _read(self, request: Request, body: bytes) -> Call:
        call = self._predictor.read(body, request.method)
        return call if request.rows is None else part(call, request.rows)

    def _alone(self, call: Call, read_ns: int, go_on: GoOn, *, together: bool = True) -> Outcome:
        """Runs one call by itself, padded to a size that is allowed. Raises PoolError, and what the engine does."""
        kind, start = call.kind, time.perf_counter_ns()
        rows = self._batching.rows(call) if self._pads else 0
        apart = self._pads and self._is_apart(kind)
        self._found_apart |= apart
        runs: list[tuple[int, int, int]] = []
        if rows > self._batching.run_rows and kind.response.whole:
            joined = time.perf_counter_ns()
            parts = []
            for one in self._batching.parts(call, rows):
                go_on()
                padding, inputs = self._fed(one, one.part_rows, pads=not apart)
                began = time.perf_counter_ns()
                parts.append(self._run(one, one.part_rows, padding, inputs))
                runs.append((1, one.part_rows, (time.perf_counter_ns() - began) // 1000))
            go_on()
            outputs = [
                _concatenated(alias, pieces)
                for alias, *pieces in zip(kind.response.aliases, *parts, strict=True)
            ]
        else:
            padding, inputs = self._fed(call, rows, pads=rows > 0 and not apart)
            joined = time.perf_counter_ns()
            outputs = self._run(call, rows, padding, inputs)
        ran = time.perf_counter_ns()
        response = call.encode(outputs)
        encoded = time.perf_counter_ns()
        run_us = (ran - joined) // 1000
        if together:
            self._runs += runs or [(1, rows or call.first_rows(), run_us)]
        return Outcome(
            Code.OK,
            response,
            "",
            (read_ns + joined - start) // 1000,
            run_us,
            (encoded - ran) // 1000,
        )

    def _fed(self, call: Call, rows: int, *, pads: bool) -> tuple[int, dict[str, Array]]:
        """How many rows one call by itself is padded with, up to a size that is allowed, and what its run is fed."""
        padding = self._batching.padding([call], rows) if pads else 0
        return padding, self._batching.joined([call], rows, padding) if padding else call.inputs()

    def _run(self, call: Call, rows: int, padding: int, inputs: dict[str, Array]) -> list[Array]:
        """The outputs of one call, without its padding."""
        kind = call.kind
        outputs = self._predictor.run(kind, inputs)
        if padding:
            if found := unsplittable(kind.response.aliases, outputs, rows + padding):
                self._keep_apart(kind, found)
                outputs = self._predictor.run(kind, call.inputs())
            else:
                outputs = [output[:rows] for output in outputs]
        if call.part_rows and (found := unsplittable(kind.response.aliases, outputs, call.part_rows)):
            raise found.error()
        return outputs

    def _together(self, dispatch: Dispatch, bodies: Sequence[bytes]) -> list[Outcome]:
        start = time.perf_counter_ns()
        self._progress.start(dispatch.dispatch, WHOLE)
        outcomes, calls = self._read_all(dispatch, bodies)
        read_ns = (time.perf_counter_ns() - start) // max(1, len(bodies))
        self._progress.finish()
        indices = list(calls)
        for run in self._batching.runs(list(calls.values())):
            chosen = {indices[position]: calls[indices[position]] for position in run}
            outcomes |= self._share(dispatch, chosen, read_ns)
        return [outcomes[index] for index in range(len(bodies))]

    def _read_all(
        self, dispatch: Dispatch, bodies: Sequence[bytes]
    ) -> tuple[dict[int, Outcome], dict[int, Call]]:
        """By index: the outcomes of those that are not to be run, and the calls of the others."""
        outcomes, calls = {}, {}
        now_ns = time.monotonic_ns()
        for index, (request, body) in enumerate(zip(dispatch.requests, bodies, strict=True)):
            if _expired(request, now_ns):
                outcomes[index] = _EXPIRED
                continue
            read = _try(self._read, request, body)
            if isinstance(read, Outcome):
                outcomes[index] = read
            else:
                calls[index] = read
        return outcomes, calls

    def _share(self, dispatch: Dispatch, calls: dict[int, Call], read_ns: int) -> dict[int, Outcome]:
        """The outcomes of calls that can share a run, by index: from one, or from two where these are found to be sooner."""
        outcomes, calls = _in_time(dispatch, calls)
        if self._clock_ns is None or len(calls) < 2:
            return outcomes | self._share_one(dispatch, calls, read_ns)
        kind = next(iter(calls.values())).kind
        rows = [self._batching.rows(call) for call in calls.values()]
        count = sum(rows)
        wanted = self._sizes.halves(kind.key, count)
        at = self._batching.middle(rows) if wanted else 0
        start, start_ns = time.perf_counter_ns(), self._clock_ns()
        if at:
            first, second = _halves(calls, at)
            outcomes |= self._share_one(dispatch, first, read_ns)
            late, second = _in_time(dispatch, second)
            outcomes |= late | self._share_one(dispatch, second, read_ns)
            if late:  # what it took was for fewer
                return outcomes
        else:
            outcomes |= self._share_one(dispatch, calls, read_ns)
        taken_ns = max(self._clock_ns() - start_ns, (time.perf_counter_ns() - start) // _WAITING)
        halved = at > 0
        if halved == wanted and self._sizes.observe(kind.key, count, taken_ns, halved=halved):
            logger.info(
                "requests share two runs where they shared one" if halved else "requests share one run again",
                model=str(self._predictor.model),
                signature=kind.plan.name,
                rows=count,
            )
        return outcomes

    def _share_one(self, dispatch: Dispatch, calls: dict[int, Call], read_ns: int) -> dict[int, Outcome]:
        """As _share, from one run where they truly can share it.

        Where that fails, each half is tried, and halves again of the one that fails: a bad request among many costs the
        others a few runs. Where both fail it is no single one's fault, and each runs by itself.
        """
        outcomes = self._shared(dispatch, calls, read_ns)
        if outcomes is not None:
            return outcomes
        outcomes = {}
        while len(calls) > _FEW and _key(next(iter(calls.values())).kind) not in self._apart:
            failed = 0
            for half in _halves(calls, len(calls) // 2):
                late, in_time = _in_time(dispatch, half)
                shared = self._shared(dispatch, in_time, read_ns)
                failed += shared is None and len(in_time) > 1
                outcomes |= late | (shared or {})
            calls = {index: call for index, call in calls.items() if index not in outcomes}
            if failed > 1:
                break
        for index, call in calls.items():
            outcomes[index] = self._outcome(dispatch, index, functools.partial(self._alone, call, read_ns))
        return outcomes

    def _shared(self, dispatch: Dispatch, calls: dict[int, Call], read_ns: int) -> dict[int, Outcome] | None:
        """The outcomes of one run; None where it is none of several, or failed."""
        if len(calls) < 2 or _key(next(iter(calls.values())).kind) in self._apart:
            return None if calls else {}
        self._progress.start(dispatch.dispatch, WHOLE)
        outcomes = self._try_together(list(calls.values()), read_ns)
        self._progress.finish()
        if not outcomes:
            return None
        return dict(zip(calls, outcomes, strict=True))

    def _try_together(self, calls: Sequence[Call], read_ns: int) -> list[Outcome]:
        """The outcomes of one run; none where each of the calls has to run by itself.

        Raises:
            DeviceFailedError: as the engine does.
        """
        try:
            return self._run_together(calls, read_ns)
        except DeviceFailedError:
            raise
        except PoolError as error:
            self._note_refused(calls, error)
        except Exception:
            logger.exception("a run of several requests failed: fewer are tried", requests=len(calls))
        return []

    def _run_together(self, calls: Sequence[Call], read_ns: int) -> list[Outcome]:
        kind, start = calls[0].kind, time.perf_counter_ns()
        bounds = [0, *accumulate(self._batching.rows(call) for call in calls)]
        rows = bounds[-1]
        padding = self._batching.padding(calls, rows)
        inputs = self._batching.joined(calls, rows, padding)
        joined = time.perf_counter_ns()
        outputs = self._predictor.run(kind, inputs)
        ran = time.perf_counter_ns()
        if found := unsplittable(kind.response.aliases, outputs, rows + padding):
            self._keep_apart(kind, found)
            return []
        if padding:
            outputs = [output[:rows] for output in outputs]
        responses = kind.response.encode_each(outputs, bounds)
        encoded = time.perf_counter_ns()
        each = len(calls)
        parse_us = (read_ns + (joined - start) // each) // 1000
        run_us, encode_us = (ran - joined) // 1000, (encoded - ran) // each // 1000
        self._runs.append((each, rows, run_us))
        return [Outcome(Code.OK, response, "", parse_us, run_us, encode_us) for response in responses]

    def _is_apart(self, kind: Kind) -> bool:
        """Whether calls that ask for the same never share a run, by its signature or as a run has told."""
        return _key(kind) in self._apart or not (kind.rows or self._batching.joins(kind))

    def _keep_apart(self, kind: Kind, found: Unsplittable) -> None:
        """From now on calls of this signature and these outputs run one by one."""
        self._found_apart = True
        if len(self._apart) >= _MAX_REMEMBERED:
            return
        self._apart.add(_key(kind))
        logger.warning(
            "requests are not joined: an output does not have a row for each row of the inputs",
            model=str(self._predictor.model),
            signature=kind.plan.name,
            output=found.alias,
            shape=list(found.shape),
        )

    def _note_refused(self, calls: Sequence[Call], error: PoolError) -> None:
        kind = calls[0].kind
        if _key(kind) in self._refused or len(self._refused) >= _MAX_REMEMBERED:
            return
        self._refused.add(_key(kind))
        logger.warning(
            "a run of several requests was refused: fewer are tried; said once",
            model=str(self._predictor.model),
            signature=kind.plan.name,
            requests=len(calls),
            error=error.message,
        )


def _key(kind: Kind) -> tuple[str, tuple[str, ...]]:
    return kind.plan.name, kind.response.form


def _concatenated(alias: str, pieces: Sequence[Array]) -> Array:
    """An output of a request from those of its parts. Raises PoolError."""
    if len({piece.shape[1:] for piece in pieces}) > 1:
        shapes = [list(piece.shape) for piece in pieces]
        text = f'output "{alias}": the shapes differ in more than dimension 0: {shapes}'
        raise PoolError(Code.INTERNAL, f"The parts that the request was run in do not go together: {text}")
    return np.concatenate(pieces)


def _expired(request: Request, now_ns: int) -> bool:
    return 0 < request.deadline_ns <= now_ns


def _in_time(dispatch: Dispatch, calls: dict[int, Call]) -> tuple[dict[int, Outcome], dict[int, Call]]:
    """The outcomes of those that have expired meanwhile, and the others."""
    now_ns, requests = time.monotonic_ns(), dispatch.requests
    late = {index: _EXPIRED for index in calls if _expired(requests[index], now_ns)}
    return late, {index: call for index, call in calls.items() if index not in late} if late else calls


def _halves(calls: dict[int, Call], at: int) -> tuple[dict[int, Call], dict[int, Call]]:
    items = list(calls.items())
    return dict(items[:at]), dict(items[at:])


def _try(call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T | Outcome:
    """What the call returns, or else its request's outcome. Raises DeviceFailedError."""
    try:
        return call(*args, **kwargs)
    except DeviceFailedError:
        raise
    except PoolError as error:
        return Outcome(error.code, message=cut(error.message))
    except Exception:
        logger.exception("request failed")
        return Outcome(Code.INTERNAL, message="The worker failed on this request; see its log")


def _framed(outcome: Outcome, frames: list[bytes]) -> Outcome:
    """The outcome as it is sent: a long response goes to the frames."""
    return msgspec.structs.replace(outcome, body=messages.inline(outcome.body or b"", frames))
