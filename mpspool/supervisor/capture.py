"""`mpspool capture`: keeps requests that clients send as the model's warm-up requests."""

from __future__ import annotations

import base64
import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

from mpspool.core import control
from mpspool.core.control import ControlError
from mpspool.core.methods import Method
from mpspool.core.rundir import RunDir
from mpspool.core.tfrecord import framed
from mpspool.supervisor import ask
from mpspool.supervisor.version_folders import WARMUP_FILE

# The router says something at least so often.
_SILENCE_S = 5.0


class CaptureError(Exception):
    """Nothing was captured, or less than was asked for; the text says what to do."""


def capture(
    run: RunDir, name: str, version: int | None, count: int, timeout_s: float, output: Path | None
) -> str:
    """Writes the next requests that are answered to a file of PredictionLogs, whole or not at all.

    Args:
        run: where the pool runs.
        name: the model's.
        version: whose file it is; None for the latest.
        count: how many requests.
        timeout_s: how long to wait for them; fewer are kept all the same.
        output: the file; None for the version's own.

    Returns:
        What was done, in words.

    Raises:
        ask.NoPoolError: there is no pool.
        ask.NoModelError: it has no such model.
        CaptureError: none came, or the file cannot be written.
    """
    model = ask.model(run, name, version)
    file = output or Path(model.path) / WARMUP_FILE
    _check(file, own=output is None)
    found = list(_requests(run, name, model.version, count, timeout_s))
    if not found:
        if output is None:
            with contextlib.suppress(OSError):  # was made for the try; one with anything in it stays
                file.parent.rmdir()
        raise CaptureError(
            f"no request for {name}@{model.version} was answered within {timeout_s:g} s; {file} is as it was"
        )
    _write(file, found)
    return f"{len(found)} requests in {file}"


def _check(file: Path, *, own: bool) -> None:
    """Raises CaptureError for what cannot be written, before anybody waits for it."""
    remedy = "give --output FILE, and put it there yourself" if own else "give another --output"
    try:
        file.parent.mkdir(exist_ok=True)
        probe = file.with_name(f".{file.name}.{os.getpid()}")
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise CaptureError(f"{file} cannot be written: {error.strerror}; {remedy}") from error


def _requests(
    run: RunDir, name: str, version: int, count: int, timeout_s: float
) -> Iterator[tuple[Method, bytes]]:
    end = time.monotonic() + timeout_s
    asked = {"model": name, "version": version, "count": count, "for_s": timeout_s}
    try:
        stream = control.stream(run.router_control, "capture", timeout_s=_SILENCE_S, **asked)
        with contextlib.closing(stream) as pieces:
            for piece in pieces:
                yield from ((Method(method), base64.b64decode(body)) for method, body in piece["requests"])
                if time.monotonic() > end:
                    return
    except (ControlError, ValueError) as error:
        raise CaptureError(f"the router does not answer any more: {error}") from error


def _write(file: Path, requests: list[tuple[Method, bytes]]) -> None:
    temporary = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        with temporary.open("wb") as records:
            for method, body in requests:
                records.write(framed(_log_entry(method, body)))
        temporary.replace(file)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise CaptureError(f"{file} cannot be written: {error.strerror}; it is as it was") from error


def _log_entry(method: Method, body: bytes) -> bytes:
    """The PredictionLog of a request, for whatever version it is replayed to."""
    from mpspool.core import tfs

    entry = tfs.PredictionLog()
    request = getattr(entry, tfs.LOG_FIELDS[method]).request
    request.ParseFromString(body)
    for spec in tfs.model_specs(request):
        spec.ClearField("version")
        spec.ClearField("version_label")
    serialised: bytes = entry.SerializeToString()
    return serialised
