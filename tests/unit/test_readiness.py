"""What `mpspool wait` makes of a status."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import pytest

from mpspool.core.ids import ModelVersion
from mpspool.supervisor.commands.readiness import unready, verdict

Version = tuple[int, str, str]


def status(*versions: Version, pool: str = "RUNNING", **workers: str) -> dict[str, Any]:
    """A pool with model m; workers by version, as v2="READY"."""
    return {
        "pool": {"state": pool},
        "models": [
            {
                "name": "m",
                "versions": [
                    {"version": number, "state": state, "error": error} for number, state, error in versions
                ],
            }
        ],
        "workers": [
            {
                "id": f"m@{name[1:]}.cpu0.0",
                "model": "m",
                "version": int(name[1:]),
                "state": state,
                **({"error": "SIGSEGV"} if state == "FATAL" else {}),
            }
            for name, state in workers.items()
        ],
        "processes": [],
    }


def to_come(found: dict[str, Any], *numbers: int) -> dict[str, Any]:
    """The same, with a label for each of these versions, which has yet to be served."""
    return {**found, "models": [{**found["models"][0], "to_come": numbers}]}


SERVED: Version = (1, "AVAILABLE", "")
REFUSED: Version = (2, "END", "cut short")


@pytest.mark.parametrize(
    ("found", "wanted", "expected"),
    [
        (status(SERVED, v1="READY"), (), ""),
        (status(SERVED, pool="STARTING", v1="STARTING"), (), None),
        (status((1, "LOADING", ""), v1="READY"), (), None),
        (status(SERVED, pool="DEGRADED", v1="FATAL"), (), "m@1.cpu0.0 is FATAL (SIGSEGV)"),
        # The newest is waited for, whatever serves meanwhile.
        (status(SERVED, (2, "LOADING", ""), v1="READY"), (), None),
        (status(SERVED, REFUSED, v1="READY"), (), "m@2 is not served: cut short"),
        (
            status(SERVED, (2, "AVAILABLE", "other inputs"), v1="READY"),
            (),
            "m@2 is not served to all: other inputs",
        ),
        # Not one that is on its way out, nor one that failed before it.
        (status(SERVED, (2, "UNLOADING", ""), (3, "END", ""), v1="READY"), (), ""),
        (status(REFUSED, (3, "AVAILABLE", ""), v3="READY"), (), ""),
        (status((1, "LOADING", ""), (2, "AVAILABLE", ""), v1="STARTING", v2="READY"), (), ""),
        # But where all go, for another that is loaded after them or for good, it is not over.
        (status((1, "UNLOADING", ""), v1="READY"), (), None),
        (status(SERVED, pool="STOPPING", v1="READY"), (), None),
        # No version of a model: it has been unloaded, or its folder is still empty.
        (status(), (), ""),
        # By name.
        (status(SERVED, REFUSED, v1="READY"), (1,), ""),
        (status(SERVED, REFUSED, v1="READY"), (2,), "m@2 is not served: cut short"),
        (status(SERVED, REFUSED, v1="READY"), (1, 2), "m@2 is not served: cut short"),
        (status(SERVED, v1="READY"), (2,), None),
        (status(SERVED, pool="STOPPING", v1="READY"), (1,), None),
        (status(SERVED, (2, "AVAILABLE", ""), v1="READY", v2="STARTING"), (2,), None),
        (status(SERVED, (2, "AVAILABLE", ""), pool="STARTING", v1="STARTING", v2="READY"), (2,), ""),
        (status(SERVED, (2, "AVAILABLE", ""), v1="FATAL", v2="READY"), (2,), ""),
        (status(SERVED, (2, "LOADING", ""), v1="READY", v2="FATAL"), (2,), "m@2.cpu0.0 is FATAL (SIGSEGV)"),
    ],
)
def test_the_verdict(found: dict[str, Any], wanted: Collection[int], expected: str | None) -> None:
    """By the pool's state and the newest of each model, or by the versions that are named alone."""
    assert verdict(found, [ModelVersion("m", number) for number in wanted]) == expected


@pytest.mark.parametrize(
    ("found", "wanted", "expected"),
    [
        (status(SERVED, v1="STARTING"), None, "m@1.cpu0.0 is STARTING"),
        (status(SERVED, (2, "START", ""), v1="READY"), None, "m@2 is START"),
        (to_come(status((2, "AVAILABLE", ""), v2="READY"), 1, 2), None, "m@1 has yet to be served"),
        (status(pool="STARTING"), None, "the pool is STARTING"),
        (status(SERVED, v1="STARTING"), ModelVersion("m", 2), "m@2 is not there; there is m@1"),
        (status(), ModelVersion("m", 2), "m@2 is not there; m has no version"),
        (status(SERVED), ModelVersion("n", 2), "n@2 is not there; the pool's models: m"),
        (
            status(SERVED, (2, "LOADING", ""), v1="STARTING", v2="BACKOFF"),
            ModelVersion("m", 2),
            "m@2.cpu0.0 is BACKOFF; m@2 is LOADING",
        ),
        (
            {**status(SERVED, v1="READY"), "processes": [{"name": "router", "error": "port taken"}]},
            None,
            "router: port taken",
        ),
    ],
)
def test_what_is_waited_for(found: dict[str, Any], wanted: ModelVersion | None, expected: str) -> None:
    """When the time is over: who is not READY, and what is there in the place of what is missing."""
    assert unready(found, [wanted] if wanted else []) == expected
