"""A real pool, started the way a user starts it, and looked at the way a user looks at it."""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mpspool.core import control, process, settings
from mpspool.core.rundir import RunDir
from mpspool.core.settings import MpsSettings
from mpspool.mps.control import Control
from mpspool.supervisor import lock
from tests.polling import until

ROOT = Path(__file__).parent.parent
CLI = [sys.executable, "-m", "mpspool"]
START_TIMEOUT_S = 120
# Less than those that the kernel gives to whoever names none, and to connections.
_PORTS = range(20_000, 30_000)
# Requests a second, of the loads under which things are broken.
RATE = 200
_LONG_S = 300
# So long a pool process that was killed may be away.
_AWAY_S = 60
# By so much in a row a load may fall behind where the machine stands still, and catches up.
_LAG_S = 5


@functools.cache
def _ports() -> Iterator[int]:
    """One after another of those that no other process of pytest-xdist has; another run most likely begins elsewhere."""
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    mine = _PORTS[worker :: int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))]
    first = secrets.randbelow(len(mine))
    return itertools.cycle([*mine[first:], *mine[:first]])


def free_port() -> int:
    """One that nobody has, and nobody is given before a server that is started now has it."""
    return next(filter(_is_free, _ports()))


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("", port))
        except OSError:
            return False
    return True


def cli(*args: object, timeout: float = 60, **kwargs: Any) -> subprocess.CompletedProcess[str]:
    """Runs `mpspool ARGS` to its end."""
    command = [*CLI, *map(str, args)]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=timeout, check=False, cwd=ROOT, **kwargs
    )


def processes_of(run_dir: Path) -> dict[int, str]:
    """Every living process that names the run folder, on its command line or in its environment.

    Returns:
        pid -> command line.
    """
    named = os.fsencode(run_dir)
    found = {}
    for pid in (int(entry) for entry in os.listdir("/proc") if entry.isdigit()):
        command = b" ".join(process.strings(pid, "cmdline"))
        if pid == os.getpid() or not command or b" -m bench.load " in command:
            continue
        if named in command or named in b" ".join(process.strings(pid, "environ")):
            found[pid] = command.decode()
    return found


def running_first(folder: Path, code: str) -> dict[str, str]:
    """What to add to the environment of Python processes that run this before anything of their own."""
    (folder / "sitecustomize.py").write_text(code)
    return {"PYTHONPATH": os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])}


