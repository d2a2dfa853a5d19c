"""The data plane over a link that the test holds: what happens when workers cannot be reached."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import functools
import math
import os
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import msgspec
import pytest
from structlog.testing import capture_logs

from mpspool.core import messages, tfs
from mpspool.core.envelope import ModelSpecPeek
from mpspool.core.errors import Code, Lack, PoolError
from mpspool.core.ids import ModelVersion
from mpspool.core.messages import Dispatch, Hello, LoadReport, Outcome, Result
from mpspool.core.methods import Method
from mpspool.core.progress import ProgressWriter
from mpspool.core.settings import RouterSettings, SchedulingSettings
from mpspool.core.states import WorkerState
from mpspool.router.app import Control
from mpspool.router.asked import Asked
from mpspool.router.dataplane import Dataplane
from mpspool.router.fronts.http2.headers import RequestHead
from mpspool.router.pending import Pending, abandoned
from mpspool.router.scheduling.entry import Entry
from mpspool.router.workers import Worker
from tests.fakes.recorder import Recorder
from tests.traced import traced

SETTINGS = RouterSettings(run_dir="/nowhere", host="127.0.0.1", grpc_port=0, rest_port=0)
PREDICT = Asked(Method.PREDICT)

# As the pool tells of a model version that has served.
MODEL = {
    "name": "m",
    "version": 1,
    "quorum": 1,
    "failed": "",
    "refused": "",
    "hang_timeout_s": 30,
    "proved": True,
    "phase": "SERVING",
    "opens": True,
    "weight": 1,
    "labels": {},
    "to_come": [],
    "metadata": [],
}

# Of one that another has taken the place of.
GONE = {"phase": "LEAVING", "opens": False, "weight": 0}


class Link:
    """Records what is sent; a worker in `broken` cannot be reached, and what is `unread` has come and was not looked at."""

    def __init__(self, receive: Callable[..., None]) -> None:
        self.receive = receive
        self.sent: list[tuple[bytes, Any]] = []
        self.broken: set[bytes] = set()
        self.frames: list[bytes] = []
        self.unread: list[tuple[bytes, Any]] = []

    def send(self, identity: bytes, message: Any, frames: list[bytes]) -> bool:
        """`frames` are those of the last message."""
        if identity in self.broken:
            return False
        self.sent.append((identity, message))
        self.frames = frames
        return True

    def dispatches(self, identity: bytes) -> list[Dispatch]:
        return [m for to, m in self.sent if to == identity and isinstance(m, Dispatch)]

    def drain(self) -> None:
        while self.unread:
            self.receive(*self.unread.pop(0), [])

    def close(self) -> None: ...


class Scene:
    """A data plane, its link and some workers, which are this very process."""

    def __init__(self, tmp_path: Path, settings: RouterSettings = SETTINGS) -> None:
        self.recorder = Recorder()
        self.links: list[Link] = []
        self.dataplane = Dataplane(settings, self.recorder, self._link)  # type: ignore[arg-type]
        self.link = self.links[0]
        self.folder = tmp_path
        self.pages: list[ProgressWriter] = []

    def _link(self, receive: Callable[..., None]) -> Link:
        self.links.append(Link(receive))
        return self.links[-1]

    def hello(
        self,
        slot: int,
        state: str = "READY",
        epoch: int = 0,
        generation: int = 1,
        inbox: str = "",
        version: int = 1,
    ) -> bytes:
        worker = f"m@{version}.cpu0.{slot}"
        identity = messages.worker_identity(worker, generation)
        page = self.folder / f"page{slot}.{generation}"
        if not page.exists():
            self.pages.append(ProgressWriter(page))
        signatures = b"" if epoch else b"s"
        hello = Hello(
            messages.PROTOCOL,
            epoch,
            worker,
            generation,
            os.getpid(),
            state,
            2,
            str(page),
            inbox,
            signatures=signatures,
            loaded=LoadReport("/models/m/1", 7 if state == "READY" else 0),
        )
        self.link.receive(identity, hello, [])
        return identity

    def answer(
        self, identity: bytes, dispatch: Dispatch, code: Code = Code.OK, *, run_us: int = 10, **ran: Any
    ) -> None:
        """`ran`: what else its Result says."""
        outcomes = [Outcome(code, b"answer", "", 1, run_us, 1) for _ in dispatch.requests]
        busy_us = (run_us + 2) * len(outcomes)
        result = Result(self.dataplane.epoch, dispatch.dispatch, outcomes, 1, busy_us, **ran)
        self.link.receive(identity, result, [])

    def ask(
        self, deadline_ns: int = 0, *, body: bytes = b"", metadata: dict[str, str] | None = None
    ) -> asyncio.Task[bytes]:
        if not body:
            request = tfs.PredictRequest()
            request.model_spec.name = "m"
            body = request.SerializeToString()
        head = RequestHead(metadata=metadata or {}, peer="127.0.0.1:4711")
        admission = self.dataplane.admit(PREDICT, len(body), body, head)
        return asyncio.create_task(self.dataplane.call(PREDICT, body, deadline_ns, admission, head))

    def end(self, identity: bytes) -> None:
        """The worker dies."""
        worker = self.dataplane._workers.get(identity)
        assert worker is not None
        self.dataplane._workers.lose(worker, "died")

    def lose(self, identity: bytes, dispatch: Dispatch) -> None:
        """The worker starts the first request of a dispatch and dies."""
        worker = self.dataplane._workers.get(identity)
        assert worker is not None
        self.pages[worker.id.slot].start(dispatch.dispatch, 0)
        self.end(identity)

    async def close(self) -> None:
        await self.dataplane.close()
        for page in self.pages:
            page.close()


def play(tmp_path: Path, story: Callable[[Scene], Any], settings: RouterSettings = SETTINGS) -> None:
    async def run() -> None:
        async with asyncio.timeout(30):
            scene = Scene(tmp_path, settings)
            try:
                await story(scene)
            finally:
                await scene.close()

    asyncio.run(run())


async def settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0.001)


def test_orders_after_an_unreachable_worker_are_still_sent(tmp_path: Path) -> None:
    """A worker that vanishes between two of its own dispatches takes nobody else's with it."""

    async def story(scene: Scene) -> None:
        workers = [scene.hello(0), scene.hello(1)]
        first = scene.ask()
        await settle()
        taught = next(w for w in workers if scene.link.dispatches(w))
        scene.answer(taught, scene.link.dispatches(taught)[0])  # now requests are known to be short
        assert await first == b"answer"
        scene.link.sent.clear()
        scene.link.broken.add(workers[0])
        asked = [scene.ask() for _ in range(12)]
        await settle()
        answered = 0
        while dispatches := scene.link.dispatches(workers[1]):
            scene.link.sent.clear()
            for dispatch in dispatches:
                answered += len(dispatch.requests)
                scene.answer(workers[1], dispatch)
            await settle()
        assert answered == 12
        assert await asyncio.gather(*asked) == [b"answer"] * 12

    play(tmp_path, story)


def test_a_new_router_makes_clients_wait_instead_of_sending_them_away(tmp_path: Path) -> None:
    """Before the pool has spoken an unknown model is UNAVAILABLE; one that served before is waited for."""

    async def story(scene: Scene) -> None:
        with pytest.raises(PoolError) as unknown:
            await scene.ask()
        assert unknown.value.code is Code.UNAVAILABLE
        scene.dataplane.want([MODEL], {})
        asked = scene.ask()
        await settle()
        assert not asked.done()
        worker = scene.hello(0)
        await settle()
        scene.answer(worker, scene.link.dispatches(worker)[0])
        assert await asked == b"answer"
        scene.dataplane.want([{**MODEL, "name": "other", "proved": False}], {})

    play(tmp_path, story)


def test_a_worker_of_an_earlier_router_is_asked_for_its_introduction(tmp_path: Path) -> None:
    """A beat under a foreign epoch is answered by WhoAreYou and admits nobody."""

    async def story(scene: Scene) -> None:
        identity = scene.hello(0, epoch=7)
        assert isinstance(scene.link.sent[-1][1], messages.WhoAreYou)
        assert not scene.dataplane.snapshot()["workers"]
        scene.hello(0)
        assert isinstance(scene.link.sent[-1][1], messages.Welcome)
        assert scene.link.sent[-1][0] == identity

    play(tmp_path, story)


def test_an_older_generation_is_refused(tmp_path: Path) -> None:
    """Of two processes of one slot the newer one stays."""

    async def story(scene: Scene) -> None:
        scene.hello(0, generation=2)
        scene.hello(0, generation=1)
        assert isinstance(scene.link.sent[-1][1], messages.Refused)
        assert [w["generation"] for w in scene.dataplane.snapshot()["workers"]] == [2]

    play(tmp_path, story)


def test_results_of_an_old_epoch_or_dispatch_are_dropped(tmp_path: Path) -> None:
    """Only the answer that is waited for is given, and only once."""

    async def story(scene: Scene) -> None:
        worker = scene.hello(0)
        asked = scene.ask()
        await settle()
        (dispatch,) = scene.link.dispatches(worker)
        wrong = [Outcome(Code.OK, b"wrong")]
        scene.link.receive(worker, Result(7, dispatch.dispatch, wrong), [])
        scene.link.receive(worker, Result(scene.dataplane.epoch, dispatch.dispatch + 9, wrong), [])
        scene.answer(worker, dispatch)
        scene.link.receive(worker, Result(scene.dataplane.epoch, dispatch.dispatch, wrong), [])
        assert await asked == b"answer"
        assert scene.recorder.codes == [Code.OK]

    play(tmp_path, story)


