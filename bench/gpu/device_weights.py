"""Can the workers of a GPU read one copy of the weights on the device? `python -m bench.gpu.device_weights --help`.

This process puts a table on the device and shares it; every client is a process with a framework of its own, a client of
the same MPS daemon, that makes a variable of the memory without copying it, gathers rows from it and compares them with
what has to be there. What the variable costs is what the device has less of afterwards. Then one client is killed, and
the owner lets its own mapping go: who is left has to read the same rows. With `--via memfd` the same is done in host
memory, which shows what the framework does, and nothing of CUDA.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from bench.environments import REPOSITORY
from bench.gpu.cuda import CudaError
from bench.gpu.device_memory import METHODS, Driver, capsule
from mpspool.core.settings import MpsSettings, save
from mpspool.mps import devices
from mpspool.mps.control import Control, ControlError, control_command

_COLUMNS = 64
_GATHERED = 26 * 512
_CALLS = 200
_READY_S = 60.0
_MODULUS = 65521

Array = np.ndarray[Any, Any]


def table(rows: int) -> Array:
    """(rows, 64) float32; each value tells its place."""
    return (np.arange(rows * _COLUMNS, dtype=np.int64) % _MODULUS).astype(np.float32).reshape(rows, _COLUMNS)


def _size(rows: int) -> int:
    """Of the memory in bytes: one row more than there are, to be able to take a part of it."""
    return (rows + 1) * _COLUMNS * 4


def rows_of(indices: Array) -> Array:
    """What has to be in those rows of table()."""
    places = indices[:, None].astype(np.int64) * _COLUMNS + np.arange(_COLUMNS)
    return (places % _MODULUS).astype(np.float32)


# -- a client -------------------------------------------------------------------------------------


class _TensorFlow:
    """A variable of TensorFlow's that reads the memory."""

    def __init__(self, address: int, rows: int, *, cuda: bool) -> None:
        import tensorflow as tf

        self._tf = tf
        self._device = "GPU:0" if cuda else "CPU:0"
        self.name = f"TensorFlow {tf.__version__}"
        before = self.own_bytes()
        with tf.device(self._device):
            whole = tf.experimental.dlpack.from_dlpack(capsule(address, (rows + 1, _COLUMNS), cuda=cuda))
            # TensorFlow copies a buffer that is not its own before it gathers from it, but no part of one.
            self.variable = self._variable(tf.slice(whole, [0, 0], [rows, _COLUMNS]))
            del whole
        self.gather(np.arange(8, dtype=np.int64))
        self.cost_bytes = self.own_bytes() - before

    def _variable(self, value: Any) -> Any:
        tf = self._tf
        handle = tf.raw_ops.VarHandleOp(dtype=tf.float32, shape=value.shape, shared_name=f"v{time.time_ns()}")
        tf.raw_ops.AssignVariableOp(resource=handle, value=value)
        # A gather would otherwise copy what others may hold, too.
        tf.raw_ops.DisableCopyOnRead(resource=handle)
        return handle

    def own_bytes(self) -> int:
        """What TensorFlow holds itself; on the CPU what the process does, shared pages left out."""
        if self._device == "GPU:0":
            return int(self._tf.config.experimental.get_memory_info("GPU:0")["current"])
        return _private_bytes()

    def gather(self, indices: Array) -> Array:
        tf = self._tf
        with tf.device(self._device):
            found = tf.raw_ops.ResourceGather(
                resource=self.variable, indices=tf.constant(indices), dtype=tf.float32
            )
        return np.asarray(found.numpy())

    def make_private(self) -> None:
        tf = self._tf
        with tf.device(self._device):
            value = tf.raw_ops.ReadVariableOp(resource=self.variable, dtype=tf.float32)
            self.variable = self._variable(tf.raw_ops.DeepCopy(x=value))