class Pool:
    """`mpspool start` in the foreground, in a process group of its own.

    Args:
        run_dir: a short path: it holds sockets.
        args: for `mpspool start`, beside ports and run folder.
    """

    def __init__(self, run_dir: Path, *args: object, env: dict[str, str] | None = None) -> None:
        self.run_dir = run_dir
        self.grpc_port, self.rest_port = free_port(), free_port()
        self.args = [str(arg) for arg in args]
        self.env = {**os.environ, **(env or {})}
        self.process: subprocess.Popen[str] | None = None
        self.output = run_dir.with_suffix(".out")

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.grpc_port}"

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def start(self) -> Pool:
        with self.output.open("a") as out:
            self.process = subprocess.Popen(
                self._command(),
                stdout=out,
                stderr=out,
                text=True,
                cwd=ROOT,
                env=self.env,
                start_new_session=True,
            )
        until(self._answers, 20, "the pool answers")
        return self

    def _command(self) -> list[str]:
        ports = ["--grpc-port", str(self.grpc_port), "--rest-port", str(self.rest_port)]
        return [*CLI, "start", "--run-dir", str(self.run_dir), *ports, *self.args]

    def _answers(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, self.output.read_text()
        return cli("status", "--run-dir", self.run_dir, "--json").returncode == 0

    def wait(self, timeout_s: float = START_TIMEOUT_S) -> Pool:
        """Until it is READY, and nothing is left of what published weights: that may outlast the workers' start."""
        done = cli("wait", "--run-dir", self.run_dir, "--timeout", timeout_s, timeout=timeout_s + 10)
        assert done.returncode == 0, f"{done.stdout}{done.stderr}\n{self.output.read_text()}\n{self.logs()}"
        until(lambda: not self._publishing(), 20, "no publisher is left")
        return self

    def _publishing(self) -> bool:
        status = control.call(RunDir(self.run_dir).pool_control, "status")
        return any(item["name"].startswith("publish.") for item in status["processes"])

    def status(self) -> dict[str, Any]:
        """Asked for again while the pool runs: a pool process that was killed may be away for longer than the command waits."""
        end_s = time.monotonic() + _AWAY_S
        while (done := cli("status", "--run-dir", self.run_dir, "--json")).returncode:
            if not self._runs() or time.monotonic() > end_s:
                break
        assert done.returncode == 0, done.stderr + self.output.read_text()
        answer: dict[str, Any] = json.loads(done.stdout)
        return answer

    def _runs(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def workers(self) -> dict[str, dict[str, Any]]:
        return {worker["id"]: worker for worker in self.status()["workers"]}

    def served(self) -> int:
        """Requests that its workers have answered."""
        return sum(worker["served"] for worker in self.workers().values())

    def serves_on(self, timeout_s: float = 20) -> None:
        """Waits until a second's worth of requests more has been answered."""
        before = self.served()
        until(lambda: self.served() > before + RATE, timeout_s, "requests are answered")

    def process_pid(self, name: str) -> int:
        """Of one of supervisord's children; 0 while it does not run."""
        return next(item["pid"] for item in self.status()["processes"] if item["name"] == name) or 0

    def supervisord_pid(self) -> int:
        found = process.stat(self.process_pid("pool"))
        assert found is not None
        return found.ppid

    def events(self, name: str = "pool") -> list[dict[str, Any]]:
        """What a process has logged."""
        lines = (self.run_dir / "logs" / f"{name}.log").read_text().splitlines()
        return [json.loads(line) for line in lines if line.startswith("{")]

    def fault(self, device: str, *args: object) -> None:
        """Has a stand-in fail, as `mpspool simulate fault` is told to."""
        done = cli("simulate", "fault", device, "--run-dir", self.run_dir, *args)
        assert done.returncode == 0, done.stderr

    def mps_clients(self, device: str) -> list[int]:
        """Of the MPS daemon of that device, asked the way nvidia-cuda-mps-control is."""
        daemon = settings.load(self.run_dir / "settings" / f"mps.{device}.json", MpsSettings)
        control = Control.of(daemon, os.environ)
        return [pid for server in control.server_list() for pid in control.client_list(server)]

    def all_ready(self) -> bool:
        return self.status()["pool"]["state"] == "RUNNING"

    def logs(self) -> str:
        files = sorted((self.run_dir / "logs").glob("*")) if (self.run_dir / "logs").exists() else []
        return "\n".join(f"== {file.name}\n{file.read_text(errors='replace')[-3000:]}" for file in files)

    def stop(self, timeout_s: float = 60) -> int:
        """SIGTERM, then the exit status."""
        assert self.process is not None
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout_s)

    def clear(self) -> None:
        """Ends whatever is left, for a test that has failed."""
        if self.process is not None:
            for pid in [self.process.pid, *processes_of(self.run_dir)]:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self.process.wait(10)

    def assert_nothing_left(self) -> None:
        """No process, and so no segment, which has no name; no socket, page or lock of this pool."""
        until(lambda: not processes_of(self.run_dir), 15, f"processes left: {processes_of(self.run_dir)}")
        assert not lock.holder(RunDir(self.run_dir))
        sockets = [path for path in self.run_dir.rglob("*") if path.is_socket()]
        assert not sockets
        assert not list((self.run_dir / "progress").glob("worker.*.[0-9]*"))


class ModelServer(Pool):
    """`mpspool tensorflow_model_server`, a pool that is started by TensorFlow Serving's command line."""

    def _command(self) -> list[str]:
        ours = [f"--run_dir={self.run_dir}", "--host=127.0.0.1"]
        ports = [f"--port={self.grpc_port}", f"--rest_api_port={self.rest_port}"]
        return [*CLI, "tensorflow_model_server", *ports, *ours, *self.args]


class Load:
    """The checking load generator, running beside the test: RATE requests a second until its end, or five minutes."""

    def __init__(self, pool: Pool, model: str, *args: object) -> None:
        command = [
            sys.executable, "-m", "bench.load", "--address", pool.address, "--model", model,
            "--rate", str(RATE), "--seconds", str(_LONG_S), *map(str, args),
        ]  # fmt: skip
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT
        )

    def end(self) -> dict[str, Any]:
        """Sends no more, and reports, once all has been answered; the load was what it should be."""
        ended_s = time.monotonic()
        self.process.send_signal(signal.SIGINT)
        report = self._report()
        lag_s = report["lag_ms"] / 1000
        assert lag_s < _LAG_S, report
        # Requests leave at their times whatever becomes of the others. The last second: a stall that the order to end falls into.
        sending_s = min(ended_s - report["start_s"], _LONG_S) - lag_s - 1
        assert report["sent"] >= 0.9 * RATE * sending_s, f"{report['sent']} sent in {sending_s} s: {report}"
        return report

    def end_clean(self) -> dict[str, Any]:
        """Sends no more; every request was answered, and right."""
        report = self.end()
        assert report["sent"]
        assert report["ok"] == report["sent"], report
        return report

    def _report(self) -> dict[str, Any]:
        out, err = self.process.communicate(timeout=120)
        assert out.strip(), err
        answer: dict[str, Any] = json.loads(out)
        print("load:", out.strip())  # seen with pytest -rP
        return answer

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()
