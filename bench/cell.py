"""One measured cell, and the median of several."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Self

import numpy as np

from bench import measure
from bench.drive import Driven

_QUIET_CORES = 0.15
_TRIES = 3


@dataclass(frozen=True, slots=True)
class Sample:
    """What was seen of one server under one load.

    Attributes:
        rate: right answers per second.
        p50_ms, p99_ms: latency as the client saw it.
        cpu_s_per_1000: CPU seconds of all the server's processes for 1000 answers.
        server_cores, client_cores, foreign_cores: CPUs kept busy on average by the server, the load
            driver, and anyone else on the machine.
        cpu_by_role: the server's CPU seconds by what its processes are.
    """

    rate: float
    p50_ms: float
    p99_ms: float
    cpu_s_per_1000: float
    server_cores: float
    client_cores: float
    foreign_cores: float
    cpu_by_role: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def of(
        cls, driven: Driven, seconds: float, elapsed_s: float, cpu_by_role: Mapping[str, float], busy_s: float
    ) -> Self:
        """From what h2load counted in `seconds`, and what was used of CPU in the `elapsed_s` around it."""
        server_s = sum(cpu_by_role.values())
        latencies = driven.latencies_ms if len(driven.latencies_ms) else np.array([float("nan")])
        return cls(
            rate=driven.ok / seconds,
            p50_ms=float(np.percentile(latencies, 50)),
            p99_ms=float(np.percentile(latencies, 99)),
            cpu_s_per_1000=1000 * server_s / max(1, driven.ok),
            server_cores=server_s / elapsed_s,
            client_cores=driven.client_cpu_s / elapsed_s,
            foreign_cores=max(0.0, busy_s - server_s - driven.client_cpu_s) / elapsed_s,
            cpu_by_role=cpu_by_role,
        )


def quietest(take: Callable[[], Sample]) -> Sample:
    """Takes a sample, again while another process disturbs it; the least disturbed one of three."""
    taken: list[Sample] = []
    while len(taken) < _TRIES and not any(one.foreign_cores <= _QUIET_CORES for one in taken):
        measure.wait_until_quiet()
        taken.append(take())
    return min(taken, key=lambda one: one.foreign_cores)


def median(samples: Sequence[Sample]) -> Sample:
    """Each figure's median on its own; the CPU by role is left out."""
    names = [each.name for each in dataclasses.fields(Sample) if each.name != "cpu_by_role"]
    return Sample(**{name: statistics.median(getattr(one, name) for one in samples) for name in names})