class _Torch:
    """A tensor of torch's that reads the memory."""

    def __init__(self, address: int, rows: int, *, cuda: bool) -> None:
        import torch  # type: ignore[import-not-found]  # no requirement of ours: TensorFlow may be what is missing

        self._torch = torch
        self._device = "cuda:0" if cuda else "cpu"
        self.name = f"torch {torch.__version__}"
        if cuda:
            torch.cuda.init()
        before = self.own_bytes()
        self.variable = torch.from_dlpack(capsule(address, (rows, _COLUMNS), cuda=cuda))
        self.gather(np.arange(8, dtype=np.int64))
        self.cost_bytes = self.own_bytes() - before

    def own_bytes(self) -> int:
        return int(self._torch.cuda.memory_allocated()) if self._device == "cuda:0" else _private_bytes()

    def gather(self, indices: Array) -> Array:
        chosen = self._torch.from_numpy(indices).to(self._device)
        return np.asarray(self.variable.index_select(0, chosen).cpu().numpy())

    def make_private(self) -> None:
        self.variable = self.variable.clone()


FRAMEWORKS: Mapping[str, Callable[..., Any]] = {"tensorflow": _TensorFlow, "torch": _Torch}


def _private_bytes() -> int:
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("Anonymous:")) * 1024


def _client(options: argparse.Namespace) -> None:
    """Answers each line on stdin with one of JSON."""
    told, descriptor = bytes.fromhex(sys.stdin.readline().strip()), options.descriptor
    method = METHODS[options.via[0]]
    address, rights = method.open(told, descriptor, _size(options.rows))
    framework = FRAMEWORKS[options.framework](address, options.rows, cuda=method.cuda)
    print(
        json.dumps({"framework": framework.name, "rights": rights, "cost_bytes": framework.cost_bytes}),
        flush=True,
    )
    random = np.random.default_rng(os.getpid())
    for line in sys.stdin:
        said: dict[str, Any] = {}
        if line.strip() == "private":
            framework.make_private()
        indices = random.integers(0, options.rows, _GATHERED)
        said["right"] = bool(np.array_equal(framework.gather(indices), rows_of(indices)))
        start = time.perf_counter()
        for _ in range(_CALLS):
            framework.gather(indices)
        said["gather_us"] = (time.perf_counter() - start) / _CALLS * 1e6
        print(json.dumps(said), flush=True)


# -- the owner ------------------------------------------------------------------------------------


