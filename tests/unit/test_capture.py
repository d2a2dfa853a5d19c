"""Whose requests `mpspool capture` keeps, and which version of a model is meant where none is named."""

from __future__ import annotations

import base64
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mpspool.core import control, settings
from mpspool.core.ids import ModelVersion
from mpspool.core.methods import Method
from mpspool.core.rundir import RunDir
from mpspool.core.settings import ModelSettings, PoolSettings, RouterSettings, VersionPolicy
from mpspool.core.states import VersionPhase
from mpspool.router.capture import Capture
from mpspool.supervisor import lock, programs
from mpspool.supervisor.commands import ask
from mpspool.supervisor.commands.capture import capture
from mpspool.supervisor.commands.errors import CommandError
from mpspool.supervisor.pool.versions import RECORDS, ModelRecord, Records, Route, VersionRecord
from mpspool.supervisor.version_folders import WARMUP_FILE
from tests.conftest import short_dir


def test_what_each_version_answers_is_kept() -> None:
    """So many of each, and told apart; of one version where it is named, never another model's, nor what is no message by REST."""
    each, second = Capture("m", None, 2), Capture("m", 2, 2)
    for number, (name, version, method) in enumerate(
        (
            ("m", 1, Method.PREDICT),
            ("other", 2, Method.PREDICT),
            ("m", 2, Method.REST_CLASSIFY),
            ("m", 1, Method.PREDICT),
            ("m", 1, Method.PREDICT),
            ("m", 2, Method.CLASSIFY),
        )
    ):
        for one in (each, second):
            one.answered(ModelVersion(name, version), method, b"%d" % number)
    assert [each.take() for _ in range(4)] == [
        (1, Method.PREDICT, b"0", False),
        (1, Method.PREDICT, b"3", False),
        (2, Method.CLASSIFY, b"5", False),
        None,
    ]
    assert [each.has_all_of(version) for version in (1, 2, None)] == [True, False, False]
    assert [second.take(), second.take()] == [(2, Method.CLASSIFY, b"5", False), None]


def test_a_long_body_is_told_in_pieces() -> None:
    """So that telling it keeps nobody waiting. What waits to be fetched is bounded; the first may be of any size."""
    model, body = ModelVersion("m", 1), bytes(range(256)) * 2**18 + b"end"
    found = Capture("m", None, 3)
    found.answered(model, Method.PREDICT, body)
    found.answered(model, Method.PREDICT, b"no room")
    pieces = []
    while (taken := found.take()) is not None:
        pieces.append(taken)
    assert b"".join(piece for _, _, piece, _ in pieces) == body
    assert [more for *_, more in pieces] == [True] * 64 + [False]
    found.answered(model, Method.PREDICT, b"next")
    assert found.take() == (1, Method.PREDICT, b"next", False)


@pytest.mark.parametrize(
    ("pieces", "written"),
    [
        ([(1, [1, 1, 1]), (2, [2])], {2: 1}),
        ([(1, [1, 2, 1]), (1, [])], {1: 2}),
        ([(1, [1, 1]), (2, [])], {1: 2}),
    ],
    ids=["it changes meanwhile", "another answers beside it", "the later one has answered nothing yet"],
)
def test_a_file_holds_what_its_version_answered(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    pieces: list[tuple[int, list[int]]],
    written: dict[int, int],
) -> None:
    """What another version answers it may not be able to: its workers would not start any more."""
    folders = {number: tmp_path / str(number) for number in (1, 2)}
    for folder in folders.values():
        folder.mkdir()

    def of(_run: RunDir, name: str, version: int | None) -> ModelSettings:
        return ModelSettings(name=name, version=version or 1, path=str(folders[version or 1]), slots=[])

    def stream(*_: object, **__: object) -> Iterator[dict[str, Any]]:
        start, end = (base64.b64encode(one).decode() for one in (b"\x12", b"\x00"))

        def in_two(version: int) -> list[tuple[int, int, str, bool]]:
            return [(version, 0, start, True), (version, 0, end, False)]

        for present, answered in pieces:
            yield {"version": present, "requests": [part for version in answered for part in in_two(version)]}

    monkeypatch.setattr(ask, "model", of)
    monkeypatch.setattr(control, "stream", stream)
    ((number, count),) = written.items()
    file = folders[number] / WARMUP_FILE
    assert capture(RunDir(tmp_path), "m", None, 9, 60, None) == f"{count} requests in {file}"
    assert file.read_bytes()
    assert [*folders[3 - number].iterdir()] == []


def test_what_is_no_regular_file_stays_what_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A device such as /dev/null would be replaced by the file, for all of the machine."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    model = ModelSettings(name="m", version=1, path=str(tmp_path), slots=[])
    monkeypatch.setattr(ask, "model", lambda *_: model)
    monkeypatch.setattr(control, "stream", lambda *_, **__: iter(()))
    with pytest.raises(CommandError, match="it is no regular file; give another --output"):
        capture(RunDir(tmp_path), "m", None, 1, 1, pipe)
    assert pipe.is_fifo()


def test_the_version_that_answers_is_meant() -> None:
    """Beside one that is newer and was loaded by hand; with weights the one that has most."""
    with short_dir() as root:
        assert meant(root, Route()) == 7
        assert meant(root, Route(weights={7: 10, 8: 90})) == 8


def meant(root: Path, route: Route) -> int:
    """Of versions 7, which the policy names, 8, which is loaded beside it, and 9, which failed."""
    run = RunDir(root)
    for folder in run.folders():
        folder.mkdir(exist_ok=True)
    model = ModelSettings(name="m", version=7, path="/m/7", slots=[], policy=VersionPolicy(specific=(7,)))
    router = RouterSettings(run_dir=str(root), host="127.0.0.1", grpc_port=1, rest_port=0)
    pool = PoolSettings(
        run_dir=str(root),
        mps="off",
        mps_daemons=[],
        models=[model],
        router=router,
    )
    phases = {7: VersionPhase.SERVING, 8: VersionPhase.SERVING, 9: VersionPhase.FAILED}
    versions = [
        VersionRecord(number=number, path=f"/m/{number}", phase=phase) for number, phase in phases.items()
    ]
    settings.save(run.settings_file(programs.POOL), pool)
    record = ModelRecord(versions=versions, loaded=[8], route=route)
    settings.save(run.settings_file(RECORDS), Records({"m": record}))
    with lock.held(run):
        return ask.model(run, "m", None).version
