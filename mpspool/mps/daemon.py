"""One MPS control daemon for one GPU, kept under supervisord.

    python -P -m mpspool.mps.daemon SETTINGS

A control daemon is ended by `quit`, never by a signal, and supervisord knows only signals: so this
process stands between them. It clears what an earlier run left on the pipe folder, runs the daemon in
the foreground, says when it answers, and turns SIGTERM, SIGINT or its parent's death into `quit`. When
the daemon ends by itself, its server is ended too and the exit status is 1, which has it started again.
Killed outright, it takes the daemon with it; the server that is left then, the next start ends.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec

from mpspool.core import log
from mpspool.core.process import die_with_parent
from mpspool.core.rundir import MAX_SOCKET_PATH_BYTES
from mpspool.core.settings import MpsSettings, load
from mpspool.mps import leftovers
from mpspool.mps.control import Control, ControlError, daemon_environment

_START_LIMIT_S = 20.0
# Together well under the time supervisord gives us before it kills.
_QUIT_LIMIT_S = 5.0
_EXIT_LIMIT_S = 2.0
_POLL_S = 0.05
# The real daemon's longest socket name.
_LONGEST_SOCKET = "control_privileged"

_log = log.get("mps")


class DaemonError(Exception):
    """The daemon cannot be started, or has ended unasked."""


class StopSignal:
    """SIGTERM and SIGINT as something to poll, so that no signal falls between a check and a wait."""

    def __init__(self) -> None:
        self.requested = False
        self._read, write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(write, warn_on_full_buffer=False)
        for signum in (signal.SIGTERM, signal.SIGINT):
            signal.signal(signum, self._note)

    def _note(self, _signum: int, _frame: object) -> None:
        self.requested = True

    def wait(self, pidfd: int, timeout_s: float | None) -> bool:
        """Returns at a signal, at the process's end or after the time; whether a stop was asked for."""
        poll = select.poll()
        for descriptor in (self._read, pidfd):
            poll.register(descriptor, select.POLLIN)
        poll.poll(None if timeout_s is None else timeout_s * 1000)
        with contextlib.suppress(BlockingIOError):
            os.read(self._read, 64)
        return self.requested


class Daemon:
    """The life of one control daemon, from its predecessor's leftovers to its own."""

    def __init__(self, settings: MpsSettings, environ: Mapping[str, str], stop: StopSignal) -> None:
        self._settings = settings
        self._pipe = Path(settings.pipe_dir)
        self._environ = daemon_environment(settings, environ)
        self._control = Control(settings.control, self._environ)
        self._stop = stop

    def run(self) -> None:
        """Returns when a stop was asked for and nothing is left.

        Raises:
            DaemonError, leftovers.LeftoverError: it does not start, or ended by itself. Nothing is
            left then either.
        """
        self._check_length()
        leftovers.prepare_folder(self._pipe.parent)
        with _exclusive(self._pipe.with_name(f"{self._pipe.name}.lock")):
            self._clear()
            for folder in (self._pipe, Path(self._settings.log_dir)):
                leftovers.prepare_folder(folder)
            if not self._stop.requested:
                self._run_daemon()

    def _check_length(self) -> None:
        longest = len(os.fsencode(self._pipe / _LONGEST_SOCKET))
        if longest > MAX_SOCKET_PATH_BYTES:
            raise DaemonError(
                f"{self._pipe} is {longest - MAX_SOCKET_PATH_BYTES} bytes too long for the daemon's"
                " sockets; choose a shorter run folder"
            )

    def _clear(self) -> None:
        ended = leftovers.end(self._pipe, self._control)
        if ended:
            _log.warning("ended what was left of an earlier MPS", pids=ended, pipe_dir=str(self._pipe))
        leftovers.clear(self._pipe)

    def _run_daemon(self) -> None:
        daemon = self._spawn()
        pidfd = os.pidfd_open(daemon.pid)
        try:
            self._supervise(daemon, pidfd)
        finally:
            os.close(pidfd)
            self._quit(daemon)
            self._clear()

    def _spawn(self) -> subprocess.Popen[bytes]:
        """In a session of its own: what is sent to our process group does not reach the daemon."""
        try:
            return subprocess.Popen(
                [*self._settings.control, "-f"],
                env=self._environ,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
                preexec_fn=functools.partial(die_with_parent, os.getpid()),  # noqa: PLW1509 - one thread here
            )
        except OSError as error:
            raise DaemonError(f"{self._settings.control[0]} does not run: {error}") from error

    def _supervise(self, daemon: subprocess.Popen[bytes], pidfd: int) -> None:
        """Returns when a stop is asked for. Raises DaemonError."""
        ready = False
        deadline = time.monotonic() + _START_LIMIT_S
        while not self._stop.wait(pidfd, None if ready else _POLL_S):
            status = daemon.poll()
            if status is not None:
                raise DaemonError(f"the control daemon ended by itself with status {status}")
            if ready:
                continue
            try:
                self._control.server_list()
            except ControlError as error:
                if time.monotonic() > deadline:
                    raise DaemonError(
                        f"the control daemon does not answer in {_START_LIMIT_S:g} s: {error}"
                    ) from error
            else:
                ready = True
                _log.info("the control daemon answers", daemon=daemon.pid, pipe_dir=str(self._pipe))

    def _quit(self, daemon: subprocess.Popen[bytes]) -> None:
        if daemon.poll() is not None:
            return
        try:
            self._control.quit(_QUIT_LIMIT_S)
            daemon.wait(_EXIT_LIMIT_S)
            _log.info("the control daemon has quit", daemon=daemon.pid)
        except (ControlError, subprocess.TimeoutExpired) as error:
            _log.warning(
                "the control daemon does not quit and is killed", daemon=daemon.pid, error=str(error)
            )
            daemon.kill()
            daemon.wait()


@contextlib.contextmanager
def _exclusive(path: Path) -> Iterator[None]:
    """Keeps a second wrapper off the pipe folder, whose daemon it would end as a leftover."""
    with path.open("a", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise DaemonError(f"{path} is held: another mpspool.mps.daemon runs on this folder") from error
        yield


def main(arguments: list[str]) -> int:
    """Returns the exit status: 0 after a stop that was asked for, 1 after a failure."""
    stop = StopSignal()
    die_with_parent(os.getppid(), signal.SIGTERM)
    log.configure(process="mps")
    try:
        settings = load(Path(arguments[0]), MpsSettings)
        log.configure(gpu=settings.device, uuid=settings.gpu_uuid)
        if settings.simulated:
            _log.warning("SIMULATED: this MPS and its GPU are stand-ins")
        Daemon(settings, os.environ, stop).run()
    except IndexError:
        _log.error("usage: python -P -m mpspool.mps.daemon SETTINGS")
    except (DaemonError, leftovers.LeftoverError, OSError, msgspec.MsgspecError) as error:
        _log.error(str(error))
    else:
        return 0
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
