"""What differs between the configuration that a pool runs with and another, and what of that it can take. Pure.

A pool takes up another configuration as its successor would that finds it in place of the old one: what is not in it
leaves, what is new comes, and a worker whose settings differ from those it was started with comes anew.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import msgspec

from mpspool.core.settings import (
    BatchingSettings,
    ModelSettings,
    MpsSettings,
    PoolSettings,
    RemoteSettings,
    RouterSettings,
    SlotSettings,
    WorkerSettings,
)

# By what PoolSettings, RouterSettings and ModelSettings call it, the key that a person writes.
_KEYS = {
    "poll_s": "file_system_poll_wait_seconds",
    "load_retries": "max_num_load_retries",
    "load_retry_s": "load_retry_interval_micros",
    "policy": "version_policy",
    "labels": "version_labels",
    "warmup_iterations": "enable_model_warmup and num_request_iterations_for_warmup",
}
# What processes other than workers are started with.
_FIXED = ("run_dir", "mps")
_FIXED_ROUTER = ("host", "grpc_port", "grpc_socket_path", "rest_port", "simulated")
_POOL = ("restart", "poll_s", "load_retries", "load_retry_s", "grace_s")
_ROUTER = (
    "max_connections",
    "max_message_bytes",
    "max_queued_bytes",
    "allow_reload",
    "grpc_timeout_ms",
    "rest_timeout_ms",
    "rest_cors",
    "allow_labels_for_unavailable",
    "readiness",
    "tls",
    "monitoring_path",
)
# Of a model: what the router and the pool process go by, what its workers do, and what its weights are published with.
_TOLD = (
    "base_path",
    "policy",
    "labels",
    "swap",
    "allow_signature_changes",
    "quorum",
    "hang_timeout_s",
    "start_timeout_s",
)
_WORKER = (
    "intra_op_threads",
    "inter_op_threads",
    "gpu_memory_growth",
    "gpu_memory_fraction",
    "gpu_memory_limit_bytes",
    "gpu_allocator",
    "merge_copy_streams",
    "engine",
    "warmup_iterations",
    "tensor_content",
    "check_method_names",
    "batching",
)
# Of batching, what the router alone goes by, as a person writes it.
_WAITING = {
    "batch_timeout_us": "batching.batch_timeout_micros",
    "max_enqueued_batches": "batching.max_enqueued_batches",
    "adaptive": "batching.adaptive",
}
_PUBLISHED = ("custom_ops", "saved_model_tags", "weights")
_QUEUE_KEYS = {"policy": "scheduling.policy", "shares_bytes": "max_queued_bytes"}
# What is read once for each version, when it is found.
_FOUND = {"version_batching": "batching, with batching.per_model"}
_SLOT = ("cpus", "start", "share", "mps_pipe", "gpu_uuid", "simulated")
_RESTART = "the pool has to be started anew: `mpspool stop`, then `mpspool start`"
_ANEW = "take {} out, reload, put it back and reload again, or start the pool anew"

Place = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Refused:
    """A key that cannot be changed while the pool runs, and what to do instead."""

    key: str
    text: str


@dataclass(slots=True)
class ModelChanges:
    """What becomes of a model that was there and stays.

    Attributes:
        told: keys that hold at once.
        renewed: keys for which all its workers come anew.
        slots_added, slots_removed, slots_renewed: by device and number.
    """

    told: list[str] = field(default_factory=list)
    renewed: list[str] = field(default_factory=list)
    slots_added: list[Place] = field(default_factory=list)
    slots_removed: list[Place] = field(default_factory=list)
    slots_renewed: dict[Place, list[str]] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return any((self.told, self.renewed, self.slots_added, self.slots_removed, self.slots_renewed))


@dataclass(slots=True)
class Changes:
    """What another configuration would change.

    Attributes:
        refused: what cannot be; where there is any of it, nothing is.
        pool: keys of the pool that hold at once.
        added, removed: models.
        models: of those that stay, where anything differs, by name.
    """

    refused: list[Refused] = field(default_factory=list)
    pool: list[str] = field(default_factory=list)
    added: list[str] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)
    models: dict[str, ModelChanges] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return any((self.pool, self.added, self.removed, self.models))

    def lines(self) -> list[tuple[str, str]]:
        """For people: of whom, and what."""
        found = [("pool", f"{key} holds at once") for key in self.pool]
        found += [(name, "is added") for name in self.added]
        found += [(name, "is taken out") for name in self.removed]
        for name, changes in self.models.items():
            found += [(name, text) for text in _model_lines(changes)]
        return found


def compare(old: PoolSettings, new: PoolSettings) -> Changes:
    """What `new` would change in a pool that runs with `old`."""
    changes = Changes()
    changes.refused += _refused(old, new, _FIXED)
    changes.refused += _daemons_refused(old.mps_daemons, new.mps_daemons)
    changes.pool += [_KEYS.get(key, key) for key in _differing(old, new, _POOL)]
    _compare_routers(old.router, new.router, changes)
    before = {model.name: model for model in old.models}
    after = {model.name: model for model in new.models}
    changes.added = [name for name in after if name not in before]
    changes.removed = [name for name in before if name not in after]
    for name, model in after.items():
        if name in before:
            found, refused = _compare_models(before[name], model)
            changes.refused += refused
            if found:
                changes.models[name] = found
    _compare_remotes(old.remotes, new.remotes, changes)
    return changes


def abandoned(old: PoolSettings, new: PoolSettings) -> list[RemoteSettings]:
    """Of what is copied from stores, that which is not any more, or not so."""
    return [remote for remote in old.remotes if remote not in new.remotes]


def merged(old: PoolSettings, new: PoolSettings) -> PoolSettings:
    """What the pool goes on with: the new one, and the MPS daemons that run for GPUs which it does not use."""
    devices = {daemon.device for daemon in new.mps_daemons}
    kept = [daemon for daemon in old.mps_daemons if daemon.device not in devices]
    return msgspec.structs.replace(new, mps_daemons=[*new.mps_daemons, *kept])


def renews(running: WorkerSettings, model: ModelSettings, slot: SlotSettings) -> bool:
    """Whether a worker that was started with these settings differs from one that would be started now.

    Args:
        running: what it was given.
        model: what the next one is given, as shares.settings_for() has it.
        slot: likewise.
    """
    differs = _differing(_for_workers(running.model), _for_workers(model), _WORKER)
    return bool(differs or _differing(running.slot, slot, _SLOT))


def _refused(old: msgspec.Struct, new: msgspec.Struct, fixed: Iterable[str]) -> list[Refused]:
    return [
        Refused(key, f"{getattr(old, key)!r} cannot become {getattr(new, key)!r} now; {_RESTART}")
        for key in _differing(old, new, fixed)
    ]


def _compare_routers(old: RouterSettings, new: RouterSettings, changes: Changes) -> None:
    changes.refused += _refused(old, new, _FIXED_ROUTER)
    changes.pool += [_KEYS.get(key, key) for key in _differing(old, new, _ROUTER)]
    for key in _differing(old.scheduling, new.scheduling, old.scheduling.__struct_fields__):
        if key == "fair_by":  # what waits is in the lines of whoever was told apart then
            changes.refused.append(Refused("scheduling.fair_by", _RESTART))
        else:
            changes.pool.append(f"scheduling.{key}")


def _daemons_refused(old: Iterable[MpsSettings], new: Iterable[MpsSettings]) -> list[Refused]:
    known = {daemon.device: daemon for daemon in old}
    others = [daemon for daemon in new if known.get(daemon.device, daemon) != daemon]
    return [Refused("mps", f"{daemon.device} would have another MPS daemon; {_RESTART}") for daemon in others]


def _compare_remotes(old: Iterable[RemoteSettings], new: Iterable[RemoteSettings], changes: Changes) -> None:
    """Of models that stay and whose versions are copied, before or after: by the keys that a person writes."""
    before = {remote.model: remote for remote in old}
    after = {remote.model: remote for remote in new}
    for name in {**before, **after}.keys() - {*changes.added, *changes.removed}:
        was, is_ = before.get(name), after.get(name)
        found = changes.models.get(name, ModelChanges())
        if was and is_ and was.url == is_.url and was.folder != is_.folder:
            found.told = ["cache_dir" if key == "base_path" else key for key in found.told]
        elif (was and was.url) != (is_ and is_.url) and "base_path" not in found.told:
            found.told.append("base_path")
        if was and is_ and was.poll_s != is_.poll_s:
            found.told.append("remote_poll_wait_seconds")
        if found:
            changes.models[name] = found


def _compare_models(old: ModelSettings, new: ModelSettings) -> tuple[ModelChanges, list[Refused]]:
    name = new.name
    refused = [
        Refused(f"models.{name}.{key}", f"its weights are published with it: {_ANEW.format(name)}")
        for key in _differing(old, new, _PUBLISHED)
    ]
    refused += [
        Refused(
            f"models.{name}.{_FOUND[key]}",
            f"versions that are there keep what they were found with; {_RESTART}",
        )
        for key in _differing(old, new, _FOUND)
    ]
    # Where versions say for themselves how they are batched, the model's own is the first one's.
    workers = [key for key in _WORKER if key != "batching" or new.version_batching is None]
    found = ModelChanges(
        told=[_KEYS.get(key, key) for key in _differing(old, new, _TOLD)],
        renewed=_differing(_for_workers(old), _for_workers(new), workers),
    )
    if old.batching and new.batching and new.version_batching is None and "batching" not in found.renewed:
        found.told += [_WAITING[key] for key in _differing(old.batching, new.batching, _WAITING)]
    queue = _differing(old.queue, new.queue, old.queue.__struct_fields__)
    found.told += dict.fromkeys(_QUEUE_KEYS.get(key, key) for key in queue)
    before, after = _slots(old), _slots(new)
    found.slots_added = [place for place in after if place not in before]
    found.slots_removed = [place for place in before if place not in after]
    for place, slot in after.items():
        if place in before and (keys := _differing(before[place], slot, _SLOT)):
            found.slots_renewed[place] = keys
    return found, refused


def _for_workers(model: ModelSettings) -> ModelSettings:
    """Without what of its batching no worker goes by."""
    if model.batching is None:
        return model
    alike = BatchingSettings()
    batching = msgspec.structs.replace(model.batching, **{key: getattr(alike, key) for key in _WAITING})
    return msgspec.structs.replace(model, batching=batching)


def _slots(model: ModelSettings) -> dict[Place, SlotSettings]:
    return {(slot.device, slot.slot): slot for slot in model.slots}


def _differing(old: Any, new: Any, names: Iterable[str]) -> list[str]:
    return [name for name in names if getattr(old, name) != getattr(new, name)]


def _model_lines(changes: ModelChanges) -> list[str]:
    lines = [f"{key} holds at once" for key in changes.told]
    if changes.renewed:
        lines.append(f"{', '.join(changes.renewed)}: its workers come anew")
    if changes.slots_added:
        lines.append(f"slots come: {_places(changes.slots_added)}")
    if changes.slots_removed:
        lines.append(f"slots go: {_places(changes.slots_removed)}")
    if changes.slots_renewed and not changes.renewed:
        keys = dict.fromkeys(key for found in changes.slots_renewed.values() for key in found)
        lines.append(f"{', '.join(keys)}: the workers of {_places(changes.slots_renewed)} come anew")
    return lines


def _places(places: Iterable[Place]) -> str:
    return ", ".join(f"{device}.{slot}" for device, slot in places)
