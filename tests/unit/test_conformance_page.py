"""docs/conformance.md names tests that there are."""

from __future__ import annotations

import re

from tests.pool import ROOT


def test_every_test_that_it_names_is_there() -> None:
    """And each case holds by a test, or says why it does not."""
    page = (ROOT / "docs" / "conformance.md").read_text()
    named = re.findall(r"`(tests/[\w/]+\.py)::(test_\w+)`", page)
    missing = [
        f"{file}::{name}"
        for file, name in named
        if f"def {name}(" not in ((ROOT / file).read_text() if (ROOT / file).exists() else "")
    ]
    assert missing == []
    cases = [
        line.split(" | ") for line in page.splitlines() if line.startswith("| ") and "Shown by" not in line
    ]
    assert len(cases) > 60
    for _, verdict, shown in cases:
        assert verdict.startswith("holds") == ("`" in shown) or verdict.partition(":")[2].strip()
