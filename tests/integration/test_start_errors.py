"""Starts that cannot work, through the command line: each refused with what is wrong, nothing started."""

from __future__ import annotations

import resource
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from mpspool.core.rundir import RunDir
from mpspool.supervisor import lock
from tests.conftest import short_dir
from tests.pool import cli, free_port

ModelDir = Callable[[str], Path]


@pytest.fixture
def root() -> Iterator[Path]:
    with short_dir() as found:
        yield found


@pytest.fixture
def taken_port() -> Iterator[int]:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(1)
        yield listener.getsockname()[1]


def write_model_that_is_none(root: Path) -> Path:
    (root / "none" / "1").mkdir(parents=True)
    (root / "none" / "1" / "saved_model.pb").write_bytes(b"\xff no SavedModel")
    return root / "none"


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--model", "half={root}/nowhere"], "{root}/nowhere"),
        (["--model", "half={root}/empty"], "{root}/empty"),
        (["--model", "half={root}/none"], "saved_model.pb"),
        (["--grpc-port", "{taken}"], "port {taken}"),
        (["--run-dir", "{root}/file"], "{root}/file is not a folder"),
        (["--run-dir", "{root}/file/below"], "{root}/file/below cannot be used"),
        (["--gpus", "99"], "99"),
        (["--simulate-gpus", "1", "--contexts-per-gpu", "0"], "contexts_per_gpu"),
        (["--simulate-gpus", "1", "--contexts-per-gpu", "61"], "61"),
        (["{root}/pool.yaml"], "grcp_port"),
        (["{root}/folder.yaml"], "folder.yaml line 1: {root}/nowhere does not exist; name a folder"),
        (
            ["{root}/folder.yaml", "--check"],
            "folder.yaml line 1: {root}/nowhere does not exist; name a folder",
        ),
        (["--cpu-slots", "1", "--cpusets", "1-"], "1-"),
        (["--cpu-slots", "1", "--cpusets", "4000-4001"], "4000"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_what_cannot_work_is_refused(
    root: Path, taken_port: int, model_dir: ModelDir, arguments: list[str], named: str
) -> None:
    """Exit status 2, the wrong thing is named, "nothing was started", and the run folder is not there."""
    (root / "empty").mkdir()
    (root / "file").touch()
    (root / "pool.yaml").write_text("grcp_port: 1\n")
    (root / "folder.yaml").write_text("weights: {backing: file, folder: nowhere}\n")
    write_model_that_is_none(root)
    given = [argument.format(root=root, taken=taken_port) for argument in arguments]
    usual = {
        "--model": f"half={model_dir('half_plus_two')}",
        "--run-dir": str(root / "run"),
        "--grpc-port": str(free_port()),
        "--rest-port": "0",
    }
    rest = [word for name, value in usual.items() if name not in given for word in (name, value)]
    done = cli("start", *given, *rest, timeout=30)
    assert done.returncode == 2, done.stdout + done.stderr
    assert named.format(root=root, taken=taken_port) in done.stderr
    assert "nothing was started" in done.stderr
    assert not (root / "run").exists()


def test_a_pool_that_runs_there_is_one_mistake(root: Path, model_dir: ModelDir) -> None:
    """Its ports are not told on top of it, and how to stop it is."""
    run = RunDir(root / "run")
    with lock.held(run), socket.create_server(("127.0.0.1", 0)) as its_front:
        flags = ("--model", f"half={model_dir('half_plus_two')}", "--run-dir", run.root)
        done = cli("start", *flags, "--grpc-port", its_front.getsockname()[1], "--rest-port", 0, timeout=30)
        problem, last = done.stderr.splitlines()
    assert f"a pool runs in {run.root} (pid " in problem
    assert f" stop --run-dir {run.root}`" in problem
    assert (done.returncode, last) == (2, "nothing was started")


def test_a_mistake_hides_no_other(root: Path, taken_port: int) -> None:
    """What the schema refuses, and what only a look at the machine tells, together and by line."""
    (root / "pool.yaml").write_text(
        "models:\n"
        f"- {{name: a, base_path: {root}/nowhere}}\n"
        "- {name: b, base_pat: b, custom_ops: none.so}\n"
        "gpus: [99]\n"
        "readines: all\n"
        f"grpc_port: {taken_port}\n"
        "weights:\n"
        "  backing: file\n"
        "  folder: /dev/null\n"
    )
    done = cli("start", root / "pool.yaml", "--rest-port", 0, "--run-dir", root / "run", timeout=30)
    assert done.returncode == 2
    *problems, last = done.stderr.splitlines()
    assert [problem.split(": ")[1] for problem in problems] == [
        "models.a.base_path",
        "models[1].base_path",
        "models[1].base_pat",
        "models.b.custom_ops",
        "gpus",
        "readines",
        "grpc_port",
        "weights.folder",
    ]
    assert [problem.split("pool.yaml line ")[1][0] for problem in problems] == list("23334569")
    assert last == "nothing was started"


@pytest.mark.parametrize(
    ("room", "text"),
    [
        (0, "no folder for temporary files can be written, neither /tmp nor /var/tmp; make room there"),
        (16, "run_dir: {run}: File too large; choose another"),
    ],
    ids=["none", "for the lock alone"],
)
def test_a_run_folder_without_room_is_said(root: Path, model_dir: ModelDir, room: int, text: str) -> None:
    """By its name and with what to do, not by where the program was."""
    done = cli(
        *("start", "--run-dir", root / "run", "--grpc-port", free_port(), "--rest-port", free_port()),
        *("--cpu-slots", 1, "--model", f"half={model_dir('half_plus_two')}"),
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (room, room)),
    )
    assert done.returncode == 2
    assert done.stderr.startswith(f"error: {text.format(run=root / 'run')}"), done.stderr
    assert done.stderr.endswith("nothing was started\n")
    assert not lock.holder(RunDir(root / "run"))
