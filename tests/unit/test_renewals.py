"""`mpspool mps set` in the pool: what it refuses, and how long a worker that is renewed may take to leave."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import cast

import pytest

from mpspool.core.control import Message
from mpspool.core.ids import WorkerId
from mpspool.core.progress import ProgressWriter
from mpspool.core.rundir import RunDir
from mpspool.core.settings import (
    ModelSettings,
    MpsSettings,
    PoolSettings,
    RestartSettings,
    RouterSettings,
    Share,
    SlotSettings,
)
from mpspool.supervisor.pool import renewals
from mpspool.supervisor.pool.endings import Endings
from mpspool.supervisor.pool.renewals import Renewals
from mpspool.supervisor.pool.slots import Slot
from mpspool.supervisor.pool.workers import Workers
from mpspool.supervisor.shares import Override

GIB = 2**30
WORKER, SECOND = (WorkerId("half", 1, "gpu0", slot) for slot in range(2))
SLOT = SlotSettings(device="gpu0", slot=0, gpu_uuid="GPU-0", memory_bytes=80 * GIB, mps_pipe="/pipe")


class Scene:
    """A pool of one worker on one GPU, whose process and end are played here.

    Attributes:
        slots: of those that there are.
        left: whether the worker was asked to leave.
        hung: why it was ended as one that hangs, each time.
    """

    def __init__(self, run: RunDir, *, fraction: float = 0.0, external: bool = False) -> None:
        self.left = False
        self.hung: list[str] = []
        self._override = Override()
        self._given = SLOT
        self.model = ModelSettings(
            name="half", version=1, path="/m", slots=[SLOT], gpu_memory_fraction=fraction
        )
        self.page = ProgressWriter(run.progress_file(WORKER.program, 1))
        self.slot = Slot(str(WORKER), RestartSettings())
        self.slot.started(4711, 1, time.monotonic())
        self.slot.ready(time.monotonic())
        self.slots = {WORKER: self.slot}
        self.daemon = MpsSettings(
            device="gpu0",
            gpu_uuid="GPU-0",
            pipe_dir="/pipe",
            log_dir="/log",
            server_log="",
            control=["mps"],
            external=external,
        )
        config = PoolSettings(
            run_dir=str(run.root),
            mps="on",
            models=[self.model],
            mps_daemons=[self.daemon],
            router=RouterSettings(run_dir=str(run.root), host="localhost", grpc_port=0, rest_port=0),
        )
        self.renewals = Renewals(
            config, run, self.slots, cast(Workers, self), cast(Endings, _Ends(self)), lambda: False
        )

    def set(self, **request: object) -> asyncio.Task[list[Message]]:
        async def answers() -> list[Message]:
            return [answer async for answer in self.renewals.set(request)]

        return asyncio.create_task(answers())

    def comes_back(self) -> None:
        """The worker ends, and its next generation is READY."""
        self.slot.ended(0, time.monotonic(), hit=True)
        self.slot.started(4712, 2, time.monotonic())
        self._given = self.place(WORKER)[1]
        self.slot.ready(time.monotonic())

    # -- what Renewals asks of Workers ------------------------------------------------------------

    def place(self, _worker: WorkerId) -> tuple[ModelSettings, SlotSettings]:
        return self.model, self._override.over(SLOT)

    def running(self, _worker: WorkerId) -> SlotSettings:
        return self._given

    def override(self, overrides: Mapping[WorkerId, Override]) -> None:
        self._override = overrides[WORKER].upon(self._override)

    def ask_to_leave(self, _worker: WorkerId) -> None:
        self.left = True


class _Ends(set[WorkerId]):
    """Endings that are over at once."""

    def __init__(self, scene: Scene) -> None:
        super().__init__()
        self._scene = scene

    def hung(self, _worker: WorkerId, reason: str) -> None:
        self._scene.hung.append(reason)
        self._scene.comes_back()


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    run = RunDir(tmp_path)
    run.progress.mkdir()
    return run


async def until(probe: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not probe():
            await asyncio.sleep(0.01)


def test_what_a_worker_runs_is_finished(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    """However long it takes, and however many requests it holds: the router judges those."""
    monkeypatch.setattr(renewals, "_LEAVE_S", 0.2)

    async def scenario() -> None:
        scene = Scene(run)
        scene.page.start(7, 0)
        renewal = scene.set(priority=[1], restart=True)
        await until(lambda: scene.left)
        for index in (1, 2):
            await asyncio.sleep(0.4)
            scene.page.finish()
            scene.page.start(7, index)
        await asyncio.sleep(0.4)
        assert scene.hung == []
        scene.page.finish()
        scene.page.close()
        scene.comes_back()
        _, renewed = await renewal
        assert renewed["renewed"]["running"]["priority"] == "below_normal"
        assert scene.hung == []

    asyncio.run(scenario())


def test_one_that_runs_nothing_and_stays_hangs(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is ended, and its slot filled again."""
    monkeypatch.setattr(renewals, "_LEAVE_S", 0.2)

    async def scenario() -> None:
        scene = Scene(run)
        _, renewed = await scene.set(priority=[1], restart=True)
        assert scene.hung == ["runs nothing, and did not leave within 0.2 s"]
        assert renewed["renewed"]["generation"] == 2

    asyncio.run(scenario())


