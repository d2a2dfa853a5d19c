"""The fronts over real sockets, with stock clients; what lies behind them is a fake data plane."""

from __future__ import annotations

import asyncio
import contextlib
import json
import resource
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, TypeVar

import grpc
import pytest
import uvloop
from google.protobuf.descriptor_pool import DescriptorPool
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

from mpspool import client
from mpspool.core import tfs
from mpspool.core.errors import Code, PoolError, StartError
from mpspool.core.settings import RouterSettings
from mpspool.router.fronts.rest import RestFront
from mpspool.router.fronts.tfs_grpc import GrpcFront
from mpspool.router.metrics.exposition import Metrics
from tests.fakes.dataplane import SIGNATURES, FakeDataplane
from tests.polling import until

T = TypeVar("T")
PREDICT = f"/{tfs.PREDICTION_SERVICE}/Predict"
METADATA = f"/{tfs.PREDICTION_SERVICE}/GetModelMetadata"
STATUS = f"/{tfs.MODEL_SERVICE}/GetModelStatus"
SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


class Fronts:
    """Both fronts on free ports of 127.0.0.1, on the event loop of a thread."""

    def __init__(self, host: str = "127.0.0.1", **limits: Any) -> None:
        settings = RouterSettings(run_dir="", host=host, grpc_port=0, rest_port=0, **limits)
        self.loop = uvloop.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever)
        self._thread.start()
        self.run(self._start(settings))
        self.channel = grpc.insecure_channel(
            f"127.0.0.1:{self.grpc.port}",
            options=[("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)],
        )

    async def _start(self, settings: RouterSettings) -> None:
        self.dataplane = FakeDataplane()
        self.metrics = Metrics(settings)
        self.metrics.observe(self.dataplane)
        self.grpc = GrpcFront(self.dataplane, settings, self.metrics)
        self.rest = RestFront(self.dataplane, settings, self.metrics)
        self.metrics.observe_connections("grpc", self.grpc.listener)
        self.metrics.observe_connections("http", self.rest.listener)
        await self.grpc.start()
        await self.rest.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(30)

    def call(self, path: str, body: bytes, timeout_s: float | None = 10) -> bytes:
        return self.channel.unary_unary(path)(body, timeout=timeout_s)

    def start_call(self, body: bytes, timeout_s: float | None = 10) -> Any:
        return self.channel.unary_unary(PREDICT).future(body, timeout=timeout_s)

    def get(self, path: str, method: str = "GET", **headers: str) -> tuple[int, str, Any]:
        """(status, body, headers)."""
        url = f"http://127.0.0.1:{self.rest.port}{path}"
        request = urllib.request.Request(url, method=method, headers=headers)
        with contextlib.ExitStack() as stack:
            try:
                response = stack.enter_context(urllib.request.urlopen(request, timeout=10))
            except urllib.error.HTTPError as error:
                response = stack.enter_context(error)
            return response.status, response.read().decode(), response.headers

    def ready(self, reason: str) -> None:
        """Changes the answer of unready() and says so."""

        async def change() -> None:
            self.dataplane.reason = reason
            self.dataplane.tell()

        self.run(change())

    def close(self) -> None:
        self.channel.close()
        self.run(self.grpc.close())
        self.run(self.rest.close())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()


@pytest.fixture
def fronts() -> Iterator[Fronts]:
    started = Fronts()
    yield started
    started.close()


def refusals(fronts: Fronts, reason: str) -> int:
    """As is counted of no model."""
    told = f'mpspool_refusals_total{{model="",reason="{reason}",version=""}} '
    return int(
        sum(float(line.rpartition(" ")[2]) for line in fronts.get("/metrics")[1].splitlines() if told in line)
    )


def refused(work: Callable[[], object]) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.RpcError) as caught:
        work()
    return caught.value.code(), caught.value.details()


def spec_request(kind: Any, name: str, version: int | None = None, **fields: Any) -> bytes:
    request = kind(**fields)
    request.model_spec.name = name
    if version is not None:
        request.model_spec.version.value = version
    return bytes(request.SerializeToString())


# -- Predict ----------------------------------------------------------------------------------------


def test_predict_carries_bytes_both_ways(fronts: Fronts) -> None:
    """What the client sends reaches the data plane unchanged, and its answer the client."""
    for body in (b"", b"\x00\xff garbage", bytes(range(256)) * 4096):
        assert fronts.call(PREDICT, body) == body


def test_a_large_message_passes_the_default_limit(fronts: Fronts) -> None:
    """2 GiB - 1 works as the limit: 64 MiB go through both ways."""
    body = bytes(64 * 2**20)
    assert fronts.call(PREDICT, body, timeout_s=60) == body


def test_a_message_over_the_limit_is_refused() -> None:
    """One byte over the configured limit is RESOURCE_EXHAUSTED, the limit itself passes."""
    fronts = Fronts(max_message_bytes=1000)
    try:
        assert len(fronts.call(PREDICT, bytes(1000))) == 1000
        code, text = refused(lambda: fronts.call(PREDICT, bytes(1001)))
        assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "1001" in text
        assert "1000" in text
        assert len(fronts.dataplane.deadlines) == 1
    finally:
        fronts.close()


def test_a_connection_too_many_is_closed() -> None:
    """It is UNAVAILABLE to its client; those that there are and ask something go on."""
    fronts = Fronts(max_connections=1)
    try:
        assert fronts.call(PREDICT, b"first") == b"first"
        waits = fronts.start_call(b"wait")
        until(lambda: fronts.dataplane.waiting == 1)
        with grpc.insecure_channel(
            f"127.0.0.1:{fronts.grpc.port}", options=[("grpc.use_local_subchannel_pool", 1)]
        ) as other:
            code, _ = refused(lambda: other.unary_unary(PREDICT)(b"second", timeout=5))
        assert code is grpc.StatusCode.UNAVAILABLE
        assert fronts.call(PREDICT, b"again") == b"again"
        waits.cancel()
    finally:
        fronts.close()


def test_a_client_whose_connection_made_way_notices_nothing() -> None:
    """It was told that it ends, and connects anew with its next call."""
    fronts = Fronts(max_connections=1)
    try:
        for body in (b"first", b"second", b"third"):
            assert fronts.call(PREDICT, body) == body
            with grpc.insecure_channel(
                f"127.0.0.1:{fronts.grpc.port}", options=[("grpc.use_local_subchannel_pool", 1)]
            ) as other:
                assert other.unary_unary(PREDICT)(body, timeout=5) == body
    finally:
        fronts.close()


def test_the_deadline_reaches_the_data_plane(fronts: Fronts) -> None:
    """A client's timeout arrives as CLOCK_MONOTONIC; none, and one of decades, arrive as 0."""
    fronts.call(PREDICT, b"x", timeout_s=50)
    left_s = (fronts.dataplane.deadlines[-1] - time.monotonic_ns()) / 1e9
    assert 30 < left_s < 51  # gRPC rounds up what it sends
    fronts.call(PREDICT, b"x", timeout_s=None)
    assert fronts.dataplane.deadlines[-1] == 0
    fronts.call(PREDICT, b"x", timeout_s=1e9)
    assert fronts.dataplane.deadlines[-1] == 0


def test_a_call_without_a_deadline_has_the_one_of_the_pool() -> None:
    """What runs a model is ended by it; a client's own, longer or shorter, goes before it, and what runs none has no other."""
    with contextlib.closing(Fronts(grpc_timeout_ms=500)) as fronts:
        call = fronts.start_call(b"wait", timeout_s=None)
        assert call.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        until(lambda: fronts.dataplane.cancelled == 1)
        fronts.call(PREDICT, b"x", timeout_s=50)
        assert fronts.dataplane.deadlines[-1] - time.monotonic_ns() > 4e10
        watch = health_pb2_grpc.HealthStub(fronts.channel).Watch(health_pb2.HealthCheckRequest())
        next(watch)
        began_s = time.monotonic()
        until(lambda: time.monotonic() - began_s > 1)
        fronts.ready("not any more")
        assert next(watch).status == health_pb2.HealthCheckResponse.NOT_SERVING
        unset = RouterSettings(run_dir="", host="127.0.0.1", grpc_port=0, rest_port=0)
        fronts.loop.call_soon_threadsafe(fronts.grpc.configure, unset)
        fronts.get("/healthz")
        fronts.call(PREDICT, b"x", timeout_s=None)
        assert fronts.dataplane.deadlines[-1] == 0


def test_an_expired_deadline_ends_the_call(fronts: Fronts) -> None:
    """The client is told DEADLINE_EXCEEDED, and what still ran is cancelled."""
    fronts.call(PREDICT, b"connects")  # where that takes longer than the deadline, nothing is sent
    code, _ = refused(lambda: fronts.call(PREDICT, b"wait", timeout_s=3))
    assert code is grpc.StatusCode.DEADLINE_EXCEEDED
    until(lambda: fronts.dataplane.cancelled == 1 and fronts.dataplane.waiting == 0)


def test_a_cancelled_call_is_cancelled_in_the_data_plane(fronts: Fronts) -> None:
    """The client's cancel reaches the task that waits in the data plane, also without a deadline."""
    call = fronts.start_call(b"wait", timeout_s=None)
    until(lambda: fronts.dataplane.waiting == 1)
    call.cancel()
    until(lambda: fronts.dataplane.cancelled == 1)


def test_a_lost_connection_cancels_too(fronts: Fronts) -> None:
    """A client that goes away takes its requests with it."""
    call = fronts.start_call(b"wait", timeout_s=None)
    until(lambda: fronts.dataplane.waiting == 1)
    fronts.channel.close()
    until(lambda: fronts.dataplane.cancelled == 1)
    until(call.done)


@pytest.mark.parametrize("text", ["plain", "größer als 0", "x" * 1024])
def test_a_pool_error_arrives_as_it_is(fronts: Fronts, text: str) -> None:
    """Code and text of a PoolError are what the client reads."""
    body = b"refuse:" + text.encode()
    assert refused(lambda: fronts.call(PREDICT, body)) == (grpc.StatusCode.RESOURCE_EXHAUSTED, text)


def test_a_long_text_is_cut(fronts: Fronts) -> None:
    """More than 1024 bytes end as TensorFlow Serving ends them."""
    _, text = refused(lambda: fronts.call(PREDICT, b"refuse:" + b"x" * 5000))
    assert text == "x" * 1024 + "...TRUNCATED"


def test_a_long_text_that_is_not_ascii_arrives_every_time(fronts: Fronts) -> None:
    """Nine bytes a character in grpc-message: past 8 KiB of headers the client would say now and then that they are too many."""
    for _ in range(50):
        _, text = refused(lambda: fronts.call(PREDICT, b"refuse:" + "\u6a21".encode() * 2000))
        assert text == "\u6a21" * 341 + "...TRUNCATED"


def test_a_text_that_is_no_unicode_still_arrives(fronts: Fronts) -> None:
    """Bytes of a client that found their way into a text do not break the answer."""
    code, text = refused(lambda: fronts.call(PREDICT, b"refuse:bad \xff name"))
    assert (code, text) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "bad ? name")


