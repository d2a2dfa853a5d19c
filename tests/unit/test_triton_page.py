"""docs/triton.md says what the errors of the pool file say."""

from __future__ import annotations

import re

import pytest

from mpspool.supervisor.config.explain import _TRITON
from tests.pool import ROOT

PAGE = (ROOT / "docs" / "triton.md").read_text()
ROWS = [line for line in PAGE.splitlines() if line.startswith("| `")]


@pytest.mark.parametrize("key", sorted(_TRITON))
def test_the_page_has_each_key_that_an_error_explains(key: str) -> None:
    """In rows of its own, which name the same keys of ours, and say of the same that they are not here."""
    said = " ".join(row for row in ROWS if row.startswith(f"| `{key}`"))
    assert said
    named = re.findall(r"[a-z]+(?:[-_][a-z]+)+", _TRITON[key])
    assert [name for name in named if name not in said] == []
    if _TRITON[key].startswith("nothing"):
        assert "Not here" in said


def test_metrics_that_it_names_are_there() -> None:
    """docs/metrics.md has each of ours."""
    metrics = (ROOT / "docs" / "metrics.md").read_text()
    named = re.findall(r"mpspool_[a-z_]+", PAGE)
    assert len(named) > 15
    assert [name for name in named if re.sub("_(sum|count)$", "", name) not in metrics] == []
