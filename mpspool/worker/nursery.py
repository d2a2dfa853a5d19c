"""`python -P -m mpspool.worker.nursery SETTINGS`: has imported TensorFlow, and forks the workers.

It does nothing else: no session, no device, one thread. A launcher asks for a worker and hands over its own
standard streams, environment and lifeline (what is said: worker/launcher.py); it is told the worker's pid at
once and its wait status at the end, which a parent alone can learn. Workers outlive their nursery.

When the code on disk is not what it has imported any more, or a launcher's environment differs in what is
read at import, it replaces itself by exec: the workers stay its children, and their launchers connected.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import random
import re
import selectors
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn, Self

from mpspool.core import log, process, settings
from mpspool.core.rundir import RunDir
from mpspool.core.settings import NurserySettings
from mpspool.worker import begin, device, launcher

logger = log.get("nursery")

# All that a worker imports before it is READY, TensorFlow first.
IMPORTED = (
    "tensorflow",
    "mpspool.worker.app",
    "mpspool.worker.engine.load",
    "mpspool.worker.warmup",
    "mpspool.worker.weights.attach",
)
# The variables that the imports look up, in C and in Python: a child's own would come too late. What is not
# here is read by a worker when it uses it: devices, thread counts, allocators, XLA's and TensorFlow's flags.
READ_AT_IMPORT = re.compile(
    rb"(LD|GLIBC|MALLOC)_.*"  # the loader and the C library, when the process starts
    rb"|PYTHON.*"  # the interpreter, when it starts, and what it imports from
    rb"|(OPENBLAS|NPY|NUMPY|HDF5)_.*"  # NumPy and its OpenBLAS; h5py
    rb"|(PROTOCOL_BUFFERS|ABSL|WRAPT|PYZMQ)_.*"  # the choice between implementations
    rb"|KERAS_.*|TF_USE_LEGACY_KERAS"
    rb"|TF2_BEHAVIOR|TF_ENABLE_CONTROL_FLOW_V2|TF_FORWARD_COMPATIBILITY_DELTA_DAYS"
    rb"|TF_(FUNCTION_JIT_COMPILE_DEFAULT|JIT_COMPILE_REWRITE|OPTIONALS_IN_GRADIENTS)"
    rb"|TF_XLA_SHARDING_FOR_RESOURCE_VARIABLES"
    rb"|TF_CPP_.*"  # log levels
    rb"|TF_ENABLE_ONEDNN_OPTS|TF_ENABLED_DEVICE_TYPES|TF_PLUGGABLE_DEVICE_LIBRARY_PATH"  # which kernels there are
    rb"|GCS_.*|TF_USE_MODULAR_FILESYSTEM|GRPC_.*|OPENSSL_.*"  # file systems
)
_MAX_REQUEST_BYTES = 16 * 2**20
# For the image that replaces this one: the workers it is the parent of, PID:DESCRIPTOR of their launchers.
_HEIRS_VARIABLE = "MPSPOOL_NURSERY_WORKERS"
_NO_DESCRIPTOR_S = 0.1

Environment = Mapping[bytes, bytes]
Version = tuple[int, int, int]
Code = Mapping[str, Version | None]


@dataclass(frozen=True, slots=True)
class _Request:
    """What a launcher asks for. The descriptors are ours to close.

    Attributes:
        settings: the worker's settings file.
        environment: the worker's whole environment.
        streams: standard input, output and error.
        lifeline: the launcher holds the other end for as long as the worker may live.
    """

    settings: Path
    environment: Environment
    streams: tuple[int, ...]
    lifeline: int

    @classmethod
    def receive(cls, connection: socket.socket) -> Self:
        """Raises OSError, and ValueError for what is not a request."""
        limit = launcher.DESCRIPTORS
        data, descriptors, flags, _ = socket.recv_fds(connection, 4096, limit, socket.MSG_CMSG_CLOEXEC)
        try:
            _check(data, descriptors, flags)
            file, *streams, lifeline = descriptors
            path, environment = _parse(file)
        except BaseException:
            _close(descriptors)
            raise
        os.close(file)
        return cls(path, environment, tuple(streams), lifeline)

    def close(self) -> None:
        _close([*self.streams, self.lifeline])


def _check(data: bytes, descriptors: Sequence[int], flags: int) -> None:
    if not data:
        raise ConnectionResetError("the launcher has gone")
    whole = len(descriptors) == launcher.DESCRIPTORS and not flags & socket.MSG_CTRUNC
    if data != launcher.PROTOCOL or not whole:
        raise ValueError("not a request that this nursery understands")


def _parse(file: int) -> tuple[Path, Environment]:
    size = os.fstat(file).st_size
    if not 0 < size <= _MAX_REQUEST_BYTES:
        raise ValueError(f"a request of {size} bytes")
    path, *variables = os.pread(file, size, 0).split(b"\0")
    pairs = (variable.partition(b"=") for variable in variables)
    return Path(os.fsdecode(path)), {name: value for name, _, value in pairs if name}


def _close(descriptors: Iterable[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)


@dataclass(slots=True, eq=False)
class _Launched:
    """A launcher's connection, None once it has gone, and its worker, with pid 0 before there is one."""

    connection: socket.socket | None
    pid: int = 0
    pidfd: int = -1