def test_an_unexpected_error_shows_nothing_of_the_inside(
    fronts: Fronts, capfd: pytest.CaptureFixture[str]
) -> None:
    """It is INTERNAL to the client, a traceback in the log, and a count in the metrics."""
    code, text = refused(lambda: fronts.call(PREDICT, b"break"))
    assert code is grpc.StatusCode.INTERNAL
    assert "secret" not in text
    assert "ZeroDivision" not in text
    captured = capfd.readouterr()
    assert "a secret of the server" in captured.out + captured.err
    assert 'code="INTERNAL",method="Predict"' in fronts.get("/metrics")[1]


def test_many_calls_at_once(fronts: Fronts) -> None:
    """Three hundred calls over one connection each get their own answer."""
    calls = [fronts.start_call(str(index).encode()) for index in range(300)]
    assert [call.result() for call in calls] == [str(index).encode() for index in range(300)]


# -- the small calls --------------------------------------------------------------------------------


def test_metadata_is_tensorflow_servings(fronts: Fronts) -> None:
    """Name, version, and the signatures as an Any of SignatureDefMap."""
    body = spec_request(tfs.GetModelMetadataRequest, "half", metadata_field=["signature_def"])
    response = tfs.GetModelMetadataResponse.FromString(fronts.call(METADATA, body))
    assert (response.model_spec.name, response.model_spec.version.value) == ("half", 3)
    assert list(response.metadata) == ["signature_def"]
    field = response.metadata["signature_def"]
    assert field.type_url == "type.googleapis.com/tensorflow.serving.SignatureDefMap"
    assert tfs.SignatureDefMap.FromString(field.value) == SIGNATURES


