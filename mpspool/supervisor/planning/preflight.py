"""Everything that can be known to fail is found here, at once, before anything is started.

`resolve` is the whole way from a configuration to settings; `check_all` looks at the world around it.
"""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path

import msgspec

from mpspool.core import settings, unix_socket
from mpspool.core.errors import Problem, StartError
from mpspool.core.rundir import MAX_SOCKET_PATH_BYTES, RunDir
from mpspool.core.settings import ModelSettings, PoolSettings
from mpspool.core.states import VersionPhase
from mpspool.mps import external
from mpspool.mps.control import Control, control_command, find_program
from mpspool.mps.device_state import survey
from mpspool.mps.devices import Inventory, inventory
from mpspool.mps.leftovers import SERVER_PROGRAM
from mpspool.mps.simulated import control_command as simulated_control_command
from mpspool.mps.simulated.inventory import simulated
from mpspool.mps.simulated.nvml import Nvml
from mpspool.supervisor import lock
from mpspool.supervisor.config.batching import VersionFile, read_version_file
from mpspool.supervisor.config.environment import ENABLE_MPS, asks_for_mps
from mpspool.supervisor.config.schema import ModelConfig, PoolConfig
from mpspool.supervisor.cpus import Topology, read_topology
from mpspool.supervisor.doctor.examine import refusals
from mpspool.supervisor.doctor.facts import Facts, Intent, gpu_uses
from mpspool.supervisor.doctor.read_host import read_host
from mpspool.supervisor.doctor.read_tensorflow import read_tensorflow
from mpspool.supervisor.orders import Orders
from mpspool.supervisor.planning import remotes, tls
from mpspool.supervisor.planning.base_path import BasePathError, first_version
from mpspool.supervisor.planning.drafts import Machine, draft_places
from mpspool.supervisor.planning.plan import Plan, plan, resolve_mps, resolved_weights, to_settings
from mpspool.supervisor.planning.policies import find_policies
from mpspool.supervisor.planning.queues import Queues, is_wanted
from mpspool.supervisor.pool.versions import RECORDS, Records, chosen
from mpspool.supervisor.ports import check_fronts
from mpspool.supervisor.programs import POOL
from mpspool.supervisor.remote.place import is_remote
from mpspool.supervisor.report import elsewhere, program
from mpspool.supervisor.version_folders import BATCHING_FILE, version_folders

Versions = dict[str, tuple[int, Path]]

_ELF_MAGIC = b"\x7fELF"
# The MPS control daemon's longest socket name in its pipe folder.
_MPS_SOCKET = "control_privileged"
_ANY_GPU = "gpu99"
# Where a check of the doctor's is of the configuration, and so in its file; "" where it is of the machine.
_FIELDS = {
    "driver": "gpus",
    "architecture": "gpus",
    "kernels": "gpus",
    "compute_mode": "gpus",
    "mps_programs": "mps",
}


def resolve(
    config: PoolConfig,
    environ: Mapping[str, str],
    orders: Orders | None = None,
    *,
    running: bool = False,
    serving: bool = False,
) -> tuple[PoolSettings, Plan]:
    """Copies what is remote, finds versions, plans and checks; starts and creates nothing but copies in the cache.

    The run folder must not be locked by the caller yet: a lock counts as another pool's.

    Args:
        config: what was asked for.
        environ: the environment.
        orders: end the copying.
        running: it is for the pool that runs in that run folder, which has the ports.
        serving: it was asked for by a command line of tensorflow_model_server.

    Raises:
        StartError: with every problem found.
    """
    served = _served(config) if running else {}
    brought = remotes.bring(config, orders or Orders(), running=running, served=served)
    config = brought.config
    versions, problems, unready = find_versions(config, served)
    problems += brought.problems
    unready += absent_versions(config) + stray_labels(config)
    machine = read_machine(config, environ)
    queues, wrong = read_queues(config, versions, served)
    problems += wrong
    planned = None
    try:
        planned = plan(config, machine, versions, queues, serving=serving)
    except StartError as error:
        problems += error.problems
    problems += check_machine(config, machine, environ) + check_all(config, running=running)
    secured = tls.look(config)
    problems += secured.problems
    if planned is not None:
        problems += check_external(planned, environ)
    if problems or planned is None:
        raise StartError(problems)
    if config.mps.mode == "auto" and asks_for_mps(environ) and not _uses_gpus(planned):
        text = f"{ENABLE_MPS} is 1, but no GPU is used: there is nothing for MPS to share"
        planned = replace(planned, warnings=[*planned.warnings, text])
    planned = replace(
        planned,
        facts=[
            *brought.facts,
            *planned.facts,
            *older_versions(config, planned.models),
            *filter(None, [secured.fact]),
        ],
        warnings=[*brought.warnings, *unready, *planned.warnings, *secured.warnings],
    )
    return to_settings(planned, config, brought.remotes, secured.settings), planned


