"""A worker on a GPU slot runs on that GPU, or not at all: the driver and CUDA's libraries are stand-ins."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.conftest import PoolStarter
from tests.polling import until
from tests.pool import ROOT, cli

GPU = "GPU-11111111-2222-3333-4444-555555555555"
SOURCE = ROOT / "tests" / "native" / "cuda.cc"
DRIVER = ["libcuda.so.1", "libnvidia-ml.so.1"]
FOUND = ["libcudart.so.12", "libcublas.so.12", "libcublasLt.so.12", "libcufft.so.11", "libcusparse.so.12"]
FOUND += ["libcudnn.so.9"]
CUSOLVER = "libcusolver.so.11"

# Forks for each line it reads, as the nursery does: TensorFlow is imported once. What a child has opened by its
# path, TensorFlow finds by its name.
_CHECKS = """
import ctypes, json, os, sys
import tensorflow
from mpspool.core.settings import SlotSettings
from mpspool.worker import gpu
for line in sys.stdin:
    slot, libraries, wheels, environment = json.loads(line)
    reading, writing = os.pipe()
    if not os.fork():
        os.environ.update(environment)
        sys.path.append(wheels)
        for library in libraries:
            ctypes.CDLL(library)
        answer = None
        try:
            gpu.check(SlotSettings(**slot))
        except gpu.NoGpuError as error:
            answer = [error.never, str(error)]
        os.write(writing, json.dumps(answer).encode())
        os._exit(0)
    os.close(writing)
    with open(reading) as answer:
        print("answer:", answer.read(), flush=True)
    os.wait()
"""

Check = Callable[..., "list[object] | None"]


@pytest.fixture(scope="module")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every stand-in, by its name; and cusolver where its wheel has it, below "wheels"."""
    folder = tmp_path_factory.mktemp("cuda")
    wheel = folder / "wheels" / "nvidia" / "cusolver" / "lib"
    wheel.mkdir(parents=True)
    for path in [*(folder / name for name in DRIVER + FOUND), wheel / CUSOLVER]:
        soname = f"-Wl,-soname,{path.name}"
        subprocess.run(["g++", "-shared", "-fPIC", soname, "-o", path, SOURCE], check=True, timeout=60)
    return folder


@pytest.fixture(scope="module")
def unusable(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """An environment in which this machine's own driver and one of the libraries cannot be opened."""
    folder = tmp_path_factory.mktemp("unusable")
    for name in ("libcuda.so.1", "libcufft.so.11"):
        (folder / name).write_text("no library")
    return {"LD_LIBRARY_PATH": str(folder)}


@pytest.fixture(scope="module")
def check(libraries: Path, unusable: dict[str, str]) -> Iterator[Check]:
    """Checks a slot with these libraries there: None, or [never, text] of what is raised."""
    environment = {**os.environ, **unusable, "OPENBLAS_NUM_THREADS": "1"}
    checks = subprocess.Popen(
        [sys.executable, "-c", _CHECKS],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment,
        cwd=ROOT,
        text=True,
    )
    assert checks.stdin is not None
    assert checks.stdout is not None
    stdin, stdout = checks.stdin, checks.stdout

    def ask(
        names: list[str], wheels: str = "none", slot: dict[str, object] | None = None, **told: str
    ) -> object:
        given = {"device": "gpu3", "slot": 0, "gpu_uuid": GPU, **(slot or {})}
        paths = [str(libraries / name) for name in names]
        stdin.write(json.dumps([given, paths, str(libraries / wheels), told]) + "\n")
        stdin.flush()
        answer = next(line for line in stdout if line.startswith("answer: "))
        return json.loads(answer.removeprefix("answer: "))

    with checks:
        yield ask
        stdin.close()


def test_a_gpu_that_is_seen_is_taken(check: Check) -> None:
    """TensorFlow finds its libraries, cusolver in its wheel too, and sees the one GPU."""
    assert check(DRIVER + FOUND, "wheels") is None


def test_slots_without_a_gpu_have_nothing_to_find(check: Check) -> None:
    """A CPU slot and a stand-in for a GPU are left alone."""
    assert check([], slot={"device": "cpu0", "gpu_uuid": ""}) is None
    assert check([], slot={"simulated": True}) is None


def test_missing_libraries_are_named(check: Check) -> None:
    """Without CUDA's libraries it can never work; the text names GPU, libraries and how to install them."""
    never, text = check([name for name in DRIVER + FOUND if name != "libcufft.so.11"], "wheels") or [None, ""]
    assert never is True
    assert str(text).startswith(
        f"gpu3 ({GPU}) cannot be used: TensorFlow's CUDA libraries are not there (libcufft.so.11); "
        "pip install 'tensorflow[and-cuda]=="
    )


@pytest.mark.parametrize(
    ("names", "told", "never", "reason"),
    [
        ([], {}, True, "the driver's libcuda.so.1 is not there"),
        (
            DRIVER,
            {"TESTING_CUDA_INIT": "803"},
            True,
            "cuInit fails with 803, as it was told; after an update",
        ),
        (DRIVER, {"TESTING_CUDA_INIT": "807"}, False, "cuInit fails with 807, as it was told; gpus: none"),
        (DRIVER, {"TESTING_CUDA_VERSION": "11080"}, True, "the driver is for CUDA 11.8 and TensorFlow"),
        (DRIVER + FOUND, {"TESTING_CUDA_DEVICES": "2"}, False, "TensorFlow sees 2 GPUs, and should see"),
    ],
    ids=["no driver", "misfit", "MPS recovers", "old driver", "two GPUs"],
)
def test_a_driver_that_does_not_do(
    check: Check, names: list[str], told: dict[str, str], never: bool, reason: str
) -> None:
    """What can never work ends the slot, what may pass is tried again; each says what is wrong."""
    answer = check(names, "wheels", **told)
    assert answer is not None
    assert (answer[0], reason in str(answer[1])) == (never, True), answer


@pytest.mark.parametrize("start", ["fork", "exec"])
def test_a_worker_without_its_gpu_is_fatal(
    start_pool: PoolStarter, model_dir: Callable[[str], Path], unusable: dict[str, str], start: str
) -> None:
    """NVML names a GPU that TensorFlow cannot have: never READY on the CPU, FATAL at once, with the reason."""
    environment = {
        **unusable,
        "PYTHONPATH": f"{ROOT / 'tests' / 'fakes' / 'driver'}:{ROOT}",
        "CUDA_VISIBLE_DEVICES": "0",
        "MPSPOOL_WORKERS_START": start,
    }
    model = f"half_plus_two={model_dir('half_plus_two')}"
    layout = ["--gpus", "0", "--contexts-per-gpu", 1, "--mps", "off"]
    pool = start_pool("--model", model, *layout, env=environment)
    worker = until(
        lambda: (w := pool.workers()["half_plus_two@1.gpu0.0"])["state"] in ("FATAL", "READY") and w, 60
    )
    assert (worker["state"], worker["generation"]) == ("FATAL", 1)
    assert str(worker["error"]).startswith(
        f"gpu0 ({GPU}) cannot be used: the driver's libcuda.so.1 is not there"
    )
    waited = cli("wait", "--run-dir", pool.run_dir, "--timeout", 30)
    assert (waited.returncode, GPU in waited.stderr) == (1, True)
