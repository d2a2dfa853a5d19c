"""Names of models, workers and supervisord programs, and how one is made of another."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NamedTuple, Self

# supervisord splits "group:name" and writes names into file names; "%" starts its own expansions.
_UNSAFE = re.compile(r"[^A-Za-z0-9_@.+-]")
WORKER_PREFIX = "worker."
PUBLISH_PREFIX = "publish."
FETCH_PREFIX = "fetch."


def escape(name: str) -> str:
    """A name safe as supervisord program and as file name; no two names give the same."""
    return _UNSAFE.sub(lambda match: "".join(f"~{byte:02x}" for byte in match[0].encode()), name)


class ModelVersion(NamedTuple):  # hashed and compared in C, several times for each request
    """One version of one model: what TensorFlow Serving calls a servable id."""

    name: str
    version: int

    def __str__(self) -> str:
        return f"{self.name}@{self.version}"

    @property
    def publisher(self) -> str:
        """Supervisord's name for the process that publishes its weights."""
        return PUBLISH_PREFIX + escape(str(self))


@dataclass(frozen=True, slots=True, order=True)
class WorkerId:
    """A place for one worker: model version, device ("cpu0", "gpu0") and slot on that device."""

    model: str
    version: int
    device: str
    slot: int

    def __str__(self) -> str:
        return f"{self.model}@{self.version}.{self.device}.{self.slot}"

    @property
    def model_version(self) -> ModelVersion:
        return ModelVersion(self.model, self.version)

    @property
    def program(self) -> str:
        """Supervisord's name for it, also the stem of its settings and log files."""
        return WORKER_PREFIX + escape(str(self))

    @classmethod
    def parse(cls, text: str) -> Self:
        """Raises ValueError for what is not MODEL@VERSION.DEVICE.SLOT."""
        servable, device, slot = text.rsplit(".", 2)
        model, version = servable.rsplit("@", 1)
        return cls(model, int(version), device, int(slot))