def _uses_gpus(planned: Plan) -> bool:
    return any(slot.gpu_uuid for model in planned.models for slot in model.slots)


def read_machine(config: PoolConfig, environ: Mapping[str, str]) -> Machine:
    """The devices and CPUs there are, or the stand-ins that were asked for."""
    stand_in = Nvml(config.simulate_gpus, lambda _uuid: None) if config.simulate_gpus else None
    if stand_in is None:
        found = inventory(environ)
    else:
        devices = simulated(config.simulate_gpus, environ)
        found = Inventory(devices, driver=stand_in.nvmlSystemGetDriverVersion())
    return Machine(
        devices=found.devices,
        topology=Topology.simulate(config.simulate_cpus) if config.simulate_cpus else read_topology(),
        mps_control=simulated_control_command() if config.simulate_gpus else control_command(environ),
        driver=found.driver,
        no_gpu=found.reason,
        broken=found.broken,
        survey=survey(nvml=stand_in),
        external=external.look(external.folders(config.mps.pipe_directory, environ))
        if config.mps.mode == "external"
        else None,
    )


def find_versions(
    config: PoolConfig, served: Mapping[str, tuple[int, Path]]
) -> tuple[Versions, list[Problem], list[str]]:
    """Each model's first version and its folder, by name; a problem for each that has none. Remote ones are left out.

    Args:
        config: whose models.
        served: what a pool that runs has of the same base paths. Of these nothing is a problem: it looks at them by itself,
            and what it serves stays whatever has become of the folders.

    Returns:
        The versions, the problems, and what is wrong with versions that are newer, as warnings.
    """
    versions: Versions = {}
    problems, warnings = [], []
    for model in config.models:
        if is_remote(model.base_path):
            continue
        try:
            number, folder, wrong = first_version(Path(model.base_path), model.version_policy.specific)
        except BasePathError as error:
            if model.name in served:
                versions[model.name] = served[model.name]
                warnings.append(f"{model.name}: {error}. What is served of it stays")
            else:
                problems.append(Problem(f"models.{model.name}.base_path", str(error)))
            continue
        versions[model.name] = number, folder
        if wrong and model.name not in served:
            until = " until a newer one is whole" if config.file_system_poll_wait_seconds else ""
            warnings.append(f"{model.name}: {wrong}. Version {number} is served{until}")
    return versions, problems, warnings


def absent_versions(config: PoolConfig) -> list[str]:
    """Warnings, of versions that are named beside one that is there, and are not there themselves. Of remote models nothing is known."""
    once = ": it is served once it is there" if config.file_system_poll_wait_seconds else ""
    found = []
    for model in config.models:
        folders, named = _folders(model), set(model.version_policy.specific)
        if named.isdisjoint(folders):
            continue
        found += [
            f"{model.name}: version_policy names version {number}, which is not in {model.base_path}{once}"
            for number in sorted(named.difference(folders))
        ]
    return found


def older_versions(config: PoolConfig, planned: Collection[ModelSettings]) -> list[str]:
    """A line for each model of which version_policy means more than the version that is planned. Of remote models nothing is known."""
    first = {model.name: model.version for model in planned}
    found = []
    for model in config.models:
        meant = chosen(_folders(model), model.version_policy)
        if older := sorted(number for number in meant if number < first.get(model.name, 0)):
            come = "versions {} come after it, each" if len(older) > 1 else "version {} comes after it,"
            found.append(f"{model.name}: {come.format(', '.join(map(str, older)))} with as many slots")
    return found


def _folders(model: ModelConfig) -> Mapping[int, Path]:
    """Those of its versions; none where they cannot be read."""
    try:
        return version_folders(Path(model.base_path), os.listdir(model.base_path))
    except OSError:
        return {}


def stray_labels(config: PoolConfig) -> list[str]:
    """Warnings, of labels that stand for versions which are not served as things are, or will not be any more. Of remote models nothing is known."""
    found = []
    for model in config.models:
        if not (folders := _folders(model)):
            continue
        meant, policy = chosen(folders, model.version_policy), model.version_policy
        for label, number in model.version_labels.items():
            if number in meant:
                if not policy.all and not policy.specific:
                    found.append(
                        f"{model.name}: version_labels has {label} stand for version {number}, which goes when newer ones come:"
                        f" requests with that label are refused then; a version_policy that names {number} keeps it"
                    )
                continue
            why = "version_policy does not mean" if number in folders else f"is not in {model.base_path}"
            found.append(
                f"{model.name}: version_labels has {label} stand for version {number}, which {why}: requests with that label"
                " are refused until it is served"
            )
    return found


