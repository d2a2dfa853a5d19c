"""A web server on loopback that shows a folder, and fails as it is told to."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import http.server
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast


class WebServer(http.server.ThreadingHTTPServer):
    """Of one folder.

    Attributes:
        cut: paths of which only half is sent, before the connection is closed.
        missing: paths that are listed and cannot be had.
        wrong: paths whose MD5 is said to be another.
        on_get: called with each path before it is answered.
        got: the paths of all GETs.
    """

    daemon_threads = True

    def __init__(self, root: Path) -> None:
        self.root = root
        self.cut: set[str] = set()
        self.missing: set[str] = set()
        self.wrong: set[str] = set()
        self.on_get: Callable[[str], None] = lambda _path: None
        self.got: list[str] = []
        super().__init__(("127.0.0.1", 0), _Handler)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def handle_error(self, *_: object) -> None:
        """A client that has gone is none."""

    def files_got(self) -> list[str]:
        return [path for path in self.got if not path.endswith("/")]


class _Handler(http.server.SimpleHTTPRequestHandler):
    """Each request has a connection of its own, so that one that is cut off is seen at once."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args, directory=str(cast(WebServer, args[2]).root))

    @property
    def web(self) -> WebServer:
        return cast(WebServer, self.server)

    def do_GET(self) -> None:
        self.web.got.append(self.path)
        self.web.on_get(self.path)
        if self.path in self.web.missing:
            self.send_error(404)
        elif self.path in self.web.cut:
            content = (self.web.root / self.path.lstrip("/")).read_bytes()
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content[: len(content) // 2])
        else:
            super().do_GET()

    def end_headers(self) -> None:
        if self.path in self.web.wrong:
            self.send_header("Content-MD5", base64.b64encode(hashlib.md5(b"another").digest()).decode())
        super().end_headers()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        pass


@contextlib.contextmanager
def serving(root: Path) -> Iterator[WebServer]:
    """A server of that folder, while it lasts."""
    with WebServer(root) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
