"""A model moves to another GPU while it serves, and its share of one changes: no client notices."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.conftest import PoolStarter
from tests.pool import Load, Pool, cli

MODEL = "half_plus_two"


def write(file: Path, base: Path, gpus: list[int], **values: Any) -> None:
    """A model on these GPUs, and another that is always on the second one. JSON is YAML."""
    threads = {"base_path": str(base), "intra_op_threads": 1, "inter_op_threads": 1}
    models = {MODEL: {**threads, "gpus": gpus, **values}, "other": {**threads, "gpus": [1]}}
    file.write_text(json.dumps({"models": models, "simulate_gpus": 3, "contexts_per_gpu": 1}))


def reload(pool: Pool) -> str:
    done = cli("reload", "--run-dir", pool.run_dir, "--timeout", 120, timeout=150)
    assert done.returncode == 0, f"{done.stdout}{done.stderr}\n{pool.logs()}"
    return done.stdout


def test_a_model_moves_to_another_gpu(
    start_pool: PoolStarter, model_dir: Callable[[str], Path], load: Callable[..., Load], tmp_path: Path
) -> None:
    """To one that nobody has used: it gets its MPS daemon; the other model's worker is not touched."""
    file, base = tmp_path / "pool.yaml", model_dir(MODEL)
    write(file, base, [0])
    pool = start_pool(file).wait()
    other = pool.workers()["other@1.gpu1.0"]
    running = load(pool, MODEL)
    pool.serves_on()
    write(file, base, [2])
    told = reload(pool)
    assert "slots come: gpu2.0" in told
    assert "slots go: gpu0.0" in told
    workers = pool.workers()
    assert set(workers) == {f"{MODEL}@1.gpu2.0", "other@1.gpu1.0"}
    assert pool.mps_clients("gpu2") == [workers[f"{MODEL}@1.gpu2.0"]["pid"]]
    assert not pool.mps_clients("gpu0")
    assert {device["device"] for device in pool.status()["devices"]} >= {"gpu1", "gpu2"}
    pool.serves_on()
    write(file, base, [2, 1], mps={"active_thread_percentage": 40})
    told = reload(pool)
    assert "share: the workers of gpu2.0 come anew" in told
    assert "slots come: gpu1.0" in told
    pool.serves_on()
    running.end_clean()
    workers = pool.workers()
    assert set(workers) == {f"{MODEL}@1.gpu1.0", f"{MODEL}@1.gpu2.0", "other@1.gpu1.0"}
    assert workers["other@1.gpu1.0"] == {**other, "memory": workers["other@1.gpu1.0"]["memory"]}
    shown = json.loads(cli("mps", "show", "--json", "--run-dir", pool.run_dir).stdout)
    percentages = {one["worker"]: one["running"]["active_thread_percentage"] for one in shown["workers"]}
    assert percentages == {f"{MODEL}@1.gpu1.0": 40, f"{MODEL}@1.gpu2.0": 40, "other@1.gpu1.0": 100}
    pool.fault("gpu2")
    assert pool.stop() == 0
    pool.assert_nothing_left()
