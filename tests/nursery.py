"""A nursery, launchers and a router, without a pool around them."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import msgspec
import zmq

from mpspool.core import messages, process, settings, slot_lock, tfs
from mpspool.core.ids import WorkerId
from mpspool.core.messages import Hello
from mpspool.core.rundir import RunDir
from mpspool.core.settings import ModelSettings, NurserySettings, SlotSettings, WorkerSettings
from tests.polling import until

EPOCH = 7


class Router:
    """Answers workers' Hellos, and asks them one thing at a time."""

    def __init__(self, run: RunDir) -> None:
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.ROUTER)
        self._socket.bind(f"ipc://{run.router_socket}")
        self._hellos: dict[bytes, Hello] = {}
        self._results: list[messages.Result] = []
        self._dispatch = 0

    def ready(self, worker: str, generation: int, timeout_s: float = 60) -> Hello:
        """Waits until this worker is READY."""
        identity = messages.worker_identity(worker, generation)

        def hello() -> Hello | None:
            self._take()
            found = self._hellos.get(identity)
            return found if found is not None and found.state == "READY" else None

        found = until(hello, timeout_s, f"{worker} is READY")
        assert found is not None
        return found

    def ask(self, worker: str, generation: int, model: str, *values: float) -> list[float]:
        """The "y" of the model for "x"."""
        request = tfs.PredictRequest()
        request.model_spec.name = model
        tensor = request.inputs["x"]
        tensor.dtype = 1
        tensor.tensor_shape.dim.add().size = len(values)
        tensor.float_val.extend(values)
        self._dispatch += 1
        body = messages.Request(request.SerializeToString())
        identity = messages.worker_identity(worker, generation)
        self._say(identity, messages.Dispatch(EPOCH, self._dispatch, [body]))
        self._results.clear()
        result = until(lambda: self._take() or self._results, 20, f"an answer of {worker}")[0]
        outcome = result.outcomes[0]
        assert outcome.code == 0, outcome.message
        answer = tfs.PredictResponse.FromString(outcome.body).outputs["y"]
        if answer.tensor_content:
            return list(memoryview(answer.tensor_content).cast("f"))
        return list(answer.float_val)

    def close(self) -> None:
        self._context.destroy(0)

    def _take(self) -> None:
        while self._socket.poll(10):
            identity, head, *_ = self._socket.recv_multipart()
            message = messages.decode_from_worker(head)
            if isinstance(message, Hello):
                if message.epoch == 0:
                    self._say(identity, messages.Welcome(EPOCH))
                    self._hellos[identity] = message
            elif isinstance(message, messages.Leaving):
                self._say(identity, messages.Goodbye(EPOCH))
            else:
                self._results.append(message)

    def _say(self, identity: bytes, message: messages.FromRouter) -> None:
        self._socket.send_multipart([identity, messages.encode(message)])

    def serve_until(self, probe: Any, timeout_s: float = 30) -> None:
        """Answers for as long as it takes."""
        until(lambda: self._take() or probe(), timeout_s)


class Launcher:
    """One launcher process, and its worker's settings and log."""

    def __init__(self, place: Place, config: WorkerSettings, environment: dict[str, str]) -> None:
        self._place = place
        self.program = WorkerId.parse(config.worker).program
        self.worker, self.generation, self.model = config.worker, config.generation, config.model.name
        self.log = place.run.log_file(f"{self.program}.{config.generation}")
        file = place.run.settings_file(self.program)
        settings.save(file, config)
        with open(self.log, "wb") as log:
            command = [
                sys.executable,
                "-I",
                "-S",
                str(place.launcher),
                str(place.run.nursery_socket),
                str(file),
            ]
            self.begun = time.monotonic()
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment, process_group=0
            )

    @property
    def worker_pid(self) -> int:
        return slot_lock.holder(self._place.run.lock_file(self.program))

    def ready(self) -> Hello:
        return self._place.router.ready(self.worker, self.generation)

    def ask(self, *values: float) -> list[float]:
        return self._place.router.ask(self.worker, self.generation, self.model, *values)

    def ended(self, timeout_s: float = 30) -> int:
        """Its exit status, as subprocess has it."""
        self._place.router.serve_until(lambda: self.process.poll() is not None, timeout_s)
        return int(self.process.returncode)

    def text(self) -> str:
        return self.log.read_text(encoding="utf-8", errors="replace")

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


class Place:
    """A run folder with a router, and a nursery where one has been started.

    Args:
        root: a short path: it holds sockets.
        package: the folder to import mpspool from.
        environment: of the nursery and of the launchers.
    """

    def __init__(self, root: Path, package: Path, environment: dict[str, str]) -> None:
        self.run = RunDir(root)
        for folder in self.run.folders():
            folder.mkdir(parents=True, exist_ok=True)
        self.launcher = package / "mpspool" / "worker" / "launcher.py"
        self.environment = environment
        self.router = Router(self.run)
        self.nursery: subprocess.Popen[bytes] | None = None
        self.log = self.run.log_file("nursery")
        self._launchers: list[Launcher] = []
        self._generation = 0

    def start_nursery(self) -> None:
        file = self.run.settings_file("nursery")
        settings.save(file, NurserySettings(run_dir=str(self.run.root)))
        with open(self.log, "ab") as log:
            self.nursery = subprocess.Popen(
                [sys.executable, "-P", "-m", "mpspool.worker.nursery", str(file)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self.environment,
                process_group=0,
            )

    def launch(
        self,
        model: str,
        path: Path | str,
        slot: int = 0,
        *,
        cpus: list[int] | None = None,
        intra_op_threads: int = 1,
        **environment: str,
    ) -> Launcher:
        """Starts a launcher, with the next generation; what it is to run is only looked at by its worker."""
        self._generation += 1
        config = WorkerSettings(
            run_dir=str(self.run.root),
            worker=f"{model}@1.cpu0.{slot}",
            generation=self._generation,
            credits=2,
            model=ModelSettings(
                name=model, version=1, path=str(path), slots=[], intra_op_threads=intra_op_threads
            ),
            slot=SlotSettings(device="cpu0", slot=slot, cpus=cpus or [], start="fork"),
        )
        launcher = Launcher(self, config, {**self.environment, **environment})
        self._launchers.append(launcher)
        return launcher

    def clear(self) -> None:
        """Ends every launcher, and waits until their workers have ended too."""
        for launcher in self._launchers:
            launcher.kill()
        until(lambda: not any(launcher.worker_pid for launcher in self._launchers), 10, "no worker is left")
        self._launchers.clear()

    def close(self) -> None:
        with contextlib.ExitStack() as stack:
            stack.callback(self.router.close)
            if self.nursery is not None:
                stack.callback(self.nursery.wait)
                stack.callback(self.nursery.kill)
            stack.callback(self.clear)


def kilobytes(pid: int) -> dict[str, int]:
    """/proc/PID/smaps_rollup in kB."""
    found = {}
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]:
        name, value, *_ = line.split()
        found[name.rstrip(":")] = int(value)
    return found


def private_kb(pid: int) -> int:
    found = kilobytes(pid)
    return found["Private_Dirty"] + found["Private_Clean"]


def stop(pid: int) -> None:
    """Stops a process, and waits until it is."""
    os.kill(pid, signal.SIGSTOP)
    until(lambda: (found := process.stat(pid)) is not None and found.state == "T")


def gone(pid: int) -> bool:
    return not process.alive(pid)


def structs(text: str) -> Any:
    return msgspec.json.decode(text.splitlines()[-1])