def test_a_pause_of_our_own_is_not_held_against_workers(tmp_path: Path) -> None:
    """After it a silent worker has a second to beat again, and hangs only when it does not."""

    async def story(scene: Scene) -> None:
        scene.hello(0)
        (worker,) = workers = scene.dataplane._workers
        awake_ns = time.monotonic_ns() + 60 * 10**9
        for tenths in range(10):
            workers.judge(awake_ns + tenths * 10**8, lambda _: None)
            assert worker.state is WorkerState.READY
        workers.judge(awake_ns + 10**9, lambda _: None)
        assert worker.state is WorkerState.FAILED
        assert "no heartbeat" in worker.hung

    play(tmp_path, story)


@pytest.mark.parametrize(
    ("leaving", "asked", "event"),
    [(True, 0, "worker left"), (True, 1, "worker lost"), (False, 0, "worker lost")],
)
def test_only_what_went_without_a_word_or_an_answer_is_lost(
    tmp_path: Path, leaving: bool, asked: int, event: str
) -> None:
    """A worker that has said Leaving and holds nothing ends in good order, which is no warning."""

    async def story(scene: Scene) -> None:
        identity = scene.hello(0)
        waiting = [scene.ask() for _ in range(asked)]
        await settle()
        if leaving:
            scene.link.receive(identity, messages.Leaving(scene.dataplane.epoch), [])
        (worker,) = scene.dataplane._workers
        with capture_logs() as logs:
            scene.dataplane._workers.lose(worker, "died")
        level = "info" if event == "worker left" else "warning"
        assert [(line["event"], line["log_level"]) for line in logs] == [(event, level)]
        for task in waiting:
            task.cancel()

    play(tmp_path, story)


def test_a_cancelled_request_is_never_sent(tmp_path: Path) -> None:
    """A client that goes away while its request waits takes it along, and is counted as CANCELLED."""

    async def story(scene: Scene) -> None:
        scene.dataplane.want([MODEL], {})
        far_ns = time.monotonic_ns() + 60 * 10**9
        asked = [scene.ask(), scene.ask(far_ns)]
        await settle()
        assert scene.dataplane.snapshot()["queued"] == 2
        for task in asked:
            task.cancel()
        await asyncio.wait(asked)
        assert scene.dataplane.snapshot()["queued"] == 0
        assert scene.recorder.codes == [Code.CANCELLED] * 2
        worker = scene.hello(0)
        await settle()
        assert not scene.link.dispatches(worker)

    play(tmp_path, story)


def test_a_client_gone_at_its_deadline_has_not_cancelled(tmp_path: Path) -> None:
    """Its own deadline is a little earlier than the one that we know of."""

    async def story(scene: Scene) -> None:
        scene.dataplane.want([MODEL], {})
        asked = scene.ask(time.monotonic_ns() + 3_000_000)
        await asyncio.sleep(0)
        asked.cancel()
        await asyncio.wait([asked])
        assert scene.recorder.codes == [Code.DEADLINE_EXCEEDED]

    play(tmp_path, story)


@pytest.mark.parametrize(
    ("given_ms", "early_ms", "code"),
    [
        (100, 0, Code.DEADLINE_EXCEEDED),
        (100, 6, Code.DEADLINE_EXCEEDED),
        (100, 7, Code.CANCELLED),
        (1_010, 10, Code.DEADLINE_EXCEEDED),  # of 1001 ms, which the wire rounds up
        (10_100, 90, Code.DEADLINE_EXCEEDED),  # of 10.01 s
        (10_100, 110, Code.CANCELLED),
    ],
)
def test_how_early_a_deadline_may_be(given_ms: int, early_ms: int, code: Code) -> None:
    """By what gRPC rounds a timeout up, and by some milliseconds on the way."""
    deadline_ns = 10**9 + given_ms * 10**6
    item = Entry(ModelVersion("m", 1), "", b"", 10**9, deadline_ns)
    assert abandoned(item, deadline_ns - early_ms * 10**6) is code


def test_a_request_without_a_deadline_has_none_to_pass() -> None:
    """Whenever its client goes away, it cancels."""
    assert abandoned(Entry(ModelVersion("m", 1), "", b"", 10**9), 2 * 10**9) is Code.CANCELLED


def test_a_part_is_as_the_whole_but_for_its_rows(tmp_path: Path) -> None:
    """Whose it is, how urgent, until when, and what it holds."""

    async def story(scene: Scene) -> None:
        futures = [asyncio.get_running_loop().create_future() for _ in range(2)]
        whole = Pending(
            *(ModelVersion("m", 1), "s", b"body", 7, 9, Method.CLASSIFY, 3, "client"),
            future=futures[0],
            named=True,
            admission=scene.dataplane.memory.admit(4),
        )
        whole.rows, whole.kind = 700, ("s", b"", b"")
        part = whole.of_rows(100, 400, futures[1])
        theirs = "model signature body arrived_ns deadline_ns method priority client kind named admission"
        for name in theirs.split():
            assert getattr(part, name) == getattr(whole, name), name
        assert (part.rows, part.part, part.future) == (300, (100, 400), futures[1])
        assert (whole.rows, whole.part, whole.future) == (700, None, futures[0])
        whole.let_go()

    play(tmp_path, story)


def test_a_deadline_travels_to_the_worker(tmp_path: Path) -> None:
    """It is the worker's to look at once more, just before it runs the request."""

    async def story(scene: Scene) -> None:
        worker = scene.hello(0)
        deadline_ns = time.monotonic_ns() + 60 * 10**9
        asked = scene.ask(deadline_ns)
        await settle()
        (dispatch,) = scene.link.dispatches(worker)
        assert [request.deadline_ns for request in dispatch.requests] == [deadline_ns]
        scene.answer(worker, dispatch, Code.DEADLINE_EXCEEDED)
        with pytest.raises(PoolError) as late:
            await asked
        assert late.value.code is Code.DEADLINE_EXCEEDED
        assert scene.recorder.codes == [Code.DEADLINE_EXCEEDED]

    play(tmp_path, story)


@pytest.mark.parametrize("sent", [False, True])
def test_a_deadline_is_answered_though_nothing_happens(tmp_path: Path, sent: bool) -> None:
    """Waiting or running, a request is refused when its time is up, and no event is needed for that."""

    async def story(scene: Scene) -> None:
        scene.dataplane.want([MODEL], {})
        worker = scene.hello(0) if sent else b""
        asked = scene.ask(time.monotonic_ns() + 200_000_000)
        await settle()
        assert len(scene.link.dispatches(worker)) == sent
        with pytest.raises(PoolError) as late:
            async with asyncio.timeout(10):
                await asked
        assert late.value.code is Code.DEADLINE_EXCEEDED
        assert scene.recorder.codes == [Code.DEADLINE_EXCEEDED]
        assert scene.recorder.lacks == []

    play(tmp_path, story)


def test_a_client_that_gives_up_again_and_again_does_not_empty_the_pool(tmp_path: Path) -> None:
    """What it asked for is tried alone after the first worker, and refused after the second."""

    async def story(scene: Scene) -> None:
        async def ask(slot: int) -> tuple[bytes, Dispatch, asyncio.Task[bytes]]:
            worker = scene.hello(slot)
            asked = scene.ask()
            await settle()
            return worker, scene.link.dispatches(worker)[-1], asked

        worker, dispatch, asked = await ask(0)
        asked.cancel()
        await settle()
        scene.lose(worker, dispatch)
        worker, dispatch, asked = await ask(1)
        scene.answer(worker, dispatch, Code.DEADLINE_EXCEEDED)  # it was not run: nothing speaks for it
        await asyncio.wait([asked])
        worker, dispatch, asked = await ask(1)
        scene.lose(worker, dispatch)
        with pytest.raises(PoolError) as refused:
            await asked
        assert refused.value.code is Code.INTERNAL

    play(tmp_path, story)


def test_the_pool_tells_of_its_slots(tmp_path: Path) -> None:
    """Their states stand in the snapshot, as they were told last."""

    async def story(scene: Scene) -> None:
        control = Control(scene.dataplane)
        told = {"models": [MODEL], "restarts": {}}
        await control.models({**told, "slots": {"m@1.cpu0.0": "FATAL"}})
        assert (await control.snapshot({}))["slots"] == {"m@1.cpu0.0": "FATAL"}
        await control.models({**told, "slots": {}})
        assert (await control.snapshot({}))["slots"] == {}

    play(tmp_path, story)


