"""Where every worker begins, started as a Python process of its own or forked from the nursery."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import NoReturn

from mpspool.core import allocator, log, process, settings, slot_lock
from mpspool.core.ids import WorkerId
from mpspool.core.rundir import RunDir
from mpspool.core.settings import SlotSettings, WorkerSettings
from mpspool.worker import device

# Of one that gives way until it is READY, and of each that leaves: about a tenth of a processor that all want.
_NICE = 10


def work(settings_file: Path) -> NoReturn:
    """The worker's whole life. The slot is its own before it touches the device.

    Raises:
        OSError, msgspec.DecodeError: the settings file cannot be read, or the slot not be had.
    """
    config = settings.load(settings_file, WorkerSettings)
    log.configure(worker=config.worker, generation=config.generation)
    allocator.keep_tensors()
    if config.gives_way:
        process.set_session_nice(_NICE)
    else:
        process.wake_first()
    if config.slot.simulated:
        log.get("worker").warning(f"SIMULATED: {_stand_in(config.slot)}", device=config.slot.device)
    run, program = RunDir(Path(config.run_dir)), WorkerId.parse(config.worker).program
    try:
        status = _live(config, run.lock_file(program))
    except Exception as error:
        run.set_last_words(program, f"{type(error).__name__}: {error}")
        raise
    sys.stdout.flush()
    sys.stderr.flush()
    process.end_giving_way(_NICE)
    # Without TensorFlow's own teardown: it may hang and has nothing left to save.
    os._exit(status)


def _live(config: WorkerSettings, lock_file: Path) -> int:
    """Returns the exit status."""
    if before := slot_lock.take_over(lock_file):
        log.get("worker").warning("killed an earlier worker of this slot", pid=before)
    device.prepare(config)

    # NumPy and TensorFlow: not before the environment is set, where they are not there yet.
    from mpspool.worker.app import main

    return main(config)


def _stand_in(slot: SlotSettings) -> str:
    if slot.gpu_uuid:
        return "this GPU is a stand-in, and the model runs on the CPU"
    return "these CPUs are stand-ins, and nothing is pinned to them"
