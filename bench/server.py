"""A running server: started, checked, driven, ended with everything it has started itself."""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import shutil
import socket
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Self

import grpc

from bench import measure
from bench.cell import Sample, quietest
from bench.drive import Driven, drive
from bench.environments import REPOSITORY, BenchError
from bench.guard import Run
from bench.models import MODELS, check, inputs_for
from bench.peers import THREADS, Peer, Place
from bench.protocols import Json

_READY_S = 120.0
_STOP_S = 20.0
# Of load before what is measured: what learns from requests has then learned.
_WARM_UP_S = 3.0
_numbers = itertools.count()


class Server:
    """One peer serving one model. A context manager, as often as wanted; on exit nothing of it is left.

    Attributes:
        ready_s: from the start of the process to its first right answer.
    """

    def __init__(self, peer: Peer, model: str, run: Run) -> None:
        self.peer = peer
        self.name, self.title = peer.name, peer.title
        self.ready_s = 0.0
        self._model = MODELS[model]
        number = next(_numbers)
        self._mark = f"{run.mark}.{number}."
        self._load_cpus = run.load_cpus
        self._place = Place(model, free_ports(), run.folder / str(number), run.models, run.cache)
        self._log = run.folder / f"{number}.log"
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._place.port}"

    def __enter__(self) -> Self:
        """Starts it and waits until it answers right. Raises BenchError with the end of its log."""
        shutil.rmtree(self._place.folder, ignore_errors=True)
        self._place.folder.mkdir()
        command = list(self.peer.command(self._place))
        start = time.monotonic()
        try:
            with self._log.open("ab") as log:
                self._process = subprocess.Popen(
                    command,
                    env=os.environ | self._environment(),
                    cwd=self._place.folder,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
            self._wait_until_right(start + _READY_S)
            self.ready_s = time.monotonic() - start
            self._wait_for_all()
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, *exception: object) -> None:
        self._end()

    def _environment(self) -> dict[str, str]:
        return {
            measure.MARK: self._mark,
            "PYTHONPATH": str(REPOSITORY),
            "CUDA_VISIBLE_DEVICES": "-1",
            "TF_CPP_MIN_LOG_LEVEL": "2",
            "BENCH_MODEL": self._place.model,
            "BENCH_MODELS": str(self._place.models),
            "BENCH_THREADS": str(THREADS),
            **self.peer.environment,
        }

    def _wait_until_right(self, deadline: float) -> None:
        assert self._process is not None
        failure: Exception | str = "not asked yet"
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                raise BenchError(
                    f"{self.name} ended with status {self._process.returncode}{self._last_words()}"
                )
            try:
                self.check(1)
            except (grpc.RpcError, OSError, KeyError, ValueError) as error:
                failure = error
                time.sleep(0.1)
            else:
                return
        raise BenchError(
            f"{self.name} did not answer within {_READY_S:.0f} s ({failure}){self._last_words()}"
        )

    def _last_words(self) -> str:
        lines = self._log.read_text(errors="replace").splitlines()
        return "\n  ".join(["\nthe end of its log:", *lines[-15:]])

    def pids(self) -> list[int]:
        return measure.marked(self._mark)

    def memory(self) -> measure.Memory:
        return measure.memory(self.pids())

    def check(self, batch: int) -> int:
        """Asks once and compares with NumPy; returns the size of a right answer in an HTTP body.

        Raises:
            AssertionError: the answer is wrong.
        """
        inputs = inputs_for(self._model, batch)
        protocol = self.peer.protocol
        answer = protocol.call(self.address, protocol.encode(self._model, inputs))
        check(self._model, inputs, protocol.decode(answer))
        return len(protocol.frame(answer))

    def measure(self, batch: int, concurrency: int, seconds: float, rate: float = 0.0) -> Sample:
        """One cell; again while another process disturbs it, and the quietest try is kept.

        Args:
            batch: rows of each request.
            concurrency: connections.
            seconds: for how long.
            rate: requests a second in all; 0 for one after the other on each connection.

        Raises:
            BenchError, AssertionError: it answered wrong, or not at all.
        """
        try:
            return self._measure(batch, concurrency, seconds, rate)
        except (grpc.RpcError, OSError) as error:
            assert self._process is not None
            status = self._process.poll()
            what = f"its server ended with status {status}" if status is not None else str(error)
            raise BenchError(f"{what}{self._last_words()}") from error

    def _measure(self, batch: int, concurrency: int, seconds: float, rate: float) -> Sample:
        frame_bytes = self.check(batch)
        body = self.write_body(batch)
        self.load(body, concurrency, _WARM_UP_S if seconds > 1 else seconds)
        sample = quietest(lambda: self.load(body, concurrency, seconds, frame_bytes, rate))
        self.check(batch)
        return sample

    def write_body(self, batch: int) -> Path:
        """A file with the body of one HTTP request."""
        file = self._place.folder / f"body{batch}"
        protocol = self.peer.protocol
        file.write_bytes(protocol.frame(protocol.encode(self._model, inputs_for(self._model, batch))))
        return file

    def load(
        self, body: Path, concurrency: int, seconds: float, frame_bytes: int = 0, rate: float = 0.0
    ) -> Sample:
        """Drives the server once with a prepared body and measures it meanwhile.

        Args:
            body: from write_body().
            concurrency: connections.
            seconds: for how long.
            frame_bytes: the size of a right answer; 0 to count whatever comes.
            rate: requests a second in all; 0 for one after the other on each connection.

        Raises:
            BenchError: not every answer was a right one by its size.
        """
        http1 = isinstance(self.peer.protocol, Json)
        log = self._place.folder / "h2load"
        url = f"http://{self.address}{self.peer.protocol.path}"
        pids = self.pids()
        server, machine, start = measure.cpu_by_pid(pids), measure.machine_busy_s(), time.monotonic()
        headers = self.peer.protocol.headers
        driven = drive(
            url, headers, body, concurrency, seconds, log=log, http1=http1, rate=rate, cpus=self._load_cpus
        )
        elapsed = time.monotonic() - start
        used = measure.by_role(server, measure.cpu_by_pid(pids))
        busy = measure.machine_busy_s() - machine
        if frame_bytes:
            check_counts(self.name, driven, frame_bytes, http1)
        return Sample.of(driven, seconds, elapsed, used, busy)

    def _wait_for_all(self) -> None:
        if self.peer.wait is not None:
            done = self._command(self.peer.wait(self._place), _READY_S)
            if done.returncode:
                raise BenchError(f"{self.name}: not every worker came up: {done.stderr or done.stdout}")

    def _command(self, command: Sequence[str], timeout_s: float) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command,
            env=os.environ | self._environment(),
            cwd=self._place.folder,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )

    def _end(self) -> None:
        if self.peer.stop is not None and self._process is not None and self._process.poll() is None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._command(self.peer.stop(self._place), _STOP_S)
        measure.end_marked(self._mark)
        if self._process is not None:
            self._process.wait(timeout=10)


