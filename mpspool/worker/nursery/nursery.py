"""Has imported TensorFlow, and forks the workers.

It does nothing else: no session, no device, one thread. A launcher asks for a worker and hands over its own
standard streams, environment and lifeline (what is said: worker/launcher.py); it is told the worker's pid at
once and its wait status at the end, which a parent alone can learn. Workers outlive their nursery.

It listens before it imports: the launchers that come meanwhile wait in line, and learn it at once if the imports
kill it. If they fail otherwise it lives on to say why, and forks nothing; a launcher that asks later has it try
again.

When the code on disk is not what it has imported any more, or a launcher's environment differs in what is
read at import, it replaces itself by exec: the workers stay its children, and their launchers connected.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import random
import selectors
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from mpspool.core import log, process, settings
from mpspool.core.errors import cut
from mpspool.core.ids import WORKER_PREFIX
from mpspool.core.rundir import RunDir
from mpspool.core.settings import NurserySettings
from mpspool.worker import begin, device
from mpspool.worker.nursery import staleness
from mpspool.worker.nursery.request import Request, close_all
from mpspool.worker.nursery.staleness import Code, Environment
from mpspool.worker.without_keras import without_keras

_PROGRAM = "nursery"
logger = log.get(_PROGRAM)

# All that a worker imports before it is READY, TensorFlow first.
IMPORTED = (
    "tensorflow",
    "mpspool.worker.app",
    "mpspool.worker.engine.load",
    "mpspool.worker.warmup",
    "mpspool.worker.weights.attach",
)
# For the image that replaces this one: the workers it is the parent of, PID:DESCRIPTOR of their launchers.
_HEIRS_VARIABLE = "MPSPOOL_NURSERY_WORKERS"
_NO_DESCRIPTOR_S = 0.1
# A worker that is started again every few seconds need not wait for the imports to fail each time.
_AGAIN_S = 30.0


@dataclass(slots=True, eq=False)
class _Launched:
    """A launcher's connection, None once it has gone, and its worker, with pid 0 before there is one."""

    connection: socket.socket | None
    pid: int = 0
    pidfd: int = -1


