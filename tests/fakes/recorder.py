"""A recorder of finished requests that only remembers their codes, whose they were, what they lacked and cost."""

from __future__ import annotations

from mpspool.core.errors import Code, Lack
from mpspool.core.messages import Outcome
from mpspool.core.methods import Method


class Recorder:
    """Where the data plane counts, in tests."""

    def __init__(self) -> None:
        self.codes: list[Code] = []
        self.models: list[tuple[str, int]] = []
        self.lacks: list[Lack] = []
        self.forgotten: list[tuple[str, int]] = []
        self.batches: list[tuple[int, int]] = []
        self.effective_s: list[float] = []

    def finished(
        self,
        _method: Method,
        model: str,
        version: int,
        _worker: str,
        code: Code,
        _total_s: float,
        _queue_s: float,
        _outcome: Outcome | None,
        effective_s: float = 0.0,
    ) -> None:
        self.codes.append(code)
        self.models.append((model, version))
        self.effective_s.append(effective_s)

    def batch(self, _model: str, _version: int, requests: int, rows: int) -> None:
        self.batches.append((requests, rows))

    def forget(self, model: str, version: int) -> None:
        self.forgotten.append((model, version))

    def lacked(self, _model: str, _version: int, lack: Lack) -> None:
        self.lacks.append(lack)
