"""TensorFlow Serving's REST API: what HTTP says, and no further. A request's JSON goes to a worker as it came."""

from __future__ import annotations

import asyncio
import contextlib
import math
import re
import time
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from http import HTTPStatus
from typing import Any, Protocol

import orjson
from aiohttp import HttpVersion11, web
from google.protobuf import json_format

from mpspool.core import tfs
from mpspool.core.envelope import ModelSpecPeek
from mpspool.core.errors import Code, Lack, PoolError, cut
from mpspool.core.methods import Method
from mpspool.core.settings import RouterSettings
from mpspool.router.asked import Asked
from mpspool.router.fronts import rest_listener
from mpspool.router.fronts.inflate import ENCODINGS, inflate
from mpspool.router.fronts.rest_body import Body
from mpspool.router.fronts.rest_path import Wanted, wanted
from mpspool.router.fronts.sockets import peer_name, unsent
from mpspool.router.fronts.tfs_grpc import Dataplane, describe, statuses
from mpspool.router.memory import LONG_ANSWER_BYTES, START_BYTES, Admission
from mpspool.router.pending import shutting_down

# TensorFlow Serving's (model_servers/http_server.cc). A client that has gone is told nothing.
_STATUS = {
    Code.INVALID_ARGUMENT: HTTPStatus.BAD_REQUEST,
    Code.FAILED_PRECONDITION: HTTPStatus.BAD_REQUEST,
    Code.OUT_OF_RANGE: HTTPStatus.BAD_REQUEST,
    Code.UNAUTHENTICATED: HTTPStatus.UNAUTHORIZED,
    Code.PERMISSION_DENIED: HTTPStatus.FORBIDDEN,
    Code.NOT_FOUND: HTTPStatus.NOT_FOUND,
    Code.ALREADY_EXISTS: HTTPStatus.CONFLICT,
    Code.ABORTED: HTTPStatus.CONFLICT,
    Code.RESOURCE_EXHAUSTED: HTTPStatus.TOO_MANY_REQUESTS,
    Code.UNIMPLEMENTED: HTTPStatus.NOT_IMPLEMENTED,
    Code.UNAVAILABLE: HTTPStatus.SERVICE_UNAVAILABLE,
    Code.DEADLINE_EXCEEDED: HTTPStatus.GATEWAY_TIMEOUT,
}
_JSON = "application/json"
_CORS = {
    "Access-Control-Allow-Origin": "*",
    "Access-Control-Allow-Methods": "POST, GET",
    "Access-Control-Allow-Headers": "Content-Type",
}
_ENCODINGS = {"": "identity", "x-gzip": "gzip"}
# The header with a request's own deadline: gRPC has grpc-timeout for it, HTTP nothing.
TIMEOUT = "x-mpspool-timeout-ms"
_MILLISECONDS = re.compile(r"[0-9]{1,9}", re.ASCII)
# Of a request whose body was asked for.
_ASKED = web.RequestKey("asked", bool)
# Model versions whose metadata is kept as it is printed.
_MOST_DESCRIBED = 32


class Recorder(Protocol):
    """Where answers are counted that the data plane does not see."""

    def answered(self, method: str, code: Code, model: str = "", version: int | None = None) -> None: ...

    def looked_up(self, model: str, code: Code, total_s: float) -> None: ...

    def unkept(self, model: str, lack: Lack = Lack.ANSWERS) -> None: ...


class Head:
    """What a request says of itself besides its body.

    Attributes:
        peer: who sent it, as "127.0.0.1:1234".
    """

    __slots__ = ("_request", "peer")

    def __init__(self, request: web.Request) -> None:
        self._request = request
        self.peer = peer_name(request.transport and request.transport.get_extra_info("peername"))

    @property
    def metadata(self) -> Mapping[str, str]:
        """The headers by lower-case name; values of one name are joined by commas, as those of gRPC are."""
        found: dict[str, str] = {}
        for name, value in self._request.headers.items():
            key = name.lower()
            found[key] = f"{found[key]},{value}" if key in found else value
        return found