def test_other_settings_hold_at_once(tmp_path: Path) -> None:
    """Bounds and readiness; what says nothing new changes nothing."""

    async def story(scene: Scene) -> None:
        plane = scene.dataplane
        control = Control(plane)
        told = {"models": [MODEL, {**MODEL, "name": "o", "proved": False}], "restarts": {}, "slots": {}}
        await control.models({**told, "settings": msgspec.to_builtins(SETTINGS)})
        scene.hello(0)
        assert plane.unready() == ""
        other = msgspec.structs.replace(SETTINGS, readiness="all", max_queued_bytes=10)
        await control.models({**told, "settings": msgspec.to_builtins(other)})
        assert plane.unready() == "not AVAILABLE: o"
        with pytest.raises(PoolError, match="max_queued_bytes is 10"):
            plane.memory.admit(11)

    play(tmp_path, story)


def test_the_pool_tells_of_its_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it told last stands in the snapshot, until it is too old."""

    async def story(scene: Scene) -> None:
        control = Control(scene.dataplane)
        assert (await control.snapshot({}))["devices"] == []
        await control.devices({"devices": [{"device": "gpu0", "state": "SERVING"}]})
        assert (await control.snapshot({}))["devices"] == [{"device": "gpu0", "state": "SERVING"}]
        monkeypatch.setattr("mpspool.router.overview._DEVICES_S", -1.0)
        await control.devices({"devices": [{"device": "gpu0", "state": "SERVING"}]})
        assert (await control.snapshot({}))["devices"] == []

    play(tmp_path, story)


def test_how_busy_a_worker_was_is_known(tmp_path: Path) -> None:
    """What its answers took, in its own words; and how long its running request has been running."""

    async def story(scene: Scene) -> None:
        identity = scene.hello(0)
        for count in (1, 2):
            asked = scene.ask()
            await settle()
            dispatch = scene.link.dispatches(identity)[-1]
            scene.pages[0].start(dispatch.dispatch, 0)
            (worker,) = scene.dataplane.snapshot()["workers"]
            assert 0 < worker["running_s"] < 60
            scene.pages[0].finish()
            scene.answer(identity, dispatch)
            await asked
            (worker,) = scene.dataplane.snapshot()["workers"]
            assert (worker["running_s"], worker["busy_s"]) == (0, pytest.approx(count * 12e-6))

    play(tmp_path, story)


@pytest.mark.parametrize("readiness", ["any", "all"])
def test_readiness(tmp_path: Path, readiness: Literal["any", "all"]) -> None:
    """One model that serves is enough, unless all are asked for; none is while the router drains. Changes are told."""

    async def story(scene: Scene) -> None:
        plane, changes = scene.dataplane, []
        plane.on_change(lambda: changes.append(plane.unready()))
        await Control(plane).models(
            {"models": [MODEL, {**MODEL, "name": "o", "proved": False}], "restarts": {}, "slots": {}}
        )
        assert "not AVAILABLE" in changes[-1]
        scene.hello(0)
        assert changes[-1] == ("not AVAILABLE: o" if readiness == "all" else "")
        await plane.drain(0.1)
        assert plane.unready() == changes[-1] == "shutting down"
        with pytest.raises(PoolError, match="shutting down"):
            await scene.ask()
        assert scene.recorder.codes == [Code.UNAVAILABLE]
        assert plane.memory.used == 0

    play(tmp_path, story, msgspec.structs.replace(SETTINGS, readiness=readiness))


def batching_model(**parameters: Any) -> dict[str, Any]:
    """As MODEL, which joins requests."""
    return {**MODEL, "batching": {"max_batch_size": 1000, **parameters}}


def rows_request(rows: int, *inner: int, signature: str = "") -> bytes:
    request = tfs.PredictRequest()
    request.model_spec.name = "m"
    request.model_spec.signature_name = signature
    tensor = request.inputs["x"]
    tensor.dtype = 1
    for size in (rows, *inner):
        tensor.tensor_shape.dim.add(size=size)
    tensor.tensor_content = bytes(4 * math.prod((rows, *inner)))
    return request.SerializeToString()


def rows_response(start: int, stop: int) -> bytes:
    """The answer to these rows: their numbers."""
    response = tfs.PredictResponse()
    response.model_spec.name = "m"
    tensor = response.outputs["y"]
    tensor.dtype = 1
    tensor.tensor_shape.dim.add(size=stop - start)
    tensor.float_val.extend(range(start, stop))
    return response.SerializeToString()


def test_requests_share_a_batch(tmp_path: Path) -> None:
    """What waits while the worker is busy goes to it as one dispatch, to be run together; each gets its own answer."""

    async def story(scene: Scene) -> None:
        scene.dataplane.want([batching_model()], {})
        worker = scene.hello(0)
        asked = [scene.ask(body=rows_request(1))]
        await settle()
        asked += [scene.ask(body=rows_request(rows)) for rows in (2, 3)]
        await settle()
        (first,) = scene.link.dispatches(worker)
        assert first.together
        scene.answer(worker, first, runs=[(1, 1, 10)])
        await settle()
        second = scene.link.dispatches(worker)[-1]
        assert second.together
        assert len(second.requests) == 2
        scene.answer(worker, second, runs=[(2, 5, 10)])
        assert await asyncio.gather(*asked) == [b"answer"] * 3
        assert scene.recorder.batches == [(1, 1), (2, 5)]
        assert scene.recorder.effective_s == pytest.approx([12e-6, 24e-6, 24e-6])
        assert scene.recorder.codes == [Code.OK] * 3

    play(tmp_path, story)


def test_what_a_worker_cannot_join_is_sent_one_by_one(tmp_path: Path) -> None:
    """From its word on, what waits included, and to every worker; it is counted and charged as it was run."""

    async def story(scene: Scene) -> None:
        scene.dataplane.want([batching_model()], {})
        workers = [scene.hello(0)]
        long = functools.partial(scene.answer, workers[0], run_us=60_000_000)
        asked = [scene.ask(body=rows_request(1))]
        await settle()
        asked += [scene.ask(body=rows_request(rows)) for rows in (1, 2)]
        await settle()
        long(scene.link.dispatches(workers[0])[0], runs=[(1, 1, 10)])
        await settle()
        asked += [scene.ask(body=rows_request(rows)) for rows in (3, 4)]
        await settle()
        tried = scene.link.dispatches(workers[0])[-1]
        assert (tried.together, len(tried.requests)) == (True, 2)
        with capture_logs() as logs:
            long(tried, runs=[(1, 1, 9), (1, 2, 9)], apart=True)
        assert [log["event"] for log in logs] == ["requests are not joined"]
        workers.append(scene.hello(1))
        await settle()
        for worker in workers:
            dispatch = scene.link.dispatches(worker)[-1]
            assert (dispatch.together, len(dispatch.requests)) == (False, 1)
            scene.answer(worker, dispatch)
        assert await asyncio.gather(*asked) == [b"answer"] * 5
        assert scene.recorder.batches == [(1, 1), (1, 1), (1, 2)]
        assert scene.recorder.effective_s[:3] == pytest.approx([60.000002] * 3)
        costs = scene.dataplane._scheduler.costs
        assert costs.predict(ModelVersion("m", 1), tfs.DEFAULT_SIGNATURE, 0, 3) == 3 * 60_000_002

    play(tmp_path, story)


def test_inputs_that_are_padded_share_a_batch(tmp_path: Path) -> None:
    """With pad_variable_length_inputs, whatever their lengths are; but not with the parts of a large request."""

    async def story(scene: Scene) -> None:
        parameters = {"max_execution_batch_size": 8, "pad_variable_length_inputs": True}
        scene.dataplane.want([batching_model(**parameters)], {})
        asked = [scene.ask(body=rows_request(1, size)) for size in (3, 2, 4, 5)]
        asked += [scene.ask(body=rows_request(12, size)) for size in (3, 4)]
        await settle()
        worker = scene.hello(0)
        sent: list[Dispatch] = []
        for _ in range(8):
            await settle()
            for dispatch in scene.link.dispatches(worker)[len(sent) :]:
                sent.append(dispatch)
                answers = [Outcome(Code.OK, rows_response(0, 1), "", 1, 10, 1) for _ in dispatch.requests]
                scene.link.receive(
                    worker, Result(scene.dataplane.epoch, dispatch.dispatch, answers, 1, 9), []
                )
        await asyncio.gather(*asked)
        assert [[request.rows for request in dispatch.requests] for dispatch in sent] == [
            [None] * 4,
            *[[rows] for _ in range(2) for rows in ((0, 6), (6, 12))],
        ]

    play(tmp_path, story)


def test_what_failed_teaches_no_costs(tmp_path: Path) -> None:
    """Clients make up signatures at will; what such a request costs is no cost of the model's."""

    async def story(scene: Scene) -> None:
        scene.dataplane.want([batching_model()], {})
        worker = scene.hello(0)
        predict = functools.partial(
            scene.dataplane._scheduler.costs.predict, ModelVersion("m", 1), size=0, rows=1
        )
        for signature, code in (("made up", Code.INVALID_ARGUMENT), ("real", Code.OK)):
            asked = scene.ask(body=rows_request(1, signature=signature))
            await settle()
            scene.answer(worker, scene.link.dispatches(worker)[-1], code, runs=[(1, 1, 10)])
            await asyncio.wait([asked])
            assert asked.exception() if code else asked.result()
            assert predict(signature) == (None if code else 12)

    play(tmp_path, story)


