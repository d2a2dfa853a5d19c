"""Why there is no picture, for the command line."""

from __future__ import annotations


class DensityError(Exception):
    """The text names what is wrong, its value and the remedy; `status` is the exit status."""

    def __init__(self, text: str, status: int = 1) -> None:
        super().__init__(text)
        self.status = status
