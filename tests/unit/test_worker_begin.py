"""How a worker begins, and what is known of one that could not."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from mpspool.core import settings
from mpspool.core.rundir import RunDir
from mpspool.core.settings import ModelSettings, SlotSettings, WorkerSettings


def test_a_worker_that_cannot_have_its_slot_says_why(tmp_path: Path) -> None:
    """In its last words, which the status shows: its log has where it happened."""
    run = RunDir(tmp_path)
    run.lock_file("worker.m@1.cpu0.0").mkdir(parents=True)
    config = WorkerSettings(
        run_dir=str(run.root),
        worker="m@1.cpu0.0",
        generation=1,
        credits=2,
        model=ModelSettings(name="m", version=1, path="", slots=[]),
        slot=SlotSettings(device="cpu0", slot=0),
    )
    settings.save(tmp_path / "settings.json", config)
    command = [sys.executable, "-P", "-m", "mpspool.worker", str(tmp_path / "settings.json")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 1
    assert "slot_lock.py" in done.stderr
    assert run.last_words("worker.m@1.cpu0.0").startswith("IsADirectoryError: [Errno 21] Is a directory")