class _Clients:
    """Processes that map the same memory."""

    def __init__(self, via: str, options: argparse.Namespace, told: bytes, descriptor: int) -> None:
        command = [sys.executable, "-m", "bench.gpu.device_weights", "--client", "--via", via]
        command += ["--framework", options.framework, "--rows", str(options.rows)]
        self._processes = []
        for _ in range(options.clients):
            process = subprocess.Popen(
                [*command, "--descriptor", str(descriptor)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                cwd=REPOSITORY,
                pass_fds=[descriptor] if descriptor >= 0 else [],
                env=os.environ | {"TF_FORCE_GPU_ALLOW_GROWTH": "true", "TF_CPP_MIN_LOG_LEVEL": "2"},
            )
            self._processes.append(process)
            self._tell(process, told.hex())

    def _tell(self, process: subprocess.Popen[str], line: str) -> None:
        assert process.stdin is not None
        process.stdin.write(line + "\n")
        process.stdin.flush()

    def hear(self) -> list[dict[str, Any]]:
        """A line of each. Raises ClientError for one that has ended."""
        said = []
        for process in self._processes:
            assert process.stdout is not None
            line = process.stdout.readline()
            if not line:
                raise ClientError(f"a client ended with status {process.wait()}; its error is above")
            said.append(json.loads(line))
        return said

    def ask(self, line: str) -> list[dict[str, Any]]:
        for process in self._processes:
            self._tell(process, line)
        return self.hear()

    def kill_one(self) -> None:
        process = self._processes.pop()
        process.kill()
        process.communicate()

    def end(self) -> None:
        for process in self._processes:
            process.kill()
            process.communicate()


class ClientError(Exception):
    """A client did not do its part."""


def _examine(via: str, options: argparse.Namespace) -> dict[str, Any]:
    """What can be said of one way of sharing. Raises CudaError, OSError, ClientError."""
    method = METHODS[via]
    size = _size(options.rows)
    memory = method.make(size)
    memory.write(table(options.rows))
    told, descriptor = memory.share()
    free = Driver().free_bytes if method.cuda else (lambda: 0)
    before = free()
    clients = _Clients(via, options, told, descriptor)
    found: dict[str, Any] = {"via": via, "table_bytes": size, "clients": options.clients}
    try:
        opened = clients.hear()
        found |= {key: opened[0][key] for key in ("framework", "rights")}
        found["a client's variable, bytes of its own"] = [one["cost_bytes"] for one in opened]
        found["device memory for all clients, bytes"] = before - free()
        found["right"] = _right(clients.ask("read"))
        clients.kill_one()
        found["right after one client was killed"] = _right(clients.ask("read"))
        if via == "ipc":
            found["right after the owner has let go"] = "not defined by CUDA"
        else:
            memory.let_go()
            found["right after the owner has let go"] = _right(clients.ask("read"))
        found["gather, shared, us"] = _times(clients.ask("read"))
        found["gather, private, us"] = _times(clients.ask("private"))
    finally:
        clients.end()
        if descriptor >= 0:
            os.close(descriptor)
    return found


def _right(said: Sequence[Mapping[str, Any]]) -> list[bool]:
    return [one["right"] for one in said]


def _times(said: Sequence[Mapping[str, Any]]) -> list[float]:
    return [round(one["gather_us"], 1) for one in said]


@contextlib.contextmanager
def _mps(number: int) -> Iterator[None]:
    """An MPS daemon of our own around it, for us and whoever we start. Raises ClientError."""
    gpus = devices.inventory(os.environ).devices
    if number >= len(gpus):
        raise ClientError(f"no GPU {number}: --via memfd needs none")
    os.environ["CUDA_VISIBLE_DEVICES"] = gpus[number].uuid
    control_program = control_command(os.environ)
    if control_program is None:
        raise ClientError("nvidia-cuda-mps-control is not there: --no-mps needs none")
    root = Path(tempfile.mkdtemp(prefix="mpb-"))
    settings = MpsSettings(
        device="gpu0",
        gpu_uuid=gpus[number].uuid,
        pipe_dir=str(root / "pipe"),
        log_dir=str(root / "log"),
        server_log="",
        control=control_program,
    )
    save(root / "mps.json", settings)
    daemon = subprocess.Popen([sys.executable, "-P", "-m", "mpspool.mps.daemon", str(root / "mps.json")])
    control = Control.of(settings, os.environ)
    end = time.monotonic() + _READY_S
    try:
        while not control.answers():
            if time.monotonic() > end or daemon.poll() is not None:
                raise ClientError("the MPS daemon does not answer; its error is above")
            time.sleep(0.1)
        os.environ["CUDA_MPS_PIPE_DIRECTORY"] = settings.pipe_dir
        yield
        with contextlib.suppress(ControlError):
            print(f"bench: servers of MPS at the end: {control.server_list()}", flush=True)
    finally:
        daemon.terminate()
        daemon.wait()
        shutil.rmtree(root, ignore_errors=True)


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench.gpu.device_weights",
        description="Can processes under one MPS daemon read one copy of a table on the device? Prints JSON.",
        epilog="Exit status: 0 when every way that was asked for was examined, whatever came out; 1 otherwise.",
    )
    add = parser.add_argument
    add("--via", type=lambda text: text.split(","), default=["vmm", "ipc"], help="of vmm, ipc, memfd")
    add("--gpu", type=int, default=0)
    add("--no-mps", action="store_true", help="without an MPS daemon")
    add("--clients", type=int, default=4)
    add("--rows", type=int, default=2**22, help="of 256 bytes; default: 1 GiB of them")
    add(
        "--framework", choices=tuple(FRAMEWORKS), help="default: TensorFlow where it is installed, else torch"
    )
    add("--client", action="store_true", help=argparse.SUPPRESS)
    add("--descriptor", type=int, default=-1, help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if unknown := set(options.via) - set(METHODS):
        parser.error(f"--via: {', '.join(sorted(unknown))} is not one of {', '.join(METHODS)}")
    options.framework = options.framework or ("tensorflow" if find_spec("tensorflow") else "torch")
    return options


def main(argv: Sequence[str] | None = None) -> int:
    options = _arguments(argv)
    if options.client:
        _client(options)
        return 0
    failed = False
    host = set(options.via) == {"memfd"}
    try:
        with contextlib.nullcontext() if host or options.no_mps else _mps(options.gpu):
            for via in options.via:
                try:
                    print(json.dumps(_examine(via, options), indent=1), flush=True)
                except (CudaError, OSError, ClientError) as error:
                    failed = True
                    print(json.dumps({"via": via, "failed": str(error)}), flush=True)
    except ClientError as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
