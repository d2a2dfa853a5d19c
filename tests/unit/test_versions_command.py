"""What comes of an order by hand: told by what the pool's status says from then on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from mpspool.core.control import Message
from mpspool.core.rundir import RunDir
from mpspool.supervisor.commands import versions as versions_command
from mpspool.supervisor.commands.errors import CommandError


def after_order(monkeypatch: pytest.MonkeyPatch, *seen: dict[int, str]) -> None:
    """The pool means version 5, and has these states by version, one after the other."""

    def versions(*_: object) -> Iterator[dict[int, Message]]:
        for states in seen:
            yield {number: {"state": state} for number, state in states.items()}

    monkeypatch.setattr(versions_command, "_order", lambda *_: {"wanted": [5]})
    monkeypatch.setattr(versions_command, "_versions", versions)


def test_a_version_that_goes_before_it_is_served_is_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Its folder was deleted, say: nobody waits for it until the time is over."""
    after_order(monkeypatch, {4: "AVAILABLE"}, {4: "AVAILABLE", 5: "LOADING"}, {6: "AVAILABLE"})
    with pytest.raises(CommandError, match="m@5 has gone before it was served"):
        versions_command.load(RunDir(tmp_path), "m", None, 60)


def test_a_version_that_is_loaded_again_is_waited_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """What is on its way out goes before it comes back."""
    after_order(monkeypatch, {5: "UNLOADING"}, {}, {5: "LOADING"}, {5: "AVAILABLE"})
    assert versions_command.load(RunDir(tmp_path), "m", None, 60) == "m@5 AVAILABLE"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("m@7", ("m", 7)),
        ("m", ("m", None)),
        ("a@b", ("a@b", None)),
        ("m@" + 5000 * "9", ("m@" + 5000 * "9", None)),
    ],
)
def test_a_number_follows_the_name(text: str, found: tuple[str, int | None]) -> None:
    """Or what looks like one is of the name."""
    assert versions_command.parse(text) == found
