"""From settings to the scheduler's rules."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from mpspool.core import log
from mpspool.core.errors import Code, PoolError
from mpspool.core.settings import BatchingSettings, QueueSettings, RouterSettings
from mpspool.router.scheduling import policy
from mpspool.router.scheduling.entry import kept_name
from mpspool.router.scheduling.load import Limits
from mpspool.router.scheduling.queues import QueueRules
from mpspool.router.scheduling.scheduler import PoolRules

logger = log.get("rules")

_PRIORITY = re.compile(r"[-+]?[0-9]{1,3}")
# Characters of a client's name.
_NAME = 64


def pool_rules(settings: RouterSettings) -> PoolRules:
    """What holds for all queues."""
    scheduling = settings.scheduling
    limits = Limits(scheduling.running_per_device, scheduling.slow_lane)
    return PoolRules(scheduling.dispatch, limits, scheduling.slow_ms * 1000)


def queue_rules(
    settings: RouterSettings, queue: QueueSettings, batching: BatchingSettings | None
) -> QueueRules:
    """What holds for the queue of one model version. A policy that cannot be had is logged, and fails on each request."""
    scheduling = settings.scheduling
    try:
        chosen = policy.find(queue.policy, scheduling.aging)
    except (Exception, SystemExit) as error:  # importing it runs somebody else's code
        logger.exception("no such policy; requests go in the order of arrival", policy=queue.policy)
        chosen = policy.missing(queue.policy, error)
    return QueueRules(
        policy=chosen,
        max_requests=queue.max_queued_requests,
        batching=batching,
        fair=scheduling.fair_by != "none",
        refuse_late=scheduling.refuse_late,
    )


def told(item: Mapping[str, Any]) -> tuple[QueueSettings, BatchingSettings | None]:
    """What the pool tells of a model version's queue."""
    return (
        msgspec.convert(item.get("queue") or {}, QueueSettings),
        msgspec.convert(item.get("batching"), BatchingSettings | None),
    )


def byte_limits(items: Iterable[Mapping[str, Any]], all_bytes: int) -> dict[str, int]:
    """How many bytes each model's requests may hold: as many as the most generous of its versions allows.

    And, by "", those that do not say yet which model they are for: they are not to keep all others out.
    """
    limits = {"": all_bytes // 2}
    for item in items:
        limit = told(item)[0].max_queued_bytes
        limits[item["name"]] = max(limit, limits.get(item["name"], 0))
    return limits


def sharing_bytes(items: Iterable[Mapping[str, Any]]) -> frozenset[str]:
    """The models that leave as many bytes free as they have; with them, by "", those that do not say yet which they are for."""
    sharing = frozenset(item["name"] for item in items if told(item)[0].shares_bytes)
    return sharing | {""} if sharing else sharing


class Callers:
    """Who asks, and how urgently: from a request's metadata.

    Args:
        priority_key: of the metadata; "" for no priorities.
        fair_by: "none", "peer" or "metadata:KEY".
    """

    def __init__(self, priority_key: str, fair_by: str) -> None:
        self._priority_key = priority_key.lower()
        self._shares = fair_by != "none"
        self._client_key = fair_by.partition(":")[2].lower()

    def priority(self, metadata: Mapping[str, str]) -> int:
        """0 where none is said. Raises PoolError where what is said is no priority."""
        if not self._priority_key or (text := metadata.get(self._priority_key)) is None:
            return 0
        if not _PRIORITY.fullmatch(text):
            raise PoolError(
                Code.INVALID_ARGUMENT,
                f"{self._priority_key} is {text[:20]!r}: it must be a whole number from -999 to 999, "
                "0 for what has none; more goes first",
            )
        return int(text)

    def client(self, metadata: Mapping[str, str], peer: str) -> str:
        """Whose share a request is of; "" where clients do not share. A peer is its address, whatever the port."""
        return self.name(metadata, peer) if self._shares else ""

    def name(self, metadata: Mapping[str, str], peer: str) -> str:
        """As client(), but by their addresses where they do not share."""
        if self._client_key:
            return kept_name(metadata.get(self._client_key, ""), _NAME)
        return peer.rpartition(":")[0]
