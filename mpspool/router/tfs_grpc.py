"""TensorFlow Serving's gRPC services, as bytes in and bytes out.

Predict is not decoded here: its bytes go to the data plane as they came. The small messages of
GetModelMetadata and GetModelStatus are answered from what the data plane knows.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol

import grpc
import grpc.aio
from google.protobuf.message import DecodeError
from grpc_health.v1 import health_pb2_grpc

from mpspool.core import envelope, log, tfs
from mpspool.core.errors import Code, PoolError, Problem, StartError, cut
from mpspool.core.settings import RouterSettings
from mpspool.core.states import ModelVersionState
from mpspool.router import health, reflection

logger = log.get("grpc")

_SERVICES = (tfs.PREDICTION_SERVICE, tfs.MODEL_SERVICE)
_STATUS = {Code(status.value[0]): status for status in grpc.StatusCode}
_TYPE_URL = "type.googleapis.com/tensorflow.serving.SignatureDefMap"
# A deadline further away is none: it has to fit into 63 bits of nanoseconds.
_LONGEST_DEADLINE_S = 365 * 86400.0

Call = Callable[[bytes, int], Awaitable[bytes]]
Handler = Callable[[bytes, Any], Awaitable[bytes]]
# A response, and the model and version of ours that it is about.
Known = tuple[bytes, str, int | None]


class VersionStatus(Protocol):
    """One line of GetModelStatus."""

    @property
    def version(self) -> int: ...

    @property
    def state(self) -> ModelVersionState: ...

    @property
    def code(self) -> Code: ...

    @property
    def message(self) -> str: ...


class Dataplane(health.Readiness, Protocol):
    """What this front asks of the data plane. Its calls raise PoolError."""

    draining: bool

    async def predict(self, body: bytes, deadline_ns: int) -> bytes:
        """Takes and returns serialised messages; cancelling the task cancels the request."""

    def metadata(self, name: str, version: int | None, label: str | None = None) -> tuple[int, bytes]:
        """The version meant and its serialised SignatureDefMap."""

    def status(self, name: str, version: int | None) -> Sequence[VersionStatus]:
        """At least one version, oldest first."""


class Recorder(Protocol):
    """Where answers are counted that the data plane does not see."""

    def answered(self, method: str, code: Code, model: str = "", version: int | None = None) -> None: ...


class GrpcFront:
    """A grpc.aio server on settings.host and settings.grpc_port.

    Attributes:
        port: the port bound. Of settings.grpc_port 0, with which a pool has no such front, start() binds any
            free one: a test's way to one.
    """

    def __init__(self, dataplane: Dataplane, settings: RouterSettings, metrics: Recorder) -> None:
        self._dataplane = dataplane
        self._metrics = metrics
        self._address = _address(settings.host, settings.grpc_port)
        self._stopping = False
        self._running: set[asyncio.Task[Any]] = set()
        self._health = health.Health(dataplane, _SERVICES)
        self._server = grpc.aio.server(options=_options(settings.max_message_bytes))
        self.port = settings.grpc_port

    async def start(self) -> None:
        """Binds and serves. Raises StartError naming the address where it cannot be had."""
        health_pb2_grpc.add_HealthServicer_to_server(self._health.servicer, self._server)
        reflection.add(self._server, (*_SERVICES, health.SERVICE))
        self._server.add_generic_rpc_handlers((_Methods(self._handlers(), self._metrics),))
        try:
            self.port = self._server.add_insecure_port(self._address)
        except RuntimeError as error:
            raise StartError([_cannot_bind(self._address)]) from error
        await self._health.start()
        await self._server.start()

    async def quiesce(self, grace_s: float) -> None:
        """Refuses new calls, and gives running ones grace_s to finish."""
        self._stopping = True
        await self._health.stop()
        if self._running:
            await asyncio.wait(self._running, timeout=grace_s)

    async def close(self) -> None:
        """Ends all connections at once. Calls that run or arrive in this moment end as CANCELLED (ADR 4)."""
        await self._health.stop()
        await self._server.stop(None)

    def _handlers(self) -> dict[str, Handler]:
        calls = {
            f"/{tfs.PREDICTION_SERVICE}/Predict": self._predict,
            f"/{tfs.PREDICTION_SERVICE}/GetModelMetadata": self._counted("GetModelMetadata", self._metadata),
            f"/{tfs.MODEL_SERVICE}/GetModelStatus": self._counted("GetModelStatus", self._model_status),
        }
        return {path: self._handler(path.rpartition("/")[2], call) for path, call in calls.items()}

    def _handler(self, method: str, call: Call) -> Handler:
        """The deadline, cancellation and errors of gRPC around a call of ours."""

        async def handle(body: bytes, context: Any) -> bytes:
            task = asyncio.current_task()
            assert task is not None
            self._running.add(task)
            task.add_done_callback(self._running.discard)
            try:
                return await call(body, _deadline_ns(context.time_remaining()))
            except PoolError as error:
                refusal = error
            except Exception:
                logger.exception("call failed", method=method)
                self._metrics.answered(method, Code.INTERNAL)
                refusal = PoolError(Code.INTERNAL, f"{method} failed inside the server")
            return await _abort(context, refusal)

        return handle

    async def _predict(self, body: bytes, deadline_ns: int) -> bytes:
        if self._stopping or self._dataplane.draining:
            self._metrics.answered("Predict", Code.UNAVAILABLE)
            raise _shutting_down()
        return await self._dataplane.predict(body, deadline_ns)

    def _counted(self, method: str, answer: Callable[[bytes], Known]) -> Call:
        """A call that only reads what is known, with its answers counted."""

        async def call(body: bytes, _deadline_ns: int) -> bytes:
            try:
                if self._stopping or self._dataplane.draining:
                    raise _shutting_down()
                response, model, version = answer(body)
            except PoolError as error:
                self._metrics.answered(method, error.code)
                raise
            self._metrics.answered(method, Code.OK, model, version)
            return response

        return call

    def _metadata(self, body: bytes) -> Known:
        request = _parse(tfs.GetModelMetadataRequest, body)
        if not request.HasField("model_spec"):
            raise envelope.missing_spec()
        _check_fields(request.metadata_field)
        spec = request.model_spec
        if not spec.name:
            raise envelope.missing_name()
        label = spec.version_label if spec.HasField("version_label") else None
        version, signatures = self._dataplane.metadata(spec.name, _version(spec), label)
        response = tfs.GetModelMetadataResponse()
        response.model_spec.name = spec.name
        response.model_spec.version.value = version
        field = response.metadata[tfs.SIGNATURE_DEF]
        field.type_url, field.value = _TYPE_URL, signatures
        return response.SerializeToString(), spec.name, version

    def _model_status(self, body: bytes) -> Known:
        """As TensorFlow Serving: a version label is ignored, an empty name is one that is not there."""
        request = _parse(tfs.GetModelStatusRequest, body)
        if not request.HasField("model_spec"):
            raise envelope.missing_spec()
        spec = request.model_spec
        response = tfs.GetModelStatusResponse()
        for found in self._dataplane.status(spec.name, _version(spec)):
            line = response.model_version_status.add(version=found.version, state=found.state.value)
            line.status.error_code = found.code.value
            line.status.error_message = found.message
            line.status.SetInParent()  # present also when OK
        return response.SerializeToString(), spec.name, _version(spec)


class _Methods(grpc.GenericRpcHandler):  # type: ignore[misc]
    """Our methods; whatever no one else serves either is answered UNIMPLEMENTED by its name."""

    def __init__(self, handlers: dict[str, Handler], metrics: Recorder) -> None:
        self._served = {path: grpc.unary_unary_rpc_method_handler(call) for path, call in handlers.items()}
        self._metrics = metrics
        self._known = {
            f"/{service}/{method}": method for service in _SERVICES for method in tfs.methods(service)
        }

    def service(self, handler_call_details: Any) -> Any:
        path = handler_call_details.method
        return self._served.get(path) or self._unimplemented(path)

    def _unimplemented(self, path: str) -> Any:
        async def refuse(_requests: Any, context: Any) -> bytes:
            self._metrics.answered(self._known.get(path, ""), Code.UNIMPLEMENTED)
            return await _abort(context, PoolError(Code.UNIMPLEMENTED, f"{path} is not implemented here"))

        # As a stream, for it is answered before any message, however large, is read.
        return grpc.stream_unary_rpc_method_handler(refuse)


def _parse(kind: Any, body: bytes) -> Any:
    try:
        return kind.FromString(body)
    except DecodeError:
        raise envelope.malformed(body, kind.DESCRIPTOR.full_name) from None


def _version(spec: Any) -> int | None:
    return spec.version.value if spec.HasField("version") else None


def _check_fields(fields: Sequence[str]) -> None:
    if not fields:
        text = "GetModelMetadataRequest must specify at least one metadata_field"
        raise PoolError(Code.INVALID_ARGUMENT, text)
    for field in fields:
        if field != tfs.SIGNATURE_DEF:
            raise PoolError(Code.INVALID_ARGUMENT, f"Metadata field {field} is not supported")


def _deadline_ns(remaining_s: float | None) -> int:
    """CLOCK_MONOTONIC; 0 for none."""
    if remaining_s is None or remaining_s > _LONGEST_DEADLINE_S:
        return 0
    return time.monotonic_ns() + int(remaining_s * 1e9)


def _shutting_down() -> PoolError:
    return PoolError(Code.UNAVAILABLE, "This server is shutting down; try another")


async def _abort(context: Any, refusal: PoolError) -> bytes:
    """Ends the call; never returns. What is not valid Unicode cannot travel and is replaced."""
    text = cut(refusal.message).encode(errors="replace").decode()
    await context.abort(_STATUS[refusal.code], text)
    raise AssertionError("abort() raises")


def _address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _cannot_bind(address: str) -> Problem:
    return Problem(
        "grpc_port", f"cannot listen on {address}: it is in use, or not an address of this machine"
    )


def _options(max_message_bytes: int) -> list[tuple[str, int]]:
    return [
        ("grpc.max_receive_message_length", max_message_bytes),
        ("grpc.max_send_message_length", -1),
        # Two pools on one port would share its connections instead of the second being refused.
        ("grpc.so_reuseport", 0),
        # Clients that went away without a word are noticed within minutes, not hours; clients that
        # ping often are not sent away.
        ("grpc.keepalive_time_ms", 120_000),
        ("grpc.keepalive_timeout_ms", 20_000),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
    ]
