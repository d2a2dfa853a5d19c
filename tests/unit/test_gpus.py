"""The pool's GPUs: what is done about what the daemons, the driver and the router say, with all of them scripted."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest

from mpspool.core.ids import WorkerId
from mpspool.core.settings import (
    ModelSettings,
    MpsSettings,
    PoolSettings,
    RestartSettings,
    RouterSettings,
    SlotSettings,
)
from mpspool.core.states import DomainState, SlotState
from mpspool.mps.telemetry import GpuReading
from mpspool.supervisor.pool import domain, gpus
from mpspool.supervisor.pool.daemon import Answer, Daemon
from mpspool.supervisor.pool.domain import SILENT_S
from mpspool.supervisor.pool.endings import Endings
from mpspool.supervisor.pool.gpus import Gpus
from mpspool.supervisor.pool.reconcile import WorkerReport
from mpspool.supervisor.pool.slots import Slot
from mpspool.supervisor.pool.workers import Workers
from mpspool.supervisor.supervisord import ProcessInfo, ProcessState

SERVER = 900
FIRST, SECOND = WorkerId("half", 1, "gpu0", 0), WorkerId("half", 1, "gpu0", 1)
OTHER = WorkerId("half", 1, "gpu1", 0)
PIDS = {FIRST: 101, SECOND: 102, OTHER: 201}


async def auntil(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not holds():
            await asyncio.sleep(0.002)


class ScriptedDaemon(Daemon):
    """Answers what it is told to; its wrapper is a number and nothing else."""

    def __init__(self, settings: MpsSettings) -> None:
        super().__init__(settings)
        self.answer: Answer | None = Answer({SERVER: "ACTIVE"}, frozenset(PIDS.values()))
        self.named: list[int] = []
        self.was_hit: list[int] = []
        self.silence_s = 0.0
        self.asked = self.restarts = 0

    async def ask(self, *, clients: bool = False) -> Answer | None:
        self.asked += 1
        if self.answer is None or clients:
            return self.answer
        return Answer(self.answer.servers)

    def hold(self, pid: int, on_end: Callable[[], None]) -> bool:
        del on_end
        self.wrapper = pid
        return True

    def let_go(self) -> None:
        self.wrapper = 0

    def restart(self) -> None:
        self.restarts += 1

    def silent_s(self) -> float:
        return self.silence_s

    def hit(self) -> list[int]:
        return self.was_hit

    async def culprits(self) -> list[int]:
        return self.named

    def forget_faults(self) -> None:
        self.was_hit = []


class ScriptedTelemetry:
    def __init__(self) -> None:
        self.readings: dict[str, GpuReading] = {}

    def read(self) -> dict[str, GpuReading]:
        return self.readings

    def close(self) -> None:
        pass


class ScriptedWorkers:
    def __init__(self) -> None:
        self.pids = dict(PIDS)

    def pid(self, worker: WorkerId) -> int:
        return self.pids[worker]


class NotedEndings(set[WorkerId]):
    """Whose end was asked for, and why."""

    def __init__(self) -> None:
        super().__init__()
        self.why: dict[WorkerId, str] = {}

    def lost(self, workers: Iterable[WorkerId], reason: str) -> None:
        for worker in workers:
            self.add(worker)
            self.why[worker] = reason


class Pool:
    """Two GPUs, the first with two workers, all READY; nothing of it is real but the slots."""

    def __init__(self, *, external: bool = False, telemetry: ScriptedTelemetry | None = None) -> None:
        restart = RestartSettings(backoff_s=0.0)
        self.slots = {worker: Slot(str(worker), restart) for worker in PIDS}
        for worker, slot in self.slots.items():
            slot.started(PIDS[worker], 1, 0.0)
            slot.ready(1.0)
        self.workers, self.endings = ScriptedWorkers(), NotedEndings()
        self.telemetry = telemetry or ScriptedTelemetry()
        self.daemons: dict[str, ScriptedDaemon] = {}
        self.told: list[tuple[str, dict[str, Any]]] = []
        self.gpus = Gpus(
            settings(restart, external),
            self.slots,
            cast(Workers, self.workers),
            cast(Endings, self.endings),
            asyncio.Lock(),
            self._tell,
            lambda: None,
            make_daemon=self._daemon,
            telemetry=cast(Any, self.telemetry),
        )

    def _daemon(self, settings: MpsSettings) -> Daemon:
        return self.daemons.setdefault(settings.device, ScriptedDaemon(settings))

    async def _tell(self, op: str, **arguments: Any) -> None:
        self.told.append((op, arguments))

    def see(self, **wrappers: int) -> None:
        found = {"gpu0": 10, "gpu1": 11} | wrappers
        self.gpus.see(
            {
                f"mps.{device}": ProcessInfo(f"mps.{device}", ProcessState.RUNNING, pid)
                for device, pid in found.items()
            }
        )

    def state(self, device: str) -> DomainState:
        return next(DomainState(one["state"]) for one in self.gpus.messages() if one["device"] == device)

    def condemned(self) -> list[dict[str, Any]]:
        return [arguments for op, arguments in self.told if op == "condemn"]

    def end(self, worker: WorkerId) -> None:
        """It has gone, as it was to."""
        self.slots[worker].ended(-9, 2.0, hit=self.gpus.hit(worker, self.slots[worker].generation))
        self.workers.pids[worker] = 0
        self.endings.discard(worker)
        self.gpus.ended(worker)

    def start(self, worker: WorkerId, at: float) -> None:
        slot = self.slots[worker]
        slot.started(PIDS[worker] + 1000, slot.generation + 1, at)
        self.workers.pids[worker] = PIDS[worker] + 1000

    def ready(self, worker: WorkerId) -> None:
        self.slots[worker].ready(3.0)
        self.gpus.ready(worker)


def settings(restart: RestartSettings, external: bool) -> PoolSettings:
    slots = [
        SlotSettings(
            device=worker.device, slot=worker.slot, cpus=[], gpu_uuid=f"GPU-{worker.device}", mps_pipe="/pipe"
        )
        for worker in PIDS
    ]
    daemons = [
        MpsSettings(
            device=device,
            gpu_uuid=f"GPU-{device}",
            pipe_dir="/pipe",
            log_dir="/log",
            server_log="",
            control=["none"],
            external=external,
        )
        for device in ("gpu0", "gpu1")
    ]
    return PoolSettings(
        run_dir="/r",
        mps="on",
        models=[ModelSettings(name="half", version=1, path="/m", slots=slots)],
        mps_daemons=daemons,
        router=RouterSettings(run_dir="/r", host="", grpc_port=0, rest_port=0),
        restart=restart,
    )


@asynccontextmanager
async def watched(monkeypatch: pytest.MonkeyPatch, *, external: bool = False) -> Any:
    """Its watch runs, fast, and the daemons have confirmed all clients."""
    monkeypatch.setattr(gpus, "_PERIOD_S", 0.005)
    pool = Pool(external=external)
    task = asyncio.create_task(pool.gpus.watch_for_ever())
    if not external:
        pool.see()
    await auntil(lambda: all(daemon.asked > 2 for daemon in pool.daemons.values()))
    assert not pool.endings
    try:
        yield pool
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await pool.gpus.close()


Story = Callable[[Pool], Awaitable[None]]


def play(story: Story, monkeypatch: pytest.MonkeyPatch, *, external: bool = False) -> None:
    async def run() -> None:
        async with watched(monkeypatch, external=external) as pool:
            await story(pool)

    asyncio.run(run())


def test_a_fault_takes_the_workers_of_one_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """The router first, then all of them; nothing starts there until the server is well; then one after another."""

    async def story(pool: Pool) -> None:
        pool.daemons["gpu0"].named = [PIDS[SECOND]]
        pool.daemons["gpu0"].answer = Answer({SERVER: "FAULT"})
        await auntil(lambda: pool.endings == {FIRST, SECOND})
        (condemned,) = pool.condemned()
        assert condemned["workers"] == {str(FIRST): 1, str(SECOND): 1}
        assert condemned["culprits"] == [str(SECOND)]
        assert condemned["comes_back"]
        assert not pool.gpus.may_start(FIRST)
        assert pool.gpus.may_start(OTHER)
        pool.end(FIRST)
        pool.end(SECOND)
        pool.daemons["gpu0"].answer = Answer({}, frozenset())
        await auntil(lambda: pool.state("gpu0") is DomainState.RECOVERING)
        now = asyncio.get_running_loop().time()
        assert pool.gpus.may_start(FIRST)
        pool.start(FIRST, now)
        assert not pool.gpus.may_start(SECOND), "one after another"
        pool.slots[FIRST].unready_since = now - gpus._IN_LINE_S - 1
        assert pool.gpus.may_start(SECOND), "one that takes long does not hold up the others"
        pool.daemons["gpu0"].answer = Answer({SERVER + 1: "ACTIVE"}, frozenset(pool.workers.pids.values()))
        pool.ready(FIRST)
        pool.start(SECOND, now)
        assert pool.state("gpu0") is DomainState.RECOVERING
        pool.ready(SECOND)
        assert pool.state("gpu0") is DomainState.SERVING
        faults = {one["device"]: one["faults"] for one in pool.gpus.messages()}
        assert faults == {"gpu0": 1, "gpu1": 0}
        assert OTHER not in pool.endings

    play(story, monkeypatch)


def test_a_fault_that_is_over_when_it_is_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """All that it hit have ended by themselves, so the server is well again: its words tell, and the culprit counts."""

    async def story(pool: Pool) -> None:
        daemon = pool.daemons["gpu0"]
        daemon.named, daemon.was_hit = [PIDS[SECOND]], [PIDS[FIRST], PIDS[SECOND]]
        pool.told.clear()
        pool.end(SECOND)
        assert pool.slots[SECOND].record().row == 1
        await auntil(lambda: bool(pool.condemned()))
        (condemned,) = pool.condemned()
        assert condemned["culprits"] == [str(SECOND)]
        assert "fatal fault" in condemned["reason"]
        await auntil(lambda: pool.endings == {FIRST})
        assert pool.slots[SECOND].record().row == 0, "it was no end of its own"
        assert "clear" not in [op for op, _ in pool.told]
        pool.end(FIRST)
        await auntil(lambda: pool.state("gpu0") is DomainState.RECOVERING)

    play(story, monkeypatch)


def test_a_fault_after_which_nobody_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """All have ended by themselves, and the server is well: who caused it is told, nobody waits, and it recovers."""

    async def story(pool: Pool) -> None:
        daemon = pool.daemons["gpu0"]
        daemon.named, daemon.was_hit = [PIDS[SECOND]], [PIDS[FIRST], PIDS[SECOND]]
        pool.told.clear()
        pool.end(FIRST)
        pool.end(SECOND)
        await auntil(lambda: pool.state("gpu0") is DomainState.RECOVERING)
        (condemned,) = pool.condemned()
        assert condemned["culprits"] == [str(SECOND)]
        assert [pool.slots[worker].record().row for worker in (FIRST, SECOND)] == [0, 0]
        assert "clear" not in [op for op, _ in pool.told]
        assert not pool.endings

    play(story, monkeypatch)


def test_the_driver_alone_says_that_a_gpu_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its daemon still says ACTIVE: the workers are ended all the same, and none is ever started there."""

    async def story(pool: Pool) -> None:
        pool.telemetry.readings = {"GPU-gpu0": GpuReading("GPU-gpu0", lost="Xid 79")}
        await auntil(lambda: pool.endings == {FIRST, SECOND})
        (condemned,) = pool.condemned()
        assert not condemned["comes_back"]
        assert "Xid 79" in condemned["reason"]
        assert pool.gpus.lost("gpu0") == "gpu0 is lost: Xid 79"
        assert not pool.gpus.lost("gpu1")
        assert not pool.gpus.may_start(FIRST)

    play(story, monkeypatch)


