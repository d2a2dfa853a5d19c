"""The stand-in's MPS server: a process of its own that holds the clients' connections.

    python -P -m mpspool.mps.simulated.server CHANNEL_FD

Over the channel (a SOCK_SEQPACKET pair) the daemon sends {"op": "attach", "number", "pid"} together
with the client's connection, {"op": "terminate", "pid"} and {"op": "quit"}; back come {"event":
"ready"} and {"event": "left", "number", "pid"}. As with the real one, the daemon's death does not end
the server: it keeps its clients until it is ended itself.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import socket
import sys
from dataclasses import dataclass
from typing import Any

from mpspool.mps.simulated.paths import Log, Paths

_MAX_MESSAGE_BYTES = 4096


@dataclass(frozen=True, slots=True)
class _Connection:
    number: int
    pid: int
    socket: socket.socket


class Server:
    """Serves until told to quit."""

    def __init__(self, channel: socket.socket, log: Log) -> None:
        self._channel = channel
        self._log = log
        self._selector = selectors.DefaultSelector()
        self._connections: dict[int, _Connection] = {}
        self._quitting = False

    def run(self) -> None:
        self._selector.register(self._channel, selectors.EVENT_READ, None)
        self._log("Server has started")
        self._tell({"event": "ready"})
        while not self._quitting:
            for key, _ in self._selector.select():
                if key.data is None:
                    self._obey()
                else:
                    self._hear(key.data)
        self._log("Shutting down")

    def _tell(self, event: dict[str, Any]) -> None:
        with contextlib.suppress(OSError):
            self._channel.send(json.dumps(event).encode())

    def _obey(self) -> None:
        data, descriptors, _, _ = socket.recv_fds(self._channel, _MAX_MESSAGE_BYTES, 1)
        if not data:
            self._log("Lost the control daemon")
            self._selector.unregister(self._channel)
            return
        order = json.loads(data)
        match order["op"]:
            case "attach":
                connection = socket.socket(fileno=descriptors[0])
                self._attach(_Connection(order["number"], order["pid"], connection))
            case "terminate":
                self._terminate(order["pid"])
            case "quit":
                self._quitting = True

    def _attach(self, client: _Connection) -> None:
        self._connections[client.number] = client
        self._selector.register(client.socket, selectors.EVENT_READ, client)
        self._log(f"Client {{PID: {client.pid}, Context ID: {client.number}}} connected")
        with contextlib.suppress(OSError):
            client.socket.send(f"CONNECTED {os.getpid()}\n".encode())

    def _terminate(self, pid: int) -> None:
        for client in [client for client in self._connections.values() if client.pid == pid]:
            self._log(f"Client {{PID: {client.pid}, Context ID: {client.number}}} terminated")
            self._drop(client)

    def _hear(self, client: _Connection) -> None:
        """Clients only listen: what can be read from one is its end."""
        with contextlib.suppress(OSError):
            if client.socket.recv(_MAX_MESSAGE_BYTES):
                return
        self._log(f"Client {{PID: {client.pid}, Context ID: {client.number}}} exit")
        self._drop(client)

    def _drop(self, client: _Connection) -> None:
        del self._connections[client.number]
        self._selector.unregister(client.socket)
        client.socket.close()
        self._tell({"event": "left", "number": client.number, "pid": client.pid})


def main(arguments: list[str]) -> None:
    channel = socket.socket(fileno=int(arguments[0]))
    Server(channel, Log(Paths.of(os.environ).log / "server.log", "Server")).run()


if __name__ == "__main__":
    main(sys.argv[1:])
