"""A worker's place: environment, affinity, attachment to the stand-in daemon, TensorFlow's options."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from mpspool.core.settings import ModelSettings, SlotSettings, WorkerSettings
from mpspool.worker import device

GPU = "GPU-11111111-2222-3333-4444-555555555555"

_PREPARE = """
import json, os, sys, threading
from mpspool.core.settings import WorkerSettings
import msgspec
from mpspool.worker import device
assert not {"numpy", "tensorflow"} & set(sys.modules), "imported before the environment is set"
release = threading.Event()
thread = threading.Thread(target=release.wait)
thread.start()
device.prepare(msgspec.json.decode(sys.argv[1], type=WorkerSettings))
affinities = [sorted(os.sched_getaffinity(int(task))) for task in os.listdir("/proc/self/task")]
release.set()
json.dump([dict(os.environ), affinities], sys.stdout)
"""


def worker(slot: dict[str, Any] | None = None, **model: Any) -> WorkerSettings:
    return WorkerSettings(
        run_dir="",
        worker="m@1.cpu0.0",
        generation=1,
        credits=2,
        model=ModelSettings(name="m", version=1, path="", slots=[], **model),
        slot=SlotSettings(**{"device": "cpu0", "slot": 0, **(slot or {})}),
    )


def child(code: str, settings: WorkerSettings, *arguments: str, **environment: str) -> Any:
    """What the code prints as JSON, run in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-c", code, msgspec.json.encode(settings).decode(), *arguments],
        env={"PATH": os.environ["PATH"], **environment},
        check=False,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_cpu_slot_sees_no_gpu() -> None:
    """On a CPU slot, and on a simulated GPU, TensorFlow is shown no GPU."""
    assert device.placement(worker().slot) == {"CUDA_VISIBLE_DEVICES": "-1"}
    simulated = worker({"device": "gpu0", "gpu_uuid": GPU, "mps_pipe": "/run/pipe", "simulated": True})
    assert device.placement(simulated.slot) == {
        "CUDA_VISIBLE_DEVICES": "-1",
        "CUDA_MPS_PIPE_DIRECTORY": "/run/pipe",
    }


def test_gpu_slot_sees_its_gpu() -> None:
    """A GPU slot sees one GPU, by UUID, and its own daemon's pipe folder."""
    placement = device.placement(worker({"device": "gpu3", "gpu_uuid": GPU, "mps_pipe": "/run/pipe"}).slot)
    assert placement == {"CUDA_VISIBLE_DEVICES": GPU, "CUDA_MPS_PIPE_DIRECTORY": "/run/pipe"}


@pytest.mark.parametrize(("growth", "value"), [(True, "true"), (False, "false")])
def test_gpu_growth(growth: bool, value: str) -> None:
    """Growth is said in the environment on a GPU slot only."""
    on_gpu = worker({"gpu_uuid": GPU}, gpu_memory_growth=growth)
    assert device.defaults(on_gpu)["TF_FORCE_GPU_ALLOW_GROWTH"] == value
    assert "TF_FORCE_GPU_ALLOW_GROWTH" not in device.defaults(worker(gpu_memory_growth=growth))


@pytest.mark.parametrize(
    ("intra", "inter", "slot", "clock_ns"),
    [
        (1, 1, {}, time.process_time_ns),
        (1, 0, {}, time.process_time_ns),
        (1, 2, {}, time.perf_counter_ns),
        (2, 1, {}, time.perf_counter_ns),
        (0, 0, {}, time.perf_counter_ns),
        (1, 1, {"device": "gpu0", "gpu_uuid": GPU}, None),
    ],
)
def test_runs_are_compared_by_cpu_time_where_one_thread_runs_them(
    intra: int, inter: int, slot: dict[str, Any], clock_ns: object
) -> None:
    """By the wall clock where several do, and not at all on a GPU."""
    chosen = device.run_clock_ns(worker(slot, intra_op_threads=intra, inter_op_threads=inter))
    assert chosen is clock_ns


def test_openmp_threads() -> None:
    """OpenMP gets the configured threads, else the slot's CPUs, else its own default."""
    assert device.defaults(worker({"cpus": [1, 2, 3]}, intra_op_threads=2))["OMP_NUM_THREADS"] == "2"
    assert device.defaults(worker({"cpus": [1, 2, 3]}))["OMP_NUM_THREADS"] == "3"
    assert "OMP_NUM_THREADS" not in device.defaults(worker())


