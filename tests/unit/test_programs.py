"""supervisord.conf, read back the way supervisord reads it."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Any

import pytest
from supervisor.options import ServerOptions

from mpspool.core.ids import WorkerId
from mpspool.core.rundir import RunDir, write_file
from mpspool.core.settings import MpsSettings, PoolSettings, RouterSettings, SlotSettings
from mpspool.supervisor import programs

AWKWARD_NAMES = ["plain", "with space", "a,b=c", "$HOME", "ünïcode"]


def settings(run: RunDir) -> PoolSettings:
    return PoolSettings(
        run_dir=str(run.root),
        mps="on",
        models=[],
        mps_daemons=[
            MpsSettings(
                device="gpu0", gpu_uuid="GPU-0", pipe_dir="/p", log_dir="/l", server_log="", control=["mps"]
            )
        ],
        router=RouterSettings(run_dir=str(run.root), host="127.0.0.1", grpc_port=1, rest_port=2),
    )


def make(root: Path) -> RunDir:
    run = RunDir(root)
    for folder in run.folders():
        folder.mkdir(parents=True, exist_ok=True)
    return run


def read(run: RunDir) -> tuple[Any, dict[str, Any]]:
    """What supervisord itself reads: its options, and the processes by name."""
    options = ServerOptions()
    options.realize(["-c", str(run.supervisord_conf)])
    found = {
        process.name: process for group in options.process_group_configs for process in group.process_configs
    }
    return options, found


@pytest.mark.parametrize("name", AWKWARD_NAMES)
def test_awkward_run_folders_survive(tmp_path: Path, name: str) -> None:
    """Sockets, logs and commands come out of supervisord's reading as they went in."""
    run = make(tmp_path / name)
    write_file(run.supervisord_conf, programs.supervisord_conf(run, settings(run)).encode())
    options, found = read(run)
    assert options.server_configs[0]["file"] == str(run.supervisord_socket)
    assert options.server_configs[0]["chmod"] == 0o600
    assert options.logfile == str(run.log_file("supervisord"))
    assert set(found) == {"router", "pool", "mps.gpu0"}
    assert shlex.split(found["router"].command) == [
        sys.executable, "-P", "-m", "mpspool.router", str(run.settings_file("router")),
    ]  # fmt: skip
    assert found["router"].stdout_logfile == str(run.log_file("router"))
    assert found["pool"].autostart
    assert found["pool"].startsecs == 0


@pytest.mark.parametrize("model", ["half", "my model", "a:b/c", "100%", "größe"])
def test_workers_are_included_with_their_environment(tmp_path: Path, model: str) -> None:
    """A worker's file is taken in; it is never restarted by supervisord, and knows its GPU from the start."""
    run = make(tmp_path / "run 1")
    worker = WorkerId(model, 3, "gpu0", 1)
    slot = SlotSettings(device="gpu0", slot=1, gpu_uuid="GPU-abc", mps_pipe="/run dir/a,b=c/pipe")
    write_file(run.supervisord_conf, programs.supervisord_conf(run, settings(run)).encode())
    write_file(programs.conf_file(run, worker.program), programs.worker_conf(run, worker, slot).encode())
    process = read(run)[1][worker.program]
    assert not process.autostart
    assert not process.autorestart
    assert (process.startsecs, process.startretries) == (0, 0)
    assert process.environment["CUDA_VISIBLE_DEVICES"] == "GPU-abc"
    assert process.environment["CUDA_MPS_PIPE_DIRECTORY"] == "/run dir/a,b=c/pipe"


def test_cpu_workers_get_no_cuda_variables(tmp_path: Path) -> None:
    """The caller's environment is inherited as it is."""
    worker = WorkerId("half", 1, "cpu0", 0)
    text = programs.worker_conf(make(tmp_path), worker, SlotSettings(device="cpu0", slot=0))
    assert "environment" not in text


def test_simulated_gpu_workers_stay_off_real_devices(tmp_path: Path) -> None:
    """A stand-in's worker sees no CUDA device, but its daemon's pipe folder."""
    slot = SlotSettings(device="gpu0", slot=0, gpu_uuid="GPU-sim", mps_pipe="/p", simulated=True)
    text = programs.worker_conf(make(tmp_path), WorkerId("half", 1, "gpu0", 0), slot)
    assert 'CUDA_VISIBLE_DEVICES="-1"' in text
    assert 'CUDA_MPS_PIPE_DIRECTORY="/p"' in text


@pytest.mark.parametrize(
    "name", ["a;b", "a #b", "it's", 'say "x"', "a[b]", "a*", "a?", "a\\b", "a\nb", "50%"]
)
def test_what_the_format_cannot_carry_is_refused(name: str) -> None:
    """The reason names the path, the character and what to do."""
    assert "choose another" in programs.refusal(Path("/tmp") / name)
    assert not programs.refusal("/tmp/fine")
