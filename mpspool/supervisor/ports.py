"""Where the fronts listen. Whether they can is tried by listening, before anything is started."""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import os
import socket
from pathlib import Path

from mpspool.core.errors import Problem
from mpspool.core.host_port import host_port

DEFAULT_GRPC_PORT = 8500
DEFAULT_REST_PORT = 8501

_LISTEN = "0A"
_ROUTER = "mpspool.router"
_PRIVILEGED = Path("/proc/sys/net/ipv4/ip_unprivileged_port_start")


def check_fronts(host: str, ports: dict[str, int]) -> list[Problem]:
    """What keeps the fronts from listening on `host`.

    Args:
        host: a name or an address of this machine.
        ports: by the field's name, the port; 0 is a front that is off.
    """
    try:
        addresses = _resolve(host)
    except OSError as error:
        return [
            Problem("host", f"{host!r} cannot be resolved ({error.strerror}); use an address of this machine")
        ]
    wanted = {field: port for field, port in ports.items() if port}
    problems = _check_distinct(wanted)
    taken = set(wanted.values())
    for field, port in wanted.items():
        if port in taken:
            problems += _check_port(field, port, host, addresses)
            taken.discard(port)
    return list(dict.fromkeys(problems))


def client_address(host: str, port: int) -> str:
    """Where a client on this machine reaches a front that listens on `host`, as HOST:PORT."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host_port(host, port)
    if address.is_unspecified:
        address = ipaddress.ip_address("127.0.0.1" if address.version == 4 else "::1")
    return host_port(str(address), port)


def with_port(address: str) -> str:
    """A host alone with the default port of gRPC; whatever says more, as it is."""
    host = address[1:-1] if address.startswith("[") and address.endswith("]") else address
    try:
        alone = ":" not in host or ipaddress.ip_address(host).version == 6
    except ValueError:
        alone = False
    return client_address(host, DEFAULT_GRPC_PORT) if alone else address


def _resolve(host: str) -> list[tuple[int, str]]:
    found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    return [(family, str(address[0])) for family, _, _, _, address in found]


def _check_distinct(ports: dict[str, int]) -> list[Problem]:
    if len(set(ports.values())) == len(ports):
        return []
    first, *others = ports
    return [Problem(field, f"{ports[field]} is {first} as well; give each front its own") for field in others]


def _check_port(field: str, port: int, host: str, addresses: list[tuple[int, str]]) -> list[Problem]:
    failures = [
        error for family, address in addresses if (error := _listen(family, address, port)) is not None
    ]
    # A name may stand for an address family that this machine has switched off; one address is enough.
    serious = [error for error in failures if error.errno != errno.EADDRNOTAVAIL]
    if serious or len(failures) == len(addresses):
        return [explain_failure((serious or failures)[0], field, port, host)]
    return []


def _listen(family: int, address: str, port: int) -> OSError | None:
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            # Over connections of an earlier pool that are still closing, but not over a listener.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((address, port))
            probe.listen(1)
    except OSError as error:
        return error
    return None


def explain_failure(error: OSError, field: str, port: int, host: str) -> Problem:
    """What a failed listen means to the user."""
    if error.errno == errno.EADDRINUSE:
        holder = find_listener(port)
        by = f" by {holder}" if holder else ""
        return Problem(
            field, f"port {port} on {host} is taken{by}; stop that, or choose another (0 turns it off)"
        )
    if error.errno == errno.EACCES:
        first = _PRIVILEGED.read_text().strip()
        return Problem(field, f"port {port} needs privileges we lack; choose one from {first} up")
    if error.errno in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
        return Problem(
            "host", f"{host} is no address of this machine; 127.0.0.1 is, and 0.0.0.0 means all of them"
        )
    return Problem(field, f"cannot listen on {host} port {port}: {error.strerror}")


def find_listener(port: int, proc: Path = Path("/proc")) -> str:
    """The process that listens on the TCP port, as "python3 (pid 123)"; empty if /proc does not tell.

    A router is named by its pool's run folder.
    """
    inodes = {f"socket:[{inode}]" for inode in _listening_inodes(port, proc)}
    if not inodes:
        return ""
    for process in proc.glob("[0-9]*"):
        if inodes & _open_files(process):
            return f"{_name(process)} (pid {process.name})"
    return ""


def _listening_inodes(port: int, proc: Path) -> list[str]:
    lines = [line.split() for name in ("tcp", "tcp6") for line in _lines(proc / "net" / name)[1:]]
    # Columns: number, local address, remote address, state, queues, timer, retransmits, uid, timeout, inode.
    return [line[9] for line in lines if line[3] == _LISTEN and int(line[1].rpartition(":")[2], 16) == port]


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:
        return []


def _open_files(process: Path) -> set[str]:
    """What its descriptors stand for; empty for a process that is gone, or another user's."""
    files = set()
    with contextlib.suppress(OSError), os.scandir(process / "fd") as descriptors:
        for descriptor in descriptors:
            with contextlib.suppress(FileNotFoundError):  # closed meanwhile
                files.add(os.readlink(descriptor.path))
    return files


def _name(process: Path) -> str:
    words = "".join(_lines(process / "cmdline")).rstrip("\0").split("\0")
    if _ROUTER in words:  # its last word is RUN_DIR/settings/router.json
        return f"the pool in {Path(words[-1]).parent.parent}"
    return next(iter(_lines(process / "comm")), "a process")