def test_costs_are_those_of_the_rows_that_were_run(tmp_path: Path) -> None:
    """One client's bad requests, which were not, make nobody's batches cheaper; nor does what was late at its worker."""

    async def story(scene: Scene) -> None:
        scene.dataplane.want([batching_model(max_batch_size=8)], {})
        worker = scene.hello(0)
        asked = [scene.ask(body=rows_request(4)) for _ in range(2)]
        await settle()
        (dispatch,) = scene.link.dispatches(worker)
        outcomes = [
            Outcome(Code.OK, b"answer", "", 1, 4_000, 1),
            Outcome(Code.INVALID_ARGUMENT, b"", "bad", 1, 0, 0),
        ]
        result = Result(scene.dataplane.epoch, dispatch.dispatch, outcomes, 1, 4_000, runs=[(1, 4, 4_000)])
        scene.link.receive(worker, result, [])
        await asyncio.wait(asked)
        costs = scene.dataplane._scheduler.costs
        assert costs.predict(ModelVersion("m", 1), "serving_default", 0, 4) == 4_000
        assert costs.predict(ModelVersion("m", 1), "serving_default", 0, 8) == 8_000

    play(tmp_path, story)


def test_costs_are_known_by_the_rows_that_are_seen_on_arrival(tmp_path: Path) -> None:
    """A worker may find more in a request that it takes apart, and whose like is asked about by what the router saw."""

    async def story(scene: Scene) -> None:
        scene.dataplane.want([batching_model(max_batch_size=8)], {})
        worker = scene.hello(0)
        asked = scene.ask(body=rows_request(8))
        await settle()
        scene.answer(worker, scene.link.dispatches(worker)[-1], runs=[(1, 8, 10)] * 100, run_us=9_998)
        await asked
        assert (
            scene.dataplane._scheduler.costs.predict(ModelVersion("m", 1), "serving_default", 0, 8) == 10_000
        )

    play(tmp_path, story)


def test_a_dispatch_that_cannot_be_made_costs_its_requests_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its worker is as well as before, and what goes to others in the same turn is sent."""

    async def story(scene: Scene) -> None:
        scene.dataplane.want([MODEL], {})
        workers = [scene.hello(0), scene.hello(1)]
        broken = scene.dataplane._workers.get(workers[0])
        assert broken is not None
        pack = Worker.pack

        def fails(worker: Worker, dispatch: int, bodies: list[bytes]) -> Any:
            return pack(worker, dispatch, bodies) if worker is not broken else 1 / 0

        monkeypatch.setattr(Worker, "pack", fails)
        asked = [scene.ask() for _ in range(2)]
        await settle()
        (dispatch,) = scene.link.dispatches(workers[1])
        scene.answer(workers[1], dispatch)
        await asyncio.wait(asked)
        errors = [one.exception() for one in asked]
        (error,) = filter(None, errors)
        assert isinstance(error, PoolError)
        assert error.code is Code.INTERNAL
        monkeypatch.undo()
        again = scene.ask()
        await settle()
        scene.answer(workers[0], scene.link.dispatches(workers[0])[-1])
        assert await again == b"answer"
        assert scene.dataplane.memory.used == 0

    play(tmp_path, story)


def in_parts(scene: Scene) -> tuple[list[bytes], asyncio.Task[bytes]]:
    """Two workers, and a request of 7 rows of which 4 run at once."""
    parameters = {"max_execution_batch_size": 4, "allowed_batch_sizes": [4]}
    scene.dataplane.want([batching_model(**parameters)], {})
    return [scene.hello(0), scene.hello(1)], scene.ask(body=rows_request(7))


def test_a_large_request_that_goes_whole_costs_as_many_runs(tmp_path: Path) -> None:
    """By REST one worker takes it apart: it is known on arrival what that takes, and a run costs no more by what it took."""

    async def story(scene: Scene) -> None:
        rest = Asked(Method.REST_PREDICT, ModelSpecPeek("m", None, None, ""))
        head = RequestHead(peer="127.0.0.1:4711")

        def ask(rows: int, given_s: float = 0.0) -> asyncio.Task[bytes]:
            body = msgspec.json.encode({"instances": list(range(rows))})
            admission = scene.dataplane.admit(rest, len(body), body, head)
            deadline_ns = time.monotonic_ns() + int(given_s * 1e9) if given_s else 0
            return asyncio.create_task(scene.dataplane.call(rest, body, deadline_ns, admission, head))

        scene.dataplane.want([batching_model(max_batch_size=100, max_execution_batch_size=10)], {})
        worker = scene.hello(0)
        for number, rows in enumerate((10, 10, 100, 100)):
            asked = ask(rows)
            await settle()
            runs = [(1, 10, 1_000_000)] * (rows // 10)
            scene.answer(worker, scene.link.dispatches(worker)[number], run_us=100_000 * rows, runs=runs)
            await asked
        running = ask(10)
        await settle()
        with pytest.raises(PoolError, match=r"expected to take \d{4,5}\.\d ms") as refused:
            await ask(70, 3.0)
        took_ms = float(refused.value.message.partition("take ")[2].split()[0])
        assert took_ms == pytest.approx(7_000, rel=0.01)
        running.cancel()

    play(tmp_path, story)


def test_a_large_request_runs_in_parts(tmp_path: Path) -> None:
    """On several workers, put together in order whichever ends first, and counted, and captured, once."""

    async def story(scene: Scene) -> None:
        workers, asked = in_parts(scene)
        capturing = contextlib.ExitStack()
        captured = capturing.enter_context(scene.dataplane.accounts.capturing("m", None, 2))
        await settle()
        sent = [(worker, dispatch) for worker in workers for dispatch in scene.link.dispatches(worker)]
        assert [dispatch.requests[0].rows for _, dispatch in sent] == [(0, 4), (4, 7)]
        for worker, dispatch in reversed(sent):
            start, stop = dispatch.requests[0].rows
            outcome = Outcome(Code.OK, rows_response(start, stop), "", 1, 10, 1)
            scene.link.receive(worker, Result(scene.dataplane.epoch, dispatch.dispatch, [outcome], 1, 12), [])
            if (start, stop) == (4, 7):
                held = len(rows_request(7)) + len(rows_response(4, 7))
                assert scene.dataplane.memory.used == held, "the answer waits for the others"
        response = tfs.PredictResponse.FromString(await asked)
        assert list(response.outputs["y"].float_val) == list(range(7))
        assert [dim.size for dim in response.outputs["y"].tensor_shape.dim] == [7]
        assert scene.recorder.codes == [Code.OK]
        assert scene.dataplane.memory.used == 0
        with capturing:
            assert captured.take() == (1, Method.PREDICT, rows_request(7), False)
            assert captured.take() is None

    play(tmp_path, story)


@pytest.mark.parametrize("others", [False, True], ids=["alone", "beside others"])
def test_answers_to_parts_have_their_bound(tmp_path: Path, others: bool) -> None:
    """What waits for the rest of its request counts for its model; where others leave no room for it, the request is refused."""

    async def story(scene: Scene) -> None:
        workers, asked = in_parts(scene)
        await settle()
        size = len(rows_response(0, 4))
        scene.dataplane.memory.limits["m"] = 2 * size
        scene.dataplane.memory.hold(others * size, "m")
        for worker in workers:
            (dispatch,) = scene.link.dispatches(worker)
            outcome = Outcome(Code.OK, rows_response(*dispatch.requests[0].rows), "", 1, 10, 1)
            scene.link.receive(worker, Result(scene.dataplane.epoch, dispatch.dispatch, [outcome], 1, 12), [])
        if others:
            with pytest.raises(PoolError, match="wait for their clients, or for the rest of them"):
                await asked
        else:
            await asked
        assert scene.recorder.codes == [Code.RESOURCE_EXHAUSTED if others else Code.OK]
        assert scene.dataplane.memory.used == others * size

    play(tmp_path, story)


def test_a_part_that_fails_ends_the_request(tmp_path: Path) -> None:
    """With its error, once; the other parts are not waited for, and nothing stays counted."""

    async def story(scene: Scene) -> None:
        workers, asked = in_parts(scene)
        await settle()
        ((one, first),) = [(w, scene.link.dispatches(w)[0]) for w in workers[:1]]
        outcome = Outcome(Code.INVALID_ARGUMENT, b"", "row 3 is not to my liking")
        scene.link.receive(one, Result(scene.dataplane.epoch, first.dispatch, [outcome], 1, 12), [])
        with pytest.raises(PoolError, match="row 3"):
            await asked
        assert scene.recorder.codes == [Code.INVALID_ARGUMENT]
        assert scene.dataplane.snapshot()["queued"] == 0
        scene.answer(workers[1], scene.link.dispatches(workers[1])[0])
        assert scene.dataplane.memory.used == 0

    play(tmp_path, story)


def test_a_large_request_of_which_a_part_does_not_fit_is_refused_whole(tmp_path: Path) -> None:
    """With its own rows in the text, as by TensorFlow Serving; nothing is counted twice or stays counted."""

    async def story(scene: Scene) -> None:
        full = {"max_execution_batch_size": 4, "allowed_batch_sizes": [4], "max_enqueued_batches": 2}
        scene.dataplane.want([batching_model(**full)], {})
        with pytest.raises(PoolError, match="is full; task size is 17 but scheduling capacity is only 8"):
            await scene.ask(body=rows_request(17))
        assert scene.recorder.codes == [Code.UNAVAILABLE]
        assert scene.recorder.lacks == [Lack.BATCHES]
        assert scene.dataplane.snapshot()["queued"] == 0
        assert scene.dataplane.memory.used == 0
        assert scene.dataplane._scheduler.queued(ModelVersion("m", 1)) == 0

    play(tmp_path, story)


def test_a_request_that_the_queue_has_no_room_for_is_counted_so(tmp_path: Path) -> None:
    """Beside its code, which says no more than that another server may do."""

    async def story(scene: Scene) -> None:
        scene.dataplane.want([{**MODEL, "queue": {"max_queued_requests": 1}}], {})
        scene.ask()
        await settle()
        with pytest.raises(PoolError, match="is full: 1 requests wait"):
            await scene.ask()
        assert scene.recorder.codes == [Code.UNAVAILABLE]
        assert scene.recorder.lacks == [Lack.REQUESTS]

    play(tmp_path, story)


def test_what_has_expired_keeps_nobody_out(tmp_path: Path) -> None:
    """It is refused before who comes is, though nothing has happened since its time was up."""

    async def story(scene: Scene) -> None:
        scene.dataplane.want([{**MODEL, "queue": {"max_queued_requests": 1}}], {})
        expired = scene.ask(time.monotonic_ns() + 5_000_000)
        await settle()
        time.sleep(0.01)  # noqa: ASYNC251  so that nothing else comes to it
        asked = scene.ask()
        await settle()
        with pytest.raises(PoolError) as late:
            await expired
        assert late.value.code is Code.DEADLINE_EXCEEDED
        assert not asked.done()
        worker = scene.hello(0)
        await settle()
        (dispatch,) = scene.link.dispatches(worker)
        scene.answer(worker, dispatch)
        assert await asked == b"answer"
        assert scene.recorder.lacks == []

    play(tmp_path, story)


@pytest.mark.parametrize(
    "model",
    [
        batching_model(max_batch_size=4, max_enqueued_batches=1),
        {**MODEL, "queue": {"max_queued_requests": 1}},
    ],
    ids=["batches", "requests"],
)
def test_what_comes_at_once_fills_no_queue_while_workers_are_idle(
    tmp_path: Path, model: dict[str, Any]
) -> None:
    """Each of three full batches that come in one turn of the loop goes to an idle worker, one waits, and the fifth is refused."""

    async def story(scene: Scene) -> None:
        scene.dataplane.want([model], {})
        workers = [scene.hello(slot) for slot in range(3)]
        asked = [scene.ask(body=rows_request(4)) for _ in range(5)]
        await settle()
        assert [len(scene.link.dispatches(worker)) for worker in workers] == [1, 1, 1]
        with pytest.raises(PoolError, match="full"):
            await asked[4]
        scene.answer(workers[0], scene.link.dispatches(workers[0])[0])
        await settle()
        scene.answer(workers[0], scene.link.dispatches(workers[0])[1])
        for worker in workers[1:]:
            scene.answer(worker, scene.link.dispatches(worker)[0])
        assert await asyncio.gather(*asked[:4]) == [b"answer"] * 4

    play(tmp_path, story)


def test_what_comes_at_once_drives_nobody_out_while_workers_are_idle(tmp_path: Path) -> None:
    """Where clients share fairly, one that has most waiting makes room only when no worker can take anything."""
    fair = msgspec.structs.replace(SETTINGS, scheduling=SchedulingSettings(fair_by="metadata:tenant"))

    async def story(scene: Scene) -> None:
        scene.dataplane.want([{**MODEL, "queue": {"max_queued_requests": 2}}], {})
        workers = [scene.hello(slot) for slot in range(3)]
        asked = [scene.ask(metadata={"tenant": tenant}) for tenant in "aab"]
        await settle()
        for worker in workers:
            (dispatch,) = scene.link.dispatches(worker)
            scene.answer(worker, dispatch)
        assert await asyncio.gather(*asked) == [b"answer"] * 3
        assert scene.recorder.lacks == []

    play(tmp_path, story, fair)


def test_what_was_joined_is_counted_as_such(tmp_path: Path) -> None:
    """Each request with its rows, and their one run with its padding and its time; what cannot be joined has no rows."""

    async def story(scene: Scene) -> None:
        scene.dataplane.want([batching_model(max_batch_size=8, allowed_batch_sizes=[4, 8])], {})
        asked = [scene.ask(body=rows_request(rows)) for rows in (2, 3)]
        await settle()
        worker = scene.hello(0)
        await settle()
        (dispatch,) = scene.link.dispatches(worker)
        scene.answer(worker, dispatch, run_us=4_000, runs=[(2, 5, 4_000)])
        await asyncio.gather(*asked)
        assert scene.recorder.joined_rows == [2, 3]
        assert scene.recorder.batches == [(2, 5)]
        assert scene.recorder.paddings == [3]
        assert scene.recorder.run_s == [0.004]
        two = [scene.ask(body=rows_request(rows)) for rows in (3, 4)]
        await settle()
        scene.answer(worker, scene.link.dispatches(worker)[-1], runs=[(1, 3, 2_000), (1, 4, 3_000)])
        await asyncio.gather(*two)
        assert scene.recorder.run_s == [0.004, 0.002, 0.003]
        last = scene.ask(body=rows_request(2))
        await settle()
        scene.answer(
            worker, scene.link.dispatches(worker)[-1], run_us=6_000, runs=[(1, 2, 6_000)], apart=True
        )
        await last
        assert scene.recorder.paddings == [3, 1, 0, 0]
        alone = scene.ask(body=rows_request(2))
        await settle()
        scene.answer(worker, scene.link.dispatches(worker)[-1])
        await alone
        assert scene.recorder.joined_rows == [2, 3, 3, 4, 2, 0]
        assert len(scene.recorder.batches) == 4

    play(tmp_path, story)


def test_loads_are_counted(tmp_path: Path) -> None:
    """A worker's once, as it gets READY, and as failed where it ends before; not where nobody wants its version any more."""

    async def story(scene: Scene) -> None:
        scene.dataplane.want([MODEL], {})
        for state in ("STARTING", "LOADING", "READY"):
            good = scene.hello(0, state)
        assert scene.hello(0) == good
        bad = scene.hello(1, "LOADING")
        unwanted = scene.hello(2, "LOADING")

        scene.end(bad)
        scene.dataplane.want([{**MODEL, "phase": "LEAVING"}], {})
        scene.end(unwanted)
        scene.end(good)
        assert scene.recorder.loads == [("m", 1, LoadReport("/models/m/1", 7))]
        assert scene.recorder.failed_loads == [("m", 1, "/models/m/1")]

    play(tmp_path, story)


