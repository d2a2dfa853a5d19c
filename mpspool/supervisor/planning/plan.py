"""From what the user asked for to who runs where. Pure: the machine comes in as an argument."""

from __future__ import annotations

import itertools
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from mpspool.core.errors import Problem, StartError
from mpspool.core.rundir import RunDir
from mpspool.core.settings import (
    ModelSettings,
    MpsSettings,
    PoolSettings,
    RemoteSettings,
    RestartSettings,
    RouterSettings,
    Share,
    SlotSettings,
    TlsSettings,
    WeightsSettings,
)
from mpspool.mps.devices import GpuDevice
from mpspool.mps.external import Folders
from mpspool.mps.limits import max_clients
from mpspool.supervisor import shares
from mpspool.supervisor.config.schema import ModelConfig, PoolConfig
from mpspool.supervisor.config.sections import Shares, WeightsConfig
from mpspool.supervisor.cpus import Topology, assign, format_cpus
from mpspool.supervisor.planning.announce import facts, is_local, shares_warnings, warnings
from mpspool.supervisor.planning.drafts import Draft, Machine, Place, device_name, draft_places, gpus_in_use
from mpspool.supervisor.planning.queues import (
    Queues,
    batching,
    batching_facts,
    check_batching,
    policy_facts,
    queue_of,
    queue_warnings,
    scheduling,
    scheduling_facts,
    version_batching,
)
from mpspool.supervisor.programs import mps_program


@dataclass(frozen=True, slots=True)
class Plan:
    """Who runs where.

    Attributes:
        models: each with its slots; one without a version is left out.
        mps: "on", "off" or "simulated".
        mps_daemons: one per GPU in use, where MPS is on or simulated; all the same one where it is external.
        simulated: what is a stand-in: "gpus", "cpus" or "gpus,cpus"; empty for nothing.
        facts: what was chosen, a line each.
        warnings: what will run but was hardly meant, a line each.
    """

    models: list[ModelSettings]
    mps: str
    mps_daemons: list[MpsSettings]
    simulated: str
    facts: list[str]
    warnings: list[str]


def plan(
    config: PoolConfig,
    machine: Machine,
    versions: Mapping[str, tuple[int, Path]],
    queues: Queues | None = None,
    *,
    serving: bool = False,
) -> Plan:
    """Places every model's slots.

    Slots are counted GPU by GPU in the order given; slot i takes cpuset i. Where no threads are given,
    a GPU slot leaves them to TensorFlow, and a CPU slot gets as many as it has CPUs (or its share of the
    cgroup's CPU quota, if that is less) within an operation: more would only take turns on the same CPUs,
    and TensorFlow's own choice does not see the quota. Between operations it gets one, the calling thread:
    with two, widedeep took 2.3 times the CPU at batch 1 and was 1.1 times as fast at batch 512.

    Args:
        config: what was asked for.
        machine: what there is.
        versions: by model name, the version to serve and its folder.
        queues: what versions say of batching, and where policies are.
        serving: it was asked for by a command line of tensorflow_model_server.

    Raises:
        StartError: with everything that does not fit this machine.
    """
    queues = queues or Queues()
    drafts, problems = draft_places(config, machine)
    problems += check_batching(config, queues.files, serving=serving)
    mps, mps_problems = resolve_mps(config, machine, drafts)
    problems += mps_problems + _check_quorum(drafts) + _check_cpus(drafts, machine.topology)
    too_many = [] if mps == "off" else _check_clients(drafts, machine)
    crowded = _short_of_memory(drafts) | ({} if mps == "off" else _crowded(drafts, machine))
    problems += too_many or _check_surge(drafts, crowded)
    if problems:
        raise StartError(list(dict.fromkeys(problems)))
    models = _models(config, drafts, machine, versions, queues, crowded)
    daemons = [] if mps == "off" else _daemons(config, drafts, machine)
    models = [_with_mps(config, model, daemons, client_counts(drafts, machine)) for model in models]
    if unfit := _check_shares(models, drafts):
        raise StartError(unfit)
    return Plan(
        models=models,
        mps=mps,
        mps_daemons=daemons,
        simulated=machine.simulated,
        facts=[
            *facts(config, drafts, models, machine, mps),
            *batching_facts(config, models),
            *policy_facts(models),
            *scheduling_facts(config),
        ],
        warnings=[
            *warnings(config, drafts, machine, mps),
            *shares_warnings(config, models, mps),
            *queue_warnings(config, models, queues.files),
        ],
    )