def label_request() -> bytes:
    request = tfs.GetModelMetadataRequest(metadata_field=["signature_def"])
    request.model_spec.name = "half"
    request.model_spec.version_label = "canary"
    return bytes(request.SerializeToString())


METADATA_ERRORS = {
    "no model_spec": (b"", "INVALID_ARGUMENT", "Missing ModelSpec"),
    "no field": (
        spec_request(tfs.GetModelMetadataRequest, ""),
        "INVALID_ARGUMENT",
        "GetModelMetadataRequest must specify at least one metadata_field",
    ),
    "unknown field": (
        spec_request(tfs.GetModelMetadataRequest, "", metadata_field=["signature_def", "weights"]),
        "INVALID_ARGUMENT",
        "Metadata field weights is not supported",
    ),
    "no name": (
        spec_request(tfs.GetModelMetadataRequest, "", metadata_field=["signature_def"]),
        "INVALID_ARGUMENT",
        "ModelSpec has no name specified.",
    ),
    "unknown model": (
        spec_request(tfs.GetModelMetadataRequest, "third", metadata_field=["signature_def"]),
        "NOT_FOUND",
        "Servable not found for request: Latest(third)",
    ),
    "unknown label": (label_request(), "INVALID_ARGUMENT", "Unrecognized servable version label: canary"),
}