class Nursery:
    """Serves launchers, in one thread, for ever.

    Args:
        listener: where they come.
        environment: what this process was started with.
        code: the files it has imported.
        failure: why the imports failed, "" where they did not.
    """

    def __init__(self, listener: socket.socket, environment: Environment, code: Code, failure: str) -> None:
        self._environment = environment
        self._code = code
        self._failure = failure
        self._again = time.monotonic() + _AGAIN_S
        self._launched: set[_Launched] = set()
        # A poll set and not an epoll descriptor, which a child would share.
        self._selector = selectors.PollSelector()
        self._listener = listener
        self._watch(self._listener, self._accept)

    def serve(self) -> NoReturn:
        while True:
            for key, _ in self._selector.select():
                # What was handled before it may have closed this one.
                if self._selector.get_map().get(key.fd) is key:
                    key.data()

    def inherit(self, heirs: str) -> None:
        """Takes over the workers of the image that this one has replaced, and those that nobody speaks for."""
        pairs = (heir.split(":") for heir in heirs.split())
        spoken_for = {int(pid): int(descriptor) for pid, descriptor in pairs}
        for pid in process.children(os.getpid()):
            connection = None
            if pid in spoken_for:
                connection = socket.socket(fileno=spoken_for.pop(pid))
                connection.set_inheritable(False)
            self._adopt(_Launched(connection), pid)
        for descriptor in spoken_for.values():
            os.close(descriptor)

    def _watch(self, what: socket.socket | int, handle: Callable[[], None]) -> None:
        self._selector.register(what, selectors.EVENT_READ, handle)

    # -- launchers --------------------------------------------------------------------------------

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except OSError as error:
            logger.warning("a launcher was not let in", reason=str(error))
            time.sleep(_NO_DESCRIPTOR_S)
            return
        connection.setblocking(False)
        launched = _Launched(connection)
        self._launched.add(launched)
        self._watch(connection, lambda: self._hear(launched))

    def _hear(self, launched: _Launched) -> None:
        assert launched.connection is not None
        if launched.pid:  # it has nothing more to say: so it has gone
            self._hang_up(launched)
            return
        try:
            request = Request.receive(launched.connection)
        except (OSError, ValueError) as error:
            if reason := self._stale(self._environment):  # a newer launcher, perhaps
                self._replace(launched, self._environment, reason)
            self._refuse(launched, str(error))
            return
        if reason := self._stale(request.at_import):
            self._replace(launched, request.at_import, reason)
        if reason := self._failure or _unfit():
            request.close()
            self._say(launched, f"exec {reason}")
            self._hang_up(launched)
            return
        try:
            self._fork(launched, request)
        except OSError as error:
            self._refuse(launched, str(error))
        finally:
            request.close()

    def _refuse(self, launched: _Launched, reason: str) -> None:
        logger.warning("a request was refused", reason=reason)
        self._say(launched, f"failed {reason}")
        self._hang_up(launched)

    def _say(self, launched: _Launched, text: str, descriptors: Iterable[int] = ()) -> None:
        if launched.connection is not None:
            with contextlib.suppress(OSError):
                socket.send_fds(launched.connection, [text.encode()], list(descriptors))

    def _hang_up(self, launched: _Launched) -> None:
        if launched.connection is not None:
            self._selector.unregister(launched.connection)
            launched.connection.close()
            launched.connection = None
        if not launched.pid:
            self._launched.discard(launched)

    # -- workers ----------------------------------------------------------------------------------

    def _fork(self, launched: _Launched, request: Request) -> None:
        sys.stdout.flush()
        sys.stderr.flush()
        pid = os.fork()
        if not pid:
            self._become(request)
        try:
            self._adopt(launched, pid)
        except OSError:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            raise
        logger.info("forked", pid=pid, settings=str(request.settings))
        self._say(launched, f"worker {pid}", [launched.pidfd])

    def _adopt(self, launched: _Launched, pid: int) -> None:
        launched.pidfd = os.pidfd_open(pid)
        launched.pid = pid
        if launched not in self._launched:
            self._launched.add(launched)
            if launched.connection is not None:
                self._watch(launched.connection, lambda: self._hear(launched))
        self._watch(launched.pidfd, lambda: self._reap(launched))

    def _reap(self, launched: _Launched) -> None:
        _, status = os.waitpid(launched.pid, 0)
        logger.info("ended", pid=launched.pid, status=os.waitstatus_to_exitcode(status))
        self._selector.unregister(launched.pidfd)
        os.close(launched.pidfd)
        self._say(launched, f"ended {status}")
        launched.pid = 0
        self._hang_up(launched)

    def _become(self, request: Request) -> NoReturn:
        """In the child: nothing of the nursery's is left when the worker begins."""
        try:
            os.setsid()
            worker = request.settings.stem.removeprefix(WORKER_PREFIX)
            process.show_as("mpspool-worker", worker, str(request.settings.parent.parent))
            self._forget()
            for target, stream in enumerate(request.streams):
                os.dup2(stream, target)
            close_all(request.streams)
            process.die_with_peer(request.lifeline)
            os.environb.clear()
            os.environb.update(request.environment())
            os.close(request.file)
            _reseed()
            begin.work(request.settings)
        except BaseException:  # noqa: BLE001  a child must not run on as a second nursery
            traceback.print_exc()
            sys.stderr.flush()
        finally:
            os._exit(1)

    def _forget(self) -> None:
        self._listener.close()
        self._selector.close()
        for other in self._launched:
            if other.connection is not None:
                other.connection.close()
            if other.pid:
                os.close(other.pidfd)
        self._launched.clear()

    # -- being out of date ------------------------------------------------------------------------

    def _stale(self, wanted: Environment) -> str:
        if file := staleness.changed(self._code):
            return f"{file} has changed since it was imported"
        if names := staleness.differing(self._environment, wanted):
            return f"{', '.join(names)}: read when TensorFlow is imported, and set otherwise for this worker"
        if self._failure and time.monotonic() > self._again:
            return f"to try again, since {self._failure}"
        return ""

    def _replace(self, launched: _Launched, wanted: Environment, reason: str) -> NoReturn:
        """Starts anew in this process, with what is wanted of the variables that are read at import."""
        logger.info("replacing itself", reason=reason)
        self._say(launched, f"stale {reason}")
        self._hang_up(launched)
        environment = staleness.mixed(self._environment, wanted)
        heirs = []
        for one in self._launched:
            if one.pid and one.connection is not None:
                one.connection.set_inheritable(True)
                heirs.append(f"{one.pid}:{one.connection.fileno()}")
        environment[_HEIRS_VARIABLE.encode()] = " ".join(heirs).encode()
        sys.stderr.flush()
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], environment)  # noqa: S606  our own


