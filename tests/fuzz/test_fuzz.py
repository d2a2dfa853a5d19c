"""Each target, fuzzed for some seconds: what is found once stays found by a test of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.fuzz.targets import TARGETS, seeds
from tests.models import REPOSITORY

SECONDS = 8


@pytest.mark.parametrize("target", TARGETS)
def test_nothing_is_found(target: str, tmp_path: Path) -> None:
    """No input raises, or is answered INTERNAL."""
    found = subprocess.run(
        [
            sys.executable,
            "-m",
            "tests.fuzz",
            target,
            f"-max_total_time={SECONDS}",
            f"-artifact_prefix={tmp_path}/",
        ],
        check=False,
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=20 * SECONDS,
    )
    assert found.returncode == 0, found.stderr
    assert "Done" in found.stderr


@pytest.mark.parametrize("target", TARGETS)
def test_seeds_are_right(target: str) -> None:
    """What a target begins with is taken, and it takes any bytes."""
    run = TARGETS[target]()
    for seed in [*seeds(target), b"", b"\0" * 20, b"\xff" * 20]:
        run(seed)
