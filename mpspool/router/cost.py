"""What a request will cost a worker, learned from what such requests have cost."""

from __future__ import annotations

from collections.abc import Hashable

_WEIGHT = 0.2  # of the newest observation in the moving average


class CostTable:
    """Moving averages of worker time, by model version, signature and size class of the body."""

    def __init__(self) -> None:
        self._average_us: dict[tuple[Hashable, str, int], float] = {}

    @staticmethod
    def _key(model: Hashable, signature: str, body_bytes: int) -> tuple[Hashable, str, int]:
        return model, signature, body_bytes.bit_length()

    def observe(self, model: Hashable, signature: str, body_bytes: int, cost_us: int) -> None:
        key = self._key(model, signature, body_bytes)
        known = self._average_us.get(key)
        self._average_us[key] = cost_us if known is None else known + _WEIGHT * (cost_us - known)

    def predict(self, model: Hashable, signature: str, body_bytes: int) -> float | None:
        """Microseconds of worker time, or None for what has never been seen."""
        return self._average_us.get(self._key(model, signature, body_bytes))
