"""supervisord.conf and its program sections.

supervisord's file format has traps: "%" begins an expansion, in some values one more after the first;
";" or "#" after a blank begins a comment even inside quotes, the include folder is a glob pattern, and
quotes in `environment=` cannot be escaped. Paths that would fall into one are refused (see refusal());
model names never do, since a program's name is escaped.
"""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path

import mpspool
from mpspool.core.ids import ModelVersion, WorkerId
from mpspool.core.rundir import RunDir
from mpspool.core.settings import PoolSettings, RemoteSettings, SlotSettings
from mpspool.mps.environment import share_environment, worker_environment

ROUTER = "router"
NURSERY = "nursery"
POOL = "pool"
MPS_PREFIX = "mps."
# The module that supervisord runs from.
SUPERVISORD = "mpspool.supervisor.supervisord_process"

# Part of the worker, which is not imported here: it is only named.
_LAUNCHER = Path(mpspool.__file__).parent / "worker" / "launcher.py"
_UNCARRIABLE = re.compile(r"""["'\\\[\]*?;#%\x00-\x1f\x7f]""")
_LOG_BYTES = "20MB"
_LOG_BACKUPS = 2
# Until what was told to end is killed. An MPS wrapper may take 11, for `quit`, the daemon's end and what is left of it.
_STOP_S = 15
# Less than what we wait for an answer of supervisord's: a reload has it end what copies, and that may hang.
_FETCHER_STOP_S = 5
# Started first to last, stopped last to first: the GPUs' daemons, the nursery, which takes seconds to be there,
# the router, the pool, and workers (the default 999).
_PRIORITY = {"mps": 100, NURSERY: 150, ROUTER: 200, POOL: 300, "worker": 999}


def refusal(path: Path | str) -> str:
    """Why supervisord's file format cannot carry this path; "" when it can."""
    found = _UNCARRIABLE.search(str(path))
    if found is None:
        return ""
    return f"{str(path)!r} holds {found[0]!r}, which supervisord's configuration cannot carry: choose another path"


def mps_program(device: str) -> str:
    return MPS_PREFIX + device


def supervisord_command(run: RunDir) -> list[str]:
    """How the foreground process starts supervisord."""
    return [sys.executable, "-P", "-m", SUPERVISORD, "-n", "-c", str(run.supervisord_conf)]


def supervisord_conf(run: RunDir, settings: PoolSettings) -> str:
    """The whole file: supervisord itself and every process but the workers."""
    sections = [
        _section("unix_http_server", {"file": run.supervisord_socket, "chmod": "0600"}),
        _section(
            "rpcinterface:supervisor",
            {"supervisor.rpcinterface_factory": "supervisor.rpcinterface:make_main_rpcinterface"},
        ),
        _section(
            "supervisord",
            {
                "nodaemon": "true",
                "silent": "true",
                "logfile": run.log_file("supervisord"),
                "logfile_maxbytes": _LOG_BYTES,
                "logfile_backups": _LOG_BACKUPS,
                "pidfile": run.root / "supervisord.pid",
                "childlogdir": run.logs,
                "nocleanup": "true",
                "minfds": 1024,
                # More than RLIMIT_NPROC allows would keep supervisord from starting at all.
                "minprocs": 1,
                **({"user": "root"} if os.geteuid() == 0 else {}),
            },
        ),
        _infrastructure(run, ROUTER, "mpspool.router", _PRIORITY[ROUTER]),
        _infrastructure(run, POOL, "mpspool.supervisor", _PRIORITY[POOL]),
        *(
            _infrastructure(run, mps_program(daemon.device), "mpspool.mps.daemon", _PRIORITY["mps"])
            for daemon in settings.own_daemons()
        ),
        *(
            [_infrastructure(run, NURSERY, "mpspool.worker.nursery", _PRIORITY[NURSERY])]
            if forks(settings)
            else []
        ),
        _section("include", {"files": "programs/*.conf"}),
    ]
    return "\n".join(sections)


def forks(settings: PoolSettings) -> bool:
    """Whether any worker is forked from the nursery."""
    return any(slot.start == "fork" for model in settings.models for slot in model.slots)