def _listen(path: Path) -> socket.socket:
    path.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    before = os.umask(0o177)
    try:
        listener.bind(os.fspath(path))
    finally:
        os.umask(before)
    listener.listen(128)
    listener.setblocking(False)
    return listener


def _set_environment() -> None:
    """As every worker would have it at its imports, and no device in sight."""
    for name, value in device.AT_IMPORT.items():
        os.environ.setdefault(name, value)
    os.environ["OPENBLAS_NUM_THREADS"] = "1"  # whatever the caller has: its threads would forbid the fork
    os.environ["CUDA_VISIBLE_DEVICES"] = device.NO_GPU


def _reseed() -> None:
    """Each worker draws numbers of its own; what was seeded before the fork would be the same in all."""
    import numpy as np

    random.seed()
    np.random.seed()  # noqa: NPY002  the generator of whoever still uses the global one


def _unfit() -> str:
    """Why nothing may be forked from this process; "" where it may."""
    threads = len(os.listdir("/proc/self/task"))
    if threads > 1:
        return f"the nursery has {threads} threads"
    for descriptor in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            if os.readlink(f"/proc/self/fd/{descriptor}").startswith("/dev/nvidia"):
                return "the nursery has a GPU open"
    return ""


def _import() -> str:
    """Imports all that a worker needs. Returns why it cannot be done, "" where it is."""
    for name in IMPORTED:
        try:
            with without_keras():
                importlib.import_module(name)
        except (Exception, SystemExit) as error:  # noqa: BLE001  whatever it is, the launchers are told
            traceback.print_exc()
            return cut(" ".join(f"{name} cannot be imported: {type(error).__name__}: {error}".split()))
    return ""


def main(settings_file: str, found: Code) -> NoReturn:
    """Imports, checks itself, and serves.

    Args:
        settings_file: of NurserySettings.
        found: what there was to import before anything was (staleness.look()).
    """
    process.die_with_parent(os.getppid())
    heirs = os.environ.pop(_HEIRS_VARIABLE, "")
    environment = dict(os.environb)
    log.configure()
    run = RunDir(Path(settings.load(Path(settings_file), NurserySettings).run_dir))
    listener = _listen(run.nursery_socket)
    _set_environment()
    start = time.monotonic()
    failure = _import()
    if reason := failure or _unfit():
        run.set_last_words(_PROGRAM, reason)
        logger.error("workers cannot be forked from here", reason=reason)
    else:
        run.set_last_words(_PROGRAM, "")
    # What is there now is never collected: a child's collector would copy every page of it.
    gc.collect()
    gc.freeze()
    nursery = Nursery(listener, environment, staleness.imported(found), failure)
    nursery.inherit(heirs)
    logger.info("ready", import_s=round(time.monotonic() - start, 2))
    nursery.serve()
