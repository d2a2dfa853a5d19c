"""Cleans up after a run however it ends, SIGKILL included.

    python -m bench.guard MARK FOLDER

waits for the end of its stdin, then ends every process that carries the mark and removes the folder.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench import measure
from bench.environments import REPOSITORY
from bench.models import ensure_exported
from bench.processors import Processors


@dataclass(frozen=True, slots=True)
class Run:
    """One run's places.

    Attributes:
        mark: carried by every process that the run starts, see measure.MARK.
        folder: for temporary files.
        models: the folder of base paths.
        cache: where the environments are.
        load_cpus: processors of the load's own; none: any.
    """

    mark: str
    folder: Path
    models: Path
    cache: Path
    load_cpus: Processors = ()


@contextmanager
def running(cache: Path, load_cpus: Processors = ()) -> Iterator[Run]:
    """A run, with the models exported; its processes and its folder are gone afterwards."""
    models = ensure_exported(cache)
    mark = uuid.uuid4().hex
    # Short: UNIX sockets lie below it, and their paths end at 107 bytes.
    folder = Path(tempfile.mkdtemp(prefix="mpb-"))
    command = [sys.executable, "-m", "bench.guard", mark, str(folder)]
    # Reads from the pipe that we hold, so its stdin ends when we do.
    guard = subprocess.Popen(command, cwd=REPOSITORY, stdin=subprocess.PIPE, start_new_session=True)
    try:
        yield Run(mark, folder, models, cache, load_cpus)
    finally:
        assert guard.stdin is not None
        guard.stdin.close()
        guard.wait()


def _main(mark: str, folder: str) -> None:
    sys.stdin.read()
    measure.end_marked(mark)
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    _main(*sys.argv[1:])