# What the pool starts, and supervisord never starts again by itself.
_STARTED_BY_POOL = {"autostart": "false", "autorestart": "false", "startretries": 0}


def worker_conf(run: RunDir, worker: WorkerId, slot: SlotSettings, *, allocator: str = "") -> str:
    """One worker's section: a process of its own, or a launcher that has the nursery fork one.

    `allocator` is for TF_GPU_ALLOCATOR; "" leaves it as it is.
    """
    values: dict[str, object] = {
        **_STARTED_BY_POOL,
        "stopwaitsecs": 30,
        "priority": _PRIORITY["worker"],
    }
    if environment := _environment(slot, allocator):
        values["environment"] = _assignments(environment)
    if slot.start == "fork":
        # Isolated and without site-packages: it imports nothing but the standard library.
        words = [sys.executable, "-I", "-S", str(_LAUNCHER), str(run.nursery_socket)]
        values["command"] = shlex.join([*words, str(run.settings_file(worker.program))])
    return _program(run, worker.program, "mpspool.worker", values)


def publisher_conf(run: RunDir, model: ModelVersion, *, gives_way: bool) -> str:
    """The section of the process that publishes a model version's weights, once."""
    values = {
        **_STARTED_BY_POOL,
        "command": _command(run, model.publisher, "mpspool.worker.weights") + " --give-way" * gives_way,
        "stopwaitsecs": 5,
        "priority": _PRIORITY["worker"],
    }
    return _program(run, model.publisher, "mpspool.worker.weights", values)


def fetcher_conf(run: RunDir, remote: RemoteSettings) -> str:
    """The section of the process that copies a model's versions from a store, for as long as the pool runs."""
    return _infrastructure(
        run, remote.program, "mpspool.supervisor.remote", _PRIORITY["worker"], stop_s=_FETCHER_STOP_S
    )


def conf_file(run: RunDir, program: str) -> Path:
    """Where supervisord looks for a program that the pool adds."""
    return run.programs / f"{program}.conf"


def _environment(slot: SlotSettings, allocator: str) -> dict[str, str]:
    """What CUDA must find from the first instruction on; stand-ins keep away from real devices."""
    if not slot.gpu_uuid:
        return {}
    if slot.mps_pipe:
        found = worker_environment(slot.gpu_uuid, slot.mps_pipe) | share_environment(slot)
    else:
        found = {"CUDA_VISIBLE_DEVICES": slot.gpu_uuid}
    if allocator:
        found["TF_GPU_ALLOCATOR"] = allocator
    return {**found, "CUDA_VISIBLE_DEVICES": "-1"} if slot.simulated else found


def _infrastructure(run: RunDir, name: str, module: str, priority: int, stop_s: int = _STOP_S) -> str:
    """startsecs=0 keeps it out of supervisord's BACKOFF and FATAL: it is started again for ever."""
    values = {
        "autostart": "true",
        "autorestart": "true",
        "startretries": 1_000_000,
        "stopwaitsecs": stop_s,
        "priority": priority,
    }
    return _program(run, name, module, values)


def _command(run: RunDir, name: str, module: str) -> str:
    return shlex.join([sys.executable, "-P", "-m", module, str(run.settings_file(name))])


def _program(run: RunDir, name: str, module: str, values: Mapping[str, object]) -> str:
    return _section(
        f"program:{name}",
        {
            "command": _command(run, name, module),
            "startsecs": 0,
            "stopsignal": "TERM",
            "stopasgroup": "false",
            "killasgroup": "true",
            "redirect_stderr": "true",
            "stdout_logfile": run.log_file(name),
            "stdout_logfile_maxbytes": _LOG_BYTES,
            "stdout_logfile_backups": _LOG_BACKUPS,
            **values,
        },
    )


def _section(name: str, values: Mapping[str, object]) -> str:
    return "".join([f"[{name}]\n", *(f"{key}={value}\n" for key, value in values.items())])


def _assignments(environment: Mapping[str, str]) -> str:
    for name, text in environment.items():
        if reason := refusal(text):
            raise ValueError(f"{name}: {reason}")
    return ",".join(f'{name}="{text}"' for name, text in environment.items())