def test_one_worker_that_is_no_client_is_ended_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would run on without MPS; where none of a GPU's workers is a client, the GPU has failed."""

    async def story(pool: Pool) -> None:
        pool.daemons["gpu0"].answer = Answer({SERVER: "ACTIVE"}, frozenset({PIDS[FIRST]}))
        pool.gpus.ready(SECOND)
        await auntil(lambda: pool.endings == {SECOND})
        assert "no client" in pool.endings.why[SECOND]
        assert pool.condemned() == []
        pool.daemons["gpu1"].answer = Answer({SERVER: "ACTIVE"}, frozenset())
        pool.gpus.ready(OTHER)
        await auntil(lambda: OTHER in pool.endings)
        assert pool.condemned()[0]["device"] == "gpu1"

    play(story, monkeypatch)


def test_a_server_that_was_replaced_has_lost_its_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    """A daemon of whom another server is told than before: nobody who was READY is a client of that one."""

    async def story(pool: Pool) -> None:
        pool.daemons["gpu0"].answer = Answer({SERVER + 1: "ACTIVE"}, frozenset())
        await auntil(lambda: pool.endings == {FIRST, SECOND})
        assert f"MPS server {SERVER} has ended" in pool.condemned()[0]["reason"]

    play(story, monkeypatch)


