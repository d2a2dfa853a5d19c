"""Who of those that wait is next: the built-in policies, and a user's own by name. Pure but for the lookup.

A policy is a function from a waiting request to a number: the one with the least is next. It is called on arrival, and
of what waits where it takes another's place. An order that starts from when a request arrived starves nobody: whoever
waits is passed only by what arrives within the time that their numbers differ by. Requests of two models are compared
by a built-in one that both have, and by no other.
"""

from __future__ import annotations

import asyncio
import importlib
import inspect
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import entry_points
from operator import attrgetter
from typing import Any, Protocol

from mpspool.core import log
from mpspool.core.ids import ModelVersion

logger = log.get("policy")

GROUP = "mpspool.policies"
# A request without a deadline counts as one that has this much time. Of what another has beyond that, as each has by REST, a
# hundredth counts: among themselves they are in order, and none is passed for long by those that have said nothing.
NO_DEADLINE_S = 10.0
_BEYOND = 0.01
# One of somebody's own that takes longer for a request is slow: nothing else is done meanwhile.
SLOW_S = 0.01
# What it may raise, and goes no further; not what whoever tries it ends it by (probe.py).
_RAISED = (Exception, SystemExit, GeneratorExit, asyncio.CancelledError)
_NEWEST = 0.02  # of what it takes, in the average: that others had the processor for once makes nothing slow


class Waiting(Protocol):
    """What a policy sees of a request. Times are seconds of one clock.

    Attributes:
        model: name and version.
        signature: as the client named it, serving_default where it named none; for all but gRPC's Predict after the method
            (`Classify serving_default`, `REST Predict serving_default`), for these cost differently. By REST that is what is
            seen of it in the body's first and last bytes, of a MultiInference those of its tasks with commas between.
        rows: dimension 0 of its inputs where its model version batches and it can share a batch, else 0.
        size: of the request, in bytes.
        arrived_s: when it arrived.
        deadline_s: when it is, not how long after; 0 for none.
        cost_s: of a worker's time, predicted; None where no such request was seen yet.
        priority: as the client gave it.
        client: its peer, or what the metadata key of `fair_by` holds; "" where clients do not share fairly.
    """

    @property
    def model(self) -> ModelVersion: ...
    @property
    def signature(self) -> str: ...
    @property
    def rows(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def arrived_s(self) -> float: ...
    @property
    def deadline_s(self) -> float: ...
    @property
    def cost_s(self) -> float | None: ...
    @property
    def priority(self) -> int: ...
    @property
    def client(self) -> str: ...


Policy = Callable[[Waiting], float]


def fifo(waiting: Waiting) -> float:
    """In the order of arrival."""
    return waiting.arrived_s


def edf(waiting: Waiting) -> float:
    """The earliest deadline first."""
    as_none_s = waiting.arrived_s + NO_DEADLINE_S
    deadline_s = waiting.deadline_s or as_none_s
    return deadline_s if deadline_s <= as_none_s else as_none_s + _BEYOND * (deadline_s - as_none_s)


@dataclass(frozen=True, slots=True)
class Sjf:
    """The shortest job first; a second longer to run is as good as having arrived `aging` seconds later."""

    aging: float

    def __call__(self, waiting: Waiting) -> float:
        return waiting.arrived_s + self.aging * (waiting.cost_s or 0.0)


def is_time(policy: Policy) -> bool:
    """Whether its numbers are times; those of a user's own need not be."""
    return policy is fifo or policy is edf or isinstance(policy, Sjf)


def find(name: str, aging: float) -> Policy:
    """The policy of that name: a built-in one, an entry point of GROUP, or "module:attribute".

    Raises:
        LookupError, ImportError, AttributeError, TypeError: there is none, or what there is cannot be called so.
        Exception: importing it runs somebody else's code.
    """
    builtin: dict[str, Policy] = {"fifo": fifo, "edf": edf, "sjf": Sjf(aging)}
    if name in builtin:
        return builtin[name]
    points = list(entry_points(group=GROUP, name=name))
    if points:
        found = points[0].load()
    elif ":" in name:
        module, _, attribute = name.partition(":")
        found = attrgetter(attribute)(importlib.import_module(module))
    else:
        known = ", ".join(sorted(builtin))
        raise LookupError(f"no policy {name!r}: it is none of {known}, and no entry point of {GROUP}")
    if not callable(found):
        raise TypeError(f"the policy {name!r} is {found!r:.100}, which cannot be called")
    if (unfit := _unfit(found)) is not None:
        raise TypeError(f"the policy {name!r} cannot be called with a waiting request alone: {unfit}")
    return Own(name, found)


def _unfit(policy: Callable[..., object]) -> TypeError | None:
    """Why it does not take one argument; None where it does, or does not tell."""
    try:
        inspect.signature(policy, follow_wrapped=False).bind(None)
    except ValueError:
        return None
    except TypeError as error:
        return error
    return None


class Own:
    """A user's policy that cannot harm a request: what it fails on goes in the order of arrival.

    Attributes:
        failures: how many requests that were.
        error: why, of the first; "" while there was none.
        spent_s: what it has taken of the router's time.
        takes_s: for a request, of late.
        is_slow: that is too long.
    """

    __slots__ = ("_name", "_policy", "error", "failures", "is_slow", "spent_s", "takes_s")

    def __init__(self, name: str, policy: Policy, error: str = "") -> None:
        self._name = name
        self._policy = policy
        self.failures = 0
        self.error = error
        self.spent_s = self.takes_s = 0.0
        self.is_slow = False

    def __call__(self, waiting: Waiting) -> float:
        begun_s = time.perf_counter()
        number = self._ask(waiting)
        self._note(time.perf_counter() - begun_s)
        return number

    def _note(self, took_s: float) -> None:
        self.spent_s += took_s
        self.takes_s += _NEWEST * (took_s - self.takes_s)
        if self.takes_s > SLOW_S and not self.is_slow:
            self.is_slow = True
            logger.warning(
                "policy is slow; nothing else is done while it is asked",
                policy=self._name,
                takes_ms=round(self.takes_s * 1e3),
            )
        elif self.takes_s < SLOW_S / 2:
            self.is_slow = False

    def _ask(self, waiting: Waiting) -> float:
        try:
            value: Any = self._policy(waiting)
            number = _number(value)
            if math.isfinite(number):
                return number
            reason = f"it returned {value!r:.100}, which is no finite number"
        except _RAISED as error:  # it is somebody else's code
            reason = why(error)
        self.failures += 1
        if not self.error:
            self.error = reason
            logger.error(
                "policy failed; its requests go in the order of arrival", policy=self._name, error=reason
            )
        return waiting.arrived_s


def _number(value: Any) -> float:
    """Not a number for what is none, as a text of one."""
    try:
        return math.nan if isinstance(value, str) else float(value)
    except (TypeError, ValueError, OverflowError):
        return math.nan


def missing(name: str, error: BaseException) -> Own:
    """In place of one that cannot be had: it fails on every request."""
    text = why(error)

    def fail(_waiting: Waiting) -> float:
        raise LookupError(text)

    return Own(name, fail, text)


def why(error: BaseException) -> str:
    """What somebody else's code raised, in one line."""
    try:
        text = str(error)
    except Exception:  # noqa: BLE001  that is its code, too
        text = ""
    return f"{type(error).__name__}: {' '.join(text.split())}".removesuffix(": ")
