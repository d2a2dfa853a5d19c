"""Models that kill their workers: at every start, and on one request."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

from tests import models
from tests.conftest import PoolStarter
from tests.polling import until
from tests.pool import Load, cli

LoadStarter = Callable[..., Load]


def write_pool(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def test_workers_that_cannot_start_are_fatal_and_the_rest_serves(
    start_pool: PoolStarter, model_dir: Callable[[str], Path], tmp_path: Path, load: LoadStarter
) -> None:
    """Corrupt weights, operators that cannot be loaded, and some that abort the process at every start.

    Backoff, then FATAL with the last error; `wait` says so; the other model is served meanwhile.
    """
    not_a_library = tmp_path / "ops.so"
    not_a_library.write_bytes(b"\x7fELF and nothing that an ELF file has")
    source, aborts = tmp_path / "aborts.c", tmp_path / "aborts.so"
    source.write_text(
        "#include <stdlib.h>\n__attribute__((constructor)) static void end(void) { abort(); }\n"
    )
    subprocess.run(["g++", "-shared", "-fPIC", "-o", aborts, source], check=True)
    corrupt = models.corrupt(model_dir("half_plus_two"), "flipped", tmp_path / "corrupt")
    half = model_dir("half_plus_two")
    config = write_pool(
        tmp_path / "pool.yaml",
        f"""
intra_op_threads: 1
models:
  - {{name: half_plus_two, base_path: {half}, cpu_slots: 2}}
  - {{name: corrupt, base_path: {corrupt}, cpu_slots: 1}}
  - {{name: no_ops, base_path: {half}, cpu_slots: 1, custom_ops: [{not_a_library}]}}
  - {{name: crasher, base_path: {half}, cpu_slots: 1, custom_ops: [{aborts}]}}
restart: {{retries: 3, backoff_s: 3}}
""",
    )
    pool = start_pool(config)

    def state(model: str, slot: int = 0) -> str:
        return str(pool.workers()[f"{model}@1.cpu0.{slot}"]["state"])

    until(lambda: state("half_plus_two", 0) == state("half_plus_two", 1) == "READY", 90)
    running = load(pool, "half_plus_two")
    pool.serves_on()
    until(lambda: state("crasher") == "BACKOFF", 30)
    done = cli("wait", "--run-dir", pool.run_dir, "--timeout", 120, timeout=130)
    assert done.returncode == 1
    assert "FATAL" in done.stderr
    bad = ("corrupt", "no_ops", "crasher")
    until(lambda: all(state(model) == "FATAL" for model in bad), 120)
    pool.serves_on()
    running.end_clean()
    status = pool.status()
    assert status["pool"]["state"] == "DEGRADED"
    versions = {model["name"]: model["versions"][0] for model in status["models"]}
    assert all(versions[model]["state"] == "END" and versions[model]["error"] for model in bad)
    assert pool.workers()["crasher@1.cpu0.0"]["restarts"] == 3
    assert "SIGABRT" in versions["crasher"]["error"]


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
    running = load(pool, "aborter", "--first", 1000)
    pool.serves_on()
    poison = cli("predict", "aborter", "--input", '{"x": [13.0]}', "--address", pool.address)
    assert poison.returncode == 1
    assert "INTERNAL" in poison.stderr
    until(pool.all_ready, 60)
    running.end_clean()
    assert sum(worker["restarts"] for worker in pool.workers().values()) == 2
    again = cli("predict", "aborter", "--input", '{"x": [13.0]}', "--address", pool.address)
    assert "INTERNAL" in again.stderr
    until(pool.all_ready, 60)
    assert sum(worker["restarts"] for worker in pool.workers().values()) == 2, "quarantined, not run again"
    assert os.path.exists(f"/proc/{pool.pid}")


def test_a_request_that_hangs_is_found_by_lack_of_progress(
    start_pool: PoolStarter,
    model_dir: Callable[[str], Path],
    testing_ops: Path,
    tmp_path: Path,
    load: LoadStarter,
) -> None:
    """A worker that beats but does not progress past hang_timeout_s is dumped and replaced.

    The request hangs a second one, alone, and is refused; every other one is answered right.
    """
    config = write_pool(
        tmp_path / "pool.yaml",
        f"""
models:
  - {{name: dozer, base_path: {model_dir("dozer")}, cpu_slots: 2, hang_timeout_s: 2, intra_op_threads: 1,
     custom_ops: [{testing_ops}]}}
""",
    )
    pool = start_pool(config).wait()
    # Both workers may be away at once, and one that is not forked needs seconds to be back.
    running = load(pool, "dozer", "--first", 1000, "--timeout", 60)
    pool.serves_on()
    answer = cli(
        *("predict", "dozer", "--input", '{"x": [13.0]}', "--timeout", 90, "--address", pool.address),
        timeout=90,
    )
    assert answer.returncode == 1
    assert "INTERNAL" in answer.stderr, "it hung twice, alone the second time"
    until(lambda: sum(worker["restarts"] for worker in pool.workers().values()) == 2 and pool.all_ready(), 60)
    pool.serves_on()
    running.end_clean()
    logs = pool.run_dir / "logs"
    assert (logs / "router.log").read_text().count("one request has been running for") == 2
    dumps = [(logs / f"worker.{worker}.log").read_text() for worker in pool.workers()]
    assert sum(dump.count("Current thread 0x") for dump in dumps) >= 2, "each was dumped"


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

    def refusal(timeout_s: float) -> str:
        request = ("predict", "sleeper", "--input", '{"x": [60.0]}', "--address", pool.address)
        return cli(*request, "--timeout", timeout_s).stderr

    def restarts() -> int:
        return sum(worker["restarts"] for worker in pool.workers().values())

    until(lambda: "INTERNAL" in refusal(1), 60)
    until(pool.all_ready, 60)
    before = restarts()
    assert before <= 3, "both, then one alone"
    assert "INTERNAL" in refusal(30)
    until(pool.all_ready, 60)
    assert restarts() == before, "kept out, not run again"