def resolve_mps(config: PoolConfig, machine: Machine, drafts: list[Draft]) -> tuple[str, list[Problem]]:
    """MPS is "on", "off" or "simulated"; and why it cannot be what was asked for."""
    gpus = gpus_in_use(drafts)
    if not all(draft.places for draft in drafts):
        return "off", []  # whether a GPU is used is not known yet
    mode = config.mps.mode
    insists = mode in ("own", "external")
    asked = "on" if mode == "own" else mode
    if not gpus:
        text = f"{asked}, but no GPU is used, and MPS shares GPUs; use auto, or off"
        return "off", [Problem("mps", text)] if insists else []
    if mode == "off":
        return "off", []
    if machine.mps_control is not None:
        return ("simulated" if any(gpu.simulated for gpu in gpus) else "on"), []
    what = "nvidia-cuda-mps-control is not found; install it (it comes with the driver) or use auto"
    text = f"{asked}, but {what}"
    return "off", [Problem("mps", text)] if insists else []


def client_counts(drafts: Sequence[Draft], machine: Machine) -> dict[GpuDevice, tuple[int, int]]:
    """For each GPU in use, its workers and the most that MPS takes."""
    places = Counter(place.gpu for draft in drafts for place in draft.places)
    return {
        gpu: (places[gpu], max_clients(gpu.compute_capability, machine.driver)) for gpu in gpus_in_use(drafts)
    }


def _check_clients(drafts: list[Draft], machine: Machine) -> list[Problem]:
    problems = []
    for gpu, (total, limit) in client_counts(drafts, machine).items():
        if total > limit:
            here = [(draft, sum(place.gpu == gpu for place in draft.places)) for draft in drafts]
            here = [(draft, count) for draft, count in here if count]
            each = ", ".join(f"{draft.model.name} {count}" for draft, count in here)
            path = here[0][0].path("contexts_per_gpu") if len(here) == 1 else "contexts_per_gpu"
            text = f"{total} workers on {device_name(gpu)} ({each}), where MPS takes {limit} clients; ask for fewer"
            problems.append(Problem(path, text))
    return problems


def _crowded(drafts: list[Draft], machine: Machine) -> dict[str, str]:
    """The models whose next version finds no room on a GPU beside the present one: why, by name."""
    found: dict[str, str] = {}
    for gpu, (total, limit) in client_counts(drafts, machine).items():
        if 2 * total > limit:  # all models may have a new version at once
            why = f"{total} workers on {device_name(gpu)}, twice, are more than the {limit} clients that MPS takes"
            here = [draft.model.name for draft in drafts if any(place.gpu == gpu for place in draft.places)]
            found |= dict.fromkeys(here, why)
    return found


def _short_of_memory(drafts: list[Draft]) -> dict[str, str]:
    """The models whose next version finds no memory on a GPU beside what workers take there at their start: why, by name.

    Memory that is taken as it is needed (gpu_memory.growth) may do for both, and is not counted.
    """
    found: dict[str, str] = {}
    for gpu in filter(lambda gpu: gpu.memory_bytes, gpus_in_use(drafts)):
        taken = {
            draft.model.name: sum(place.gpu == gpu for place in draft.places)
            * _reserved_bytes(draft.model, gpu.memory_bytes)
            for draft in drafts
        }
        total = sum(taken.values())
        for name, own in taken.items():
            if own and total + own > gpu.memory_bytes:
                found[name] = (
                    f"the workers on {device_name(gpu)} take {total / gpu.memory_bytes:.0%} of its memory at their start"
                    f" (gpu_memory.growth: false), and {own / gpu.memory_bytes:.0%} more in a swap"
                )
    return found