@pytest.mark.parametrize(
    ("model", "waiting", "lack"),
    [
        ({**MODEL, "queue": {"max_queued_requests": 2}}, 2, Lack.REQUESTS),
        (batching_model(max_batch_size=4, max_enqueued_batches=1), 4, Lack.BATCHES),
    ],
)
def test_what_there_is_no_room_for_is_refused_before_it_is_read(
    tmp_path: Path, model: dict[str, Any], waiting: int, lack: Lack
) -> None:
    """By its beginning; where its priority has others make way, it is read. What is here as a whole is looked at in call()."""
    body = rows_request(1, 10_000)

    async def story(scene: Scene) -> None:
        def begin(start: bytes, priority: str = "0") -> None:
            head = RequestHead(metadata={"x-mpspool-priority": priority}, peer="127.0.0.1:4711")
            scene.dataplane.admit(PREDICT, len(body), start, head).release()

        scene.dataplane.want([model], {})
        worker = scene.hello(0)
        asked = [scene.ask(body=rows_request(4))]  # the worker has it
        await settle()
        asked += [scene.ask(body=rows_request(1)) for _ in range(waiting - 1)]
        await settle()
        begin(body[:4096])
        asked.append(scene.ask(body=rows_request(1)))
        await settle()
        with pytest.raises(PoolError, match="is full") as refused:
            begin(body[:4096])
        assert (refused.value.code, refused.value.lack) == (Code.UNAVAILABLE, lack)
        assert scene.recorder.lacks == [lack]
        assert scene.recorder.codes == [Code.UNAVAILABLE]
        assert scene.dataplane.memory.used == sum(len(rows_request(rows)) for rows in (4, *[1] * waiting))
        begin(body)
        begin(body[:4096], "1")
        (dispatch,) = scene.link.dispatches(worker)
        outcome = Outcome(Code.OK, b"answer", "", 1, 10, 1)
        result = Result(scene.dataplane.epoch, dispatch.dispatch, [outcome], 1, 12)
        scene.link.unread.append((worker, result))  # it has come, and makes room
        begin(body[:4096])
        assert len(scene.link.dispatches(worker)) == 2
        rest = Asked(Method.REST_PREDICT, ModelSpecPeek("m", None, None, ""))
        # By REST it is not known yet whether it joins a batch.
        for _ in range(3 if lack is Lack.BATCHES else 0):
            asked.append(scene.ask(body=rows_request(1)))
            await settle()
            scene.dataplane.admit(rest, len(body), b"", RequestHead(peer="127.0.0.1:4711")).release()
        for one in asked:
            one.cancel()
        await settle()

    play(tmp_path, story)