class RestApi:
    """Answers everything under /v1/.

    Args:
        dataplane: what answers.
        settings: the router's.
        metrics: where answers are counted.
        give_up: ends the connection of a client that takes too little.
        admitted: told of a request that is, with as much of its message as that takes.
    """

    def __init__(
        self,
        dataplane: Dataplane,
        settings: RouterSettings,
        metrics: Recorder,
        give_up: Callable[[asyncio.WriteTransport, str], None],
        admitted: Callable[[web.Request], None],
    ) -> None:
        self._give_up = give_up
        self._admitted = admitted
        self._dataplane = dataplane
        self._metrics = metrics
        self._settings = settings

    def configure(self, settings: RouterSettings) -> None:
        """Takes other limits while it serves."""
        self._settings = settings

    async def answer(self, request: web.Request) -> web.Response:
        """The answer, an error's among them."""
        answer = await self._answer(request)
        # Where the next request begins nobody can tell.
        if _waits_to_be_asked(request) or request.content.exception() is not None:
            answer.force_close()
        return answer

    async def _answer(self, request: web.Request) -> web.Response:
        cors = _CORS if self._settings.rest_cors else {}
        if request.method == "OPTIONS":
            return _preflight(request, cors)
        try:
            found = wanted(request.method, request.rel_url.raw_path)
        except PoolError as error:
            self._metrics.answered("", error.code)
            self._metrics.looked_up("", error.code, 0.0)
            return _refusal(error, cors)
        try:
            if found.method is None:
                body, admission = self._known(found), None
            else:
                body, admission = await self._run(Asked(found.method, found.model), request)
            answer = web.Response(body=body, content_type=_JSON, headers=cors)
            if admission is not None and len(body) >= LONG_ANSWER_BYTES:
                await self._send(answer, request, len(body), admission)
        except PoolError as error:
            answer = _refusal(error, cors)
        return answer

    async def _send(
        self, answer: web.Response, request: web.Request, size: int, admission: Admission
    ) -> None:
        """Counts it until its client has taken it, but for what the kernel holds. Raises PoolError where there is no room."""
        try:
            admission.check_answer(size)
        except PoolError:
            self._metrics.unkept(admission.model or "")
            raise
        taking = _Taking(request, size, admission, self._give_up)
        waiting = self._dataplane.memory.waiting
        waiting.watch(taking)
        try:
            with contextlib.suppress(ConnectionError):  # it has gone
                rest_listener.set_server_header(answer)
                await answer.prepare(request)
                await answer.write_eof()
        finally:
            waiting.forget(taking)
            taking.let_go()

    def _known(self, what: Wanted) -> bytes:
        """Status or metadata. Raises PoolError, counted."""
        method = "GetModelMetadata" if what.metadata else "GetModelStatus"
        start = time.monotonic()
        try:
            self._check_serving()
            found, version = self._metadata(what.model) if what.metadata else self._status(what.model)
        except PoolError as error:
            self._metrics.answered(method, error.code)
            self._metrics.looked_up("", error.code, time.monotonic() - start)
            raise
        self._metrics.answered(method, Code.OK, what.model.name, version)
        self._metrics.looked_up(what.model.name, Code.OK, time.monotonic() - start)
        return found

    def _status(self, model: ModelSpecPeek) -> tuple[bytes, int | None]:
        """As gRPC: a version label is ignored."""
        message = statuses(self._dataplane.status(model.name, model.version))
        return _printed(_dictionary(message, names=False)), model.version

    def _metadata(self, model: ModelSpecPeek) -> tuple[bytes, int]:
        version, signatures = self._dataplane.metadata(model.name, model.version, model.label)
        return _described(model.name, version, signatures), version

    async def _run(self, asked: Asked, request: web.Request) -> tuple[bytes, Admission]:
        """The answer, and what its request was admitted by. Raises PoolError, counted."""
        head = Head(request)
        with self._counted(asked.method):
            own_ms = _own_timeout_ms(request)
        body, admission = await self._read(asked, request, head)
        timeout_ms = min(filter(None, (own_ms, self._settings.rest_timeout_ms)), default=0)
        deadline_ns = time.monotonic_ns() + timeout_ms * 1_000_000 if timeout_ms else 0
        try:
            async with asyncio.timeout(timeout_ms / 1000 if timeout_ms else None):
                return await self._dataplane.call(asked, body, deadline_ns, admission, head), admission
        except TimeoutError:
            raise PoolError(Code.DEADLINE_EXCEEDED, "Deadline exceeded") from None

    async def _read(self, asked: Asked, request: web.Request, head: Head) -> tuple[bytes, Admission]:
        """The body in plain, and what it was admitted by. Raises PoolError, counted."""
        with self._counted(asked.method):
            self._check_serving()
            body = Body(request, self._settings.max_message_bytes)
            encoding = _encoding(request)
            body.check_size(body.declared)
        if _waits_to_be_asked(request):  # a body that there is no room for need not come
            self._dataplane.admit(asked, body.declared, b"", head).release()
            with contextlib.suppress(ConnectionError):  # it has gone: its body does not come
                await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            request[_ASKED] = True
            request.writer.output_size = 0  # of the answer nothing is sent
        with self._counted(asked.method):
            await body.read(min(body.declared, START_BYTES))
        admission = self._dataplane.admit(asked, body.declared, b"", head)
        try:
            with self._counted(asked.method):
                await self._read_rest(request, body, admission)
                return await self._plain(body.whole(), encoding, admission), admission
        except BaseException:
            admission.release()
            raise

    async def _read_rest(self, request: web.Request, body: Body, admission: Admission) -> None:
        """Raises PoolError, and counts what there was too little of."""
        coming = self._dataplane.memory.coming
        coming.watch(body)
        try:
            if not body.declared:  # nothing of it need be here
                await body.read(START_BYTES, admission)
            self._admitted(request)
            await body.read(math.inf, admission)
        except PoolError as error:
            if error.lack is not None:
                self._metrics.unkept(admission.model or "", error.lack)
            raise
        finally:
            coming.forget(body)

    async def _plain(self, body: bytes, encoding: str, admission: Admission) -> bytes:
        """Raises PoolError."""
        try:
            return await inflate(body, encoding, self._settings.max_message_bytes, admission)
        except PoolError as error:
            if error.code is Code.INTERNAL:  # gRPC's word for what is not of the format that it says
                raise PoolError(Code.INVALID_ARGUMENT, error.message) from None
            raise

    @contextlib.contextmanager
    def _counted(self, method: Method) -> Iterator[None]:
        """Counts a request that is refused before the data plane has seen it."""
        try:
            yield
        except PoolError as error:
            self._metrics.answered(method.api, error.code)
            raise

    def _check_serving(self) -> None:
        if self._dataplane.draining:
            raise shutting_down()


