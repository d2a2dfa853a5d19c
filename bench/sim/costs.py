"""What the requests of a trace cost: what it tells, and what is taken where it does not."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import msgspec
import numpy as np

from bench.sim import compare
from bench.sim.service import Linear, Service
from bench.sim.trace import Request

# Of what a request takes, where nothing is known of it.
_UNKNOWN_MS = 1.0


def of_trace(trace: Sequence[Request]) -> tuple[Service, ...]:
    """The services of a trace: of the time that it tells, four fifths are taken for the device's.

    A pool refuses requests larger than a batch may be: the largest one here fits into a batch.
    """
    most = max(compare.BATCHING.max_batch_size, *(request.rows for request in trace))
    batching = msgspec.structs.replace(compare.BATCHING, max_batch_size=most)
    found = []
    for name in dict.fromkeys(request.model for request in trace):
        line = _line([one for one in trace if one.model == name and one.cost_us])
        device, before = (Linear(part * line.base_ms, part * line.row_ms) for part in (0.8, 0.2))
        found.append(Service(name, device, before, batching=batching))
    return tuple(found)


def _line(requests: Sequence[Request]) -> Linear:
    """Through what they took, by their rows; neither part of it below 0. Where all have as many, what each row costs."""
    if not requests:
        return Linear(0, _UNKNOWN_MS)
    rows = np.array([one.rows for one in requests])
    took_ms = np.array([one.cost_us for one in requests]) / 1000
    if rows.min() < rows.max():
        row_ms, base_ms = np.polyfit(rows, took_ms, 1).tolist()
        if row_ms < 0:
            return Linear(float(took_ms.mean()), 0)
        if base_ms > 0:
            return Linear(base_ms, row_ms)
    return Linear(0, float((took_ms / rows).mean()))


def with_costs(trace: Iterable[Request], services: Iterable[Service]) -> list[Request]:
    """Where it tells none, the mean of those of the same model, signature and rows; where it tells of no such, the service's."""
    trace = list(trace)
    by_name = {service.name: service for service in services}
    told: dict[tuple[str, str, int], list[float]] = {}
    for one in trace:
        if one.cost_us:
            told.setdefault((one.model, one.signature, one.rows), []).append(one.cost_us)

    def cost_us(one: Request) -> float:
        alike = told.get((one.model, one.signature, one.rows))
        return sum(alike) / len(alike) if alike else by_name[one.model].alone_ns(one.rows) / 1000

    return [one if one.cost_us else msgspec.structs.replace(one, cost_us=cost_us(one)) for one in trace]


def loads_of(trace: Iterable[Request]) -> dict[str, float]:
    """Milliseconds of a worker's time that are asked of each service."""
    found: dict[str, float] = {}
    for request in trace:
        found[request.model] = found.get(request.model, 0.0) + request.cost_us / 1000
    return found


def told(trace: Sequence[Request], services: Iterable[Service]) -> Iterator[str]:
    """What the report says of what was taken, and what of it is a guess."""
    for service in services:
        sizes = {one.rows for one in trace if one.model == service.name and one.cost_us}
        base_ms, row_ms = (service.alone_ns(0) / 1e6, (service.alone_ns(1) - service.alone_ns(0)) / 1e6)
        if len(sizes) > 1:
            yield (
                f"A batch of {service.name} takes {base_ms:.3g} ms and {row_ms:.3g} ms for each row, as requests of {min(sizes)} to "
                f"{max(sizes)} rows did, and goes on so beyond these."
            )
        else:
            yield (
                f"**What it saves to join requests of {service.name} is not known: the trace has the costs of one number of rows at "
                f"the most, and a row is taken to cost as much in every batch, {row_ms:.3g} ms.**"
            )
    if lack := sum(not one.cost_us for one in trace):
        yield (
            f"{lack} of {len(trace)} requests have no cost_us: what others of their model, signature and rows took is taken, on "
            "average, or what their rows take."
        )
