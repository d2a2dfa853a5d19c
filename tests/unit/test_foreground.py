"""What keeps `mpspool start` from starting anything."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

from mpspool.core.errors import StartError
from mpspool.core.rundir import RunDir
from mpspool.core.settings import PoolSettings, RouterSettings
from mpspool.mps.leftovers import LeftoverError
from mpspool.supervisor import foreground, leftovers, lock


def test_what_an_earlier_pool_left_and_nothing_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is said as any other reason, and the folder is let go of."""
    config = PoolSettings(
        run_dir=str(tmp_path),
        host="localhost",
        grpc_port=0,
        rest_port=0,
        mps="on",
        models=[],
        mps_daemons=[],
        router=RouterSettings(run_dir=str(tmp_path), host="localhost", grpc_port=0, rest_port=0),
    )

    def end(_run: RunDir) -> list[int]:
        raise LeftoverError("MPS processes [7] of /pipe do not end; the GPU may need a reset")

    monkeypatch.setattr(leftovers, "end", end)
    with pytest.raises(StartError, match="the GPU may need a reset"):
        foreground.run(config, cast("Any", None), orders=cast("Any", None), say=print)
    assert not lock.holder(RunDir(tmp_path))