def check_counts(name: str, driven: Driven, frame_bytes: int, http1: bool) -> None:
    """h2load counts a gRPC error as a success, but such a response has no body: bytes tell.

    What had begun to arrive when the time was up adds a part of an answer for each connection.

    Raises:
        BenchError: not every response was a right answer by its size.
    """
    if not driven.done:
        raise BenchError(f"{name}: no answer at all")
    if driven.ok != driven.done:
        raise BenchError(f"{name}: {driven.done - driven.ok} of {driven.done} responses were HTTP errors")
    right = driven.data_bytes // frame_bytes
    if right < driven.ok and not http1:
        raise BenchError(f"{name}: {driven.ok - right} of {driven.ok} responses were gRPC errors, or shorter")


def listens(port: int) -> bool:
    """Whether somebody takes connections there."""
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True


def free_ports(count: int = 3) -> int:
    """The first of `count` neighbouring ports that nobody has bound, below the ephemeral range."""
    for _ in range(200):
        first = random.randrange(20_000, 32_000)
        with contextlib.ExitStack() as sockets, contextlib.suppress(OSError):
            for port in range(first, first + count):
                sockets.enter_context(socket.socket()).bind(("127.0.0.1", port))
            return first
    raise BenchError(f"no {count} neighbouring ports are free between 20000 and 32000")