def test_a_daemon_that_comes_in_anothers_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its wrapper is another: the clients of the one before are ended."""

    async def story(pool: Pool) -> None:
        pool.see(gpu0=77)
        await auntil(lambda: pool.endings == {FIRST, SECOND})
        assert "MPS daemon has ended" in pool.condemned()[0]["reason"]

    play(story, monkeypatch)


def test_a_daemon_that_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those READY serve on, for as long as it takes; once it keeps a worker from starting for too long it is a fault."""

    async def story(pool: Pool) -> None:
        daemon = pool.daemons["gpu0"]
        daemon.answer, daemon.silence_s = None, SILENT_S + 1
        asked = daemon.asked
        await auntil(lambda: daemon.asked > asked + 3)
        assert not pool.endings
        pool.end(SECOND)
        await auntil(lambda: pool.endings == {FIRST})
        assert "has not answered" in pool.condemned()[0]["reason"]

    play(story, monkeypatch)


def test_nobody_is_blamed_for_a_client_of_somebody_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """An external daemon's server names one that is none of our workers."""

    async def story(pool: Pool) -> None:
        pool.daemons["gpu0"].named = [4711]
        pool.daemons["gpu0"].answer = Answer({SERVER: "FAULT"})
        await auntil(lambda: pool.endings == {FIRST, SECOND})
        assert pool.condemned()[0]["culprits"] == []

    play(story, monkeypatch, external=True)


