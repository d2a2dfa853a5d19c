"""HTTP: TensorFlow Serving's REST API and page of metrics; /healthz, /readyz and /metrics for those who operate the pool."""

from __future__ import annotations

from typing import Protocol

from aiohttp import web

from mpspool.core import log
from mpspool.core.errors import Code, StartError
from mpspool.core.settings import RouterSettings
from mpspool.router.fronts import openapi, sockets
from mpspool.router.fronts.rest_api import Recorder, RestApi, error_document
from mpspool.router.fronts.rest_listener import IDLE_S, LINE_BYTES, Handler, RestListener
from mpspool.router.fronts.tfs_grpc import Dataplane

logger = log.get("rest")

# What is unanswered when the order to end comes: whoever stops the pool has drained us before.
LAST_CALLS_S = 1.0
# Of a body that nobody reads yet it is no more than twice as much, and what one read of its socket brings: nobody counts it.
_READ_AHEAD_BYTES = 2**17


class Exposition(Recorder, Protocol):
    """What counts answers, and renders the metrics."""

    async def measure(self) -> None: ...

    def monitoring(self) -> tuple[bytes, str]:
        """TensorFlow Serving's page and ours after it: text and content type."""

    def exposition(self, accept: str) -> tuple[bytes, str]:
        """Text and content type, for an Accept header."""


class RestFront:
    """An HTTP server on settings.host and settings.rest_port.

    Attributes:
        port: the port bound, which start() chooses where settings.rest_port is 0.
        listener: its connections.
    """

    def __init__(self, dataplane: Dataplane, settings: RouterSettings, metrics: Exposition) -> None:
        self._dataplane = dataplane
        self._metrics = metrics
        self._host = settings.host
        self._monitoring_path = settings.monitoring_path
        self.listener = RestListener(sockets.connections(settings.max_connections))
        self._api = RestApi(dataplane, settings, metrics, self.listener.give_up, self.listener.admitted)
        self._runner = web.AppRunner(
            self._app(),
            access_log=None,
            auto_decompress=False,  # it would, to any size
            handler_cancellation=True,  # a client that has gone waits for nothing
            shutdown_timeout=LAST_CALLS_S,
            keepalive_timeout=IDLE_S,
            max_line_size=LINE_BYTES,
            max_field_size=LINE_BYTES,
            read_bufsize=_READ_AHEAD_BYTES,
            logger=self.listener.aiohttp_logger,
        )
        self.port = settings.rest_port

    def configure(self, settings: RouterSettings) -> None:
        """Takes other limits, and another path for TensorFlow Serving's metrics, while it serves."""
        self._monitoring_path = settings.monitoring_path
        self.listener.max_connections = sockets.connections(settings.max_connections)
        self._api.configure(settings)

    async def start(self) -> None:
        """Binds and serves. Raises StartError naming the address where it cannot be had."""
        await self._runner.setup()
        server = self._runner.server
        assert server is not None
        try:
            self.port = await self.listener.start(server, self._host, self.port)
        except OSError as error:
            await self._runner.cleanup()
            raise StartError([sockets.cannot_bind("rest_port", self._host, self.port, error)]) from error

    async def close(self) -> None:
        """Closes the port and ends all connections, once what runs is answered."""
        self.listener.close()
        await self._runner.cleanup()

    def _app(self) -> web.Application:
        app = web.Application(middlewares=[self.listener.watch, self._monitoring, self._errors_as_json])
        app.router.add_get("/healthz", self._healthz)
        app.router.add_get("/readyz", self._readyz)
        app.router.add_get("/metrics", self._render_metrics)
        app.router.add_get(openapi.PATH, self._openapi)
        app.router.add_route("*", "/{v:[vV]}1/{call:.*}", self._api.answer, expect_handler=_when_admitted)
        return app

    async def _healthz(self, _request: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def _readyz(self, _request: web.Request) -> web.Response:
        reason = self._dataplane.unready()
        return web.Response(status=503, text=f"{reason}\n") if reason else web.Response(text="ok\n")

    async def _openapi(self, _request: web.Request) -> web.Response:
        return web.json_response(openapi.document())

    async def _render_metrics(self, request: web.Request) -> web.Response:
        await self._metrics.measure()
        body, content_type = self._metrics.exposition(request.headers.get("Accept", ""))
        return web.Response(body=body, headers={"Content-Type": content_type})

    @web.middleware
    async def _monitoring(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Answers at a path that can change, and may be that of our own metrics."""
        if request.path != self._monitoring_path or request.method not in ("GET", "HEAD"):
            return await handler(request)
        await self._metrics.measure()
        body, content_type = self._metrics.monitoring()
        return web.Response(body=body, headers={"Content-Type": content_type})

    @web.middleware
    async def _errors_as_json(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            return await handler(request)
        except web.HTTPMethodNotAllowed as error:
            allowed = ", ".join(sorted(error.allowed_methods))
            text = f"{request.path} does not take {request.method}, only {allowed}"
            return error_document(405, text, {"Allow": allowed})
        except web.HTTPNotFound:
            pages = ["/v1/models", "/openapi.json", "/healthz", "/readyz", self._monitoring_path]
            text = f"There is no {request.path} here; there are {', '.join(filter(None, pages))} and /metrics"
            return error_document(404, text)
        except web.HTTPException as error:
            return error_document(error.status, error.reason)
        except Exception:
            self._metrics.answered("", Code.INTERNAL)
            self._metrics.looked_up("", Code.INTERNAL, 0.0)
            logger.exception("request failed", path=request.path)
            return error_document(500, "The request failed inside the server")


async def _when_admitted(_request: web.Request) -> None:
    """What asks whether its body may come is told so by RestApi."""
