"""The control sockets: one JSON line in, JSON lines out, over a UNIX socket of mode 0600.

The router and the pool answer here; the CLI, the pool and the foreground process ask. A request is
{"op": NAME, ...}; before anything is done about it comes {"taken": true}, so that one whose server ends too soon can be asked
again. An answer is an object, {"error": TEXT} where it failed, with "again" where nothing was done and whoever comes next
on the socket will do it. A streaming op sends an object a line until either side closes.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Generator
from pathlib import Path
from typing import Any

Message = dict[str, Any]
Handler = Callable[[Message], Awaitable[Message] | AsyncIterator[Message]]

_MAX_LINE_BYTES = 64 * 2**20
_TAKEN: Message = {"taken": True}
_WATCH_MIN_S = 0.05
_WATCH_MAX_S = 1.0


class ControlError(Exception):
    """The other side is not there, went away, or answered {"error": ...}."""


class NotTakenError(ControlError):
    """The other side is not there, ended before it took the request, or gives way to another: it can be asked again."""


def _connect(path: Path, timeout_s: float | None) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.settimeout(timeout_s)
        connection.connect(str(path))
    except OSError as error:
        connection.close()
        raise _nobody(path, error) from error
    return connection


def _nobody(path: Path, error: OSError) -> NotTakenError:
    return NotTakenError(f"nobody answers on {path}: {error.strerror or error}")


def _not_taken(path: Path, op: str) -> NotTakenError:
    return NotTakenError(f"{path} closed the connection before it took {op!r}")


def _lost(path: Path, error: OSError, *, taken: bool) -> ControlError:
    return (ControlError if taken else NotTakenError)(f"{path}: {error.strerror or error}")


def _checked(answer: Message) -> Message:
    """Raises ControlError for {"error": ...}."""
    if "error" in answer:
        raise (NotTakenError if answer.get("again") else ControlError)(answer["error"])
    return answer


def call(path: Path, op: str, *, timeout_s: float | None = 5.0, **arguments: Any) -> Message:
    """Asks once and returns the answer. Raises ControlError."""
    with contextlib.closing(stream(path, op, timeout_s=timeout_s, **arguments)) as answers:
        for answer in answers:
            return answer
    raise _unanswered(path)


def _unanswered(path: Path) -> ControlError:
    return ControlError(f"{path} closed the connection without an answer")


def stream(
    path: Path, op: str, *, timeout_s: float | None = 5.0, **arguments: Any
) -> Generator[Message, None, None]:
    """Asks once and yields answers until the other side closes. Raises ControlError."""
    taken = False
    with _connect(path, timeout_s) as connection:
        try:
            connection.sendall(json.dumps({"op": op, **arguments}).encode() + b"\n")
            with connection.makefile("rb") as lines:
                for line in lines:
                    answer: Message = json.loads(line)
                    if answer == _TAKEN:
                        taken = True
                        continue
                    yield _checked(answer)
        except TimeoutError as error:  # what it may read yet is not over
            raise ControlError(f"{path}: no answer to {op!r} in {timeout_s} s") from error
        except OSError as error:
            raise _lost(path, error, taken=taken) from error
    if not taken:
        raise _not_taken(path, op)


async def acall(path: Path, op: str, *, timeout_s: float | None = 5.0, **arguments: Any) -> Message:
    """call() for an event loop."""
    try:
        async with asyncio.timeout(timeout_s):
            async with contextlib.aclosing(astream(path, op, **arguments)) as answers:
                async for answer in answers:
                    return answer
    except TimeoutError as error:
        raise ControlError(f"{path}: no answer to {op!r} in {timeout_s} s") from error
    raise _unanswered(path)


async def astream(path: Path, op: str, **arguments: Any) -> AsyncGenerator[Message, None]:
    """stream() for an event loop, without a time limit of its own."""
    try:
        reader, writer = await asyncio.open_unix_connection(str(path), limit=_MAX_LINE_BYTES)
    except OSError as error:
        raise _nobody(path, error) from error
    taken = False
    try:
        writer.write(json.dumps({"op": op, **arguments}).encode() + b"\n")
        await writer.drain()
        while line := await reader.readline():
            answer: Message = json.loads(line)
            if answer == _TAKEN:
                taken = True
                continue
            yield _checked(answer)
    except OSError as error:
        raise _lost(path, error, taken=taken) from error
    finally:
        writer.close()
    if not taken:
        raise _not_taken(path, op)


class Watch:
    """A streaming op: what another op answers, at once, after each change and once a second besides.

    Changes that come close together are one answer. None is lost: what changes while an answer is made
    or sent makes another.
    """

    def __init__(self, op: Callable[[Message], Awaitable[Message]]) -> None:
        self._op = op
        self._change = asyncio.Event()

    def changed(self) -> None:
        """The op would answer otherwise now."""
        self._change.set()

    async def __call__(self, request: Message) -> AsyncIterator[Message]:
        while True:
            change = self._change
            yield await self._op(request)
            await asyncio.sleep(_WATCH_MIN_S)
            try:
                async with asyncio.timeout(_WATCH_MAX_S):
                    await change.wait()
            except TimeoutError:
                continue
            if self._change is change:  # the first of several watchers to see it arms the next one
                self._change = asyncio.Event()


class ControlServer:
    """Answers on one socket. `handlers` maps an op to a coroutine function or an async generator."""

    def __init__(self, path: Path, handlers: dict[str, Handler]) -> None:
        self._path = path
        self._handlers = handlers
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Binds the socket, in place of one that a killed predecessor left."""
        self._path.unlink(missing_ok=True)
        before = os.umask(0o177)
        try:
            self._server = await asyncio.start_unix_server(
                self._accept, str(self._path), limit=_MAX_LINE_BYTES
            )
        finally:
            os.umask(before)

    async def close(self) -> None:
        if self._server is None:
            return
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._path.unlink(missing_ok=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            await self._serve(reader, writer)
        except (ConnectionError, asyncio.CancelledError):
            pass
        finally:
            self._tasks.discard(task)
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        line = await reader.readline()
        if not line:
            return
        writer.write(json.dumps(_TAKEN).encode() + b"\n")
        async for answer in self._answers(line):
            if writer.is_closing():  # uvloop's raises no ConnectionError for it
                raise ConnectionResetError("whoever asked has gone")
            writer.write(json.dumps(answer).encode() + b"\n")
            await writer.drain()

    async def _answers(self, line: bytes) -> AsyncIterator[Message]:
        try:
            request: Message = json.loads(line)
            handler = self._handlers[request.pop("op")]
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            yield {"error": f"not a request of ours: {error!r}"}
            return
        try:
            answer = handler(request)
            if isinstance(answer, AsyncIterator):
                async for item in answer:
                    yield item
            else:
                yield await answer
        except Exception as error:  # noqa: BLE001  whatever a handler raises is the asker's to read
            yield {"error": f"{type(error).__name__}: {error}"}
