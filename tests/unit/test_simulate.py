"""`mpspool simulate`: what it refuses, with what to do instead, and what it has fail."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from mpspool.cli import main
from mpspool.core import control, slot_lock
from mpspool.core.rundir import RunDir
from mpspool.core.settings import (
    ModelSettings,
    MpsSettings,
    PoolSettings,
    RouterSettings,
    SlotSettings,
    WorkerSettings,
    save,
)
from mpspool.supervisor import lock

# Says what it was asked.
CONTROL = """#!/bin/sh
read line
echo "SIMULATED: $line"
exit ${FAKE_STATUS:-0}
"""


@pytest.fixture
def run(tmp_path: Path) -> Iterator[RunDir]:
    """A run folder that is held, as by a pool."""
    run = RunDir(tmp_path / "run")
    with lock.held(run):
        run.settings.mkdir(exist_ok=True)
        yield run


def pool(run: RunDir, *devices: str, simulated: bool = True) -> None:
    """Its settings; each daemon is asked by a program that says what it was asked."""
    program = run.root / "control"
    program.write_text(CONTROL)
    program.chmod(0o755)
    daemons = [
        MpsSettings(
            device=device, gpu_uuid=f"GPU-{device}", pipe_dir=str(run.mps_pipe(device)),
            log_dir=str(run.mps_log(device)), server_log="", control=[str(program)], simulated=simulated,
        )
        for device in devices
    ]  # fmt: skip
    root = str(run.root)
    router = RouterSettings(run_dir=root, host="127.0.0.1", grpc_port=1, rest_port=0)
    settings = PoolSettings(
        run_dir=root, mps="simulated", mps_daemons=daemons, router=router,
        models=[ModelSettings(
            name="half", version=1, path="/m", slots=[SlotSettings(device=device, slot=0) for device in devices]
        )],
    )  # fmt: skip
    save(run.settings_file("pool"), settings)
    for model in settings.models:
        for slot in model.slots:
            worker = f"{model.name}@1.{slot.device}.{slot.slot}"
            save(
                run.settings_file(f"worker.{worker}"),
                WorkerSettings(run_dir=root, worker=worker, generation=1, credits=2, model=model, slot=slot),
            )


def fault(run: RunDir, *args: str) -> Result:
    return CliRunner().invoke(main, ["simulate", "fault", *args, "--run-dir", str(run.root)])


@pytest.mark.parametrize("command", [["simulate"], ["simulate", "fault"]])
def test_help_teaches_by_example(command: list[str]) -> None:
    """With commands to copy."""
    done = CliRunner().invoke(main, [*command, "--help"])
    assert done.exit_code == 0
    assert "mpspool simulate fault gpu0" in done.output.split("Examples:")[1]


def test_the_daemon_of_the_device_is_told(run: RunDir) -> None:
    """By default that all its clients are hit; what it did is printed."""
    pool(run, "gpu0", "gpu1")
    done = fault(run, "gpu1")
    assert (done.exit_code, done.output) == (0, "SIMULATED: simulate_fault server-fault on gpu1\n")
    assert fault(run, "gpu0", "--kind", "gpu-lost").output == "SIMULATED: simulate_fault gpu-lost on gpu0\n"


@pytest.mark.parametrize("kind", ["server-fault", "client-wedge", "ecc"])
def test_whose_doing_it_is(run: RunDir, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """The process that runs the worker is named to the stand-in, by its pid."""
    pool(run, "gpu0", "gpu1")
    held = {run.lock_file("worker.half@1.gpu1.0"): 77}
    monkeypatch.setattr(slot_lock, "holder", lambda path: held.get(path, 0))
    done = fault(run, "gpu1", "--kind", kind, "--worker", "half@1.gpu1.0")
    expected = f"SIMULATED: simulate_fault {kind} 77 on gpu1, half@1.gpu1.0\n"
    assert (done.exit_code, done.output) == (0, expected)
    away = fault(run, "gpu0", "--kind", kind, "--worker", "half@1.gpu0.0")
    assert (away.exit_code, "half@1.gpu0.0 does not run" in away.output) == (1, True)


@pytest.mark.parametrize("worker", ["half@1.gpu1.0", "half", ""])
def test_a_worker_that_is_not_there_is_answered_with_those_that_are(run: RunDir, worker: str) -> None:
    """Those of that device: nothing is told to fail."""
    pool(run, "gpu0", "gpu1")
    done = fault(run, "gpu0", "--worker", worker)
    assert (done.exit_code, done.output) == (1, f"gpu0 has no worker {worker!r}; it has: half@1.gpu0.0\n")


def test_a_daemon_hangs_for_as_long_as_is_said(run: RunDir) -> None:
    """For good, where nothing is."""
    pool(run, "gpu0")
    for args, words in (([], ""), (["--for", "2.5"], " 2.5")):
        done = fault(run, "gpu0", "--kind", "daemon-hang", *args)
        assert done.output == f"SIMULATED: simulate_fault daemon-hang{words} on gpu0\n"


@pytest.mark.parametrize(
    ("args", "kinds"),
    [
        (["--kind", "gpu-lost", "--worker", "half@1.gpu0.0"], "server-fault, client-wedge, ecc"),
        (["--for", "3"], "daemon-hang"),
    ],
)
def test_an_option_of_another_kind_is_a_mistake(run: RunDir, args: list[str], kinds: str) -> None:
    """Answered with the kinds it goes with."""
    pool(run, "gpu0")
    done = fault(run, "gpu0", *args)
    assert (done.exit_code, f"goes with --kind {kinds}\n" in done.output) == (2, True)


def test_a_device_that_is_not_there_is_answered_with_those_that_are(run: RunDir) -> None:
    """Nothing is told to fail."""
    pool(run, "gpu0", "gpu1")
    done = fault(run, "gpu7")
    assert (done.exit_code, done.output) == (
        1,
        f"the pool in {run.root} has no device 'gpu7'; it has: gpu0, gpu1\n",
    )


@pytest.mark.parametrize("devices", [[], ["gpu0"]])
def test_what_is_real_cannot_be_told_to_fail(run: RunDir, devices: list[str]) -> None:
    """Nor what is not there; the error says how to start a pool that can."""
    pool(run, *devices, simulated=False)
    done = fault(run, "gpu0")
    assert done.exit_code == 1
    assert done.output.startswith("gpu0 cannot be told to fail: ")
    assert "--simulate-gpus" in done.output
    assert ("has no GPUs: its workers run on the CPU" in done.output) == (not devices)
    assert all(f"real: {device}" in done.output for device in devices)


@pytest.mark.parametrize("kind", ["server-fault", "gpu-lost"])
def test_a_gpu_that_is_lost_cannot_fail_again(
    run: RunDir, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """The pool knows which is, and why; the others still can."""
    pool(run, "gpu0", "gpu1")
    devices = [
        {"device": "gpu0", "state": "LOST", "error": "Xid 79"},
        {"device": "gpu1", "state": "SERVING", "error": ""},
    ]
    monkeypatch.setattr(control, "call", lambda *_args, **_kwargs: {"devices": devices})
    done = fault(run, "gpu0", "--kind", kind)
    told = "gpu0 is lost already (Xid 79): nothing runs on it until the pool is started again\n"
    assert (done.exit_code, done.output) == (1, told)
    assert fault(run, "gpu1", "--kind", kind).exit_code == 0


def test_without_a_pool_it_says_what_to_do(tmp_path: Path) -> None:
    """The folder that was looked at, and how to start one."""
    done = fault(RunDir(tmp_path), "gpu0")
    assert (done.exit_code, f"no pool runs in {tmp_path}; start one" in done.output) == (1, True)


def test_a_pool_that_is_only_starting(run: RunDir) -> None:
    """It has no settings yet."""
    done = fault(run, "gpu0")
    assert (done.exit_code, "only starting" in done.output) == (1, True)


def test_a_daemon_that_refuses(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its reason, and where its log is."""
    pool(run, "gpu0")
    monkeypatch.setenv("FAKE_STATUS", "1")
    done = fault(run, "gpu0", "--kind", "client-wedge")
    assert done.exit_code == 1
    assert "gpu0 did not fail: 'simulate_fault client-wedge' failed with status 1" in done.output
    assert "logs mps.gpu0" in done.output


def test_an_unknown_kind_is_answered_with_those_there_are(run: RunDir) -> None:
    """As a mistake in the command, exit status 2."""
    done = fault(run, "gpu0", "--kind", "fire")
    assert (done.exit_code, "server-fault" in done.output) == (2, True)
