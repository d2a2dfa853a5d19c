"""Devices that fail for all workers on them at once: what is still to be heard of them, and whether suspects may run. Pure.

A request that was running when its worker was lost is a suspect and runs again alone. It does not while the pool looks at
the device: what ended one worker may be about to end the next one there, and that would not be the request's fault. Nor
does it where it could take down the last device that serves, while another is on its way back.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

# The pool says what befell a device as soon as its daemon does; no longer than this is waited for it.
VERDICT_S = 2.0
# A device that is not back by then is not waited for.
BACK_S = 60.0


@dataclass(slots=True)
class _Awaited:
    """A verdict that is due; `failed` is what a worker said of its device, "" where it just died, last at `died_s`."""

    failed: str
    by_s: float
    died_s: float = 0.0


class FaultDomains:
    """What is known of each device, by name. Times are seconds of one clock."""

    def __init__(self) -> None:
        self._awaited: dict[str, _Awaited] = {}
        self._down: dict[str, float] = {}

    def died(self, domain: str, now_s: float) -> None:
        """A worker on it died: of itself, or of what befell the device."""
        self._awaited.setdefault(domain, _Awaited("", now_s + VERDICT_S)).died_s = now_s

    def failed(self, domain: str, reason: str, now_s: float) -> None:
        """A worker on it says that it can be used no more."""
        known = self._awaited.get(domain)
        if known is None or not known.failed:
            self._awaited[domain] = _Awaited(reason, now_s + VERDICT_S)

    def refuses(self, domain: str) -> bool:
        """Whether nothing may be sent there: a worker said that it failed, and the verdict is due."""
        known = self._awaited.get(domain)
        return known is not None and bool(known.failed)

    def well(self, domain: str, since_s: float) -> None:
        """The verdict: nothing but workers died until `since_s`. It does not outweigh a worker's word."""
        known = self._awaited.get(domain)
        if known is not None and not known.failed and known.died_s <= since_s:
            del self._awaited[domain]

    def condemned(self, domain: str, now_s: float, *, comes_back: bool) -> None:
        """The verdict: all on it are lost."""
        self._awaited.pop(domain, None)
        self._down.pop(domain, None)
        if comes_back:
            self._down[domain] = now_s + BACK_S

    def up(self, domain: str) -> None:
        """A worker on it is READY, or none ever will be again."""
        self._down.pop(domain, None)

    def overdue(self, now_s: float) -> list[tuple[str, str]]:
        """Forgets what was not heard in time, and returns what workers said of their devices: that has to do."""
        self._down = {domain: by_s for domain, by_s in self._down.items() if now_s < by_s}
        late = [domain for domain, awaited in self._awaited.items() if now_s >= awaited.by_s]
        said = [(domain, self._awaited.pop(domain).failed) for domain in late]
        return [(domain, failed) for domain, failed in said if failed]

    def holds_suspects(self, serving: Collection[str]) -> bool:
        """Whether no suspect may run. `serving`: the devices that have a READY worker."""
        return bool(self._awaited) or (bool(self._down) and len(set(serving) - self._down.keys()) <= 1)
