"""What one model asks of a worker: CPU time, then time on the device, then CPU time again."""

from __future__ import annotations

from dataclasses import dataclass, field

from mpspool.core.ids import ModelVersion
from mpspool.core.settings import BatchingSettings


@dataclass(frozen=True, slots=True)
class Linear:
    """Milliseconds, by the rows: `base_ms + row_ms * rows`."""

    base_ms: float = 0.0
    row_ms: float = 0.0

    def ns(self, rows: int) -> float:
        return 1e6 * (self.base_ms + self.row_ms * rows)


@dataclass(frozen=True, slots=True)
class Service:
    """A model version.

    Attributes:
        name: the model's.
        device: time on the device when nothing else runs on it.
        before, after: CPU time of the worker, which has a core to itself.
        sigma: of the lognormal factor, with a mean of 1, that each request's times are multiplied by; 0: all alike.
        exponential: that factor is distributed exponentially instead.
        width: how much of the device it can use, in the unit of Pool.parallel.
        rows: the sizes of its requests, each with its weight.
        row_bytes: of a body, for each row.
        batching: how its requests are joined; None where they run one by one.
    """

    name: str
    device: Linear
    before: Linear = Linear()
    after: Linear = Linear()
    sigma: float = 0.0
    exponential: bool = False
    width: float = 1.0
    rows: tuple[tuple[int, float], ...] = ((1, 1.0),)
    row_bytes: int = 1000
    batching: BatchingSettings | None = None

    @property
    def version(self) -> ModelVersion:
        return ModelVersion(self.name, 1)

    def alone_ns(self, rows: int) -> float:
        """What so many rows take a worker when nothing else runs on its device."""
        return self.before.ns(rows) + self.device.ns(rows) + self.after.ns(rows)

    def mean_ns(self, part: Linear | None = None) -> float:
        """The mean over the sizes of its requests: of all three parts, or of one."""
        ns = self.alone_ns if part is None else part.ns
        return sum(weight * ns(rows) for rows, weight in self.rows) / sum(weight for _, weight in self.rows)


@dataclass(frozen=True, slots=True)
class Pool:
    """The devices, and the workers on them.

    Attributes:
        gpus: devices, all alike.
        services: what is served.
        slots: by service, its workers on each device.
        parallel: how many jobs of width 1 a device runs at full speed side by side: 1 is time slicing.
        loss: each job that overlaps makes the device slower by this part of its speed alone.
        link_us: of a message between router and worker, each way.
        credits: dispatches that a worker holds at once.
    """

    gpus: int
    services: tuple[Service, ...]
    slots: dict[str, int] = field(default_factory=dict)
    parallel: float = 1.0
    loss: float = 0.0
    link_us: float = 50.0
    credits: int = 2

    def workers(self, service: Service) -> int:
        """On each device."""
        return self.slots.get(service.name, 1)


def divide(slots: int, loads: dict[str, float]) -> dict[str, int]:
    """So many slots of each device, divided by load; one for each at least, and evenly where there is no load."""
    loads = loads if any(loads.values()) else dict.fromkeys(loads, 1.0)
    found = dict.fromkeys(loads, 1)
    while sum(found.values()) < slots:
        neediest = max(loads, key=lambda name: loads[name] / found[name])
        found[neediest] += 1
    return found