@pytest.mark.parametrize("case", METADATA_ERRORS)
def test_metadata_errors_are_tensorflow_servings(fronts: Fronts, case: str) -> None:
    """Codes and texts, each checked before the next in TensorFlow Serving's order."""
    body, code, text = METADATA_ERRORS[case]
    assert refused(lambda: fronts.call(METADATA, body)) == (grpc.StatusCode[code], text)


def test_status_lists_every_version(fronts: Fronts) -> None:
    """In the order of the data plane, with TensorFlow Serving's state numbers, each with a status, OK or not."""
    body = spec_request(tfs.GetModelStatusRequest, "half")
    lines = tfs.GetModelStatusResponse.FromString(fronts.call(STATUS, body)).model_version_status
    found = [(line.version, line.state, line.status.error_code, line.status.error_message) for line in lines]
    assert found == [(3, 30, 0, ""), (4, 50, 2, "no such file")]
    assert all(line.HasField("status") for line in lines)


def test_status_of_one_version(fronts: Fronts) -> None:
    """A version in the spec restricts the answer to it."""
    body = spec_request(tfs.GetModelStatusRequest, "half", version=4)
    lines = tfs.GetModelStatusResponse.FromString(fronts.call(STATUS, body)).model_version_status
    assert [line.version for line in lines] == [4]