def _reserved_bytes(model: ModelConfig, memory_bytes: int) -> float:
    """Of each worker; all that there is where nobody gives a limit."""
    given = model.gpu_memory
    return 0 if given.growth else given.limit_bytes or (given.fraction or 1.0) * memory_bytes


def _check_surge(drafts: list[Draft], crowded: Mapping[str, str]) -> list[Problem]:
    return [
        Problem(
            draft.path("swap"), f"surge, but {crowded[draft.model.name]}; use rolling or stop_first, or fewer"
        )
        for draft in drafts
        if draft.model.swap == "surge" and draft.model.name in crowded
    ]


def _check_quorum(drafts: list[Draft]) -> list[Problem]:
    return [
        Problem(
            f"models.{draft.model.name}.quorum",
            f"{draft.model.quorum} of {len(draft.places)} slots can never be READY; at most {len(draft.places)}",
        )
        for draft in drafts
        if draft.places and draft.model.quorum > len(draft.places)
    ]


def _check_cpus(drafts: list[Draft], topology: Topology) -> list[Problem]:
    problems = []
    for draft in drafts:
        if missing := set(itertools.chain(*_given(draft.model))) - set(topology.numbers):
            text = f"no CPU {format_cpus(missing)} here; there are {format_cpus(topology.numbers)}"
            problems.append(Problem(draft.path("cpusets"), text))
    return problems


def _given(model: ModelConfig) -> tuple[tuple[int, ...], ...]:
    return model.cpusets if isinstance(model.cpusets, tuple) else ()


def _models(
    config: PoolConfig,
    drafts: list[Draft],
    machine: Machine,
    versions: Mapping[str, tuple[int, Path]],
    queues: Queues,
    crowded: Mapping[str, str],
) -> list[ModelSettings]:
    slots = sum(len(draft.places) for draft in drafts)
    left = _unnamed(drafts, machine.topology)
    return [
        _settings(config, draft, given, versions[draft.model.name], left, slots, queues, crowded)
        for draft, given in zip(drafts, _cpus(drafts, left), strict=True)
        if draft.model.name in versions
    ]


def _unnamed(drafts: list[Draft], topology: Topology) -> Topology:
    """The CPUs that nobody was given by name; all, where none is left."""
    named = set(itertools.chain(*(itertools.chain(*_given(draft.model)) for draft in drafts)))
    left = tuple(cpu for cpu in topology.cpus if cpu.number not in named)
    return replace(topology, cpus=left or topology.cpus)


def _cpus(drafts: list[Draft], topology: Topology) -> list[list[list[int]]]:
    """For each model, for each of its places, its share of the CPUs, or those named; none for no pinning."""
    sharing = [place for draft in drafts if _shares(draft.model) for place in draft.places]
    near = [None if place.gpu is None else place.gpu.numa_node for place in sharing]
    shared = iter(assign(topology, near) if near else [])
    return [
        list(itertools.islice(shared, len(draft.places))) if _shares(draft.model) else _named_cpus(draft)
        for draft in drafts
    ]


def _shares(model: ModelConfig) -> bool:
    return model.cpusets in (None, "auto", "split")


def _room(model: ModelConfig, share: list[int], topology: Topology) -> list[int]:
    """The CPUs to pin to: a share of one CPU is widened to its node unless it was asked for (ADR 8)."""
    if model.cpusets not in (None, "auto") or len(share) != 1:
        return share
    node = next(cpu.node for cpu in topology.cpus if cpu.number == share[0])
    return sorted(cpu.number for cpu in topology.cpus if cpu.node == node)


def _named_cpus(draft: Draft) -> list[list[int]]:
    sets = _given(draft.model) or ((),)
    return [list(sets[index % len(sets)]) for index in range(len(draft.places))]


