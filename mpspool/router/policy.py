"""Who of those that wait is next: the built-in policies, and a user's own by name. Pure but for the lookup.

A policy is a function from a waiting request to a number: the one with the least is next. It is called once, on
arrival. An order that starts from when a request arrived starves nobody: whoever waits is passed only by what
arrives within the time that their numbers differ by. Requests of two models are compared by a built-in one that
both have, and by no other.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import Protocol

from mpspool.core import log
from mpspool.core.ids import ModelVersion

logger = log.get("policy")

GROUP = "mpspool.policies"
# A request without a deadline counts as one that has this much time.
NO_DEADLINE_S = 10.0


class Waiting(Protocol):
    """What a policy sees of a request. Times are seconds of one clock.

    Attributes:
        model: name and version.
        signature: as the client named it; "" for the default.
        rows: dimension 0 of its inputs where its model version batches, else 0.
        size: of the request, in bytes.
        arrived_s: when it arrived.
        deadline_s: 0 for none.
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
    return waiting.deadline_s or waiting.arrived_s + NO_DEADLINE_S


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
        LookupError, ImportError, AttributeError, TypeError: there is none, or what there is cannot be called.
    """
    builtin: dict[str, Policy] = {"fifo": fifo, "edf": edf, "sjf": Sjf(aging)}
    if name in builtin:
        return builtin[name]
    points = list(entry_points(group=GROUP, name=name))
    if points:
        found = points[0].load()
    elif ":" in name:
        module, _, attribute = name.partition(":")
        found = getattr(importlib.import_module(module), attribute)
    else:
        known = ", ".join(sorted(builtin))
        raise LookupError(f"no policy {name!r}: it is none of {known}, and no entry point of {GROUP}")
    if not callable(found):
        raise TypeError(f"the policy {name!r} is {found!r}, which cannot be called")
    return _guarded(name, found)


def _guarded(name: str, policy: Policy) -> Policy:
    """A user's policy that cannot harm a request: what it fails on goes in the order of arrival."""
    failed = False

    def key(waiting: Waiting) -> float:
        nonlocal failed
        try:
            value = float(policy(waiting))
            if not math.isnan(value):
                return value
            reason = "it returned nan"
        except Exception as error:  # noqa: BLE001  it is somebody else's code
            reason = repr(error)
        if not failed:
            failed = True
            logger.error("policy failed; its requests go in the order of arrival", policy=name, error=reason)
        return waiting.arrived_s

    return key