def test_one_that_runs_with_these_values_is_left_alone(run: RunDir) -> None:
    """It is told apart from one that was renewed."""

    async def scenario() -> None:
        scene = Scene(run)
        _, answer = await scene.set(restart=True)
        assert (answer["unchanged"]["generation"], scene.left) == (1, False)
        assert "renewed" not in answer

    asyncio.run(scenario())


def test_a_worker_whose_version_goes_meanwhile_is_no_failure(run: RunDir) -> None:
    """Another version has taken over: whoever came in its place has been started with these values."""

    async def scenario() -> None:
        scene = Scene(run)
        scene.page.close()
        renewal = scene.set(priority=[1], restart=True)
        await until(lambda: scene.left)
        scene.slot.ended(0, time.monotonic(), hit=True)
        del scene.slots[WORKER]
        assert [list(answer) for answer in await renewal] == [["set", "warnings"]]

    asyncio.run(scenario())


def test_a_worker_whose_version_has_gone_before_its_turn_is_no_failure(run: RunDir) -> None:
    """Those before it are renewed."""

    async def scenario() -> None:
        scene = Scene(run)
        scene.page.close()
        scene.slots[SECOND] = Slot(str(SECOND), RestartSettings())
        renewal = scene.set(priority=[1], restart=True)
        await until(lambda: scene.left)
        del scene.slots[SECOND]
        scene.comes_back()
        assert [list(answer) for answer in await renewal] == [["set", "warnings"], ["renewed"]]

    asyncio.run(scenario())


def test_more_memory_than_the_gpu_has_is_warned_of(run: RunDir) -> None:
    """As in the file, of what was set just now; it is set all the same."""

    async def scenario() -> None:
        scene = Scene(run)
        (answer,) = await scene.set(pinned_bytes=[120 * GIB])
        (warning,) = answer["warnings"]
        assert warning.startswith("gpu0: pinned_memory gives its worker 150% of its memory in all;")
        assert scene.place(WORKER)[1].pinned_bytes == 120 * GIB
        (answer,) = await scene.set(priority=[1])
        assert answer["warnings"] == []

    asyncio.run(scenario())


def test_a_live_change_is_judged_as_in_the_file(run: RunDir) -> None:
    """Against a fraction of the GPU's memory, too; nothing is changed by what is refused."""

    async def scenario() -> None:
        scene = Scene(run, fraction=0.5)
        (refused,) = await scene.set(pinned_bytes=[10 * GIB])
        assert refused["error"].startswith(
            "pinned_memory 10GiB is less than half's gpu_memory.fraction, 40GiB, and about 768MiB"
        )
        assert scene.place(WORKER)[1].share == Share()
        (taken,) = await scene.set(pinned_bytes=[41 * GIB])
        assert taken["set"][0]["next"]["pinned_memory_bytes"] == 41 * GIB

    asyncio.run(scenario())


def test_what_is_inherited_is_shown(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    """Until something else is given; a daemon of ours has inherited it, too, one that is not ours has not."""
    monkeypatch.setenv("CUDA_MPS_CLIENT_PRIORITY", "1")
    monkeypatch.setenv("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "60")

    async def scenario(*, external: bool) -> tuple[Message, Message]:
        scene = Scene(run, external=external)
        given = {"active_thread_percentage": [100], "priority": [0]}
        (answer,) = await scene.set(**given)
        (shown,) = answer["set"]
        return shown["running"], shown["next"]

    was, ours = asyncio.run(scenario(external=False))
    assert (was["active_thread_percentage"], was["priority"]) == (60, "below_normal")
    assert was["inherited"] == ["active_thread_percentage", "priority"]
    assert (ours["active_thread_percentage"], ours["priority"]) == (60, "normal")
    assert ours["inherited"] == ["active_thread_percentage"]
    _, theirs = asyncio.run(scenario(external=True))
    assert (theirs["active_thread_percentage"], theirs["inherited"]) == (100, [])