def test_status_errors(fronts: Fronts) -> None:
    """No model_spec, and a name that is not there (the empty one is such a name)."""
    missing = (grpc.StatusCode.INVALID_ARGUMENT, "Missing ModelSpec")
    assert refused(lambda: fronts.call(STATUS, b"")) == missing
    body = spec_request(tfs.GetModelStatusRequest, "")
    unknown = (grpc.StatusCode.NOT_FOUND, "Could not find any versions of model ")
    assert refused(lambda: fronts.call(STATUS, body)) == unknown


@pytest.mark.parametrize("path", [METADATA, STATUS])
def test_garbage_is_the_clients_error(fronts: Fronts, path: str) -> None:
    """Bytes that are no request are INVALID_ARGUMENT."""
    assert refused(lambda: fronts.call(path, b"\xff\xff\xff"))[0] is grpc.StatusCode.INVALID_ARGUMENT


UNSERVED = [
    f"/{tfs.MODEL_SERVICE}/HandleReloadConfigRequest",
    f"/{tfs.PREDICTION_SERVICE}/NoSuchMethod",
    "/tensorflow.serving.SessionService/SessionRun",
]


@pytest.mark.parametrize("path", UNSERVED)
def test_other_methods_are_unimplemented(fronts: Fronts, path: str) -> None:
    """They are refused by name, whatever body they carry."""
    code, text = refused(lambda: fronts.call(path, bytes(100_000)))
    assert code is grpc.StatusCode.UNIMPLEMENTED
    assert path in text


def test_unknown_methods_make_no_series(fronts: Fronts) -> None:
    """A method of nobody's is counted under an empty name."""
    refused(lambda: fronts.call("/invented.Service/Method", b""))
    refused(lambda: fronts.call(UNSERVED[0], b""))
    text = fronts.get("/metrics")[1]
    assert "invented" not in text
    assert 'code="UNIMPLEMENTED",method="",' in text
    assert 'code="UNIMPLEMENTED",method="HandleReloadConfigRequest",' in text


def test_the_small_calls_count_for_their_model(fronts: Fronts) -> None:
    """One that exists is a label, with the version that was meant; an invented one is not."""
    for name in ("half", "invented"):
        for path, kind in ((METADATA, tfs.GetModelMetadataRequest), (STATUS, tfs.GetModelStatusRequest)):
            fields = {"metadata_field": ["signature_def"]} if path == METADATA else {}
            with contextlib.suppress(grpc.RpcError):
                fronts.call(path, spec_request(kind, name, **fields))
    text = fronts.get("/metrics")[1]
    assert 'code="OK",method="GetModelMetadata",model="half",version="3"} 1.0' in text
    assert 'code="OK",method="GetModelStatus",model="half",version=""} 1.0' in text
    assert 'code="NOT_FOUND",method="GetModelMetadata",model="",version=""} 1.0' in text
    assert "invented" not in text


def test_a_refused_shape_is_explained_by_the_client(fronts: Fronts, monkeypatch: pytest.MonkeyPatch) -> None:
    """`mpspool predict` sends any shape; where the server refuses it, the signature's is told as well."""
    signatures = tfs.SignatureDefMap()
    info = signatures.signature_def[tfs.DEFAULT_SIGNATURE].inputs["x"]
    info.dtype = tfs.DATA_TYPES_BY_NAME["DT_FLOAT"].number
    info.tensor_shape.dim.add(size=-1)
    monkeypatch.setattr(fronts.dataplane, "metadata", lambda *_: (3, signatures.SerializeToString()))

    async def refuse(*_: object) -> bytes:
        raise PoolError(Code.INVALID_ARGUMENT, "In[0] is not a matrix")

    monkeypatch.setattr(fronts.dataplane, "call", refuse)

    def told(document: object) -> str:
        with pytest.raises(client.CallError) as caught:
            client.predict(
                f"127.0.0.1:{fronts.grpc.port}", "half", document, signature="", version=None, timeout_s=10
            )
        return str(caught.value)

    refusal = "INVALID_ARGUMENT: In[0] is not a matrix"
    assert told([1]) == refusal
    assert (
        told(1) == f'{refusal}\nInput "x": the shape is [], but the model takes [any]. Put it in 1 more [ ].'
    )


