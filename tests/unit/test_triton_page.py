"""docs/triton.md says what the errors of the pool file say."""

from __future__ import annotations

import re

import pytest

from mpspool.supervisor.config.explain import _TRITON
from mpspool.supervisor.config.schema import ModelConfig, PoolConfig
from tests.pool import ROOT

PAGE = (ROOT / "docs" / "triton.md").read_text()
ROWS = [line for line in PAGE.splitlines() if line.startswith("| `")]
OF_MODELS = PAGE.partition("## Of a model")[2].partition("## Of the server")[0]
KEYS = [
    re.findall("`([a-z_]+)`", line.split("|")[1]) for line in OF_MODELS.splitlines() if line.startswith("| `")
]


@pytest.mark.parametrize("key", sorted(_TRITON))
def test_the_page_has_each_key_that_an_error_explains(key: str) -> None:
    """In rows of its own, which name the same keys of ours, and say of the same that they are not here."""
    said = " ".join(row for row in ROWS if f"`{key}`" in row.split("|")[1])
    assert said
    named = re.findall(r"[a-z]+(?:[-_][a-z]+)+", _TRITON[key])
    assert [name for name in named if name not in said] == []
    if _TRITON[key].startswith("nothing"):
        assert "Not here" in said


def test_errors_explain_each_key_that_the_page_has() -> None:
    """But those that are ours, too, and mean what they mean there, or are told by what they stand in."""
    named = {key for keys in KEYS for key in keys} - {"count"}
    ours = {*PoolConfig.model_fields, *ModelConfig.model_fields}
    assert len(named) > 25
    assert sorted(named - set(_TRITON) - ours) == []


def test_metrics_that_it_names_are_there() -> None:
    """docs/metrics.md has each of ours."""
    metrics = (ROOT / "docs" / "metrics.md").read_text()
    named = re.findall(r"mpspool_[a-z_]+", PAGE)
    assert len(named) > 15
    assert [name for name in named if re.sub("_(sum|count)$", "", name) not in metrics] == []