def _settings(
    config: PoolConfig,
    draft: Draft,
    cpus: list[list[int]],
    version: tuple[int, Path],
    topology: Topology,
    slots: int,
    queues: Queues,
    crowded: Mapping[str, str],
) -> ModelSettings:
    model = draft.model
    batches = batching(config, model, queues.files.get(model.name))
    threads = _default_threads(draft, cpus, topology, slots)
    return ModelSettings(
        name=model.name,
        version=version[0],
        path=str(version[1]),
        base_path=os.path.abspath(model.base_path),
        policy=model.version_policy,
        labels=dict(model.version_labels),
        swap=model.swap or ("rolling" if model.name in crowded else "surge"),
        allow_signature_changes=model.allow_signature_changes,
        slots=[
            _slot(place, _room(model, share, topology), topology, config.workers.start)
            for place, share in zip(draft.places, cpus, strict=True)
        ],
        quorum=model.quorum,
        intra_op_threads=threads if model.intra_op_threads is None else model.intra_op_threads,
        inter_op_threads=min(threads, 1) if model.inter_op_threads is None else model.inter_op_threads,
        custom_ops=list(model.custom_ops),
        gpu_memory_growth=model.gpu_memory.growth,
        gpu_memory_fraction=model.gpu_memory.fraction,
        gpu_memory_limit_bytes=int(model.gpu_memory.limit_bytes),
        gpu_allocator="" if model.gpu_memory.allocator == "default" else model.gpu_memory.allocator,
        merge_copy_streams=bool(model.merge_copy_streams),
        saved_model_tags=list(model.saved_model_tags),
        warmup_iterations=model.num_request_iterations_for_warmup if model.enable_model_warmup else 0,
        tensor_content=config.tensor_content,
        check_method_names=config.check_method_names,
        hang_timeout_s=model.hang_timeout_s,
        start_timeout_s=model.start_timeout_s,
        engine=model.engine,
        batching=batches.settings() if batches else None,
        version_batching=version_batching(config, model),
        queue=queue_of(config, model, queues.policies),
        weights=resolved_weights(model, config.weights),
    )


