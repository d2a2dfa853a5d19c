"""Judges MPS: its programs, the room for its clients, and whose daemons there are."""

from __future__ import annotations

from collections.abc import Sequence

from mpspool.mps.control import PROGRAM
from mpspool.mps.device_state import EXCLUSIVE_PROCESS
from mpspool.mps.leftovers import DEFAULT_PIPE_DIR, SERVER_PROGRAM, Running
from mpspool.supervisor.doctor.facts import Facts, GpuUse, Host
from mpspool.supervisor.doctor.finding import Finding, Status, Verdict, of_warning, ok, per_gpu
from mpspool.supervisor.doctor.host import by_device_plugin

_CONNECTIONS = "CUDA_DEVICE_MAX_CONNECTIONS"
_DEFAULT_CONNECTIONS = 2
_PIPE = "CUDA_MPS_PIPE_DIRECTORY"
# Set by us for each daemon and each of its clients.
_OURS = (_PIPE, "CUDA_MPS_LOG_DIRECTORY")


def programs(facts: Facts) -> Finding:
    """Are the control daemon and its server there?"""
    intent, control = facts.intent, facts.machine.mps_control
    if intent.mps == "simulated":
        return Finding("mps_programs", Status.OK, "a stand-in for the control daemon", simulated=True)
    if control is None:
        if intent.without_mps:
            found = of_warning("mps_programs", intent.without_mps)
            return Finding("mps_programs", found.status, found.evidence, _how_to_install(facts.host))
        return Finding("mps_programs", Status.OK, f"MPS is off, and {PROGRAM} is not found")
    if intent.mps == "off":
        if intent.without_mps:
            return Finding("mps_programs", Status.WARNING, intent.without_mps, "mps: auto, or on")
        return Finding("mps_programs", Status.OK, f"MPS is off; {control[0]} is there")
    if not facts.mps_server and facts.machine.external is None:
        text = f"{control[0]} is there, {SERVER_PROGRAM} is not, which it starts for its clients"
        return Finding("mps_programs", Status.ERROR, text, _how_to_install(facts.host))
    return Finding("mps_programs", Status.OK, ", ".join(filter(None, (control[0], facts.mps_server))))


def _how_to_install(host: Host) -> str:
    if host.container:
        return "they come from the host's driver: have NVIDIA_DRIVER_CAPABILITIES hold compute (or all)"
    return "install the driver's compute utilities (nvidia-compute-utils-NNN on Ubuntu), or put them in PATH"


def environment(facts: Facts) -> Finding:
    """Variables of MPS that daemons and workers inherit from us, or not; or the daemon that is not ours."""
    host, joined = facts.host, facts.machine.external
    if joined is not None:
        if joined.owner and not any(problem.path == "mps" for problem in facts.intent.problems):
            text = f"the daemon on {joined.pipe_dir} is joined, and left to its owner ({joined.owner})"
            return Finding("mps_environment", Status.OK, text)
        text = f"the daemon on {joined.pipe_dir} ({joined.owner or 'nobody was seen'}) is asked for, and not joined"
        remedy = f"see mps_programs; echo ps | {_PIPE}={joined.pipe_dir} {PROGRAM} asks it"
        return Finding("mps_environment", Status.WARNING, text, remedy)
    named = {name: value for name, value in host.environ.items() if name.startswith("CUDA_MPS_")}
    if _PIPE in named:
        text = f"{_PIPE}={named[_PIPE]} is not used: each GPU gets a control daemon of its own"
        if not by_device_plugin(host):
            return Finding("mps_environment", Status.OK, text)
        return Finding(
            "mps_environment",
            Status.WARNING,
            f"{text}; it comes from a device plugin that shares GPUs by MPS itself",
            "give the pod a whole GPU (nvidia.com/gpu without sharing.mps): the plugin's server may hold this one",
        )
    inherited = ", ".join(f"{name}={value}" for name, value in sorted(named.items()) if name not in _OURS)
    return Finding("mps_environment", Status.OK, f"inherited: {inherited}" if inherited else "nothing is set")


def clients(uses: Sequence[GpuUse], host: Host) -> list[Finding]:
    """How much of the limit is used. Over it start refuses, and is quoted instead."""
    connections = host.environ.get(_CONNECTIONS, "")

    def judge(use: GpuUse) -> Verdict:
        text = f"{use.workers} of {use.limit} clients"
        if connections.isdigit() and int(connections) > _DEFAULT_CONNECTIONS:
            text += f", and fewer with {_CONNECTIONS}={connections}"
            return Status.WARNING, text, f"unset {_CONNECTIONS}"
        return ok(text)

    return per_gpu("clients", uses, judge)


