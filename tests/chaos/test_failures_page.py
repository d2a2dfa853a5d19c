"""docs/failures.md is about the tests that there are."""

from __future__ import annotations

import re
from pathlib import Path

from tests.pool import ROOT

HERE = Path(__file__).parent


def test_every_failure_is_on_the_page() -> None:
    """It names each test of this folder, under its file, and none that is not there."""
    page = (ROOT / "docs" / "failures.md").read_text()
    there = {
        (file.name, name)
        for file in HERE.glob("test_*.py")
        if file != Path(__file__)
        for name in re.findall(r"^def (test_\w+)", file.read_text(), re.MULTILINE)
    }
    named = set()
    for section in page.split("\n## `tests/chaos/")[1:]:
        file, _, text = section.partition("`")
        named |= {(file, name) for name in re.findall(r"`(test_\w+)(?:\[\w+\])?`", text)}
    assert named == there
