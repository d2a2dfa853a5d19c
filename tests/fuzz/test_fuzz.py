"""Each target, fuzzed for some seconds: what is found once stays found by a test of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.fuzz.targets import TARGETS, seeds
from tests.models import REPOSITORY

SECONDS = 8
# With what is compiled as it is installed: here it is looked into, and so runs as it is written, unless it is there before.
AS_INSTALLED = "import mpspool, runpy; runpy.run_module('tests.fuzz', run_name='__main__', alter_sys=True)"
COMPILED = ("routed", "predict", "classify", "regress", "multi_inference", "http2", "hello")


def fuzz(program: list[str], target: str, seconds: int, artifacts: Path) -> None:
    found = subprocess.run(
        [
            sys.executable,
            *program,
            target,
            f"-max_total_time={seconds}",
            f"-timeout={2 * SECONDS}",
            f"-artifact_prefix={artifacts}/",
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
def test_nothing_is_found(target: str, tmp_path: Path) -> None:
    """No input raises, or is answered INTERNAL."""
    fuzz(["-m", "tests.fuzz"], target, SECONDS, tmp_path)


@pytest.mark.parametrize("target", COMPILED)
def test_nothing_is_found_where_it_is_compiled(target: str, tmp_path: Path) -> None:
    """Nor does C that was made of it. The fuzzer does not see which ways it goes there, and tries less of use."""
    fuzz(["-c", AS_INSTALLED], target, SECONDS // 2, tmp_path)


@pytest.mark.parametrize("target", TARGETS)
def test_seeds_are_right(target: str) -> None:
    """What a target begins with is taken, and it takes any bytes."""
    run = TARGETS[target]()
    for seed in [*seeds(target), b"", b"\0" * 20, b"\xff" * 20]:
        run(seed)
