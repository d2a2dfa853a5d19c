"""`mpspool density` on a pool that answers, as a user calls it."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.conftest import PoolStarter
from tests.polling import until
from tests.pool import RATE, Load, Pool, cli

ModelDir = Callable[[str], Path]


@pytest.fixture(scope="module")
def pool(start_module_pool: PoolStarter, model_dir: ModelDir) -> Pool:
    """Two models on two stand-in GPUs, with two workers each on each."""
    named = [f"{name}={model_dir('half_plus_two')}" for name in ("half", "other")]
    models = [word for name in named for word in ("--model", name)]
    layout = ["--simulate-gpus", 2, "--contexts-per-gpu", 2, "--intra-op-threads", 1]
    return start_module_pool(*models, *layout).wait()


def seconds(pool: Pool, name: str) -> dict[str, float]:
    """Of each device, from the router's metrics."""
    with urllib.request.urlopen(f"http://127.0.0.1:{pool.rest_port}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    return {
        sample.labels["device"]: sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == f"mpspool_device_{name}_seconds_total"
    }


def density(pool: Pool, *args: object) -> dict[str, Any]:
    done = cli("density", "--run-dir", pool.run_dir, "--json", "-", *args)
    assert (done.returncode, done.stderr) == (0, "")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_a_pool_that_ran_nothing_has_no_picture(pool: Pool, tmp_path: Path) -> None:
    """It says so, for its devices, and exits with 0."""
    done = cli("density", "--run-dir", pool.run_dir, "--output", tmp_path / "out.png")
    assert (done.returncode, done.stderr) == (0, "")
    assert "Nothing ran on gpu0, gpu1 from" in done.stdout
    assert not (tmp_path / "out.png").exists()


def test_what_is_drawn_is_what_ran(pool: Pool, tmp_path: Path, load: Callable[..., Load]) -> None:
    """Under load of two models there is a picture; its sums are those of the metrics, and every request is in it."""
    before = pool.served()
    loads = [load(pool, name) for name in ("half", "other")]
    until(lambda: pool.served() > before + 2 * RATE, 60, "requests are answered")
    output = tmp_path / "out.png"
    running = cli("density", "--run-dir", pool.run_dir, "--last", "2s", "--output", output)
    assert (running.returncode, running.stderr) == (0, "")
    assert "SIMULATED gpus" in running.stdout
    assert 10_000 < output.stat().st_size < 500_000
    assert output.read_bytes().startswith(b"\x89PNG")
    sent = sum(one.end_clean()["sent"] for one in loads)
    found = density(pool, "--last", "1h", "--output", tmp_path / "all.svg")
    assert (tmp_path / "all.svg").read_text().lstrip().startswith("<?xml")
    assert sum(device["requests"] for device in found["devices"]) == before + sent
    assert found["seconds"] < found["asked_seconds"] == 3600
    busy_s, effective_s = seconds(pool, "busy"), seconds(pool, "effective")
    for device in found["devices"]:
        assert {model["model"] for model in device["models"]} == {"half@1", "other@1"}
        assert device["busy_s"] == pytest.approx(busy_s[device["device"]], rel=0.03)
        # To the router what it has not heard of runs on, beside the others: on a busy machine it counts less.
        most = device["effective_s"] * 1.3
        assert device["busy_s"] / device["max_running"] * 0.97 < effective_s[device["device"]] < most
        assert sum(model["effective_s"] for model in device["models"]) == pytest.approx(device["effective_s"])
        assert 1 <= device["max_running"] <= 4


def test_what_the_pool_does_not_have_is_named(pool: Pool, tmp_path: Path) -> None:
    """A device that there is not, and a folder: in one line, with what there is and what to do."""
    no_device = cli("density", "--run-dir", pool.run_dir, "--device", "gpu0,gpu2")
    assert (no_device.returncode, no_device.stdout) == (1, "")
    assert no_device.stderr == "--device names 'gpu2', which the pool does not have; it has: gpu0, gpu1\n"
    no_pool = cli("density", "--run-dir", tmp_path)
    assert (no_pool.returncode, "no pool runs in" in no_pool.stderr) == (1, True)
