"""Whether a worker may be started, by what its MPS daemon says."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any, cast

import pytest

from mpspool.core import process
from mpspool.core.ids import WorkerId
from mpspool.core.rundir import RunDir
from mpspool.core.settings import ModelSettings, MpsSettings, PoolSettings, RouterSettings, SlotSettings
from mpspool.supervisor import programs
from mpspool.supervisor.pool.workers import Workers
from mpspool.supervisor.supervisord import ProcessInfo, ProcessState, SupervisordError

WORKERS = [WorkerId("half", 1, "gpu0", slot) for slot in range(3)]
# Says who it is, and answers when a file is there.
SLOW = """#!/bin/sh
echo $$ > {folder}/asking
while [ ! -e {folder}/answer ]; do sleep 0.01; done
"""


def pool_of_one_gpu(folder: Path, *, external: bool) -> PoolSettings:
    program = folder / "nvidia-cuda-mps-control"
    program.write_text(SLOW.format(folder=folder))
    program.chmod(0o755)
    slots = [
        SlotSettings(device="gpu0", slot=worker.slot, gpu_uuid="GPU-0", mps_pipe=str(folder / "pipe"))
        for worker in WORKERS
    ]
    daemon = MpsSettings(
        device="gpu0",
        gpu_uuid="GPU-0",
        pipe_dir=str(folder / "pipe"),
        log_dir=str(folder),
        server_log="",
        control=[str(program)],
        external=external,
    )
    return PoolSettings(
        run_dir=str(folder),
        mps="on",
        models=[ModelSettings(name="half", version=1, path="/m", slots=slots)],
        mps_daemons=[daemon],
        router=RouterSettings(run_dir=str(folder), host="localhost", grpc_port=0, rest_port=0),
    )


async def _asks_a_slow_daemon(folder: Path, *, external: bool) -> None:
    config = pool_of_one_gpu(folder, external=external)
    places = {
        worker: (config.models[0], slot) for worker, slot in zip(WORKERS, config.models[0].slots, strict=True)
    }
    known = asyncio.Event()
    workers = Workers(RunDir(folder), config, cast("Any", None), places, known.set)
    processes = {"mps.gpu0": ProcessInfo("mps.gpu0", ProcessState.RUNNING, 4711)}
    assert [await workers.mps_answers(worker, processes) for worker in WORKERS] == [False] * 3
    async with asyncio.timeout(60):
        while not (asking := _content(folder / "asking")):
            await asyncio.sleep(0.01)
        assert process.alive(int(asking)), "it is still being asked"
        (folder / "answer").touch()
        await known.wait()
        while not await workers.mps_answers(WORKERS[0], processes):
            await asyncio.sleep(0.01)


def _content(file: Path) -> str:
    return file.read_text() if file.exists() else ""


def test_a_daemon_that_takes_its_time_holds_up_nobody(tmp_path: Path) -> None:
    """Those on other GPUs are seen to meanwhile; its own are started when it has answered."""
    asyncio.run(_asks_a_slow_daemon(tmp_path, external=False))


def test_a_daemon_of_others_that_takes_its_time_holds_up_nobody(tmp_path: Path) -> None:
    """As one of ours."""
    asyncio.run(_asks_a_slow_daemon(tmp_path, external=True))


class _Forgets:
    """Supervisord that forgets what it is told to, or does not answer."""

    answers = True

    async def remove(self, program: str) -> None:
        if not self.answers:
            raise SupervisordError(f"{program}: nobody answers")


def _workers(folder: Path, supervisord: _Forgets) -> Workers:
    """Of a pool process that has just begun."""
    run, config = RunDir(folder), pool_of_one_gpu(folder, external=False)
    for part in run.folders():
        part.mkdir(exist_ok=True)
    return Workers(run, config, cast("Any", supervisord), {}, lambda: None)


def test_the_logs_of_the_last_that_were_removed_are_kept(tmp_path: Path) -> None:
    """Whichever pool process has removed them; those of what is there, and of what has never been a worker, stay besides."""
    run = RunDir(tmp_path)
    workers = _workers(tmp_path, _Forgets())
    stay = ["pool", "router", "worker.half@1.cpu0.0", "publish.half@1"]
    gone = [f"{sort}.half@{number}" for number in range(2, 42) for sort in ("worker", "publish")]
    for program in (*stay, *gone):
        run.log_file(program).touch()
        run.log_file(program).with_suffix(".log.1").touch()
        os.utime(run.log_file(program), (0, 0))
    for program in (*stay[2:], *gone):
        programs.conf_file(run, program).touch()
    for program in gone:
        asyncio.run(workers.remove(program, 0))
        workers = _workers(tmp_path, _Forgets())
    kept = {file.name for file in run.logs.iterdir()}
    assert kept == {f"{program}.log{part}" for program in (*stay, *gone[-50:]) for part in ("", ".1")}


def test_what_is_removed_leaves_no_file_that_nobody_knows_of(tmp_path: Path) -> None:
    """A pool process that does not get to the end of it leaves the program to its successor, and nothing else."""
    run, supervisord = RunDir(tmp_path), _Forgets()
    supervisord.answers = False
    workers = _workers(tmp_path, supervisord)
    program = WORKERS[0].program
    files = [
        programs.conf_file(run, program),
        run.settings_file(program),
        run.lock_file(program),
        run.error_file(program),
        run.progress_file(program, 2),
    ]
    for file in files:
        file.touch()
    with pytest.raises(SupervisordError):
        asyncio.run(workers.remove(program, 0))
    assert not [file for file in files if file.exists()]