def test_what_has_expired_makes_room_before_a_message_is_read(tmp_path: Path) -> None:
    """Nothing else has happened since."""

    async def story(scene: Scene) -> None:
        scene.dataplane.want([{**MODEL, "queue": {"max_queued_requests": 1}}], {})
        scene.hello(0)
        running = scene.ask()
        await settle()
        late = scene.ask(time.monotonic_ns() + 5_000_000)
        await asyncio.sleep(0)
        end_ns = time.monotonic_ns() + 6_000_000
        while time.monotonic_ns() < end_ns:
            pass
        body = rows_request(1, 10_000)
        head = RequestHead(peer="127.0.0.1:4711")
        scene.dataplane.admit(PREDICT, len(body), body[:4096], head).release()
        with pytest.raises(PoolError, match="Deadline exceeded"):
            await late
        running.cancel()

    play(tmp_path, story)


def test_a_message_that_is_admitted_takes_no_versions_turn(tmp_path: Path) -> None:
    """Of two versions that share the requests each has its part of the large ones, too."""
    body = rows_request(1, 10_000)

    async def story(scene: Scene) -> None:
        scene.dataplane.want([MODEL, {**MODEL, "version": 2}], {})
        workers = [scene.hello(0), scene.hello(1, version=2)]
        head = RequestHead(peer="127.0.0.1:4711")
        for _ in range(4):
            admission = scene.dataplane.admit(PREDICT, len(body), body[:4096], head)
            asked = asyncio.create_task(scene.dataplane.call(PREDICT, body, 0, admission, head))
            await settle()
            worker, message = scene.link.sent[-1]
            scene.answer(worker, message)
            await asked
        assert [len(scene.link.dispatches(worker)) for worker in workers] == [2, 2]

    play(tmp_path, story)


@pytest.mark.parametrize(
    "bounds",
    [
        {"queue": {"max_queued_requests": 1}},
        {"batching": {"max_batch_size": 4, "max_enqueued_batches": 1}},
        {"batching": {"max_batch_size": 4, "max_execution_batch_size": 1, "max_enqueued_batches": 4}},
    ],
    ids=["requests", "batches", "parts"],
)
def test_what_moves_to_the_next_version_needs_no_room(tmp_path: Path, bounds: dict[str, Any]) -> None:
    """It was let in before: neither what waits for that version, nor its own bytes, which count as before, keep it out."""

    async def story(scene: Scene) -> None:
        old = {**MODEL}
        if "batching" in bounds:
            old["batching"] = {**bounds["batching"], "max_enqueued_batches": 100}
        scene.dataplane.want([old], {})
        last = scene.hello(0, "LOADING")
        waiting = [scene.ask(body=rows_request(4)) for _ in range(2)]
        await settle()
        held = scene.dataplane.memory.used
        assert held == len(waiting) * len(rows_request(4))
        scene.dataplane.memory.limit_bytes = 1
        scene.dataplane.want([{**old, **GONE}, {**MODEL, **bounds, "version": 2}], {})
        scene.end(last)
        await settle()
        assert scene.dataplane.memory.used == held
        assert scene.recorder.codes == []
        for one in waiting:
            one.cancel()
        await settle()
        assert scene.dataplane.memory.used == 0

    play(tmp_path, story)


def test_long_answers_count_from_when_their_requests_are_sent(tmp_path: Path) -> None:
    """As large as the largest of late; until their requests are let go, those that are sent a second time once."""

    async def story(scene: Scene) -> None:
        scene.dataplane.want([MODEL], {})
        worker = scene.hello(0)
        first = scene.ask()
        await settle()
        size = scene.dataplane.memory.used
        outcome = Outcome(Code.OK, bytes(100_000), "", 1, 10, 1)
        (dispatch,) = scene.link.dispatches(worker)
        scene.link.receive(worker, Result(scene.dataplane.epoch, dispatch.dispatch, [outcome], 1, 12), [])
        assert scene.dataplane.memory.used == size, "its task has not run yet, and holds its body"
        assert len(await first) == 100_000
        assert scene.dataplane.memory.used == 0
        second = scene.ask()
        await settle()
        assert scene.dataplane.memory.used == size + 100_000
        scene.end(worker)
        worker = scene.hello(0, generation=2)
        await settle()
        assert len(scene.link.dispatches(worker)) == 1
        assert scene.dataplane.memory.used == size + 100_000
        scene.answer(worker, scene.link.dispatches(worker)[0])
        await second
        assert scene.dataplane.memory.used == 0

    play(tmp_path, story)


def test_large_messages_leave_room_for_answers_that_are_to_come(tmp_path: Path) -> None:
    """One as large as themselves for each dispatch that a worker may be sent, and two, while nobody knows how large they are."""
    body = rows_request(1, 2**19)

    async def story(scene: Scene) -> None:
        head = RequestHead(peer="127.0.0.1:4711")
        scene.dataplane.memory.limit_bytes = 10 * len(body)
        scene.dataplane.want([MODEL], {})
        scene.hello(0)
        held = [scene.dataplane.admit(PREDICT, len(body), body[:4096], head) for _ in range(6)]
        with pytest.raises(PoolError, match=f"another {4 * len(body)} are for answers to come"):
            scene.dataplane.admit(PREDICT, len(body), body[:4096], head)
        held.append(
            scene.dataplane.admit(PREDICT, 4 * 2**18, body[:4096], head)
        )  # what is shorter needs less
        for admission in held:
            admission.release()

    play(tmp_path, story)


def test_what_moves_to_the_next_version_has_waited_since_it_came(tmp_path: Path) -> None:
    """The time before the swap is part of its time in the queue."""

    async def story(scene: Scene) -> None:
        scene.dataplane.want([MODEL], {})
        last = scene.hello(0, "LOADING")
        waiting = scene.ask()
        await settle()
        begun_ns = time.monotonic_ns()
        scene.dataplane.want([{**MODEL, **GONE}, {**MODEL, "version": 2}], {})
        scene.end(last)
        await settle()
        queues = scene.dataplane._scheduler._queues.values()
        (moved,) = [entry for queue in queues for entry in queue.waiting()]
        assert moved.model.version == 2
        assert moved.arrived_ns < begun_ns
        waiting.cancel()

    play(tmp_path, story)


@pytest.mark.parametrize("rows", [0, 7], ids=["whole", "in parts"])
@pytest.mark.parametrize("first", ["version", "client"])
def test_a_client_that_goes_as_its_version_does_is_counted_once(
    tmp_path: Path, rows: int, first: str
) -> None:
    """In the same turn of the loop: its request ends there, whole or in parts, for all who count."""

    async def story(scene: Scene) -> None:
        model = batching_model(max_execution_batch_size=4, allowed_batch_sizes=[4]) if rows else MODEL
        scene.dataplane.want([model], {})
        last = scene.hello(0, "LOADING")
        with scene.dataplane.accounts.looking() as looking:
            asked = scene.ask(body=rows_request(rows) if rows else b"")
            await settle()
            scene.dataplane.want([{**model, **GONE}, {**model, "version": 2}], {})
            steps = [functools.partial(scene.end, last), asked.cancel]
            for step in steps if first == "version" else reversed(steps):
                step()
            await asyncio.wait([asked])
        assert asked.cancelled()
        (code,) = scene.recorder.codes
        assert code is Code.CANCELLED or (first == "client" and code is Code.UNAVAILABLE)
        (tally,) = (tally.counts() for tally in looking._tallies.values())
        assert tally["asked"] == tally["failed"] == tally["left"] == 1
        assert scene.dataplane.memory.used == 0

    play(tmp_path, story)


def test_what_moves_to_the_next_version_during_a_drain_is_not_new(tmp_path: Path) -> None:
    """It was taken in before: it is answered, as others that are in flight."""

    async def story(scene: Scene) -> None:
        scene.dataplane.want([MODEL], {})
        last = scene.hello(0, "LOADING")
        waiting = scene.ask()
        await settle()
        scene.dataplane.want([{**MODEL, **GONE}, {**MODEL, "version": 2}], {})
        next_one = scene.hello(0, version=2, generation=2)
        draining = asyncio.create_task(scene.dataplane.drain(20))
        await settle()
        scene.end(last)
        await settle()
        scene.answer(next_one, scene.link.dispatches(next_one)[0])
        assert await waiting == b"answer"
        assert await draining == 0
        with pytest.raises(PoolError, match="shutting down"):
            await scene.ask()

    play(tmp_path, story)


