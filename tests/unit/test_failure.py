"""What is left of TensorFlow's texts."""

from __future__ import annotations

from typing import Any, cast

import pytest

from mpspool.worker.engine import failure


class Failed:
    """An error of TensorFlow's with that text."""

    def __init__(self, message: str) -> None:
        self.message = message


@pytest.mark.parametrize(
    ("message", "text"),
    [
        ("plain", "plain"),
        ("{{function_node __wrapped__Add_device}} bad shapes [Op:Add] name: x", "bad shapes"),
        ("{{node a}} bad [Op:Add]", "{{node a}} bad"),
        (
            "Graph execution error:\n\nDetected at node a defined at (most recent call last):\n  File\nNode: 'a'\nbad [Op:F]",
            "bad",
        ),
        ("Graph execution error:\n\n", ""),
        # What a client has sent.
        ("value: ' [Op:a] name: x' is bad [Op:F]", "value: ' [Op:a] name: x' is bad"),
    ],
)
def test_what_python_adds_is_taken_away(message: str, text: str) -> None:
    """Before the status and behind it; not what looks so within it."""
    assert failure.status_text(cast("Any", Failed(message))) == text