def _default_threads(draft: Draft, cpus: list[list[int]], topology: Topology, slots: int) -> int:
    if any(place.gpu is not None and not place.gpu.simulated for place in draft.places):
        return 0
    unpinned = max(1, len(topology.cpus) // slots)
    share = topology.share(slots) or len(topology.cpus)
    # One number for all of a model's slots: where they differ in size, none takes more than it has.
    return min(share, *(len(given) or unpinned for given in cpus))


def resolved_weights(model: ModelConfig, pool: WeightsConfig) -> WeightsSettings:
    """The pool's, with what the model says for itself."""
    own = model.weights.model_dump(exclude_unset=True) if model.weights else {}
    return WeightsSettings(**{**pool.model_dump(), **own})


def _slot(place: Place, cpus: list[int], topology: Topology, start: str) -> SlotSettings:
    gpu = place.gpu
    return SlotSettings(
        device=place.device,
        slot=place.slot,
        cpus=cpus,
        gpu_uuid="" if gpu is None else gpu.uuid,
        memory_bytes=0 if gpu is None else gpu.memory_bytes,
        simulated=topology.simulated or (gpu is not None and gpu.simulated),
        start=start,
    )


def _daemons(config: PoolConfig, drafts: list[Draft], machine: Machine) -> list[MpsSettings]:
    """One per GPU; an external one stands there for each of its GPUs."""
    run_dir = RunDir(config.run_dir)
    external = machine.external if config.mps.mode == "external" else None
    return [
        MpsSettings(
            device=device_name(gpu),
            gpu_uuid=gpu.uuid,
            pipe_dir=external.pipe_dir if external else str(run_dir.mps_pipe(device_name(gpu))),
            log_dir=external.log_dir if external else str(run_dir.mps_log(device_name(gpu))),
            server_log=_server_log(run_dir, device_name(gpu), external),
            control=list(machine.mps_control or ()),
            simulated=gpu.simulated,
            external=external is not None,
            max_clients=max_clients(gpu.compute_capability, machine.driver),
        )
        for gpu in gpus_in_use(drafts)
    ]


def _server_log(run_dir: RunDir, device: str, external: Folders | None) -> str:
    """A daemon of our own runs in the foreground: what it prints is its program's log."""
    own = run_dir.log_file(mps_program(device))
    return str(Path(external.log_dir, "server.log") if external else own)


def _with_mps(
    config: PoolConfig,
    model: ModelSettings,
    daemons: list[MpsSettings],
    counts: Mapping[GpuDevice, tuple[int, int]],
) -> ModelSettings:
    pipes = {daemon.device: daemon.pipe_dir for daemon in daemons}
    workers = {device_name(gpu): count for gpu, (count, _) in counts.items()}
    own = next(asked for asked in config.models if asked.name == model.name).mps
    slots = [
        _with_share(msgspec.structs.replace(slot, mps_pipe=pipes[slot.device]), own, config.mps, workers)
        if slot.device in pipes
        else slot
        for slot in model.slots
    ]
    return msgspec.structs.replace(model, slots=slots)


def _with_share(slot: SlotSettings, own: Shares, pool: Shares, workers: Mapping[str, int]) -> SlotSettings:
    """The model's values, else the pool's, else the defaults for so many workers on the GPU."""
    given = {
        name: shares.in_turn(values, slot.slot)
        for name in Shares.model_fields
        if (values := getattr(own, name) or getattr(pool, name))
    }
    default = shares.default_percentage(workers[slot.device])
    share = Share(
        active_thread_percentage=given.get("active_thread_percentage", default),
        pinned_bytes=given.get("pinned_memory"),
        priority=given.get("priority"),
    )
    return msgspec.structs.replace(slot, share=share)


def _check_shares(models: Sequence[ModelSettings], drafts: Sequence[Draft]) -> list[Problem]:
    asked = {draft.asked.name: draft.asked for draft in drafts}
    problems = []
    for model in models:
        texts = [shares.misfit(model, slot) for slot in model.slots]
        if text := next(filter(None, texts), ""):
            own = asked[model.name].mps.pinned_memory is not None
            path = f"models.{model.name}.mps.pinned_memory" if own else "mps.pinned_memory"
            problems.append(Problem(path, text))
    return problems


def to_settings(
    planned: Plan,
    config: PoolConfig,
    remotes: Sequence[RemoteSettings] = (),
    tls: TlsSettings | None = None,
) -> PoolSettings:
    """What the pool process and, within it, the router read."""
    router = RouterSettings(
        run_dir=str(config.run_dir),
        host=config.host,
        grpc_port=config.grpc_port,
        rest_port=config.rest_port,
        grpc_socket_path=config.grpc_socket_path,
        max_connections=config.max_connections,
        max_message_bytes=int(config.max_message_bytes),
        max_queued_bytes=int(config.max_queued_bytes),
        scheduling=scheduling(config),
        allow_reload=is_local(config.host) if config.allow_reload is None else config.allow_reload,
        grpc_timeout_ms=config.grpc_timeout_ms,
        rest_timeout_ms=config.rest_timeout_ms,
        rest_cors=config.rest_cors,
        allow_labels_for_unavailable=config.allow_labels_for_unavailable,
        readiness=config.readiness,
        monitoring_path=config.monitoring_path,
        simulated=planned.simulated,
        tls=tls,
    )
    return PoolSettings(
        run_dir=str(config.run_dir),
        mps=planned.mps,
        models=planned.models,
        mps_daemons=planned.mps_daemons,
        router=router,
        remotes=list(remotes),
        restart=RestartSettings(**config.restart.model_dump()),
        poll_s=config.file_system_poll_wait_seconds,
        load_retries=config.max_num_load_retries,
        load_retry_s=config.load_retry_interval_micros / 1e6,
        grace_s=config.grace_s,
    )
