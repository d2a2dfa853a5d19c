"""What the wrapper around a control daemon says of one that it cannot use."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any, cast

import pytest

from mpspool.core.settings import MpsSettings
from mpspool.mps import daemon
from mpspool.mps.daemon import Daemon, DaemonError

# Runs as a daemon; what it is asked it answers with a line that is no list of servers.
CONFUSED = """#!/bin/sh
[ "$1" = -f ] && exec sleep 60
echo "No such device"
"""


class NoSignal:
    """Nobody asks for an end."""

    requested = False

    def wait(self, _pidfd: int, timeout_s: float | None) -> bool:
        assert timeout_s is not None, "it is taken to answer"
        time.sleep(timeout_s)
        return False


def test_why_a_daemon_counts_as_not_answering(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own words are passed on: they may name what is wrong with the GPU."""
    program = tmp_path / "nvidia-cuda-mps-control"
    program.write_text(CONFUSED)
    program.chmod(0o755)
    settings = MpsSettings(
        device="gpu0",
        gpu_uuid="GPU-0",
        pipe_dir=str(tmp_path / "mps" / "pipe"),
        log_dir=str(tmp_path / "mps" / "log"),
        server_log="",
        control=[str(program)],
    )
    monkeypatch.setattr(daemon, "_START_LIMIT_S", 0.2)
    monkeypatch.setattr(daemon, "_EXIT_LIMIT_S", 0.2)
    with pytest.raises(DaemonError, match=r"does not answer in 0.2 s: .*No such device"):
        Daemon(settings, os.environ, cast(Any, NoSignal())).run()
