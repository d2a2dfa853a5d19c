"""What TLS costs, as the benchmark prints it."""

from __future__ import annotations

import subprocess
import sys

from tests.pool import ROOT


def test_tls_runs() -> None:
    """`python -m bench.tls` has a line for each size and number of connections, with ratios."""
    command = [sys.executable, "-m", "bench.tls", "--sizes", "43,20000", "--connections", "1,3"]
    done = subprocess.run(
        [*command, "--seconds", "0.3", "--repeat", "1"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    lines = [line.split("|")[1:-1] for line in done.stdout.splitlines()[2:]]
    assert [(int(line[0]), int(line[1])) for line in lines] == [(43, 1), (43, 3), (20000, 1), (20000, 3)]
    assert all(float(cell) > 0 for line in lines for cell in line)
