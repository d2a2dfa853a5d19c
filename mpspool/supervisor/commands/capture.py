"""`mpspool capture`: keeps requests that clients send as the model's warm-up requests."""

from __future__ import annotations

import base64
import contextlib
import os
import time
from pathlib import Path

from mpspool.core import control
from mpspool.core.control import ControlError
from mpspool.core.methods import Method
from mpspool.core.rundir import RunDir
from mpspool.core.tfrecord import framed
from mpspool.supervisor.commands import ask, rest_request
from mpspool.supervisor.commands.errors import CommandError
from mpspool.supervisor.version_folders import WARMUP_FILE

# The router says something at least so often.
_SILENCE_S = 5.0

_Request = tuple[Method, bytes]


def capture(
    run: RunDir, name: str, version: int | None, count: int, timeout_s: float, output: Path | None
) -> str:
    """Writes the next requests that are answered to a file of PredictionLogs, whole or not at all.

    Args:
        run: where the pool runs.
        name: the model's.
        version: what it answers is written, to its file; None for the one that answers most of the requests which name none. Where
            that changes meanwhile, it is the later one.
        count: how many requests.
        timeout_s: how long to wait for them; fewer are kept all the same.
        output: the file; None for the version's own.

    Returns:
        What was done, in words.

    Raises:
        NoPoolError: there is no pool.
        NoModelError: it has no such model.
        CommandError: none came, or the file cannot be written.
    """
    model = ask.model(run, name, version)
    file = output or Path(model.path) / WARMUP_FILE
    _check(file, own=output is None)
    found, present = _requests(run, name, version, count, timeout_s)
    if not found:
        if output is None:
            _forget(file)
        raise CommandError(
            f"no request for {name if version is None else f'{name}@{version}'} was answered within {timeout_s:g} s"
            f" (Classify and Regress by REST do not count); nothing was written to {file}"
        )
    # What another version answers may be no request for this one.
    number = present if present in found else max(found, key=lambda one: len(found[one]))
    if output is None and number != model.version:
        _forget(file)
        file = Path(ask.model(run, name, number).path) / WARMUP_FILE
        _check(file, own=True)
    requests = _as_messages(run, name, number, found[number])
    _write(file, requests)
    return f"{len(requests)} requests in {file}"


def _forget(file: Path) -> None:
    """The folder was made for the try; one with anything in it stays."""
    with contextlib.suppress(OSError):
        file.parent.rmdir()


def _check(file: Path, *, own: bool) -> None:
    """Raises CommandError for what cannot be written, before anybody waits for it."""
    remedy = "give --output FILE, and put it there yourself" if own else "give another --output"
    try:
        if file.exists() and not file.is_file():  # which the file would take the place of
            raise CommandError(f"{file} cannot be written: it is no regular file; {remedy}")
        if own:
            file.parent.mkdir(exist_ok=True)
        probe = file.with_name(f".{file.name}.{os.getpid()}")
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise CommandError(f"{file} cannot be written: {error.strerror}; {remedy}") from error


def _requests(
    run: RunDir, name: str, version: int | None, count: int, timeout_s: float
) -> tuple[dict[int, list[_Request]], int | None]:
    """By the version that answered them; and the version that answers now what is asked for, None for none."""
    end = time.monotonic() + timeout_s
    asked = {"model": name, "version": version, "count": count, "for_s": timeout_s}
    found: dict[int, list[_Request]] = {}
    present = version
    begun = bytearray()  # the body of one of which more follows
    try:
        stream = control.stream(run.router_control, "capture", timeout_s=_SILENCE_S, **asked)
        with contextlib.closing(stream) as pieces:
            for piece in pieces:
                present = piece["version"]
                for number, method, body, more in piece["requests"]:
                    begun += base64.b64decode(body)
                    if not more:
                        found.setdefault(number, []).append((Method(method), bytes(begun)))
                        begun.clear()
                if time.monotonic() > end:
                    break
    except (ControlError, ValueError) as error:
        raise CommandError(f"the router does not answer any more: {error}") from error
    return found, present


def _as_messages(run: RunDir, name: str, version: int, requests: list[_Request]) -> list[_Request]:
    """With what came by REST as what gRPC would have sent. Raises CommandError: there is nothing left."""
    if not any(method.is_rest for method, _ in requests):
        return requests
    from mpspool.core import tfs

    try:
        answer = control.call(run.router_control, "signatures", model=name, version=version)
    except (ControlError, ValueError) as error:
        raise CommandError(f"the router does not answer any more: {error}") from error
    signatures = tfs.SignatureDefMap.FromString(base64.b64decode(answer["signatures"]))
    found = []
    for method, body in requests:
        if not method.is_rest:
            found.append((method, body))
        elif (message := rest_request.message(name, body, signatures)) is not None:
            found.append((Method.PREDICT, message))
    if not found:
        raise CommandError(f"none of {len(requests)} requests, all by REST, can be said in a message")
    return found


def _write(file: Path, requests: list[_Request]) -> None:
    temporary = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        with temporary.open("wb") as records:
            for method, body in requests:
                records.write(framed(_log_entry(method, body)))
        temporary.replace(file)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise CommandError(f"{file} cannot be written: {error.strerror}; it is as it was") from error


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