@pytest.mark.parametrize("external", [False, True])
def test_a_server_that_does_not_come_back(external: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Our own daemon is restarted, three times, and then the GPU is lost; one that is not ours is waited for."""
    monkeypatch.setattr(domain, "REBUILD_S", 0.02)
    monkeypatch.setattr(domain, "SILENT_S", 0.02)

    async def story(pool: Pool) -> None:
        daemon = pool.daemons["gpu0"]
        daemon.answer = Answer({SERVER: "FAULT"})
        await auntil(lambda: pool.endings == {FIRST, SECOND})
        pool.end(FIRST)
        pool.end(SECOND)
        asked = daemon.asked
        if external:
            await auntil(lambda: daemon.asked > asked + 50)
            assert (pool.state("gpu0"), daemon.restarts) == (DomainState.FAULTED, 0)
        else:
            await auntil(lambda: pool.state("gpu0") is DomainState.LOST)
            assert daemon.restarts == domain.MAX_DAEMON_RESTARTS

    play(story, monkeypatch, external=external)


def test_a_router_that_came_in_anothers_place_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """It knows of no fault, and the workers that are being ended would get requests of it."""

    async def story(pool: Pool) -> None:
        pool.daemons["gpu0"].answer = Answer({SERVER: "FAULT"})
        await auntil(lambda: len(pool.condemned()) == 1)
        pool.gpus.take({}, new=True)
        await auntil(lambda: len(pool.condemned()) == 2)
        assert {one["device"] for one in pool.condemned()} == {"gpu0"}

    play(story, monkeypatch)


def test_a_worker_that_cannot_use_its_gpu_speaks_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """Under MPS what one cannot use no other can; the word of a generation that has gone, or of one that hangs, is none."""

    async def story(pool: Pool) -> None:
        def says(worker: WorkerId, generation: int, hung: str = "") -> None:
            report = WorkerReport(generation, 1, "READY", 0, 0, hung, "CUDA_ERROR_ILLEGAL_ADDRESS")
            pool.gpus.take({str(worker): report}, new=False)

        says(FIRST, 0)
        says(OTHER, 1, hung="no progress")
        assert pool.state("gpu0") is pool.state("gpu1") is DomainState.SERVING
        says(FIRST, 1)
        await auntil(lambda: pool.endings == {FIRST, SECOND})
        assert "CUDA_ERROR_ILLEGAL_ADDRESS" in pool.condemned()[0]["reason"]

    play(story, monkeypatch)


def test_a_pool_that_stops_does_nothing_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is seen of a GPU then: its workers are being ended already."""

    async def story(pool: Pool) -> None:
        pool.gpus.stopping = True
        pool.see(gpu0=77)
        pool.telemetry.readings = {"GPU-gpu1": GpuReading("GPU-gpu1", lost="Xid 79")}
        pool.told.clear()
        await auntil(lambda: len(pool.told) > 3)  # readings are told on
        assert pool.condemned() == []
        assert all(slot.state is SlotState.OCCUPIED for slot in pool.slots.values())

    play(story, monkeypatch)


class SlowTelemetry(ScriptedTelemetry):
    """A reading takes until it is let go."""

    def __init__(self) -> None:
        super().__init__()
        self.reads, self.may_go_on = threading.Event(), threading.Event()
        self.done: list[str] = []

    def read(self) -> dict[str, GpuReading]:
        self.reads.set()
        self.may_go_on.wait(60)
        self.done.append("read")
        return super().read()

    def close(self) -> None:
        self.done.append("closed")


def test_nvml_is_let_go_of_when_it_has_been_read() -> None:
    """A pool that another configuration ends does not wait for a driver that takes its time, nor pull NVML away from under it."""

    async def scenario() -> None:
        telemetry = SlowTelemetry()
        pool = Pool(telemetry=telemetry)
        watching = asyncio.create_task(pool.gpus.watch_for_ever())
        await auntil(telemetry.reads.is_set)
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
        await pool.gpus.close()
        assert telemetry.done == []
        telemetry.may_go_on.set()
        await auntil(lambda: telemetry.done == ["read", "closed"])

    asyncio.run(scenario())
