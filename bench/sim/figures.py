"""What a simulation is judged by."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from bench.sim.engine import Record
from bench.sim.job import Ended, Outcome


class NothingArrivedError(Exception):
    """Nothing of a part of the load, or of all of it, arrived in the window: there is nothing to judge."""


@dataclass(frozen=True, slots=True)
class Part:
    """Some of the requests: those of a service, a client, a class, or all. Times are milliseconds, NaN without any.

    Attributes:
        offered: that arrived in the window.
        asked: of those, in a second.
        answered: of those, be it after the window.
        unanswered: the part of those that had no answer by the end of the window.
        rate: answers a second.
        good: answers a second within their deadlines.
        work: seconds of worker time, without overlap, that they got in each second.
        mean_ms ... p99_ms: from arrival to answer.
        alone_ms, overlap_ms, queue_ms: the mean's parts: what it takes alone, what sharing a device adds, the rest.
        expired, refused_late, refused_full: of those that arrived, the parts that ended so.
    """

    offered: int
    asked: float
    answered: int
    unanswered: float
    rate: float
    good: float
    work: float
    mean_ms: float
    p50_ms: float
    p95_ms: float
    p99_ms: float
    alone_ms: float
    overlap_ms: float
    queue_ms: float
    expired: float
    refused_late: float
    refused_full: float


@dataclass(frozen=True, slots=True)
class Device:
    """A device over the whole run, per second.

    Attributes:
        busy: part of the time in which anything ran.
        effective: seconds of work done, as it takes one after another.
        overlap: seconds that jobs spent there beyond that.
    """

    busy: float
    effective: float
    overlap: float


@dataclass(frozen=True, slots=True)
class Figures:
    """All of it.

    Attributes:
        all: every request of the window.
        services, clients, priorities: by name.
        devices: each.
        fairness: Jain's index of what each client got by what a max-min fair division would have given it.
        batch_rows: mean rows of a batch, by service.
        dispatched: requests of a dispatch, on average.
        policy_failures, policy_error: as in Record.
        wall_us, scheduler_us: CPU of each request, in the simulation and, of that, in the scheduler: measured, and
            not the same in every run.
    """

    all: Part
    services: dict[str, Part]
    clients: dict[str, Part]
    priorities: dict[str, Part]
    devices: list[Device]
    fairness: float
    batch_rows: dict[str, float] = field(default_factory=dict)
    dispatched: float = 0.0
    policy_failures: int = 0
    policy_error: str = ""
    wall_us: float = field(default=0.0, compare=False)
    scheduler_us: float = field(default=0.0, compare=False)

    @property
    def busy(self) -> float:
        return sum(device.busy for device in self.devices) / len(self.devices)

    def as_dict(self) -> dict[str, Any]:
        """For the JSON file: what is the same in every run of a seed."""
        found = dataclasses.asdict(self)
        del found["wall_us"], found["scheduler_us"]
        if not self.policy_failures:
            del found["policy_failures"], found["policy_error"]
        if len(self.clients) > 30:
            del found["clients"]
        return found


def part_of(parts: Mapping[str, Part], name: str) -> Part:
    """The one of that name. Raises NothingArrivedError."""
    part = parts.get(name)
    if part is None or not part.offered:
        raise NothingArrivedError(f"nothing of {name} arrived")
    return part


def judge(record: Record, seconds: float, warm_s: float) -> Figures:
    """The figures of what arrived, and of what was answered, between `warm_s` and `seconds`. Raises NothingArrivedError."""
    window = (warm_s, seconds)
    ended = record.ended
    if not any(warm_s <= one.request.time < seconds for one in ended):
        raise NothingArrivedError("nothing arrived")
    clients = _parts(ended, window, lambda one: one.request.client)
    count = max(1, len(ended))
    length_s = record.end_s or 1.0
    answered = sum(one.outcome is Outcome.ANSWERED for one in ended)
    return Figures(
        all=_part(ended, window),
        services=_parts(ended, window, lambda one: one.request.model),
        clients=clients,
        priorities=_parts(ended, window, lambda one: str(one.request.priority)),
        devices=[
            Device(
                device.busy_ns / 1e9 / length_s,
                device.work_ns / 1e9 / length_s,
                device.overlap_ns / 1e9 / length_s,
            )
            for device in record.devices
        ],
        fairness=_fairness(ended, clients, window),
        batch_rows={name: float(np.mean(rows)) for name, rows in sorted(record.batches.items())},
        dispatched=answered / max(1, record.dispatches),
        policy_failures=record.policy_failures,
        policy_error=record.policy_error,
        wall_us=1e6 * record.wall_s / count,
        scheduler_us=1e6 * record.scheduler_s / count,
    )


def _parts(
    ended: Iterable[Ended], window: tuple[float, float], key: Callable[[Ended], str]
) -> dict[str, Part]:
    groups: dict[str, list[Ended]] = {}
    for one in ended:
        groups.setdefault(key(one), []).append(one)
    return {name: _part(groups[name], window) for name in sorted(groups)}


def _part(ended: list[Ended], window: tuple[float, float]) -> Part:
    start_s, end_s = window
    length_s = end_s - start_s
    arrived = [one for one in ended if start_s <= one.request.time < end_s]
    answered = [one for one in arrived if one.outcome is Outcome.ANSWERED]
    in_time = [one for one in ended if one.outcome is Outcome.ANSWERED and start_s <= one.at_s < end_s]
    good = sum(
        not one.request.deadline_ms or one.latency_s * 1000 <= one.request.deadline_ms for one in in_time
    )
    latency_ms = 1000 * np.array([one.latency_s for one in answered] or [math.nan])
    p50, p95, p99 = np.percentile(latency_ms, [50, 95, 99])
    alone_ms = _mean(one.alone_s for one in answered)
    overlap_ms = _mean(one.overlap_s for one in answered)
    mean_ms = float(latency_ms.mean())
    outcomes = [sum(one.outcome is outcome for one in arrived) / max(1, len(arrived)) for outcome in Outcome]
    return Part(
        offered=len(arrived),
        asked=len(arrived) / length_s,
        answered=len(answered),
        unanswered=1.0 - sum(one.at_s < end_s for one in answered) / max(1, len(arrived)),
        rate=len(in_time) / length_s,
        good=good / length_s,
        work=sum(one.alone_s for one in in_time) / length_s,
        mean_ms=mean_ms,
        p50_ms=float(p50),
        p95_ms=float(p95),
        p99_ms=float(p99),
        alone_ms=alone_ms,
        overlap_ms=overlap_ms,
        queue_ms=mean_ms - alone_ms - overlap_ms,
        expired=outcomes[Outcome.EXPIRED],
        refused_late=outcomes[Outcome.REFUSED_LATE],
        refused_full=outcomes[Outcome.REFUSED_FULL],
    )


def _mean(seconds: Iterable[float]) -> float:
    found = list(seconds)
    return 1000 * sum(found) / len(found) if found else math.nan


def _fairness(ended: Iterable[Ended], clients: Mapping[str, Part], window: tuple[float, float]) -> float:
    """Of worker time."""
    asked = dict.fromkeys(clients, 0.0)
    for one in ended:
        if window[0] <= one.request.time < window[1]:
            asked[one.request.client] += one.request.cost_us / 1e6 / (window[1] - window[0])
    got = {name: part.work for name, part in clients.items()}
    due = fair_division(sum(got.values()), asked)
    return jain([got[name] / due[name] for name in clients if due[name] > 0.0])


def fair_division(amount: float, asked: Mapping[str, float]) -> dict[str, float]:
    """Max-min: nobody gets more than it asked for, and what is left over is divided evenly."""
    found: dict[str, float] = {}
    left = amount
    for n, name in enumerate(sorted(asked, key=lambda name: asked[name])):
        found[name] = min(asked[name], left / (len(asked) - n))
        left -= found[name]
    return found


def jain(shares: list[float]) -> float:
    """1 where all are alike, 1/n where one has everything."""
    squares = sum(share * share for share in shares)
    return sum(shares) ** 2 / (len(shares) * squares) if squares else math.nan