class _Taking:
    """An answer that its client is taking: all of it counts until the last of it is in the kernel.

    Args:
        request: whose.
        size: of the answer.
        admission: of the request.
        give_up: see RestApi.
    """

    def __init__(
        self,
        request: web.Request,
        size: int,
        admission: Admission,
        give_up: Callable[[asyncio.WriteTransport, str], None],
    ) -> None:
        self._transport = request.transport
        self._size = size
        self._admission = admission
        self._give_up = give_up
        admission.hold(size)

    def let_go(self) -> None:
        """It counts no more."""
        self._admission.hold(-self._size)
        self._size = 0

    def holds(self, model: str | None) -> int:
        return self._size if model is None or model == self._admission.model else 0

    def moved(self) -> int:
        if self._transport is None:
            return 0
        return -self._transport.get_write_buffer_size() - unsent(self._transport)

    def missing(self) -> int:
        return 0

    def make_way(self) -> None:
        self.let_go()
        if self._transport is not None:
            self._give_up(
                self._transport, "it takes nothing of its answer, or too little, and others want the room"
            )


def _waits_to_be_asked(request: web.Request) -> bool:
    """Whether its body comes only when it is asked for, and it has not been."""
    expects = request.headers.get("Expect", "").lower() == "100-continue"
    return expects and request.version >= HttpVersion11 and _ASKED not in request


def _encoding(request: web.Request) -> str:
    """Of the body, of ENCODINGS. Raises PoolError."""
    given = request.headers.get("Content-Encoding", "").strip().lower()
    encoding = _ENCODINGS.get(given, given)
    if encoding not in ENCODINGS:
        text = f"Content-Encoding {given} is not supported; there are gzip and deflate"
        raise PoolError(Code.INVALID_ARGUMENT, text)
    return encoding


def error_document(status: int, message: str, headers: Mapping[str, str] = {}) -> web.Response:
    """An error as TensorFlow Serving's REST API words them: {"error": message}."""
    body = orjson.dumps({"error": cut(message)})
    return web.Response(body=body, status=status, content_type=_JSON, headers=headers)


def _refusal(error: PoolError, headers: Mapping[str, str]) -> web.Response:
    status = _STATUS.get(error.code, HTTPStatus.INTERNAL_SERVER_ERROR)
    return error_document(status, error.message, headers)


def _own_timeout_ms(request: web.Request) -> int:
    """0 for none. Raises PoolError."""
    text = request.headers.get(TIMEOUT)
    if text is None:
        return 0
    if not _MILLISECONDS.fullmatch(text) or not (timeout_ms := int(text)):
        raise PoolError(
            Code.INVALID_ARGUMENT,
            f"The header {TIMEOUT} is {cut(text)!r}: it must be a whole number of milliseconds from 1 to 999999999",
        )
    return timeout_ms


def _preflight(request: web.Request, cors: Mapping[str, str]) -> web.Response:
    origin = request.headers.get("Origin", "")
    allowed = "http://" in origin or "https://" in origin
    return web.Response(status=HTTPStatus.OK if allowed else HTTPStatus.BAD_REQUEST, headers=cors)


@lru_cache(_MOST_DESCRIBED)
def _described(name: str, version: int, signatures: bytes) -> bytes:
    """As GetModelMetadata's answer is printed, the Any in it spelled out. Kept: of thousands of inputs it takes a while."""
    spec = _dictionary(describe(name, version), names=True)
    found = _dictionary(tfs.SignatureDefMap.FromString(signatures), names=True)
    return _printed({"model_spec": spec, "metadata": {tfs.SIGNATURE_DEF: found}})


def _printed(document: dict[str, Any]) -> bytes:
    return orjson.dumps(document, option=orjson.OPT_INDENT_2)


def _dictionary(message: Any, *, names: bool) -> dict[str, Any]:
    found: dict[str, Any] = json_format.MessageToDict(
        message,
        always_print_fields_with_no_presence=True,
        preserving_proto_field_name=names,
        descriptor_pool=tfs.POOL,
    )
    return found
