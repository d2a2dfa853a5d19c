"""A benchmark's command, run to its end as somebody who wants its figures runs it."""

from __future__ import annotations

import subprocess
import sys

from tests.pool import ROOT


def run(module: str, *arguments: object, timeout_s: float) -> str:
    """What it prints; it has to succeed."""
    done = subprocess.run(
        [sys.executable, "-m", module, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
