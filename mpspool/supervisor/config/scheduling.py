"""The `scheduling` section: which request is next, which worker takes it, and what may run at once."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, Field, ValidationInfo, field_validator

from mpspool.core.metadata import is_text_key
from mpspool.supervisor.config.values import Section

POLICIES = ("fifo", "sjf", "edf")
_METADATA = "metadata:"


def _read_key(value: str) -> str:
    if value and not is_text_key(value.lower()):
        raise ValueError(
            "expected a metadata key of letters, digits and _ . -, without grpc- before or -bin behind"
        )
    return value.lower()


def _read_fair_by(value: str) -> str:
    if value in ("none", "peer"):
        return value
    if value.startswith(_METADATA) and (key := value.removeprefix(_METADATA)):
        return _METADATA + _read_key(key)
    raise ValueError("must be none, peer, or metadata:KEY such as metadata:x-tenant")


Policy = Annotated[str, Field(min_length=1)]


Dispatch = Literal["least_loaded", "round_robin"]


class SchedulingConfig(Section):
    """How the queues of all models are served."""

    policy: Policy = "fifo"
    """Which request is next: fifo, sjf (the shortest), edf (the earliest deadline; without one a request counts as having
    10 s), or a policy of your own, named by its entry point in mpspool.policies or as module:attribute."""
    dispatch: Dispatch = "least_loaded"
    """Which worker takes the next request."""
    aging: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 3.0
    """With sjf, how many seconds of waiting a second of cost stands for: a request is passed by those that take c seconds
    less and arrive within aging x c after it; 0 is fifo."""
    running_per_device: Annotated[int, Field(ge=0)] = 0
    """Batches that run at once on one device, over all models; 0 for no limit."""
    slow_lane: Annotated[int, Field(ge=0)] = 0
    """Long batches that run at once on one device, over all models; 0 for no limit."""
    slow_ms: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    """Milliseconds from which a batch, or a request that runs alone, is long; 0 to have it found out."""
    priority_key: Annotated[str, AfterValidator(_read_key)] = "x-mpspool-priority"
    """Metadata key with a request's priority, a whole number from -999 to 999: each step goes before what has waited a
    second more; with fair_by, before what the same client asked for. Empty for no priorities."""
    fair_by: Annotated[str, AfterValidator(_read_fair_by)] = "none"
    """Whose requests take turns and share the bytes: none, peer (each client's address), or metadata:KEY (each value of it)."""
    refuse_late: bool = True
    """A request that cannot meet its deadline is refused at once."""

    @field_validator("fair_by")
    @classmethod
    def _no_priority(cls, value: str, others: ValidationInfo) -> str:
        key = others.data.get("priority_key")
        if key and value == _METADATA + key:
            raise ValueError(
                "the priority_key, too: whoever asks with another priority would be another client; name another key, or"
                " priority_key: '' for no priorities"
            )
        return value
