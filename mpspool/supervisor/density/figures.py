"""Sums over what ran: how many at once, for how long, and what they cost each other. Pure.

Where n dispatches run on a device at once, each is taken to have the n-th part of it. Its effective time is what it had
of the device in that way; the rest of its time it waited for the others. So the effective times of all that ran on a
device add up to the time in which anything did.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mpspool.supervisor.density.read import Integers, Record

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Totals:
    """Of a device, or of one model version on it, over the window.

    Attributes:
        dispatches, requests: that ended in it.
        busy_s: the time that its dispatches took, each by itself: two at once count twice.
        effective_s: what they had of the device in that time.
        running_share: of the time: at least one ran.
        mean_running, max_running: how many ran at once.
    """

    dispatches: int
    requests: int
    busy_s: float
    effective_s: float
    running_share: float
    mean_running: float
    max_running: int

    @property
    def waiting_s(self) -> float:
        return self.busy_s - self.effective_s

    @property
    def waiting_share(self) -> float:
        """Of the busy time."""
        return self.waiting_s / self.busy_s if self.busy_s else 0.0


@dataclass(frozen=True, slots=True, eq=False)
class Course:
    """How many ran at once over a stretch of time.

    Attributes:
        at_ns: the ends of its steps, ascending, one more than there are steps; some steps may have no length.
        running: by model version, how many ran during each step.
    """

    at_ns: Integers
    running: Sequence[NDArray[np.int32]]

    @property
    def lengths_ns(self) -> Integers:
        return np.diff(self.at_ns)

    def all_running(self) -> NDArray[np.int32]:
        """Of all model versions, during each step; 0 where a step has no length."""
        together = np.zeros(len(self.at_ns) - 1, np.int32)
        for one in self.running:
            together += one
        together[self.lengths_ns == 0] = 0
        return together


@dataclass(frozen=True, slots=True, eq=False)
class Steps:
    """What is drawn.

    Attributes:
        at_ns: the ends of the steps, one more than there are steps.
        running: by model version, the mean number that ran during each.
        most: of all together, the most that ran at once during each; None where that is their sum.
    """

    at_ns: Integers
    running: Sequence[Floats]
    most: NDArray[np.int32] | None


@dataclass(frozen=True, slots=True, eq=False)
class DeviceFigures:
    """One device.

    Attributes:
        models: by model version, as "name@version", those that ran on it; of all devices together the busiest first.
        course: of these, in the same order.
        ended_ns, requests: when dispatches ended in the window, and with how many requests.
    """

    name: str
    total: Totals
    models: dict[str, Totals]
    course: Course
    ended_ns: Integers
    requests: Integers


def of_devices(record: Record, names: Sequence[str], begin_ns: int, end_ns: int) -> list[DeviceFigures]:
    """Of these devices, in this order, over that time."""
    models = _busiest_first(record, begin_ns, end_ns)
    model_of = np.array([models.index(str(worker.model_version)) for worker in record.workers], np.int64)
    device_of = np.array([worker.device for worker in record.workers], np.str_)
    meets = (record.ended_ns > begin_ns) & (record.began_ns < end_ns)
    found = []
    for name in names:
        mine = np.flatnonzero(meets & (device_of == name)[record.worker])
        present, model = np.unique(model_of[record.worker[mine]], return_inverse=True)
        found.append(
            _of_device(name, [models[one] for one in present], record, mine, model, begin_ns, end_ns)
        )
    return found


def _busiest_first(record: Record, begin_ns: int, end_ns: int) -> list[str]:
    """The model versions of the record."""
    lengths_ns = np.clip(record.ended_ns, begin_ns, end_ns) - np.clip(record.began_ns, begin_ns, end_ns)
    by_worker = np.bincount(record.worker, lengths_ns, len(record.workers))
    busy_ns: dict[str, float] = {}
    for worker, worker_ns in zip(record.workers, by_worker, strict=True):
        name = str(worker.model_version)
        busy_ns[name] = busy_ns.get(name, 0.0) + worker_ns
    return sorted(busy_ns, key=lambda name: (-busy_ns[name], name))


def _of_device(
    name: str,
    models: Sequence[str],
    record: Record,
    mine: Integers,
    model: Integers,
    begin_ns: int,
    end_ns: int,
) -> DeviceFigures:
    """`mine` are the places in the record of what ran there, `model` says of which of `models` each was."""
    began_ns, ended_ns, requests = record.began_ns[mine], record.ended_ns[mine], record.requests[mine]
    whole = course(began_ns, ended_ns, model, len(models), begin_ns, end_ns)
    ended = (requests > 0) & (ended_ns <= end_ns)
    together = whole.all_running()
    by_model = {
        name: _totals(whole, running, together, requests[ended & (model == number)])
        for number, (name, running) in enumerate(zip(models, whole.running, strict=True))
    }
    total = _totals(whole, together, together, requests[ended])
    return DeviceFigures(name, total, by_model, whole, ended_ns[ended], requests[ended])


def course(
    began_ns: Integers, ended_ns: Integers, model: Integers, models: int, begin_ns: int, end_ns: int
) -> Course:
    """How many ran at once between these times, of each of so many models, from when each began and ended."""
    beginnings, ends = np.clip(began_ns, begin_ns, end_ns), np.clip(ended_ns, begin_ns, end_ns)
    times = np.concatenate([beginnings, ends, np.array([begin_ns, end_ns], np.int64)])
    order = np.argsort(times)
    change = np.concatenate([np.ones(len(model), np.int32), np.full(len(model), -1, np.int32)])
    whose = np.concatenate([model, model])
    running = []
    for number in range(models):
        changes = np.zeros(len(times), np.int32)
        changes[: len(change)] = np.where(whose == number, change, 0)
        running.append(np.cumsum(changes[order], dtype=np.int32)[:-1])
    return Course(times[order], running)


def _totals(
    whole: Course, running: NDArray[np.int32], together: NDArray[np.int32], requests: Integers
) -> Totals:
    """Of what was `running` while so many ran `together`; the requests of each dispatch that ended."""
    some = np.flatnonzero(whole.lengths_ns * running)
    lengths_ns, running, together = whole.lengths_ns[some], running[some], together[some]
    busy_ns = int((lengths_ns * running).sum())
    window_ns = int(whole.at_ns[-1] - whole.at_ns[0])
    return Totals(
        dispatches=len(requests),
        requests=int(requests.sum()),
        busy_s=busy_ns / 1e9,
        effective_s=float((lengths_ns * running / together).sum()) / 1e9,
        running_share=int(lengths_ns.sum()) / window_ns,
        mean_running=busy_ns / window_ns,
        max_running=int(running.max(initial=0)),
    )


def steps(whole: Course, at_most: int) -> Steps:
    """The course itself where none of its steps is shorter than those of so many are; else so many of the same length."""
    lengths_ns = whole.lengths_ns[whole.lengths_ns > 0]
    if int(lengths_ns.min()) * at_most >= int(lengths_ns.sum()):
        return Steps(whole.at_ns, [running.astype(np.float64) for running in whole.running], None)
    edges = np.linspace(whole.at_ns[0], whole.at_ns[-1], at_most + 1).astype(np.int64)
    return Steps(
        edges,
        [_means(whole, running, edges) for running in whole.running],
        _most(whole.at_ns, whole.all_running(), edges),
    )


def _means(whole: Course, running: NDArray[np.int32], edges: Integers) -> Floats:
    """Between each two edges."""
    so_far = np.concatenate([[0], np.cumsum(whole.lengths_ns * running)])
    since_ns = whole.at_ns - whole.at_ns[0]
    distinct = np.flatnonzero(np.diff(since_ns, append=since_ns[-1] + 1))
    at_edges = np.interp(edges - edges[0], since_ns[distinct], so_far[distinct])
    return np.asarray(np.diff(at_edges) / np.diff(edges), np.float64)


def _most(at_ns: Integers, running: NDArray[np.int32], edges: Integers) -> NDArray[np.int32]:
    """Between each two edges."""
    first = np.searchsorted(at_ns, edges[:-1], side="right") - 1
    after = np.searchsorted(at_ns, edges[1:], side="left")
    places = np.stack([first, after], axis=1).ravel()
    return np.asarray(np.maximum.reduceat(np.append(running, np.int32(0)), places)[::2], np.int32)


def rates(device: DeviceFigures, begin_ns: int, end_ns: int, count: int) -> tuple[Integers, Floats]:
    """Requests a second, by when their dispatches ended: the ends of so many steps, and the rate during each."""
    edges = np.linspace(begin_ns, end_ns, count + 1).astype(np.int64)
    ended, _ = np.histogram(device.ended_ns - begin_ns, edges - begin_ns, weights=device.requests)
    return edges, np.asarray(ended / (np.diff(edges) / 1e9), np.float64)