# -- health and reflection --------------------------------------------------------------------------


@pytest.mark.parametrize("service", ["", tfs.PREDICTION_SERVICE, tfs.MODEL_SERVICE])
def test_health_check_follows_readiness(fronts: Fronts, service: str) -> None:
    """The whole and each service are SERVING exactly while the pool is ready."""
    stub = health_pb2_grpc.HealthStub(fronts.channel)
    request = health_pb2.HealthCheckRequest(service=service)
    assert stub.Check(request).status == SERVING
    fronts.ready("no model is loaded yet")
    until(lambda: stub.Check(request).status == NOT_SERVING)
    fronts.ready("")
    until(lambda: stub.Check(request).status == SERVING)


def test_health_of_an_unknown_service(fronts: Fronts) -> None:
    """It is NOT_FOUND, as the health protocol has it."""
    stub = health_pb2_grpc.HealthStub(fronts.channel)
    code, _ = refused(lambda: stub.Check(health_pb2.HealthCheckRequest(service="no.Such")))
    assert code is grpc.StatusCode.NOT_FOUND


def test_health_watch_is_told_of_changes(fronts: Fronts) -> None:
    """A watcher hears the present state and every change."""
    watch = health_pb2_grpc.HealthStub(fronts.channel).Watch(health_pb2.HealthCheckRequest(), timeout=20)
    assert next(watch).status == SERVING
    fronts.ready("not AVAILABLE: half")
    assert next(watch).status == NOT_SERVING
    fronts.ready("")
    assert next(watch).status == SERVING
    watch.cancel()


def test_reflection_describes_what_is_served(fronts: Fronts) -> None:
    """A reflection client lists the services and can build a request from their files alone."""
    database = ProtoReflectionDescriptorDatabase(fronts.channel)
    assert set(database.get_services()) == {
        tfs.PREDICTION_SERVICE,
        tfs.MODEL_SERVICE,
        "grpc.health.v1.Health",
        "grpc.reflection.v1.ServerReflection",
        "grpc.reflection.v1alpha.ServerReflection",
    }
    file = database.FindFileByName("tensorflow_serving/apis/predict.proto")
    assert file.package == "tensorflow.serving"
    pool = DescriptorPool(database)
    service = pool.FindServiceByName(tfs.PREDICTION_SERVICE)
    assert "Predict" in service.methods_by_name
    tensor = service.methods_by_name["Predict"].input_type.fields_by_name["inputs"].message_type
    assert tensor.fields_by_name["value"].message_type.full_name == "tensorflow.TensorProto"
    assert pool.FindServiceByName("grpc.health.v1.Health").methods_by_name["Watch"]
    for package in ("grpc.reflection.v1", "grpc.reflection.v1alpha"):
        method = pool.FindServiceByName(f"{package}.ServerReflection").methods_by_name["ServerReflectionInfo"]
        assert method.output_type.full_name == f"{package}.ServerReflectionResponse"
        path = f"/{package}.ServerReflection/ServerReflectionInfo"
        request = reflection_pb2.ServerReflectionRequest(list_services="").SerializeToString()
        (answer,) = fronts.channel.stream_stream(path)(iter([request]), timeout=10)
        assert package.encode() in answer


# -- start and stop ---------------------------------------------------------------------------------


def test_while_draining_new_calls_are_unavailable(fronts: Fronts) -> None:
    """Predict and the small calls alike; a call that runs already is not touched."""
    running = fronts.start_call(b"wait")
    until(lambda: fronts.dataplane.waiting == 1)
    fronts.dataplane.draining = True
    for path in (PREDICT, METADATA, STATUS):
        code, text = refused(lambda path=path: fronts.call(path, b"x"))
        assert code is grpc.StatusCode.UNAVAILABLE
        assert "shutting down" in text
    fronts.loop.call_soon_threadsafe(fronts.dataplane.release.set)
    assert running.result() == b"wait"


