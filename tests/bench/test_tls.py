"""What TLS costs, as the benchmark prints it."""

from __future__ import annotations

from tests.bench.commands import run


def test_tls_runs() -> None:
    """`python -m bench.tls` has a line for each size and number of connections, with ratios."""
    load = "--sizes", "43,20000", "--connections", "1,3", "--seconds", 0.3, "--repeat", 1
    printed = run("bench.tls", *load, timeout_s=120)
    lines = [line.split("|")[1:-1] for line in printed.splitlines()[2:]]
    assert [(int(line[0]), int(line[1])) for line in lines] == [(43, 1), (43, 3), (20000, 1), (20000, 3)]
    assert all(float(cell) > 0 for line in lines for cell in line)
