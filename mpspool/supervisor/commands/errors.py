"""How a command ends that does not do what it was asked for."""

from __future__ import annotations


class CommandError(Exception):
    """It does not come about, or not all of it.

    The text names what is wrong, its value and the remedy.

    Attributes:
        status: the exit status.
    """

    def __init__(self, text: str, status: int = 1) -> None:
        super().__init__(text)
        self.status = status


class NoPoolError(CommandError):
    """No pool runs in the run folder, or it does not answer."""


class NoModelError(CommandError):
    """The pool has no such model, or not in that version; the text names those it has."""