@pytest.mark.parametrize("ends", ["pool", "version"])
def test_a_batch_that_nobody_can_join_any_more_does_not_wait(tmp_path: Path, ends: str) -> None:
    """Not while the pool drains, nor once its version takes no requests; one that takes them again waits for more."""

    async def story(scene: Scene) -> None:
        old = batching_model(max_batch_size=8, batch_timeout_us=60_000_000)
        scene.dataplane.want([old], {})
        worker = scene.hello(0)
        asked = scene.ask(body=rows_request(1))
        await settle()
        assert not scene.link.dispatches(worker)
        if ends == "pool":
            draining = asyncio.create_task(scene.dataplane.drain(20))
        else:
            scene.dataplane.want([{**old, **GONE}, {**old, "version": 2}], {})
        await settle()
        (dispatch,) = scene.link.dispatches(worker)
        scene.answer(worker, dispatch)
        assert await asked == b"answer"
        if ends == "pool":
            assert await draining == 0
            return
        scene.dataplane.want([old], {})
        again = scene.ask(body=rows_request(1))
        await settle()
        assert scene.link.dispatches(worker) == [dispatch]
        again.cancel()

    play(tmp_path, story)


def test_what_the_pool_says_while_it_drains_has_no_batch_wait(tmp_path: Path) -> None:
    """Of a version that serves on, neither."""

    async def story(scene: Scene) -> None:
        model = batching_model(max_batch_size=8, batch_timeout_us=60_000_000)
        scene.dataplane.want([model], {})
        asked = scene.ask(body=rows_request(1))
        await settle()
        draining = asyncio.create_task(scene.dataplane.drain(20))
        await settle()
        scene.dataplane.want([model], {})
        worker = scene.hello(0)
        await settle()
        (dispatch,) = scene.link.dispatches(worker)
        scene.answer(worker, dispatch)
        assert await asked == b"answer"
        assert await draining == 0

    play(tmp_path, story)


@pytest.mark.parametrize(
    ("told", "right"),
    [([], 0), ([(0, b"answer")], 0), ([(0, b"answer"), (0, None)], 1), ([(0, b"answer"), (99, b"")], 1)],
)
def test_an_answer_that_is_cut_keeps_nobody_waiting(
    tmp_path: Path, told: list[tuple[int, bytes | None]], right: int
) -> None:
    """Those whose answers are not there are told, their bytes are free, and the worker gets its next."""

    async def story(scene: Scene) -> None:
        scene.dataplane.want([batching_model()], {})
        worker = scene.hello(0)
        asked = [scene.ask(body=rows_request(1)) for _ in range(2)]
        await settle()
        (dispatch,) = scene.link.dispatches(worker)
        outcomes = [Outcome(code, body) for code, body in told]
        with capture_logs() as logs:
            result = Result(scene.dataplane.epoch, dispatch.dispatch, outcomes, 1, 12)
            scene.link.receive(worker, result, [])
        assert [line["event"] for line in logs] == ["a result was not taken in"]
        async with asyncio.timeout(5):
            answers = await asyncio.gather(*asked, return_exceptions=True)
        assert answers[:right] == [b"answer"] * right
        for answer in answers[right:]:
            assert isinstance(answer, PoolError)
            assert answer.code is Code.INTERNAL
        assert scene.dataplane.memory.used == 0
        assert scene.dataplane.snapshot()["queued"] == 0
        after = scene.ask(body=rows_request(1))
        await settle()
        scene.answer(worker, scene.link.dispatches(worker)[-1])
        assert await after == b"answer"

    play(tmp_path, story)


def test_what_is_refused_at_the_door_is_not_kept(tmp_path: Path) -> None:
    """Of ten requests of 1 MiB that would begin a batch too many none is there any more, without a collector."""

    async def story(scene: Scene) -> None:
        scene.dataplane.want([batching_model(max_batch_size=1, max_enqueued_batches=1)], {})
        scene.hello(0)
        waiting = [scene.ask(body=rows_request(1)) for _ in range(2)]
        await settle()

        async def refused() -> int:
            with pytest.raises(PoolError, match="queue to which this task was submitted is full"):
                await scene.ask(body=rows_request(1, 2**18))
            return all_held()

        with traced(collector=False) as all_held:
            before = await refused()
            for _ in range(10):
                after = await refused()
        assert after - before < 2**20
        for task in waiting:
            task.cancel()

    play(tmp_path, story)


@pytest.mark.parametrize("rows", [1, 7])
def test_answers_are_not_kept_with_what_the_scheduler_still_knows(tmp_path: Path, rows: int) -> None:
    """Where requests have deadlines it knows what is over until these pass. Of parts, too."""

    async def story(scene: Scene) -> None:
        scene.dataplane.want([batching_model(max_execution_batch_size=4)], {})
        workers = [scene.hello(0), scene.hello(1)]
        begun_ns = time.monotonic_ns()
        asked = scene.ask(begun_ns + 3600 * 10**9, body=rows_request(rows))
        await settle()
        kept = [entry for _, _, entry in scene.dataplane._scheduler._deadlines]
        assert len(kept) == len(range(0, rows, 4))
        for worker in workers:
            for dispatch in scene.link.dispatches(worker):
                part = dispatch.requests[0].rows or (0, rows)
                outcome = Outcome(Code.OK, rows_response(*part), "", 1, 10, 1)
                result = Result(scene.dataplane.epoch, dispatch.dispatch, [outcome], 1, 12)
                scene.link.receive(worker, result, [])
        assert await asked
        for entry in kept:
            assert not entry.body
            assert isinstance(entry, Pending)
            assert not (entry.outcome and entry.outcome.body)

    play(tmp_path, story)


def test_what_a_reload_lets_go_goes_at_once(tmp_path: Path) -> None:
    """It waits for nothing else to happen."""

    async def story(scene: Scene) -> None:
        scene.dataplane.want([batching_model(batch_timeout_us=60_000_000)], {})
        worker = scene.hello(0)
        asked = scene.ask(body=rows_request(1))
        await settle()
        assert scene.link.dispatches(worker) == []
        scene.dataplane.want([batching_model(batch_timeout_us=0)], {})
        await settle()
        (dispatch,) = scene.link.dispatches(worker)
        scene.answer(worker, dispatch)
        await asked

    play(tmp_path, story)


def test_what_workers_have_sent_makes_room_before_one_is_refused(tmp_path: Path) -> None:
    """A flood is not gone through first, while they wait."""

    async def story(scene: Scene) -> None:
        scene.dataplane.want([{**MODEL, "queue": {"max_queued_requests": 1}}], {})
        worker = scene.hello(0)
        asked = []
        for _ in range(3):
            asked.append(scene.ask())
            await settle()
        held = scene.link.dispatches(worker)
        with pytest.raises(PoolError, match="is full"):
            await scene.ask()
        results = [
            Result(scene.dataplane.epoch, one.dispatch, [Outcome(Code.OK, b"a", "", 1, 1, 1)], 1, 3)
            for one in held
        ]
        scene.link.unread = [(worker, result) for result in results]
        asked.append(scene.ask())
        await settle()
        assert not asked[-1].done()
        assert [task.result() for task in asked[: len(held)]] == [b"a"] * len(held)
        assert len(scene.link.dispatches(worker)) > len(held), "and they have more to do"
        for task in asked[len(held) :]:
            task.cancel()

    play(tmp_path, story)


def test_a_large_request_moves_to_the_next_version(tmp_path: Path) -> None:
    """Whole, though one of its parts has been run: a request is answered by one version."""

    async def story(scene: Scene) -> None:
        workers, asked = in_parts(scene)
        old = batching_model(max_execution_batch_size=4, allowed_batch_sizes=[4])
        await settle()
        (dispatch,) = scene.link.dispatches(workers[0])
        outcome = Outcome(Code.OK, rows_response(0, 4), "", 1, 10, 1)
        scene.link.receive(workers[0], Result(scene.dataplane.epoch, dispatch.dispatch, [outcome], 1, 12), [])
        scene.dataplane.want([{**old, **GONE}, {**old, "version": 2}], {})
        for worker in workers:
            scene.end(worker)
        await settle()
        queues = scene.dataplane._scheduler._queues.values()
        moved = [entry for queue in queues for entry in queue.waiting()]
        assert [(entry.model.version, entry.part) for entry in moved] == [(2, (0, 4)), (2, (4, 7))]
        assert scene.recorder.codes == []
        asked.cancel()
        await settle()
        assert scene.dataplane.memory.used == 0

    play(tmp_path, story)


def test_examples_are_counted_once_they_are_answered(tmp_path: Path) -> None:
    """Of a request of Classify; not of one that fails, and none of Predict."""

    async def story(scene: Scene) -> None:
        scene.dataplane.want([MODEL], {})
        worker = scene.hello(0)
        request = tfs.ClassificationRequest()
        request.model_spec.name = "m"
        for _ in range(3):
            request.input.example_list.examples.add()
        body = request.SerializeToString()
        for asked, code in (
            (Asked(Method.CLASSIFY), Code.OK),
            (Asked(Method.CLASSIFY), Code.INTERNAL),
            (PREDICT, Code.OK),
        ):
            head = RequestHead(metadata={}, peer="127.0.0.1:4711")
            admission = scene.dataplane.admit(asked, len(body), body, head)
            call = asyncio.create_task(scene.dataplane.call(asked, body, 0, admission, head))
            await settle()
            scene.answer(worker, scene.link.dispatches(worker)[-1], code)
            await asyncio.gather(call, return_exceptions=True)
        assert scene.recorder.codes == [Code.OK, Code.INTERNAL, Code.OK]
        assert scene.recorder.example_counts == [3]

    play(tmp_path, story)


