"""Models that kill their workers: at every start, and on one request."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests import models
from tests.conftest import PoolStarter
from tests.polling import until
from tests.pool import Load, cli

LoadStarter = Callable[..., Load]


def write_pool(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def test_a_worker_that_cannot_start_is_fatal_and_the_rest_serves(
    start_pool: PoolStarter, model_dir: Callable[[str], Path], tmp_path: Path, load: LoadStarter
) -> None:
    """Backoff, then FATAL with its last error; `wait` says so; the other model is served meanwhile."""
    not_a_library = tmp_path / "ops.so"
    not_a_library.write_bytes(b"\x7fELF and nothing that an ELF file has")
    corrupt = models.corrupt(model_dir("half_plus_two"), "flipped", tmp_path / "corrupt")
    config = write_pool(
        tmp_path / "pool.yaml",
        f"""
models:
  - {{name: half_plus_two, base_path: {model_dir("half_plus_two")}, cpu_slots: 1}}
  - {{name: corrupt, base_path: {corrupt}, cpu_slots: 1}}
  - {{name: no_ops, base_path: {model_dir("half_plus_two")}, cpu_slots: 1, custom_ops: [{not_a_library}]}}
restart: {{retries: 2, backoff_s: 0.5}}
""",
    )
    pool = start_pool(config)
    done = cli("wait", "--run-dir", pool.run_dir, "--timeout", 120, timeout=130)
    assert done.returncode == 1
    assert "FATAL" in done.stdout + done.stderr
    until(lambda: pool.workers()["half_plus_two@1.cpu0.0"]["state"] == "READY", 60)
    until(lambda: pool.workers()["corrupt@1.cpu0.0"]["state"] == "FATAL", 60)
    status = pool.status()
    assert status["pool"]["state"] == "DEGRADED"
    (version,) = next(model for model in status["models"] if model["name"] == "corrupt")["versions"]
    assert version["state"] == "END"
    assert version["error"]
    report = load(pool, "half_plus_two", 50, 2).report()
    assert report["ok"] == report["sent"]


def test_a_worker_killed_at_every_start_backs_off(
    start_pool: PoolStarter, model_dir: Callable[[str], Path], tmp_path: Path
) -> None:
    """A model whose operators abort when loaded: restarts count up with growing pauses, then FATAL."""
    source = tmp_path / "aborts.c"
    source.write_text(
        "#include <stdlib.h>\n__attribute__((constructor)) static void end(void) { abort(); }\n"
    )
    library = tmp_path / "aborts.so"
    subprocess.run(["g++", "-shared", "-fPIC", "-o", library, source], check=True)
    config = write_pool(
        tmp_path / "pool.yaml",
        f"""
models:
  - {{name: crasher, base_path: {model_dir("half_plus_two")}, cpu_slots: 1, custom_ops: [{library}]}}
restart: {{retries: 2, backoff_s: 0.5}}
""",
    )
    pool = start_pool(config)
    worker = until(lambda: (w := pool.workers()["crasher@1.cpu0.0"])["state"] == "FATAL" and w, 90)
    assert worker["restarts"] == 2
    (version,) = pool.status()["models"][0]["versions"]
    assert "SIGABRT" in version["error"] or "signal 6" in version["error"]


def test_a_poisonous_request_is_refused_and_nobody_else_is_harmed(
    start_pool: PoolStarter,
    model_dir: Callable[[str], Path],
    testing_ops: Path,
    tmp_path: Path,
    load: LoadStarter,
) -> None:
    """It kills two of three workers, is refused with INTERNAL; every other request is answered right."""
    config = write_pool(
        tmp_path / "pool.yaml",
        f"""
models:
  - {{name: aborter, base_path: {model_dir("aborter")}, cpu_slots: 3, intra_op_threads: 1, inter_op_threads: 1,
     custom_ops: [{testing_ops}]}}
""",
    )
    pool = start_pool(config).wait()
    running = load(pool, "aborter", 200, 60, "--first", 1000)
    until(lambda: pool.served() > 200, 20)
    poison = cli("predict", "aborter", "--input", '{"x": [13.0]}', "--address", pool.address)
    assert poison.returncode == 1
    assert "INTERNAL" in poison.stderr
    until(pool.all_ready, 60)
    report = running.end()
    assert report["ok"] == report["sent"], report
    assert sum(worker["restarts"] for worker in pool.workers().values()) == 2
    again = cli("predict", "aborter", "--input", '{"x": [13.0]}', "--address", pool.address)
    assert "INTERNAL" in again.stderr
    until(pool.all_ready, 60)
    assert sum(worker["restarts"] for worker in pool.workers().values()) == 2, "quarantined, not run again"
    assert os.path.exists(f"/proc/{pool.pid}")


@pytest.mark.parametrize("timeout_s", [2])
def test_a_request_that_hangs_is_found_by_lack_of_progress(
    start_pool: PoolStarter,
    model_dir: Callable[[str], Path],
    testing_ops: Path,
    tmp_path: Path,
    timeout_s: int,
) -> None:
    """A worker that beats but does not progress past hang_timeout_s is dumped and replaced."""
    config = write_pool(
        tmp_path / "pool.yaml",
        f"""
models:
  - {{name: sleeper, base_path: {model_dir("sleeper")}, cpu_slots: 1, hang_timeout_s: {timeout_s},
     custom_ops: [{testing_ops}]}}
""",
    )
    pool = start_pool(config).wait()
    first = pool.workers()["sleeper@1.cpu0.0"]
    answer = cli("predict", "sleeper", "--input", '{"x": [60.0]}', "--address", pool.address, timeout=90)
    assert answer.returncode == 1
    assert "INTERNAL" in answer.stderr, "it hung twice, alone the second time"
    until(lambda: pool.workers()["sleeper@1.cpu0.0"]["generation"] >= first["generation"] + 2, 60)
    log = (pool.run_dir / "logs" / "worker.sleeper@1.cpu0.0.log").read_text()
    assert "most recent call first" in log


def test_a_client_that_does_not_wait_cannot_empty_a_pool(
    start_pool: PoolStarter, model_dir: Callable[[str], Path], testing_ops: Path, tmp_path: Path
) -> None:
    """What it asks for again and again, and gives up each time, hangs each worker once and is then kept out."""
    config = write_pool(
        tmp_path / "pool.yaml",
        f"""
models:
  - {{name: sleeper, base_path: {model_dir("sleeper")}, cpu_slots: 2, hang_timeout_s: 2, intra_op_threads: 1,
     inter_op_threads: 1, custom_ops: [{testing_ops}]}}
""",
    )
    pool = start_pool(config).wait()
    request = ("predict", "sleeper", "--input", '{"x": [60.0]}', "--address", pool.address, "--timeout", 0.2)
    until(lambda: "INTERNAL" in cli(*request).stderr, 60)
    until(pool.all_ready, 60)
    assert sum(worker["restarts"] for worker in pool.workers().values()) <= 3, "both, then one alone"
    assert "INTERNAL" in cli(*request).stderr
