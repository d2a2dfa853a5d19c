"""A GPU that fails while a worker loads, whose memory has an error, or whose MPS daemon hangs, on a stand-in.

One pool on one GPU serves the module; each test leaves it whole again, the last one ends it.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.conftest import PoolStarter
from tests.polling import until
from tests.pool import Pool, cli

FIRST, SECOND = "half_plus_two@1.gpu0.0", "half_plus_two@1.gpu0.1"
# Custom ops without an op: they hold up whoever loads them while a file is there.
HOLD = """
#include <unistd.h>
__attribute__((constructor)) static void hold() { while (access(HELD, F_OK) == 0) usleep(10000); }
"""


@pytest.fixture(scope="module")
def held(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """While this file is there, nobody gets its model loaded."""
    return tmp_path_factory.mktemp("hold") / "held"


@pytest.fixture(scope="module")
def pool(start_module_pool: PoolStarter, model_dir: Callable[[str], Path], held: Path) -> Pool:
    """Two workers."""
    source, library, config = (held.with_name(name) for name in ("hold.cc", "hold.so", "pool.yaml"))
    source.write_text(HOLD)
    subprocess.run(
        ["g++", "-shared", "-fPIC", f'-DHELD="{held}"', "-o", library, source], check=True, timeout=60
    )
    config.write_text(
        f"""
simulate_gpus: 1
contexts_per_gpu: 2
models:
  - {{name: half_plus_two, base_path: {model_dir("half_plus_two")}, intra_op_threads: 1, custom_ops: [{library}]}}
"""
    )
    return start_module_pool(config).wait()


@pytest.fixture(autouse=True)
def whole(pool: Pool, held: Path) -> Iterator[None]:
    until(pool.all_ready, 60, "the pool is whole again")
    yield
    held.unlink(missing_ok=True)


@pytest.fixture
def outsider(pool: Pool) -> Iterator[socket.socket]:
    """A client of the GPU that is no worker."""
    with contextlib.closing(socket.socket(socket.AF_UNIX)) as client:
        client.settimeout(20)
        client.connect(str(pool.run_dir / "mps" / "gpu0" / "pipe" / "clients"))
        assert client.recv(100).startswith(b"CONNECTED")
        yield client


def serves(pool: Pool) -> None:
    done = cli("predict", "half_plus_two", "--input", '{"x": [1, 2, 5]}', "--address", pool.address)
    assert json.loads(done.stdout) == {"y": [2.5, 3.0, 4.5]}, done.stderr


def generations(pool: Pool) -> list[int]:
    workers = pool.workers()
    return [workers[name]["generation"] for name in (FIRST, SECOND)]


def test_a_worker_that_another_ones_fault_hits_while_it_loads(
    pool: Pool, held: Path, outsider: socket.socket
) -> None:
    """It is the first to say so, for nobody can ask the daemon; its slot is not given up, and it comes back."""
    first, second = generations(pool)
    held.touch()
    os.kill(pool.workers()[FIRST]["pid"], signal.SIGKILL)
    loading = until(lambda: (w := pool.workers()[FIRST])["state"] == "LOADING" and w, 30)
    until(lambda: loading["pid"] in pool.mps_clients("gpu0"), 20)
    past = len(pool.events())
    pool.fault("gpu0", "--kind", "daemon-hang", "--for", 25)
    outsider.sendall(b"FAULT 719\n")
    outsider.close()
    held.unlink()
    failed = until(lambda: [e for e in pool.events()[past:] if e["event"] == "GPU failed"], 20)
    assert failed[0]["reason"].startswith(f"{FIRST}: CUDA fails with CUDA_ERROR_LAUNCH_FAILED")
    until(lambda: generations(pool) > [first + 1, second] and pool.all_ready(), 60)
    assert generations(pool) == [first + 2, second + 1]
    assert "slot given up" not in [event["event"] for event in pool.events()]
    serves(pool)


def test_a_memory_error_of_one_worker(pool: Pool) -> None:
    """All on the GPU are ended and come back; the status counts the error and its event."""
    before = generations(pool)
    pool.fault("gpu0", "--kind", "ecc", "--worker", SECOND)
    until(lambda: generations(pool) == [one + 1 for one in before] and pool.all_ready(), 60)
    (device,) = pool.status()["devices"]
    assert (device["state"], device["ecc_uncorrected"], device["xids"]["94"]) == ("SERVING", 1, 1)
    serves(pool)


def test_a_daemon_that_hangs_for_a_while(pool: Pool) -> None:
    """Those READY serve on; a worker that dies meanwhile is not started without MPS, and is back when it answers."""
    first, second = generations(pool)
    past = len(pool.events())
    pool.fault("gpu0", "--kind", "daemon-hang", "--for", 20)
    serves(pool)
    os.kill(pool.workers()[FIRST]["pid"], signal.SIGKILL)
    until(lambda: "the MPS daemon does not answer" in [e["event"] for e in pool.events()[past:]], 20)
    worker = pool.workers()[FIRST]
    assert worker["state"] in ("EMPTY", "BACKOFF")
    assert (worker["generation"], worker["pid"]) == (first, None)
    serves(pool)
    until(pool.all_ready, 60)
    assert generations(pool) == [first + 1, second], "it did no other worker any harm"
    assert pool.workers()[FIRST]["pid"] in pool.mps_clients("gpu0")
    assert "GPU failed" not in [event["event"] for event in pool.events()[past:]]


def test_a_daemon_that_hangs_for_good_does_not_hold_up_the_end(pool: Pool) -> None:
    """What does not quit is killed, and nothing is left."""
    pool.fault("gpu0", "--kind", "daemon-hang")
    serves(pool)
    assert pool.stop(60) == 0
    pool.assert_nothing_left()
