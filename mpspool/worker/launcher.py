"""Stands for a forked worker under supervisord: has the nursery fork it, passes signals on, ends as it ends.

Run as a file, `python -I -S launcher.py NURSERY_SOCKET SETTINGS`: there is one for each worker for as long as
it lives, and each new version starts some beside those that serve: so it imports nothing but the standard library, and
little of that. `signal` and `socket` make enums of the constants of `_signal` and `_socket`, which takes as long as Python's
start.

What is said on the socket (SOCK_SEQPACKET): the launcher sends PROTOCOL and five descriptors: the request
(the settings file's path and the environment, NUL-separated), standard input, output and error, and the
worker's end of its lifeline. It is answered by one of

    worker PID      with the worker's pidfd; then, once it has ended,
    ended STATUS    its wait status
    stale REASON    ask again: the nursery replaces itself
    exec REASON     nothing can be forked here: be the worker yourself
    failed REASON   this request cannot be served
"""

from __future__ import annotations

import ctypes
import os
import select
import sys
import time

TYPE_CHECKING = False  # `typing` alone takes as long to import as Python to start
if TYPE_CHECKING:
    import signal
    import socket
    from typing import NoReturn
else:
    import _signal as signal
    import _socket as socket

PROTOCOL = b"mpspool nursery 1"
DESCRIPTORS = 5
# A nursery that is being replaced is back in 6 s; on a busy machine in several times that.
WAIT_S = 60.0
# It listens before it imports TensorFlow. One that ends before it has answered may have been killed, and is
# started again; so many in a row are being killed by their imports.
MAX_ENDED = 3
# The worker has ended and nobody can say how: sysexits' EX_SOFTWARE, and never a worker's own status.
EXIT_UNKNOWN = 70
# The nursery could not do what was asked: sysexits' EX_OSERR.
EXIT_REFUSED = 71

_RETRY_S = 0.05
# How long a nursery may take to say how its worker ended; one that is replacing itself is silent meanwhile.
_LAST_WORD_S = 30.0
_MAX_ANSWER_BYTES = 64 * 1024
_DESCRIPTOR_BYTES = 4
_RELAYED = (
    signal.SIGTERM,
    signal.SIGINT,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGABRT,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGCONT,
)
_PR_SET_PDEATHSIG = 1
_PR_SET_DUMPABLE = 4


class _AgainError(Exception):
    """The nursery that was asked replaces itself."""


class _NoForkError(Exception):
    """No worker can be forked; the text says why."""


class _Worker:
    """A worker that runs. The lifeline is held open, and the worker is killed by its end."""

    def __init__(self, connection: socket.socket, lifeline: socket.socket, pidfd: int) -> None:
        self.connection = connection
        self.lifeline = lifeline
        self.pidfd = pidfd


def main(nursery: str, settings: str) -> NoReturn:
    """Never returns: ends as the worker ended."""
    _die_with_parent(os.getppid())
    # Until there is a worker to pass it on to, a signal ends the launcher.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        worker = _ask(nursery, settings)
    except _NoForkError as reason:
        _say(f"not forked, {reason}: this process becomes the worker, and imports TensorFlow itself")
        os.execv(sys.executable, [sys.executable, "-P", "-m", "mpspool.worker", settings])  # noqa: S606  our own
    _stand_for(worker)


