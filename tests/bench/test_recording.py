"""What recording costs, as the benchmark tells it."""

from __future__ import annotations

import pytest

from bench import recording


def test_recording_is_a_small_part_of_a_dispatch(capsys: pytest.CaptureFixture[str]) -> None:
    """It runs, and what it finds is not out of all proportion: recording is the lesser part, telling is short."""
    recording.main()
    assert "TaskLog.add" in capsys.readouterr().out
    found = recording.measure(1000)
    assert 0 < found.share < 0.5
    assert found.longest_ms < found.told_ms < 1000