def test_quiescing_lets_running_calls_finish(fronts: Fronts) -> None:
    """New calls are UNAVAILABLE from the order on, and the running one is answered."""
    running = fronts.start_call(b"wait")
    until(lambda: fronts.dataplane.waiting == 1)
    quiet = asyncio.run_coroutine_threadsafe(fronts.grpc.quiesce(20), fronts.loop)
    stub = health_pb2_grpc.HealthStub(fronts.channel)
    until(lambda: stub.Check(health_pb2.HealthCheckRequest()).status == NOT_SERVING)
    assert refused(lambda: fronts.call(PREDICT, b"x"))[0] is grpc.StatusCode.UNAVAILABLE
    fronts.loop.call_soon_threadsafe(fronts.dataplane.release.set)
    assert running.result() == b"wait"
    quiet.result(10)
    assert refused(lambda: fronts.call(PREDICT, b"x"))[0] is grpc.StatusCode.UNAVAILABLE


def test_quiescing_does_not_wait_for_watchers(fronts: Fronts) -> None:
    """An open health watch hears NOT_SERVING and does not hold the end for its grace time."""
    watch = health_pb2_grpc.HealthStub(fronts.channel).Watch(health_pb2.HealthCheckRequest())
    assert next(watch).status == SERVING
    start = time.monotonic()
    fronts.run(fronts.grpc.quiesce(25))
    assert time.monotonic() - start < 20
    assert next(watch).status == NOT_SERVING


def test_quiescing_gives_up_after_the_grace_time(fronts: Fronts) -> None:
    """A call that does not finish in time holds the end no longer, and is cancelled by it."""
    running = fronts.start_call(b"wait")
    until(lambda: fronts.dataplane.waiting == 1)
    fronts.run(fronts.grpc.quiesce(0.1))
    assert not running.done()
    fronts.run(fronts.grpc.close())
    until(lambda: fronts.dataplane.cancelled == 1)
    assert running.exception() is not None


def test_a_port_that_is_taken_is_a_start_error(fronts: Fronts) -> None:
    """A second pool on the same ports is refused, with the port named."""
    settings = RouterSettings(
        run_dir="", host="127.0.0.1", grpc_port=fronts.grpc.port, rest_port=fronts.rest.port
    )

    async def start(front: type[GrpcFront | RestFront]) -> None:
        second = front(FakeDataplane(), settings, Metrics(settings))
        try:
            await second.start()
        finally:
            await second.close()

    with pytest.raises(StartError, match=f"grpc_port: .*:{fronts.grpc.port}"):
        fronts.run(start(GrpcFront))
    with pytest.raises(StartError, match=f"rest_port: .*:{fronts.rest.port}"):
        fronts.run(start(RestFront))


# -- HTTP -------------------------------------------------------------------------------------------


def test_healthz_is_about_life_only(fronts: Fronts) -> None:
    """It answers 200 also while nothing is ready."""
    fronts.ready("no model is loaded yet")
    assert fronts.get("/healthz")[:2] == (200, "ok\n")


def test_readyz_says_why_not(fronts: Fronts) -> None:
    """200, or 503 with the reason as text."""
    assert fronts.get("/readyz")[0] == 200
    fronts.ready("not AVAILABLE: half")
    assert fronts.get("/readyz")[:2] == (503, "not AVAILABLE: half\n")


def test_metrics_are_served_in_both_formats(fronts: Fronts) -> None:
    """Prometheus text by default, OpenMetrics where it is asked for, both with the snapshot in them."""
    _, text, headers = fronts.get("/metrics")
    assert headers["Content-Type"].startswith("text/plain; version=")
    assert 'mpspool_queued_requests{model="half",version="3"} 7.0' in text
    _, text, headers = fronts.get("/metrics", Accept="application/openmetrics-text; version=1.0.0")
    assert headers["Content-Type"].startswith("application/openmetrics-text")
    assert text.endswith("# EOF\n")