class Nursery:
    """Serves launchers, in one thread, for ever.

    Args:
        path: where to listen.
        environment: what this process was started with.
        code: the files it has imported.
    """

    def __init__(self, path: Path, environment: Environment, code: Code) -> None:
        self._environment = environment
        self._code = code
        self._launched: set[_Launched] = set()
        # A poll set and not an epoll descriptor, which a child would share.
        self._selector = selectors.PollSelector()
        self._listener = _listen(path)
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
            request = _Request.receive(launched.connection)
        except (OSError, ValueError) as error:
            if reason := self._stale(self._environment):  # a newer launcher, perhaps
                self._replace(launched, self._environment, reason)
            self._refuse(launched, str(error))
            return
        if reason := self._stale(request.environment):
            self._replace(launched, request.environment, reason)
        if reason := _unfit():
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

    def _fork(self, launched: _Launched, request: _Request) -> None:
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

    def _become(self, request: _Request) -> NoReturn:
        """In the child: nothing of the nursery's is left when the worker begins."""
        try:
            os.setsid()
            # What top shows: the command line stays the nursery's.
            Path("/proc/self/comm").write_text("mpspool-worker", encoding="ascii")
            self._forget()
            for target, stream in enumerate(request.streams):
                os.dup2(stream, target)
            _close(request.streams)
            process.die_with_peer(request.lifeline)
            os.environb.clear()
            os.environb.update(request.environment)
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
        if file := _changed(self._code):
            return f"{file} has changed since it was imported"
        if names := _differing(self._environment, wanted):
            return f"{', '.join(names)}: read when TensorFlow is imported, and set otherwise for this worker"
        return ""

    def _replace(self, launched: _Launched, wanted: Environment, reason: str) -> NoReturn:
        """Starts anew in this process, with what is wanted of the variables that are read at import."""
        logger.info("replacing itself", reason=reason)
        self._say(launched, f"stale {reason}")
        self._hang_up(launched)
        environment = {name: value for name, value in self._environment.items() if not _read_at_import(name)}
        environment |= {name: value for name, value in wanted.items() if _read_at_import(name)}
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


def _differing(ours: Environment, theirs: Environment) -> list[str]:
    names = {name for name in {*ours, *theirs} if ours.get(name) != theirs.get(name)}
    return sorted(os.fsdecode(name) for name in names if _read_at_import(name))


def _read_at_import(name: bytes) -> bool:
    return READ_AT_IMPORT.fullmatch(name) is not None


def _imported_code() -> Code:
    """This package's modules, the interpreter, and the folder that changes with every package installed."""
    found = {sys.executable, __file__}
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] == "mpspool" and module.__file__:
            found.add(module.__file__)
        if name == "tensorflow" and module.__file__:
            found.add(str(Path(module.__file__).parents[1]))
    return {path: _version(path) for path in found}


def _version(path: str) -> Version | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns


def _changed(code: Code) -> str:
    """A path that is not what it was, "" for none."""
    return next((path for path, version in code.items() if _version(path) != version), "")


def main(settings_file: str) -> NoReturn:
    """Imports, checks itself, and serves."""
    process.die_with_parent(os.getppid())
    heirs = os.environ.pop(_HEIRS_VARIABLE, "")
    environment = dict(os.environb)
    log.configure()
    config = settings.load(Path(settings_file), NurserySettings)
    _set_environment()
    start = time.monotonic()
    for name in IMPORTED:
        importlib.import_module(name)
    code = _imported_code()
    if reason := _unfit():
        logger.error("workers cannot be forked from here", reason=reason)
    # What is there now is never collected: a child's collector would copy every page of it.
    gc.collect()
    gc.freeze()
    nursery = Nursery(RunDir(Path(config.run_dir)).nursery_socket, environment, code)
    nursery.inherit(heirs)
    logger.info("ready", import_s=round(time.monotonic() - start, 2))
    nursery.serve()


if __name__ == "__main__":
    main(sys.argv[1])
