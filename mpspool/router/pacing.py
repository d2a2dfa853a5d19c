"""How far apart dispatches are when it is crowded, so that what arrives in between shares them (ADR 5). Pure."""

from __future__ import annotations

# With more than two requests for each worker, dispatches keep a distance that grows with their number.
_CROWDED = 2
_DISTANCE_PER_REQUEST_S = 0.00025
_DISTANCE_MAX_S = 0.002


class Pacing:
    """When to dispatch next, on the event loop's clock."""

    def __init__(self) -> None:
        # The most requests at once, of late: what the moment shows is blurred by what sockets hold.
        self._peak = 0
        self._workers = 0
        self._last_s = 0.0

    def arrived(self, requests: int) -> None:
        """There are so many requests now, waiting and running."""
        self._peak = max(self._peak, requests)

    def renew(self, requests: int, workers: int) -> None:
        """Forgets how many there were. `workers`: of the models that are asked for."""
        self._peak, self._workers = requests, workers

    def dispatched(self, now_s: float) -> None:
        self._last_s = now_s

    def wait_s(self, now_s: float) -> float:
        """How long the next dispatch has to wait; nothing, or less, where it is due."""
        each = self._peak / max(1, self._workers)
        distance_s = min(_DISTANCE_MAX_S, _DISTANCE_PER_REQUEST_S * each) if each > _CROWDED else 0.0
        return self._last_s + distance_s - now_s
