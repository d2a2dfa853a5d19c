"""A recorder of finished requests that only remembers their codes, whose they were, what they lacked and cost."""

from __future__ import annotations

from mpspool.core.errors import Code, Lack
from mpspool.core.messages import LoadReport, Outcome
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
        self.joined_rows: list[int] = []
        self.paddings: list[int] = []
        self.run_s: list[float] = []
        self.example_counts: list[int] = []
        self.loads: list[tuple[str, int, LoadReport]] = []
        self.failed_loads: list[tuple[str, int, str]] = []

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
        rows: int = 0,
    ) -> None:
        self.codes.append(code)
        self.models.append((model, version))
        self.effective_s.append(effective_s)
        self.joined_rows.append(rows)

    def batch(
        self, _model: str, _version: int, requests: int, rows: int, padding: int = 0, run_s: float = 0.0
    ) -> None:
        self.batches.append((requests, rows))
        self.paddings.append(padding)
        self.run_s.append(run_s)

    def examples(self, _model: str, _version: int, count: int) -> None:
        self.example_counts.append(count)

    def loaded(self, model: str, version: int, report: LoadReport) -> None:
        self.loads.append((model, version, report))

    def not_loaded(self, model: str, version: int, path: str) -> None:
        self.failed_loads.append((model, version, path))

    def forget(self, model: str, version: int) -> None:
        self.forgotten.append((model, version))

    def lacked(self, _model: str, _version: int, lack: Lack) -> None:
        self.lacks.append(lack)
