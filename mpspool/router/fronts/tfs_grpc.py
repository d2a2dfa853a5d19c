"""TensorFlow Serving's gRPC services, as bytes in and bytes out.

What runs a model is not decoded here: its bytes go to the data plane as they came. The small messages of
GetModelMetadata and GetModelStatus are answered from what the data plane knows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from google.protobuf.message import DecodeError

from mpspool.core import envelope, log, tfs, tls
from mpspool.core.errors import Code, Lack, PoolError, Problem, StartError
from mpspool.core.methods import Method as ModelMethod
from mpspool.core.settings import RouterSettings, TlsSettings
from mpspool.core.states import ModelVersionState
from mpspool.router.asked import Asked
from mpspool.router.fronts import health, reflection, reload, sockets
from mpspool.router.fronts.grpc_call import SMALL_BYTES, Call, Method, Unary
from mpspool.router.fronts.grpc_server import Server
from mpspool.router.fronts.http2.listener import Listener
from mpspool.router.memory import Admission, Memory
from mpspool.router.pending import Head, shutting_down

logger = log.get("grpc")

_SERVICES = (tfs.PREDICTION_SERVICE, tfs.MODEL_SERVICE)
_TYPE_URL = "type.googleapis.com/tensorflow.serving.SignatureDefMap"

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
    """What this front asks of the data plane. Its calls raise PoolError.

    Attributes:
        draining: new calls are refused.
        memory: where this front counts what it reads for other methods, and answers that wait to be sent.
    """

    draining: bool
    memory: Memory

    def admit(self, asked: Asked, size: int, start: bytes, head: Head) -> Admission:
        """A message of `size` bytes is about to be read; `start` is what is here of it, perhaps all.

        What is returned goes to call(), or is released where the call ends before.

        Raises:
            PoolError: the message is refused, and the rest of it not read.
        """

    async def call(
        self, asked: Asked, body: bytes, deadline_ns: int, admission: Admission, head: Head
    ) -> bytes:
        """Takes and returns serialised messages, and releases the admission; cancelling the task cancels the request."""

    def labelled(self, name: str, label: str) -> int | None:
        """The number of the version that this label stands for; None where it stands for none."""

    def metadata(self, name: str, version: int | None, label: str | None = None) -> tuple[int, bytes]:
        """The version meant and its serialised SignatureDefMap."""

    def status(self, name: str, version: int | None) -> Sequence[VersionStatus]:
        """At least one version, newest first."""


class Recorder(Protocol):
    """Where answers are counted that the data plane does not see."""

    def answered(self, method: str, code: Code, model: str = "", version: int | None = None) -> None: ...

    def lacked(self, model: str, version: int, lack: Lack) -> None: ...

    def unkept(self, model: str, lack: Lack = Lack.ANSWERS) -> None: ...


class GrpcFront:
    """gRPC on settings.host and settings.grpc_port.

    Args:
        dataplane: what answers.
        settings: the router's.
        metrics: where answers are counted.
        reloads: has other models served; None where nobody can.

    Attributes:
        port: the port bound. Of settings.grpc_port 0, with which a pool has no such front, start() binds any
            free one: a test's way to one.
    """

    def __init__(
        self,
        dataplane: Dataplane,
        settings: RouterSettings,
        metrics: Recorder,
        reloads: reload.Reload | None = None,
    ) -> None:
        self._dataplane = dataplane
        self._reload = reloads
        self._may_reload = settings.allow_reload
        self._any_labels = settings.allow_labels_for_unavailable
        self._metrics = metrics
        self._host = settings.host
        self._stopping = False
        self._health = health.Health(dataplane, _SERVICES)
        admit = self._admit_small
        methods = {**self._methods(), **self._health.methods(admit)}
        methods |= reflection.methods((*_SERVICES, health.SERVICE), admit)
        self._server = _Server(methods, dataplane.memory, settings.max_message_bytes, metrics)
        self._bound(settings)
        self._tls = settings.tls
        self.port = settings.grpc_port
        self._socket_path = settings.grpc_socket_path

    def configure(self, settings: RouterSettings) -> None:
        """Takes other limits, and certificates, while it serves."""
        self._server.max_message_bytes = settings.max_message_bytes
        self._bound(settings)
        self._may_reload = settings.allow_reload
        self._any_labels = settings.allow_labels_for_unavailable
        if settings.tls != self._tls:
            try:
                self._secure(settings.tls)
            except tls.TlsError as error:  # they were in order a moment ago
                logger.warning("the certificates are as before", key=f"tls.{error.key}", why=str(error))

    def _bound(self, settings: RouterSettings) -> None:
        self._server.timeout_ns = settings.grpc_timeout_ms * 1_000_000
        self._server.listener.max_connections = sockets.connections(settings.max_connections)

    def _secure(self, settings: TlsSettings | None) -> None:
        """Connections that there are go on as they are. Raises TlsError."""
        self._server.listener.tls = tls.server_context(tls.read(settings)) if settings else None
        self._tls = settings

    @property
    def listener(self) -> Listener:
        return self._server.listener

    async def start(self) -> None:
        """Binds and serves. Raises StartError naming the address, or the file, that cannot be had."""
        try:
            self._secure(self._tls)
        except tls.TlsError as error:
            raise StartError([Problem(f"tls.{error.key}", str(error))]) from error
        try:
            if self.port or not self._socket_path:
                self.port = await self._server.start(self._host, self.port)
        except OSError as error:
            raise StartError([sockets.cannot_bind("grpc_port", self._host, self.port, error)]) from error
        try:
            if self._socket_path:
                await self._server.start_at(self._socket_path)
        except OSError as error:
            raise StartError([Problem("grpc_socket_path", f"cannot listen there: {error}")]) from error

    async def quiesce(self, grace_s: float) -> None:
        """Refuses new calls, sends clients elsewhere, and gives running ones grace_s to finish."""
        self._stopping = True
        self._health.stop()
        await self._server.quiesce(grace_s)

    async def close(self) -> None:
        """Ends all connections, once what was answered is sent. What runs is UNAVAILABLE to its client."""
        self._stopping = True
        self._health.stop()
        await self._server.close()

    def _methods(self) -> dict[str, Method]:
        takes_models = Unary(self._reload_config, self._admit_small, max_bytes=SMALL_BYTES)
        mine = {f"/{tfs.MODEL_SERVICE}/{reload.METHOD}": takes_models}
        return {
            **(mine if self._reload is not None else {}),
            **{f"/{tfs.PREDICTION_SERVICE}/{method.api}": self._running(method) for method in tfs.LOG_FIELDS},
            f"/{tfs.PREDICTION_SERVICE}/GetModelMetadata": self._counted("GetModelMetadata", self._metadata),
            f"/{tfs.MODEL_SERVICE}/GetModelStatus": self._counted("GetModelStatus", self._model_status),
        }

    def _running(self, method: ModelMethod) -> Unary:
        """A call that runs a model."""
        asked, dataplane = Asked(method), self._dataplane

        def admit(size: int, start: bytes, head: Head) -> Admission:
            if self._stopping or dataplane.draining:
                self._metrics.answered(method.api, Code.UNAVAILABLE)
                raise shutting_down()
            return dataplane.admit(asked, size, start, head)

        async def run(body: bytes, call: Call, admission: Admission) -> bytes:
            return await dataplane.call(asked, body, call.deadline_ns, admission, call.head)

        return Unary(run, admit, timed=True)

    def _counted(self, method: str, answer: Callable[[bytes], Known]) -> Unary:
        """A call that only reads what is known, with its answers counted."""

        async def call(body: bytes, _call: Call, admission: Admission) -> bytes:
            admission.release()
            try:
                if self._stopping or self._dataplane.draining:
                    raise shutting_down()
                response, model, version = answer(body)
            except PoolError as error:
                self._metrics.answered(method, error.code)
                raise
            self._metrics.answered(method, Code.OK, model, version)
            return response

        def admit(size: int, start: bytes, head: object) -> Admission:
            try:
                return self._admit_small(size, start, head)
            except PoolError as error:
                self._metrics.answered(method, error.code)
                raise

        return Unary(call, admit, max_bytes=SMALL_BYTES)

    def _admit_small(self, size: int, _start: bytes, _head: object) -> Admission:
        """Of what is parsed here. Raises PoolError."""
        return self._dataplane.memory.admit(size)

    async def _reload_config(self, body: bytes, _call: Call, admission: Admission) -> bytes:
        admission.release()
        try:
            if self._stopping or self._dataplane.draining:
                raise shutting_down()
            assert self._reload is not None
            await self._reload(self._models(body))
        except PoolError as error:
            self._metrics.answered(reload.METHOD, error.code)
            raise
        self._metrics.answered(reload.METHOD, Code.OK)
        response = tfs.ReloadConfigResponse()
        response.status.SetInParent()  # present also when OK
        answer: bytes = response.SerializeToString()
        return answer

    def _models(self, body: bytes) -> list[reload.Model]:
        """That are to be served. Raises PoolError."""
        if not self._may_reload:
            text = (
                f"{reload.METHOD} is switched off here: allow_reload: true in the pool's file has it answered"
            )
            raise PoolError(Code.PERMISSION_DENIED, text)
        models = reload.models_of(_parse(tfs.ReloadConfigRequest, body))
        labelled = self._dataplane.labelled if self._any_labels else None
        reload.check_labels(models, self._is_available, labelled)
        return models

    def _is_available(self, name: str, number: int) -> bool:
        try:
            found = self._dataplane.status(name, number)
        except PoolError:
            return False
        return any(version.state is ModelVersionState.AVAILABLE for version in found)

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
        response = tfs.GetModelMetadataResponse(model_spec=describe(spec.name, version))
        field = response.metadata[tfs.SIGNATURE_DEF]
        field.type_url, field.value = _TYPE_URL, signatures
        return response.SerializeToString(), spec.name, version

    def _model_status(self, body: bytes) -> Known:
        """As TensorFlow Serving: a version label is ignored, an empty name is one that is not there."""
        request = _parse(tfs.GetModelStatusRequest, body)
        if not request.HasField("model_spec"):
            raise envelope.missing_spec()
        spec = request.model_spec
        response = statuses(self._dataplane.status(spec.name, _version(spec)))
        return response.SerializeToString(), spec.name, _version(spec)


def describe(name: str, version: int) -> Any:
    """The tfs.ModelSpec of a model version."""
    spec = tfs.ModelSpec(name=name)
    spec.version.value = version
    return spec


def statuses(versions: Sequence[VersionStatus]) -> Any:
    """The tfs.GetModelStatusResponse about these."""
    response = tfs.GetModelStatusResponse()
    for found in versions:
        line = response.model_version_status.add(version=found.version, state=found.state.value)
        line.status.error_code = found.code.value
        line.status.error_message = found.message
        line.status.SetInParent()  # present also when OK
    return response


class _Server(Server):
    """Counts what is answered without any of our methods."""

    def __init__(
        self, methods: Mapping[str, Method], memory: Memory, max_message_bytes: int, metrics: Recorder
    ) -> None:
        super().__init__(methods, memory, max_message_bytes)
        self._metrics = metrics
        self._known = {
            f"/{service}/{method}": method for service in _SERVICES for method in tfs.methods(service)
        }

    def unknown(self, path: str) -> PoolError:
        self._count(path, Code.UNIMPLEMENTED)
        return super().unknown(path)

    def too_large(self, path: str, sizes: str) -> PoolError:
        self._count(path, Code.RESOURCE_EXHAUSTED)
        return super().too_large(path, sizes)

    def too_late(self, path: str, *, timed: bool) -> None:
        self._count(path, Code.DEADLINE_EXCEEDED)
        if timed:
            self._metrics.lacked("", 0, Lack.TIME)

    def keep(self, admission: Admission | None, size: int) -> None:
        try:
            super().keep(admission, size)
        except PoolError:
            self._metrics.unkept((admission and admission.model) or "")
            raise

    def gave_way(self, path: str, model: str | None) -> None:
        self._count(path, Code.RESOURCE_EXHAUSTED)
        self._metrics.unkept(model or "", Lack.BYTES)

    def failed(self, path: str) -> PoolError:
        self._count(path, Code.INTERNAL)
        return super().failed(path)

    def _count(self, path: str, code: Code) -> None:
        """Under an empty name where it is nobody's: what a client invents makes no series."""
        self._metrics.answered(self._known.get(path, ""), code)


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