def _served(config: PoolConfig) -> Versions:
    """Of each model that the pool in the run folder has from the same base path: the newest version that is there."""
    run = RunDir(config.run_dir)
    try:
        former = settings.load(run.settings_file(POOL), PoolSettings)
        records = settings.load(run.settings_file(RECORDS), Records).models
    except (OSError, msgspec.DecodeError):  # it is only starting
        return {}
    base_paths = {model.name: os.path.abspath(model.base_path) for model in config.models}
    base_paths |= {remote.model: remote.folder for remote in remotes.remotes_of(config)}
    found: Versions = {}
    for model in former.models:
        if model.base_path != base_paths.get(model.name):
            continue
        there = records[model.name].versions if model.name in records else []
        serving = [one for one in there if one.phase is VersionPhase.SERVING] or there
        newest = max(serving, key=lambda one: one.number, default=None)
        number, path = (newest.number, newest.path) if newest else (model.version, model.path)
        found[model.name] = number, Path(path)
    return found


def read_queues(
    config: PoolConfig, versions: Mapping[str, tuple[int, Path]], served: Collection[str] = ()
) -> tuple[Queues, list[Problem]]:
    """What versions say of batching where they may, where each policy is; and what of it cannot be used.

    Versions of models that a pool which runs serves are not asked: it reads each one's file by itself.
    """
    files: dict[str, VersionFile] = {}
    policies, problems = find_policies(config, versions)
    for model in config.models:
        if not config.batching.per_model or not is_wanted(config, model):
            continue
        if model.name not in versions or model.name in served:
            continue
        path = versions[model.name][1] / BATCHING_FILE
        if path.exists():
            file, wrong = read_version_file(path)
            problems += wrong
            if file is not None:
                files[model.name] = file
    return Queues(files, policies), problems


def check_external(planned: Plan, environ: Mapping[str, str]) -> list[Problem]:
    """Why the MPS daemon that somebody else runs cannot have our workers as clients."""
    daemon = next((daemon for daemon in planned.mps_daemons if daemon.external), None)
    if daemon is None:
        return []
    text = external.check(daemon.pipe_dir, Control.of(daemon, environ), os.geteuid())
    return [Problem("mps", text)] if text else []


def check_machine(config: PoolConfig, machine: Machine, environ: Mapping[str, str]) -> list[Problem]:
    """What would keep this machine from serving: the doctor's errors, but for those that take TensorFlow."""
    drafts, _ = draft_places(config, machine)
    mps, _ = resolve_mps(config, machine, drafts)
    facts = Facts(
        machine=machine,
        uses=gpu_uses(drafts, machine),
        intent=Intent(mps=mps, backings=backings(config)),
        host=read_host(environ),
        tensorflow=read_tensorflow(),
        run_dir=str(config.run_dir),
        mps_server=find_program(SERVER_PROGRAM, environ) or "",
    )
    return [
        Problem(_FIELDS.get(found.check, ""), f"{found.evidence}; {found.remedy}")
        for found in refusals(facts)
    ]


def backings(config: PoolConfig) -> frozenset[str]:
    """Where weights that workers share are kept."""
    weights = [resolved_weights(model, config.weights) for model in config.models]
    return frozenset(found.backing for found in weights if found.shared != "off")


def check_all(config: PoolConfig, *, running: bool = False) -> list[Problem]:
    """Every problem with ports, folders and operator libraries. Changes nothing.

    Ports and the run folder are not looked at for a pool that is `running`.
    """
    if running:
        return check_weights_folders(config) + check_libraries(config)
    run_dir = RunDir(config.run_dir)
    ports = {"grpc_port": config.grpc_port, "rest_port": config.rest_port}
    # A pool that runs there has most likely these ports, too: one cause, one problem.
    problems = [] if lock.holder(run_dir) else check_fronts(config.host, ports)
    if config.grpc_socket_path and (why := unix_socket.refusal(config.grpc_socket_path)):
        problems.append(Problem("grpc_socket_path", why))
    problems += check_run_dir(run_dir)
    return problems + check_temp_folder() + check_weights_folders(config) + check_libraries(config)


def check_temp_folder() -> list[Problem]:
    """Is there a folder for temporary files? supervisord and TensorFlow do not start without."""
    try:
        tempfile.gettempdir()
    except FileNotFoundError:
        text = "no folder for temporary files can be written, neither /tmp nor /var/tmp; make room there, mount one (docker run --tmpfs /tmp, an emptyDir), or set TMPDIR"
        return [Problem("", text)]
    return []


def check_libraries(config: PoolConfig) -> list[Problem]:
    """Can the operator libraries be read?"""
    problems = []
    for model in config.models:
        path = f"models.{model.name}"
        problems += [
            Problem(f"{path}.custom_ops", text)
            for name in model.custom_ops
            for text in check_library(Path(name))
        ]
    return problems


