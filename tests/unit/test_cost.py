"""What the cost table keeps of what it was told."""

from __future__ import annotations

import pytest

from mpspool.router import cost
from mpspool.router.cost import CostTable


@pytest.mark.parametrize("rows", [0, 1])
def test_the_table_keeps_what_was_seen_last(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where there are more signatures than it has room for, the one that was not seen for longest is forgotten."""
    monkeypatch.setattr(cost, "_MAX_SIGNATURES", 3)
    table = CostTable()
    for signature in ("a", "b", "c", "a", "d"):
        table.observe("m", signature, 100, 5.0, rows)
    predicted = {signature: table.predict("m", signature, 100, rows) for signature in "abcd"}
    assert predicted == {"a": 5.0, "b": None, "c": 5.0, "d": 5.0}