def _die_with_parent(parent: int) -> None:
    """As core.process.die_with_parent(), which cannot be imported here."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    foreground = os.environ.get("MPSPOOL_FOREGROUND")
    if os.getppid() != parent or (foreground and not _alive(foreground)):
        os.kill(os.getpid(), signal.SIGKILL)


def _prctl(option: int, argument: int) -> None:
    ctypes.CDLL(None).prctl(option, argument, 0, 0, 0)


def _alive(pid: str) -> bool:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[0] not in b"ZX"
    except OSError:
        return False


# -- asking ---------------------------------------------------------------------------------------------


def _ask(nursery: str, settings: str) -> _Worker:
    """Asks until a worker runs. Raises _NoForkError."""
    end = time.monotonic() + WAIT_S
    ended = 0
    while (left_s := end - time.monotonic()) > 0:
        try:
            return _ask_once(nursery, settings, left_s)
        except (ConnectionResetError, BrokenPipeError):
            ended += 1
            if ended == MAX_ENDED:
                raise _NoForkError(f"{ended} nurseries have ended before they answered") from None
        except (FileNotFoundError, ConnectionRefusedError, BlockingIOError, TimeoutError, _AgainError):
            pass
        time.sleep(_RETRY_S)
    raise _NoForkError(f"no nursery has answered at {nursery} for {WAIT_S:g} s")


def _ask_once(nursery: str, settings: str, timeout_s: float) -> _Worker:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    lifeline, workers_end = socket.socketpair()
    request = os.memfd_create("request")
    try:
        connection.settimeout(timeout_s)
        connection.connect(nursery)
        os.write(request, b"\0".join([os.fsencode(settings), *map(b"=".join, os.environb.items())]))
        handed = b"".join(map(_descriptor, (request, 0, 1, 2, workers_end.fileno())))
        connection.sendmsg([PROTOCOL], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, handed)])
        data, ancillary, _, _ = connection.recvmsg(
            _MAX_ANSWER_BYTES, socket.CMSG_SPACE(_DESCRIPTOR_BYTES), socket.MSG_CMSG_CLOEXEC
        )
        _check(data)
        return _Worker(connection, lifeline, int.from_bytes(ancillary[0][2], sys.byteorder))
    except BaseException:
        connection.close()
        lifeline.close()
        raise
    finally:
        os.close(request)
        workers_end.close()


def _descriptor(number: int) -> bytes:
    """As SCM_RIGHTS has it."""
    return number.to_bytes(_DESCRIPTOR_BYTES, sys.byteorder)


def _check(answer: bytes) -> None:
    """Returns for a worker that runs, and raises for every other answer."""
    word, _, text = answer.decode(errors="replace").partition(" ")
    if not word:
        raise ConnectionResetError("the nursery has ended")
    if word == "stale":
        raise _AgainError(text)
    if word == "exec":
        raise _NoForkError(text)
    if word != "worker":
        _say(f"the nursery cannot make a worker: {text}")
        sys.exit(EXIT_REFUSED)


# -- standing for it ------------------------------------------------------------------------------------


def _stand_for(worker: _Worker) -> NoReturn:
    signals = _note_signals()
    waiting = select.poll()
    for descriptor in (signals, worker.pidfd, worker.connection.fileno()):
        waiting.register(descriptor, select.POLLIN)
    connected, last_word_by = True, 0.0
    while connected or not last_word_by:
        left_s = last_word_by - time.monotonic()
        if last_word_by and left_s <= 0:
            break
        ready = dict(waiting.poll(left_s * 1000 if last_word_by else None))
        if signals in ready:
            _relay(os.read(signals, 4096), worker.pidfd)
        if worker.pidfd in ready:
            waiting.unregister(worker.pidfd)
            last_word_by = time.monotonic() + _LAST_WORD_S
        if worker.connection.fileno() in ready:
            status = _ended(worker.connection)
            if status is not None:
                _end_as(status)
            waiting.unregister(worker.connection)
            connected = False
    _say("the worker has ended; how is not known, since its nursery has gone")
    os._exit(EXIT_UNKNOWN)


def _note_signals() -> int:
    """A descriptor from which the numbers of the signals that arrive can be read, a byte each."""
    reading, writing = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    for signum in _RELAYED:
        signal.signal(signum, lambda *_: None)
    return reading


def _relay(signums: bytes, pidfd: int) -> None:
    for signum in signums:
        try:  # noqa: SIM105  contextlib takes long to import, too
            signal.pidfd_send_signal(pidfd, signum)
        except ProcessLookupError:
            pass


def _ended(connection: socket.socket) -> int | None:
    """The worker's wait status, None where the nursery has gone without saying it."""
    try:
        word, _, text = connection.recv(_MAX_ANSWER_BYTES).partition(b" ")
    except OSError:
        return None
    return int(text) if word == b"ended" else None


def _end_as(status: int) -> NoReturn:
    """Ends with the same exit status or by the same signal; a core is the worker's to dump, not ours."""
    if os.WIFSIGNALED(status):
        signum = os.WTERMSIG(status)
        _prctl(_PR_SET_DUMPABLE, 0)
        try:  # noqa: SIM105
            signal.signal(signum, signal.SIG_DFL)
        except OSError:  # the disposition of SIGKILL cannot be set
            pass
        os.kill(os.getpid(), signum)
    os._exit(os.waitstatus_to_exitcode(status) & 0xFF)


def _say(text: str) -> None:
    try:  # noqa: SIM105
        os.write(2, f"launcher: {text}\n".encode(errors="replace"))
    except OSError:
        pass


if __name__ == "__main__":
    main(*sys.argv[1:])
