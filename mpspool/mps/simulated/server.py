"""The stand-in's MPS server: a process of its own that holds the clients' connections.

    python -P -m mpspool.mps.simulated.server CHANNEL_FD

The channel is a SOCK_SEQPACKET pair, one JSON object a packet.

The daemon sends                                   back come
    {"op": "attach", number, pid, share}           {"event": "status", status}, at each change
      together with the client's connection        {"event": "left", number, pid}
    {"op": "terminate", pid}                       {"event": "xid", xid}
    {"op": "fault", pid or null}                   {"event": "figures", utilisation, busy, at_s, clients}:
    {"op": "ecc", pid or null}                       at changes, seldom, and each "look" is answered
    {"op": "wedge", pid}
    {"op": "lose"}
    {"op": "look"}, {"op": "seen"} (the figures)
    {"op": "quit"}

A client sends lines: at first, if it likes, WANTS thread_percentage=P pinned_mem=1G priority=1; BUSY and IDLE around
each piece of work on the GPU; FAULT <cuda error> when its kernel has faulted. It is sent CONNECTED <server's pid>, or
REFUSED <cuda error> <text>; FAULT <cuda error> <text>, with which everything it calls from then on fails; WEDGED when
its work never returns from then on.

As with the real one, the daemon's death does not end the server: it keeps its clients until it is ended itself.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import selectors
import socket
import sys
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from mpspool.mps.simulated.busy_time import BusyTime
from mpspool.mps.simulated.paths import write_log
from mpspool.mps.simulated.shares import Share
from mpspool.mps.simulated.state import Cut, Order, Rebuild, Say, ServerState, ServerStatus, Xid

MAX_MESSAGE_BYTES = 65536
_MAX_LINE_BYTES = 4096
# NVIDIA's example takes a second, driver 580 on an H200 took 0.01.
_REBUILD_S = 0.2
_FIGURES_PERIOD_S = 0.2


@dataclass(slots=True)
class _Connection:
    number: int
    pid: int
    socket: socket.socket
    heard: bytes = b""


class Server:
    """Serves until told to quit. What becomes of the clients is ServerState's; here it is done."""

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        self._log = functools.partial(write_log, "Server")
        self._state = ServerState(os.getpid())
        self._status = self._state.status
        self._busy = BusyTime(time.monotonic())
        self._selector = selectors.DefaultSelector()
        self._connections: dict[int, _Connection] = {}
        self._rebuilt_s = 0.0
        self._changed = False
        self._unseen = False
        self._figures_due_s = 0.0
        self._quitting = False

    def run(self) -> None:
        self._selector.register(self._channel, selectors.EVENT_READ, None)
        self._log("Startup")
        self._log("Creating server context on device 0")
        self._log("Server has started")
        self._perform(self._state.ready())
        while not self._quitting:
            for key, _ in self._selector.select(self._timeout_s()):
                if key.data is None:
                    self._obey()
                elif key.data.number in self._connections:
                    self._hear(key.data)
            self._rebuild()
            self._tell_figures()
        self._log("Server has been notified to shutdown")
        self._log("Exiting")

    def _timeout_s(self) -> float | None:
        dues = [self._rebuilt_s] if self._rebuilt_s else []
        if self._changed and not self._unseen:
            dues.append(self._figures_due_s)
        return max(0.0, min(dues) - time.monotonic()) if dues else None

    # -- the daemon -------------------------------------------------------------------------------

    def _tell(self, event: dict[str, Any]) -> None:
        with contextlib.suppress(OSError):
            self._channel.send(json.dumps(event).encode())

    def _obey(self) -> None:
        try:
            data, descriptors, _, _ = socket.recv_fds(self._channel, MAX_MESSAGE_BYTES, 1)
        except ConnectionError:  # the daemon died before it had read all that we said
            data, descriptors = b"", []
        if not data:
            self._log("Lost the control daemon")
            self._selector.unregister(self._channel)
            return
        order = json.loads(data)
        match order["op"]:
            case "attach":
                self._attach(order, socket.socket(fileno=descriptors[0]))
            case "terminate":
                self._perform(self._state.terminate(order["pid"]))
            case "fault":
                self._perform(self._state.fault(order["pid"]))
            case "ecc":
                self._perform(self._state.ecc_error(order["pid"]))
            case "wedge":
                self._perform(self._state.wedge(order["pid"]))
            case "lose":
                self._perform(self._state.lose_gpu())
            case "look":
                self._send_figures()
            case "seen":
                self._unseen = False
            case "quit":
                self._quitting = True

    def _tell_figures(self) -> None:
        """Not more often than they are read, and not to a daemon that reads nothing."""
        if self._changed and not self._unseen and time.monotonic() >= self._figures_due_s:
            self._send_figures()

    def _send_figures(self) -> None:
        now = time.monotonic()
        self._changed, self._unseen = False, True
        self._figures_due_s = now + _FIGURES_PERIOD_S
        clients = [
            {"pid": client.pid, "number": client.number, "state": client.state.value, "wedged": client.wedged}
            | asdict(client.share)
            for client in self._state.clients.values()
        ]
        figures = {"utilisation": self._busy.share(now), "busy": self._state.busy, "at_s": now}
        self._tell({"event": "figures", **figures, "clients": clients})

    # -- the clients ------------------------------------------------------------------------------

    def _attach(self, order: dict[str, Any], connection: socket.socket) -> None:
        connection.setblocking(False)
        client = _Connection(order["number"], order["pid"], connection)
        self._connections[client.number] = client
        self._selector.register(connection, selectors.EVENT_READ, client)
        self._perform(self._state.attach(client.pid, client.number, Share(**order["share"])))

    def _hear(self, client: _Connection) -> None:
        try:
            data = client.socket.recv(_MAX_LINE_BYTES)
        except OSError:
            data = b""
        *lines, client.heard = (client.heard + data).split(b"\n")
        for line in lines:
            if client.number in self._connections:
                self._perform(self._state.hear(client.number, line.decode(errors="replace")))
        if client.number not in self._connections:
            return
        if not data or len(client.heard) > _MAX_LINE_BYTES:
            self._close(client)
            self._perform(self._state.left(client.number))

    def _close(self, client: _Connection) -> None:
        del self._connections[client.number]
        self._selector.unregister(client.socket)
        client.socket.close()
        self._tell({"event": "left", "number": client.number, "pid": client.pid})

    # -- what the state says ----------------------------------------------------------------------

    def _perform(self, orders: Iterable[Order]) -> None:
        """The daemon hears of a new status before any client does."""
        self._changed = True
        self._busy.set(self._state.busy, time.monotonic())
        if self._state.status is not self._status:
            self._status = self._state.status
            self._tell({"event": "status", "status": self._status.value})
        for order in orders:
            match order:
                case Say(number, line):
                    with contextlib.suppress(OSError):
                        self._connections[number].socket.send(line.encode())
                case Cut(number):
                    self._close(self._connections[number])
                case Xid(xid):
                    self._tell({"event": "xid", "xid": xid})
                case Rebuild():
                    self._rebuilt_s = time.monotonic() + _REBUILD_S
                case _:
                    self._log(order.message)

    def _rebuild(self) -> None:
        if not self._rebuilt_s or time.monotonic() < self._rebuilt_s:
            return
        self._rebuilt_s = 0.0
        if self._state.status is ServerStatus.INITIALIZING:
            self._perform(self._state.ready())


def main(arguments: list[str]) -> None:
    channel = socket.socket(fileno=int(arguments[0]))
    Server(channel).run()


if __name__ == "__main__":
    main(sys.argv[1:])
