"""A worker without TensorFlow: it joins the router for real, and answers nothing.

What it does otherwise stands in <run folder>/behave/<worker id>: "never" (exit 78 with a reason),
"crash" (exit 3 before it is READY), "deaf" (SIGTERM is ignored), "slow" (not READY for a minute, this once),
"mute" (never says anything), "warming" (never gets further than that).
"""

from __future__ import annotations

import faulthandler
import os
import signal
import threading
import time
from pathlib import Path

from mpspool.core import messages, process
from mpspool.core.errors import Code
from mpspool.core.ids import WorkerId
from mpspool.core.messages import Dispatch, Hello, Outcome
from mpspool.core.progress import ProgressWriter
from mpspool.core.rundir import RunDir
from mpspool.core.settings import WorkerSettings
from mpspool.core.states import WorkerState
from mpspool.worker import simulated_gpu
from mpspool.worker.link import Link, wake_on_signals


def _refuse(dispatch: Dispatch, bodies: list[bytes], frames: list[bytes]) -> list[Outcome]:
    return [Outcome(Code.UNIMPLEMENTED, message="a light worker")] * len(bodies)


def _beat(progress: ProgressWriter) -> None:
    while True:
        progress.beat()
        time.sleep(0.1)


def main(config: WorkerSettings) -> int:
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    run_dir = RunDir(Path(config.run_dir))
    program = WorkerId.parse(config.worker).program
    behave = run_dir.root / "behave" / config.worker
    behaviour = behave.read_text() if behave.exists() else ""
    if behaviour == "never":
        run_dir.set_last_words(program, "this can never work")
        os._exit(process.EXIT_NEVER)
    if behaviour == "crash":
        os._exit(3)
    if behaviour == "slow":
        behave.unlink()
        time.sleep(60)
    if behaviour == "mute":
        threading.Event().wait()
    attachment = simulated_gpu.attach(config.slot)
    stopping = threading.Event()
    wakeup = wake_on_signals()
    signal.signal(signal.SIGTERM, lambda *_: None if behaviour == "deaf" else stopping.set())
    page = run_dir.progress_file(program, config.generation)
    progress = ProgressWriter(page)
    threading.Thread(target=_beat, args=(progress,), daemon=True).start()
    state = WorkerState.STARTING.value
    hello = Hello(messages.PROTOCOL, 0, config.worker, config.generation, os.getpid(), state, 2, str(page))
    link = Link(run_dir.router_socket, hello, _refuse)
    link.announce(WorkerState.LOADING)
    link.announce(WorkerState.WARMING)
    if behaviour == "warming":
        threading.Event().wait()
    link.announce(WorkerState.READY)
    print("light worker", config.worker, "of generation", config.generation, flush=True)
    link.serve(stopping.is_set, wakeup)
    link.close()
    if attachment is not None:
        attachment.close()
    progress.close()
    return 0