def check_weights_folders(config: PoolConfig) -> list[Problem]:
    """Can weights be kept in the folders named for them? Said where a folder is named, and only if it is used."""
    named: dict[str, Path] = {}
    for model in config.models:
        weights = resolved_weights(model, config.weights)
        if weights.backing == "file" and weights.shared != "off":
            own = model.weights is not None and "folder" in model.weights.model_fields_set
            path = f"models.{model.name}.weights.folder" if own else "weights.folder"
            named[path] = Path(weights.folder)
    return [Problem(path, text) for path, folder in named.items() if (text := _check_backing(folder))]


def _check_backing(folder: Path) -> str:
    try:
        is_folder = stat.S_ISDIR(os.stat(folder).st_mode)
    except FileNotFoundError:
        wrong = "does not exist"
    except OSError as error:
        wrong = f"cannot be used: {error.strerror}"
    else:
        wrong = "is not a folder" if not is_folder else "" if _is_writable(folder) else "is not writable"
    return f"{folder} {wrong}; name a folder that we may write to, or set backing: memfd" if wrong else ""


def check_library(path: Path) -> list[str]:
    """Is there a shared library that can be read?"""
    try:
        with path.open("rb") as file:
            is_library = file.read(len(_ELF_MAGIC)) == _ELF_MAGIC
    except OSError as error:
        return [f"{path} cannot be read: {error.strerror}; name the shared library (.so) of the operators"]
    return [] if is_library else [f"{path} is not a shared library; name the compiled .so of the operators"]


def check_run_dir(run_dir: RunDir) -> list[Problem]:
    """Is the run folder ours to use, short enough for sockets, and nobody else's at the moment?"""
    taken = _check_taken(run_dir)
    return check_folder(run_dir) + ([Problem("run_dir", taken)] if taken else [])


def check_folder(run_dir: RunDir) -> list[Problem]:
    """Is the run folder ours to use, and short enough for sockets?"""
    texts = [_check_length(run_dir), _check_folder(run_dir.root)]
    return [Problem("run_dir", text) for text in texts if text]


def _check_length(run_dir: RunDir) -> str:
    longest = max(run_dir.longest_socket_bytes(), len(os.fsencode(run_dir.mps_pipe(_ANY_GPU) / _MPS_SOCKET)))
    excess = longest - MAX_SOCKET_PATH_BYTES
    if excess <= 0:
        return ""
    return f"{run_dir.root} is {excess} bytes too long for the UNIX sockets in it; choose a shorter --run-dir"


def _check_folder(root: Path) -> str:
    try:
        found = os.lstat(root)
        if stat.S_ISLNK(found.st_mode) and found.st_uid == os.geteuid():
            found = os.stat(root)
    except FileNotFoundError:
        return _check_creatable(root)
    except OSError as error:
        return f"{root} cannot be used: {error.strerror}; choose another --run-dir"
    if not stat.S_ISDIR(found.st_mode):
        return f"{root} is not a folder; choose another --run-dir"
    if found.st_uid != os.geteuid():
        return f"{root} belongs to user {found.st_uid}, and we are {os.geteuid()}; choose another --run-dir"
    if found.st_mode & (stat.S_IRWXG | stat.S_IRWXO) and not _can_be_closed(root, found.st_mode):
        mode = stat.S_IMODE(found.st_mode)
        return (
            f"{root} is open to other users (mode {mode:04o}); chmod 700 {root}, or choose another --run-dir"
        )
    return "" if _is_writable(root) else f"{root} is not writable; choose another --run-dir"


def _can_be_closed(root: Path, mode: int) -> bool:
    """A folder just made for us, with the usual mode: nobody else could put anything there, or rely on it."""
    return not mode & (stat.S_IWGRP | stat.S_IWOTH) and not os.listdir(root)


def _check_creatable(root: Path) -> str:
    if os.path.islink(root):
        return f"{root} is a link to nowhere; remove it, or choose another --run-dir"
    parent = next(parent for parent in root.parents if os.path.lexists(parent))
    if not parent.is_dir():
        return f"{root} cannot be created: {parent} is not a folder; choose another --run-dir"
    return (
        ""
        if _is_writable(parent)
        else f"{root} cannot be created: {parent} is not writable; choose another --run-dir"
    )


def _is_writable(folder: Path) -> bool:
    """Tried with a file that has no name and is gone at once: permission bits do not tell all, to root least."""
    try:
        tempfile.TemporaryFile(dir=folder).close()
    except OSError:
        return False
    return True


def _check_taken(run_dir: RunDir) -> str:
    if pid := lock.holder(run_dir):
        where = elsewhere(str(run_dir.root))
        return (
            f"a pool runs in {run_dir.root} (pid {pid}); stop it with `{program()} stop{where}`, choose another --run-dir,"
            f" or have it take up what has changed: `{program()} reload{where}`, with `--check` to see what that would be"
        )
    return ""
