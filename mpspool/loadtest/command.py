"""`mpspool bench`: makes the requests, looks at one answer, and runs level after level."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import math
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

from google.protobuf.message import DecodeError

from mpspool.core import json_tensors, output_file, tfs
from mpspool.core.errors import Code, PoolError
from mpspool.core.metadata import MetadataError
from mpspool.loadtest import MOST_S, figures, messages, report, requests, server
from mpspool.loadtest.figures import Level, Run
from mpspool.loadtest.fleet import Fleet, GeneratorLostError
from mpspool.loadtest.messages import Answer, Ask, Job
from mpspool.loadtest.options import Options, Trial
from mpspool.loadtest.progress import Progress, progress
from mpspool.loadtest.request import header_block

_PREDICT = f"/{tfs.PREDICTION_SERVICE}/Predict"
_METADATA = f"/{tfs.PREDICTION_SERVICE}/GetModelMetadata"
# All processes begin together: none reads its orders later than that.
_HEAD_START_S = 0.05
_INTERRUPTED = 130
_SHOW_CURSOR = "\x1b[?25h"
# So long the metrics may take after Ctrl-C.
_LAST_LOOK_S = 1.0
# What is asked before the load has at least so long: it may be the first that the server runs.
_FIRST_S = 10.0


class BenchError(Exception):
    """There is nothing to measure, and why."""


class UsageError(BenchError):
    """What was asked for cannot be done as it is said."""


def run(options: Options) -> int:
    """The whole test, with its report on standard output; the exit status.

    Raises:
        BenchError: nothing was measured.
        UsageError: options that do not go.
    """
    _check_files(options)
    bench = _Bench(options)
    asyncio.run(bench.run())
    status = bench.report()
    return _INTERRUPTED if bench.interrupted else status


def _check_files(options: Options) -> None:
    """Before all the work: that its outcome can be kept."""
    if options.plot_file is not None:
        from mpspool.loadtest import plot

        try:
            plot.check(options.plot_file)
        except plot.PlotError as error:
            raise UsageError(str(error)) from error
    json_file = None if options.json_to_stdout else options.json_file
    if json_file and options.plot_file and json_file.resolve() == options.plot_file.resolve():
        raise UsageError(f"--json and --plot both name {str(json_file)!r}; give each its own file")
    for option, path in (("--json", json_file), ("--plot", options.plot_file)):
        if path is not None and (why := output_file.why_not(path, option)):
            raise UsageError(why)


class _Bench:
    def __init__(self, options: Options) -> None:
        self.interrupted = False
        self._options = options
        self._levels: list[Level] = []
        self._notes: list[str] = []
        self._idle: list[str] = []  # of levels without a request
        self._error = ""
        self._trial = Trial(datetime.now().astimezone(), ())
        self._metrics_url = options.metrics_url
        # The model's signatures, where they were asked for.
        self._known: Any = None
        self._fleet = Fleet(options.processes)
        self._preparing: asyncio.Task[None] | None = None
        self._looking: asyncio.Future[server.Snapshot] | None = None

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGINT, self._interrupt)
        try:
            async with self._fleet:
                self._preparing = asyncio.create_task(self._prepare())
                if self.interrupted:  # before there was anything to cancel
                    self._preparing.cancel()
                await self._preparing
                with progress(self._options) as shown:
                    for number, level in enumerate(self._options.levels):
                        if not self.interrupted and not self._error:
                            await self._level(number, level, shown)
        except GeneratorLostError as error:  # what was measured before stays
            self._error = str(error)
        except asyncio.CancelledError:
            if not self.interrupted:
                raise
        finally:
            loop.remove_signal_handler(signal.SIGINT)

    def report(self) -> int:
        """What there is; the exit status."""
        if not self._levels:
            if not self.interrupted:
                raise BenchError(self._error or "\n".join(self._idle) or "nothing was measured")
            return 1
        notes = [*self._notes, *self._idle, *filter(None, [self._error])]
        try:
            report.print_levels(self._options, self._levels, notes)
        finally:  # also where nobody takes the tables any more, as behind `| head`
            unwritten = [
                *self._keep(self._options.json_file, self._write),
                *self._keep(self._options.plot_file, self._draw),
            ]
        if unwritten:
            raise BenchError("\n".join(unwritten))
        failed = any(level.failed for level in self._levels) and not self._options.allow_failures
        return 1 if failed or self._error else 0

    def _keep(self, path: Path | None, write: Callable[[Path], None]) -> list[str]:
        """Writes one of the files; why it could not be, in place of an error that keeps the other from being written."""
        if path is not None:
            try:
                write(path)
            except OSError as error:
                return [f"cannot write {str(path)!r}: {error.strerror or error}"]
        return []

    def _write(self, path: Path) -> None:
        found = report.for_scripts(
            self._options, self._trial, self._levels, interrupted=self.interrupted, error=self._error
        )
        if self._options.json_to_stdout:
            sys.stdout.write(found)
            sys.stdout.flush()
        else:
            path.write_text(found, encoding="utf-8")

    def _draw(self, path: Path) -> None:
        from mpspool.loadtest import plot

        plot.draw(self._options, self._trial, self._levels, path)

    def _interrupt(self) -> None:
        if self.interrupted:  # once more: at once
            if sys.stderr.isatty():
                sys.stderr.write(_SHOW_CURSOR)  # the bar has hidden it
                sys.stderr.flush()
            os._exit(_INTERRUPTED)
        self.interrupted = True
        self._fleet.stop()
        for waiting in (self._preparing, self._looking):
            if waiting is not None:
                waiting.cancel()

    async def _prepare(self) -> None:
        """The requests, one answer, and what the server's metrics are."""
        options = self._options
        bodies = await self._bodies()
        block = self._block(_PREDICT, options.deadline_s)
        asked_s = time.monotonic()
        answer = await self._ask(_PREDICT, bodies[0])
        took_s = time.monotonic() - asked_s
        if answer.code:
            raise BenchError(f"{_text(answer)}{self._hint(answer)}")
        response = _response(answer.body)
        self._trial = replace(
            self._trial,
            lengths=tuple(map(len, bodies)),
            version=response.model_spec.version.value if response.model_spec.HasField("version") else None,
            signature=response.model_spec.signature_name or None,
        )
        shown = report.outputs(response.outputs, answer.body)
        report.print_head(options, self._trial.lengths, shown, took_s)
        if self._metrics_url:
            try:
                await self._snapshot()
            except server.MetricsError as error:
                if options.metrics_asked:
                    raise BenchError(str(error)) from error
                self._notes.append(f"the server does not tell its own times: {error}")
                self._metrics_url = ""
        share = -(-len(bodies) // options.processes)
        await self._fleet.load(
            [
                Job(
                    options.host,
                    options.port,
                    block,
                    bodies,
                    number * share,
                    options.deadline_s,
                    options.any_answer,
                    options.tls,
                )
                for number in range(options.processes)
            ]
        )

    async def _bodies(self) -> list[bytes]:
        options = self._options
        try:
            if options.request_files:
                return requests.from_files(
                    options.request_files,
                    options.model,
                    signature=options.signature,
                    version=options.version,
                )
            signatures = self._known = await self._signatures()
            signature = options.signature or ""
            if options.document is not None:
                return [
                    json_tensors.request(
                        options.model,
                        options.document,
                        signatures,
                        signature=signature,
                        version=options.version,
                    )
                ]
            return [
                requests.synthetic(
                    options.model,
                    signatures,
                    signature=signature,
                    version=options.version,
                    rows=options.rows,
                )
            ]
        except PoolError as error:
            raise BenchError(error.message) from error
        except requests.RequestError as error:
            raise BenchError(str(error)) from error

    async def _signatures(self) -> Any:
        order = tfs.GetModelMetadataRequest(metadata_field=[tfs.SIGNATURE_DEF])
        order.model_spec.name = self._options.model
        if self._options.version is not None:
            order.model_spec.version.value = self._options.version
        answer = await self._ask(_METADATA, order.SerializeToString())
        if answer.code:
            raise BenchError(_text(answer))
        try:
            metadata = tfs.GetModelMetadataResponse.FromString(answer.body).metadata
            return tfs.SignatureDefMap.FromString(metadata[tfs.SIGNATURE_DEF].value)
        except DecodeError as error:
            raise BenchError(
                f"what answers at {self._options.address} is no TensorFlow Serving: {error}"
            ) from error

    async def _ask(self, path: str, body: bytes) -> Answer:
        options = self._options
        deadline_s = max(_FIRST_S, options.deadline_s)
        block = self._block(path, deadline_s)
        return await self._fleet.ask(Ask(options.host, options.port, block, body, deadline_s, options.tls))

    def _block(self, path: str, deadline_s: float) -> bytes:
        options = self._options
        try:
            return header_block(
                path,
                options.address,
                options.metadata,
                deadline_s,
                secure=options.tls is not None,
            )
        except MetadataError as error:
            raise UsageError(f"--metadata: {error}") from error

    def _hint(self, answer: Answer) -> str:
        """What may be the matter with the request, on a line of its own; "" for nothing that is known."""
        options = self._options
        if options.document is not None and answer.code == Code.INVALID_ARGUMENT:
            misfit = json_tensors.misfit(options.document, self._known, signature=options.signature or "")
            return f"\n{misfit}" if misfit else ""
        if not options.made_up or answer.code in (Code.NOT_FOUND, Code.UNAVAILABLE, Code.DEADLINE_EXCEEDED):
            return ""
        if any(f"{key} is " in answer.text for key, _ in options.metadata):
            return ""
        given = [f"--rows {options.rows}"] if options.rows > 1 else []
        given += [f"--metadata {key}" for key, _ in options.metadata]
        with_them = f", with {' and '.join(given)}: where these are right, " if given else ": "
        remedy = "give one that the model takes, with --input or --request"
        return f"\nthe request was made up from the signature{with_them}{remedy}"

    async def _snapshot(self) -> server.Snapshot:
        """Raises MetricsError. Who gives up waiting for it, and ends, leaves its thread behind."""
        found: concurrent.futures.Future[server.Snapshot] = concurrent.futures.Future()

        def fetch() -> None:
            try:
                found.set_result(server.fetch(self._metrics_url, self._options.model, self._options.version))
            except Exception as error:  # noqa: BLE001 - it is raised where it is waited for
                found.set_exception(error)

        found.set_running_or_notify_cancel()
        threading.Thread(target=fetch, daemon=True).start()
        self._looking = asyncio.wrap_future(found)
        return await self._looking

    async def _level(self, number: int, wanted: float, shown: Progress) -> None:
        options = self._options
        shown.level(wanted)
        warm = await self._fleet.run(options.phases(wanted, options.warmup_s, seed=number), shown.watch)
        if self._failed(warm) or self.interrupted:
            return
        runs: list[Run] = []
        results: list[messages.Result] = []
        pairs: list[tuple[server.Snapshot, server.Snapshot]] = []
        whole_s = 0.0
        for repeat in range(options.repeat):
            shown.repeat(repeat + 1)
            before = await self._look()
            phases = options.phases(
                wanted,
                options.seconds,
                seed=1 + number * options.repeat + repeat,
                begin_s=time.monotonic() + _HEAD_START_S,
            )
            found = await self._fleet.run(phases, shown.watch)
            if self._failed(found) or not found:  # nothing is told after Ctrl-C
                break
            after = await self._look()
            results += found
            # In an open loop nothing may have been due.
            whole = options.is_open and not self.interrupted
            if whole or any(result.right or result.failures for result in found):
                runs.append(figures.run_of(found))
                shown.ran(runs[-1])
                if before is not None and after is not None:
                    pairs.append((before, after))
                    whole_s += max(result.whole_s for result in found)
        level = Level(wanted, options.is_open, runs, figures.failures_of(results))
        if level.sum(lambda run: run.sent):
            told = server.breakdown(pairs, whole_s, level.mean_ms)
            self._levels.append(replace(level, server=told))
        elif unsent := level.sum(lambda run: run.unsent):
            self._idle.append(
                f"at {level.name} nothing was sent, for the generator stood still: {unsent:,} were due"
            )
        elif len(runs) == options.repeat:
            enough_s = max(2 / wanted, 2 * options.seconds)
            remedy = f"--seconds {math.ceil(enough_s)} or more" if enough_s <= MOST_S else "a higher --rate"
            self._idle.append(
                f"at {level.name} nothing was due in {options.repeat} x {options.seconds:g} s: give {remedy}"
            )

    async def _look(self) -> server.Snapshot | None:
        """None where it cannot be had, or not soon after Ctrl-C."""
        if not self._metrics_url:
            return None
        try:
            async with asyncio.timeout(_LAST_LOOK_S if self.interrupted else None):
                return await self._snapshot()
        except server.MetricsError as error:
            note = f"the server did not always tell its own times: {error}"
            if note not in self._notes:
                self._notes.append(note)
        except (TimeoutError, asyncio.CancelledError):
            if not self.interrupted:
                raise
        return None

    def _failed(self, results: list[messages.Result]) -> bool:
        errors = [result.error for result in results if result.error]
        if errors:
            self._error = errors[0]
        return bool(errors)


def _text(answer: Answer) -> str:
    with contextlib.suppress(ValueError):
        return f"{Code(answer.code).name}: {answer.text}"
    return f"status {answer.code}: {answer.text}"


def _response(body: bytes) -> Any:
    """The PredictResponse. Raises BenchError for an answer that is none."""
    try:
        response = tfs.PredictResponse.FromString(body)
    except DecodeError as error:
        raise BenchError(f"the answer is no PredictResponse: {error}") from error
    if not response.outputs:
        raise BenchError("the answer has no outputs")
    return response