def own(facts: Facts) -> Finding:
    """What runs on this pool's pipe folders."""
    ours = [found for found in facts.mps_processes if _is_ours(found, facts.run_dir)]
    pids = ", ".join(str(found.pid) for found in ours)
    simulated = any(found.simulated for found in ours) or facts.intent.mps == "simulated"
    if not ours:
        text = f"no MPS process on the pipe folders below {facts.run_dir}"
        if facts.pipes and not facts.pool:
            text += f"; start removes what lies in those of {', '.join(facts.pipes)}"
        return Finding("mps_leftovers", Status.OK, text, simulated=simulated)
    if facts.pool:
        text = f"MPS processes {pids} belong to the pool that runs here (pid {facts.pool})"
        return Finding("mps_leftovers", Status.OK, text, simulated=simulated)
    text = f"MPS processes {pids} are left of a pool that is gone"
    return Finding("mps_leftovers", Status.WARNING, text, "mpspool start ends them", simulated)


def _is_ours(found: Running, run_dir: str) -> bool:
    return found.pipe_dir is not None and found.pipe_dir.startswith(f"{run_dir}/")


def _is_joined(found: Running, facts: Facts) -> bool:
    joined = facts.machine.external
    return joined is not None and (found.pipe_dir or DEFAULT_PIPE_DIR) == joined.pipe_dir


def others(facts: Facts) -> list[Finding]:
    """MPS that is not ours, and may have our GPUs. Stand-ins share nothing, with whomever."""
    simulated = facts.intent.mps == "simulated"
    found = [
        running
        for running in facts.mps_processes
        if not (
            simulated or running.simulated or _is_ours(running, facts.run_dir) or _is_joined(running, facts)
        )
    ]
    same = [running for running in found if running.uid == facts.host.uid]
    different = [running for running in found if running.uid != facts.host.uid]
    exclusive = any(
        use.state is not None and use.state.compute_mode == EXCLUSIVE_PROCESS for use in facts.uses
    )
    return [_elsewhere(same, exclusive, simulated), _user(facts.host.uid, different, exclusive, simulated)]


def _elsewhere(found: Sequence[Running], exclusive: bool, simulated: bool) -> Finding:
    if not found:
        text = "other pools' stand-ins do no harm" if simulated else "no other MPS daemon of this user"
        return Finding("mps_elsewhere", Status.OK, text, simulated=simulated)
    folder = next((one.pipe_dir for one in found if one.pipe_dir), DEFAULT_PIPE_DIR)
    text = f"other MPS of this user: {_listed(found)}{_harm(found, exclusive)}"
    remedy = f"unless it is for other GPUs, end it: echo quit | {_PIPE}={folder} {PROGRAM}"
    return Finding("mps_elsewhere", Status.WARNING, text, remedy)


def _user(uid: int, found: Sequence[Running], exclusive: bool, simulated: bool) -> Finding:
    text = f"daemons, servers and workers all run as user {uid}"
    if not found:
        return Finding("user", Status.OK, text, simulated=simulated)
    text += (
        f"; other users run MPS, which serves one user at a time: {_listed(found)}{_harm(found, exclusive)}"
    )
    remedy = "unless it is for other GPUs, have its user quit it, or run the pool as that user"
    return Finding("user", Status.WARNING, text, remedy)


def _harm(found: Sequence[Running], exclusive: bool) -> str:
    """What it means for our workers."""
    if exclusive and not all(one.daemon for one in found):
        harm = "a server that has our GPU keeps ours off it, by EXCLUSIVE_PROCESS"
    else:
        harm = "on a GPU of ours its clients and our workers would take turns"
    if any(one.pipe_dir == DEFAULT_PIPE_DIR for one in found):
        harm += f"; in {DEFAULT_PIPE_DIR} it takes every CUDA program that was told no other place"
    return f"; {harm}"


def _listed(found: Sequence[Running]) -> str:
    return ", ".join(
        f"{'daemon' if one.daemon else 'server'} {one.pid} (user {one.uid}"
        + (f", {one.pipe_dir})" if one.pipe_dir else ")")
        for one in found
    )