def test_prepare() -> None:
    """All threads are pinned, the device is ours to say, and the caller's own settings win over defaults."""
    cpu = max(os.sched_getaffinity(0))
    caller = {"CUDA_VISIBLE_DEVICES": "0", "OMP_NUM_THREADS": "7", "TF_CPP_MIN_LOG_LEVEL": "0"}
    environment, affinities = child(_PREPARE, worker({"cpus": [cpu]}), **caller)
    assert affinities == [[cpu], [cpu]]
    assert environment["CUDA_VISIBLE_DEVICES"] == "-1"
    assert environment["OMP_NUM_THREADS"] == "7"
    assert environment["TF_CPP_MIN_LOG_LEVEL"] == "0"
    assert environment["OPENBLAS_NUM_THREADS"] == "1"


@pytest.mark.parametrize("slot", [{"cpus": [0, 4095]}, {"cpus": [0], "simulated": True}, {"cpus": []}])
def test_not_pinned(slot: dict[str, Any]) -> None:
    """CPUs that are not there, or only simulated, leave the affinity as it was."""
    _, affinities = child(_PREPARE, worker(slot))
    assert affinities == [sorted(os.sched_getaffinity(0))] * 2


def test_session_config() -> None:
    """Threads and GPU options arrive in the ConfigProto; a limit in bytes goes before a fraction."""
    config = device.session_config(worker(intra_op_threads=3, inter_op_threads=2, gpu_memory_fraction=0.25))
    assert (config.intra_op_parallelism_threads, config.inter_op_parallelism_threads) == (3, 2)
    assert config.gpu_options.allow_growth
    assert config.gpu_options.per_process_gpu_memory_fraction == 0.25
    limited = device.session_config(
        worker(gpu_memory_limit_bytes=3 * 2**30, gpu_memory_fraction=0.25, gpu_memory_growth=False)
    )
    assert [list(each.memory_limit_mb) for each in limited.gpu_options.experimental.virtual_devices] == [
        [3072]
    ]
    assert limited.gpu_options.per_process_gpu_memory_fraction == 0
    assert not limited.gpu_options.allow_growth


def test_eager_memory_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """The TF2 runtime gets a fraction as bytes of the device it sees, and a limit as it is."""
    asked = []
    nvml = SimpleNamespace(
        nvmlInit=lambda: None,
        nvmlShutdown=lambda: None,
        nvmlDeviceGetHandleByUUID=lambda uuid: asked.append(uuid) or uuid,
        nvmlDeviceGetMemoryInfo=lambda handle: SimpleNamespace(total=80 * 2**30),
    )
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", GPU)
    limits = [
        device._limit_mib(device.session_config(worker(**fields)).gpu_options)
        for fields in ({}, {"gpu_memory_fraction": 0.25}, {"gpu_memory_limit_bytes": 2**30})
    ]
    assert limits == [0, 20 * 1024, 1024]
    assert asked == [GPU]


@pytest.mark.parametrize("first", ["", "import tensorflow\n"])
def test_fallback_engine_gets_the_same_threads(model_dir: Callable[[str], Path], first: str) -> None:
    """The TF2 loader runs with the worker's thread counts, also where TensorFlow was imported before."""
    code = """
import json, sys, msgspec
from mpspool.core.settings import WorkerSettings
from mpspool.worker import device
settings = msgspec.json.decode(sys.argv[1], type=WorkerSettings)
device.prepare(settings)
from mpspool.worker.engine.load import load
engine = load(settings.model, device.session_config(settings))
import tensorflow as tf
threading = tf.config.threading
counts = [threading.get_intra_op_parallelism_threads(), threading.get_inter_op_parallelism_threads()]
print()
print(json.dumps([engine.name, *counts]))
"""
    settings = worker(intra_op_threads=1, inter_op_threads=2)
    model = msgspec.structs.replace(settings.model, path=str(model_dir("keras_saved") / "1"))
    assert child(first + code, msgspec.structs.replace(settings, model=model)) == ["tf2", 1, 2]
