"""The lifecycles: one enum and one literal transition table per role.

A state is announced after it is true (READY, AVAILABLE), and DRAINING before READY stops being
true. Health is a field beside the state, never a state.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Mapping
from typing import Generic, TypeVar

S = TypeVar("S", bound=enum.Enum)

# Why a worker leaves for good.
NOT_SERVED = "its version is not served any more"
NO_SLOT = "its slot has gone from the configuration"


class WorkerState(enum.Enum):
    """A worker process, as it reports itself."""

    STARTING = "STARTING"
    LOADING = "LOADING"
    WARMING = "WARMING"
    READY = "READY"
    DRAINING = "DRAINING"
    STOPPED = "STOPPED"
    FAILED = "FAILED"


class SlotState(enum.Enum):
    """A place on a device, as the pool sees it."""

    EMPTY = "EMPTY"
    OCCUPIED = "OCCUPIED"
    BACKOFF = "BACKOFF"
    FATAL = "FATAL"


class DomainState(enum.Enum):
    """A GPU as what fails together: a fatal fault hits every client of its MPS server."""

    SERVING = "SERVING"
    FAULTED = "FAULTED"
    RECOVERING = "RECOVERING"
    LOST = "LOST"


class ModelVersionState(enum.IntEnum):
    """TensorFlow Serving's states and numbers (ModelVersionStatus.State)."""

    UNKNOWN = 0
    START = 10
    LOADING = 20
    AVAILABLE = 30
    UNLOADING = 40
    END = 50


class VersionPhase(enum.Enum):
    """A model version, as the pool sees it."""

    LOADING = "LOADING"  # its workers start; none of them is asked anything while another version serves
    SERVING = "SERVING"
    LEAVING = "LEAVING"  # it takes no more requests; its workers finish what they have, and go
    FAILED = "FAILED"


class PoolState(enum.Enum):
    """The whole, as `mpspool status` shows it."""

    STARTING = "STARTING"
    RUNNING = "RUNNING"
    DEGRADED = "DEGRADED"
    STOPPING = "STOPPING"


WORKER_MOVES: Mapping[WorkerState, frozenset[WorkerState]] = {
    WorkerState.STARTING: frozenset({WorkerState.LOADING, WorkerState.FAILED, WorkerState.STOPPED}),
    WorkerState.LOADING: frozenset({WorkerState.WARMING, WorkerState.FAILED, WorkerState.STOPPED}),
    WorkerState.WARMING: frozenset({WorkerState.READY, WorkerState.FAILED, WorkerState.STOPPED}),
    WorkerState.READY: frozenset({WorkerState.DRAINING, WorkerState.FAILED, WorkerState.STOPPED}),
    WorkerState.DRAINING: frozenset({WorkerState.STOPPED, WorkerState.FAILED}),
    WorkerState.STOPPED: frozenset(),
    WorkerState.FAILED: frozenset(),
}

SLOT_MOVES: Mapping[SlotState, frozenset[SlotState]] = {
    SlotState.EMPTY: frozenset({SlotState.OCCUPIED}),
    SlotState.OCCUPIED: frozenset({SlotState.EMPTY, SlotState.BACKOFF, SlotState.FATAL}),
    SlotState.BACKOFF: frozenset({SlotState.OCCUPIED, SlotState.EMPTY}),
    SlotState.FATAL: frozenset({SlotState.EMPTY}),
}

VERSION_MOVES: Mapping[VersionPhase, frozenset[VersionPhase]] = {
    VersionPhase.LOADING: frozenset({VersionPhase.SERVING, VersionPhase.FAILED, VersionPhase.LEAVING}),
    VersionPhase.SERVING: frozenset({VersionPhase.LEAVING, VersionPhase.FAILED}),
    VersionPhase.LEAVING: frozenset(),
    VersionPhase.FAILED: frozenset({VersionPhase.LOADING, VersionPhase.LEAVING}),
}

DOMAIN_MOVES: Mapping[DomainState, frozenset[DomainState]] = {
    DomainState.SERVING: frozenset({DomainState.FAULTED, DomainState.LOST}),
    DomainState.FAULTED: frozenset({DomainState.RECOVERING, DomainState.LOST}),
    DomainState.RECOVERING: frozenset({DomainState.SERVING, DomainState.FAULTED, DomainState.LOST}),
    DomainState.LOST: frozenset(),
}


class InvalidTransitionError(Exception):
    """A move that its table does not allow; the text carries the recent history."""


class Lifecycle(Generic[S]):
    """A state that moves only along its table and remembers its recent moves."""

    def __init__(self, name: str, moves: Mapping[S, frozenset[S]], initial: S) -> None:
        self._name = name
        self._moves = moves
        self._state = initial
        self._history: deque[tuple[S, str]] = deque([(initial, "initial")], maxlen=20)

    @property
    def state(self) -> S:
        return self._state

    def to(self, state: S, reason: str) -> None:
        """Moves to the state. Raises InvalidTransitionError where the table does not allow it."""
        if state not in self._moves[self._state]:
            story = " -> ".join(f"{past.value} ({why})" for past, why in self._history)
            raise InvalidTransitionError(
                f"{self._name}: {self._state.value} cannot become {state.value} ({reason}); history: {story}"
            )
        self._state = state
        self._history.append((state, reason))