def test_examples_are_counted_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Anyone may send millions: one look does for the batch, the metrics and whoever records what arrives."""
    looks = []

    def peek_examples(body: bytes) -> int:
        looks.append(body)
        return 3

    monkeypatch.setattr("mpspool.router.asked.peek_examples", peek_examples)

    async def story(scene: Scene) -> None:
        scene.dataplane.want([batching_model()], {})
        worker = scene.hello(0)
        body = tfs.ClassificationRequest(model_spec=tfs.ModelSpec(name="m")).SerializeToString()
        asked, head = Asked(Method.CLASSIFY), RequestHead(metadata={}, peer="127.0.0.1:4711")
        with scene.dataplane.accounts.recording() as recording:
            admission = scene.dataplane.admit(asked, len(body), body, head)
            call = asyncio.create_task(scene.dataplane.call(asked, body, 0, admission, head))
            await settle()
            scene.answer(worker, scene.link.dispatches(worker)[-1])
            await call
            (piece,) = recording.pieces(last=True)
        assert [row["rows"] for row in piece["requests"]] == scene.recorder.example_counts == [3]
        assert len(looks) == 1

    play(tmp_path, story)


def test_a_large_request_can_be_cancelled(tmp_path: Path) -> None:
    """All its parts leave, counted once."""

    async def story(scene: Scene) -> None:
        workers, asked = in_parts(scene)
        await settle()
        asked.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asked
        assert scene.recorder.codes == [Code.CANCELLED]
        for worker in workers:
            scene.answer(worker, scene.link.dispatches(worker)[0])
        assert scene.dataplane.memory.used == 0
        assert scene.dataplane.snapshot()["queued"] == 0

    play(tmp_path, story)


def test_a_request_of_too_many_rows_is_refused(tmp_path: Path) -> None:
    """With TensorFlow Serving's code and text, and counted."""

    async def story(scene: Scene) -> None:
        scene.dataplane.want([batching_model(max_batch_size=5)], {})
        scene.hello(0)
        with pytest.raises(
            PoolError, match="Task size 6 is larger than maximum input batch size 5"
        ) as refused:
            await scene.ask(body=rows_request(6))
        assert refused.value.code is Code.INVALID_ARGUMENT
        assert scene.recorder.codes == [Code.INVALID_ARGUMENT]
        assert scene.dataplane.memory.used == 0

    play(tmp_path, story)


def test_models_share_bytes_where_nobody_has_bounded_them(tmp_path: Path) -> None:
    """So do requests that do not say yet which model they are for; not a model with a bound of its own."""

    async def story(scene: Scene) -> None:
        memory = scene.dataplane.memory
        shared = {**MODEL, "name": "shared", "queue": {"max_queued_bytes": 500, "shares_bytes": True}}
        scene.dataplane.want([{**MODEL, "queue": {"max_queued_bytes": 1000}}, shared], {})
        assert memory.sharing == {"", "shared"}
        scene.dataplane.want([{**MODEL, "queue": {"max_queued_bytes": 1000}}], {})
        assert not memory.sharing

    play(tmp_path, story)


def test_a_models_bytes_are_bounded_before_they_are_read(tmp_path: Path) -> None:
    """By the name at the beginning of its message; another model's are taken in."""

    async def story(scene: Scene) -> None:
        other = {**MODEL, "name": "other"}
        scene.dataplane.want([{**MODEL, "queue": {"max_queued_bytes": 100}}, other], {})
        request = tfs.PredictRequest()
        for name, fits in (("m", False), ("other", True)):
            request.model_spec.name = name
            start = request.SerializeToString()
            if fits:
                scene.dataplane.admit(PREDICT, 101, start, RequestHead()).release()
                continue
            with pytest.raises(
                PoolError,
                match="The request has 101 bytes and max_queued_bytes for m is 100: make it smaller",
            ):
                scene.dataplane.admit(PREDICT, 101, start, RequestHead())
        assert scene.recorder.codes == [Code.RESOURCE_EXHAUSTED]
        assert scene.recorder.lacks == [Lack.BYTES]
        assert scene.recorder.models == [("m", 1)]

    play(tmp_path, story)


def test_what_names_no_model_of_ours_does_not_keep_others_out(tmp_path: Path) -> None:
    """One that a client made up is not found, before it is read; what names none has half; neither makes a series."""

    async def story(scene: Scene) -> None:
        scene.dataplane.memory.limit_bytes = 1000
        scene.dataplane.want([MODEL], {})
        request = tfs.PredictRequest()
        request.model_spec.name = "made up"
        with pytest.raises(PoolError, match=r"Servable not found for request: Latest\(made up\)"):
            scene.dataplane.admit(PREDICT, 500, request.SerializeToString(), RequestHead())
        scene.dataplane.admit(PREDICT, 500, b"", RequestHead())
        with pytest.raises(PoolError, match="their first bytes do not name hold 500 of 500 bytes"):
            scene.dataplane.admit(PREDICT, 1, b"", RequestHead())
        assert scene.recorder.models == [("", 0)] * 2
        request.model_spec.name = "m"
        scene.dataplane.admit(PREDICT, 500, request.SerializeToString(), RequestHead())

    play(tmp_path, story)


@pytest.mark.parametrize(
    ("fair_by", "expected"),
    [("metadata:tenant", {"flood": 5, "other": 1}), ("none", {"flood": 10, "other": 0})],
)
def test_a_client_does_not_take_all_bytes_where_clients_share(
    tmp_path: Path, fair_by: str, expected: dict[str, int]
) -> None:
    """With fair_by one that floods is refused while another is taken in; without it whoever comes first has all."""

    async def story(scene: Scene) -> None:
        request = tfs.PredictRequest()
        request.model_spec.name = "m"
        start = request.SerializeToString()
        taken = {"flood": 0, "other": 0}
        scene.dataplane.want([{**MODEL, "queue": {"max_queued_bytes": 1000}}], {})
        for client, requests in (("flood", 10), ("other", 1)):
            for _ in range(requests):
                with contextlib.suppress(PoolError):
                    scene.dataplane.admit(PREDICT, 100, start, RequestHead(metadata={"tenant": client}))
                    taken[client] += 1
        assert taken == expected

    scheduling = SchedulingSettings(fair_by=fair_by)
    play(tmp_path, story, msgspec.structs.replace(SETTINGS, scheduling=scheduling))


def test_who_asks_and_how_urgently_is_in_the_metadata(tmp_path: Path) -> None:
    """A request with a priority goes before one that arrived earlier; one with nonsense in its place is refused."""

    async def story(scene: Scene) -> None:
        scene.dataplane.want([MODEL], {})
        asked = [scene.ask(), scene.ask(metadata={"x-mpspool-priority": "5"}, body=rows_request(1))]
        await settle()
        worker = scene.hello(0)
        await settle()
        (first,) = scene.link.dispatches(worker)
        assert first.requests[0].body == rows_request(1)
        with pytest.raises(PoolError, match="x-mpspool-priority is 'high'"):
            await scene.ask(metadata={"x-mpspool-priority": "high"})
        scene.answer(worker, first, runs=[(1, 1, 10)])
        await settle()
        scene.answer(worker, scene.link.dispatches(worker)[-1])
        await asyncio.gather(*asked)

    play(tmp_path, story)


def test_what_ran_and_what_runs_is_told(tmp_path: Path) -> None:
    """In pieces: devices and who runs since when, what ended, and from when on the record is whole."""

    async def story(scene: Scene) -> None:
        began_ns = time.monotonic_ns()
        worker = scene.hello(0)
        first = scene.ask()
        await settle()
        scene.answer(worker, scene.link.dispatches(worker)[0])
        await first
        second = scene.ask()
        await settle()
        head, part, tail = [piece async for piece in Control(scene.dataplane).tasks({"last_s": 30})]
        assert (head["devices"], head["simulated"], list(head["running"])) == (["cpu0"], "", ["m@1.cpu0.0"])
        assert began_ns < head["running"]["m@1.cpu0.0"] <= head["now_ns"] <= time.monotonic_ns()
        assert part["workers"] == {0: "m@1.cpu0.0"}
        assert list(struct.iter_unpack("=QIHH", base64.b64decode(part["rows"]))) == [(1, 12, 0, 1)]
        assert (tail["keeps"], tail["begins_ns"] < began_ns) == (0, True)
        scene.answer(worker, scene.link.dispatches(worker)[1])
        await second
        head, *_ = [piece async for piece in Control(scene.dataplane).tasks({"last_s": 30})]
        assert head["running"] == {}

    play(tmp_path, story)


def test_what_ends_while_it_is_told_is_told_as_running_alone(tmp_path: Path) -> None:
    """Not among what has ended, too: its worker would have run two at once."""

    async def story(scene: Scene) -> None:
        worker = scene.hello(0)
        asked = scene.ask()
        await settle()
        pieces = Control(scene.dataplane).tasks({"last_s": 30})
        head = await anext(pieces)
        scene.answer(worker, scene.link.dispatches(worker)[0])
        await asked
        assert list(head["running"]) == ["m@1.cpu0.0"]
        assert ["rows" in piece async for piece in pieces] == [False]

    play(tmp_path, story)