def test_tensorflow_serving_s_metrics_are_at_its_path(fronts: Fronts) -> None:
    """As text whatever is asked for, with ours after them; the path can change, be that of ours, or be none."""
    path = "/monitoring/prometheus/metrics"
    status, text, headers = fronts.get(path, Accept="application/openmetrics-text; version=1.0.0")
    assert status == 200
    assert headers["Content-Type"].startswith("text/plain; version=")
    assert text.startswith("# HELP :tensorflow:")
    assert 'mpspool_queued_requests{model="half",version="3"} 7.0' in text
    assert fronts.get(path, "HEAD")[:2] == (200, "")
    assert fronts.get(path, "POST")[0] == 404
    assert ":tensorflow:" not in fronts.get("/metrics")[1]
    for changed, found in (("/metrics", "/metrics"), ("/a/b", "/a/b"), ("", "")):
        settings = RouterSettings(run_dir="", host="", grpc_port=0, rest_port=0, monitoring_path=changed)
        fronts.loop.call_soon_threadsafe(fronts.rest.configure, settings)
        until(lambda: (":tensorflow:" in fronts.get("/metrics")[1]) == (changed == "/metrics"))  # noqa: B023
        shown = [one for one in ("/metrics", "/a/b", path) if ":tensorflow:" in fronts.get(one)[1]]
        assert shown == [found] * bool(found)
    assert fronts.get("/healthz")[:2] == (200, "ok\n")


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/nothing", 404),
        ("POST", "/healthz", 405),
        ("POST", "/v1/models/half", 400),
        ("GET", "/v1/models/nobody", 404),
    ],
)
def test_http_errors_are_json(fronts: Fronts, method: str, path: str, status: int) -> None:
    """Every error is an object with its text under "error"."""
    found, body, headers = fronts.get(path, method)
    assert found == status
    assert headers["Content-Type"].startswith("application/json")
    assert list(json.loads(body)) == ["error"]
    assert (headers["Allow"] == "GET, HEAD") == (status == 405)


@pytest.mark.parametrize("path", [METADATA, STATUS, "/grpc.health.v1.Health/Check"])
def test_what_runs_no_model_is_small(fronts: Fronts, path: str) -> None:
    """It is parsed where all others wait for it: a large one is refused by its size, or where it is inflated so far."""
    body = tfs.GetModelMetadataRequest(metadata_field=[tfs.SIGNATURE_DEF] * 100_000).SerializeToString()
    found = {
        grpc.Compression.NoCompression: f"{len(body)} vs. {2**20}",
        grpc.Compression.Gzip: f"more than {2**20} bytes when inflated",
    }
    for compression, sizes in found.items():
        with pytest.raises(grpc.RpcError) as raised:
            fronts.channel.unary_unary(path)(body, timeout=10, compression=compression)
        assert raised.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert raised.value.details() == f"SERVER: Received message larger than max ({sizes})"


def test_connections_are_no_more_than_files_allow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of both fronts, from the start on and when another number is wanted."""
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1024, 1024))
    fronts = Fronts()
    try:
        found = [front.listener.max_connections for front in (fronts.grpc, fronts.rest)]
        for wanted in (20_000, 50):
            settings = RouterSettings(run_dir="", host="", grpc_port=0, rest_port=0, max_connections=wanted)
            for front in (fronts.grpc, fronts.rest):
                fronts.loop.call_soon_threadsafe(front.configure, settings)
            fronts.run(asyncio.sleep(0))
            found += [front.listener.max_connections for front in (fronts.grpc, fronts.rest)]
    finally:
        fronts.close()
    assert found == [384] * 4 + [50] * 2
