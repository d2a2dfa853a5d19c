"""Everything at once: requests of all kinds, processes that die, reloads and new versions, as chance has them.

What each of it does by itself the other files hold it to. Here: whatever comes together, no answer is wrong, none is missing
for a reason that cannot be, and when it is over nothing of it is left in the router.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import os
import random
import re
import shutil
import signal
import threading
import urllib.request
from array import array
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import aiohttp
import grpc
import grpc.aio

from mpspool.core import tfs
from tests import models
from tests.conftest import PoolStarter, short_dir
from tests.polling import until
from tests.pool import Pool
from tests.reloading import File, reload

PREDICT = f"/{tfs.PREDICTION_SERVICE}/Predict"
HALF, OTHER, SEQUENCES = "half_plus_two", "other", "sequences"
DT_FLOAT = 1
# Why a request that nothing is wrong with may have no answer: it was taken back, its time was over, the queue was full or the
# router away, and bytes were short.
REASONS = {"taken back", "DEADLINE_EXCEEDED", "UNAVAILABLE", "RESOURCE_EXHAUSTED"}
REST_REASONS = {"429", "503", "504", "gone"}
CLIENTS = 5
# More than anything here keeps a request waiting: one that is not over by then was forgotten.
_LONG_S = 120
# Between two events so many more are answered.
_ANSWERED = 300
EVENTS = (
    ("worker",) * 3 + ("stopped worker", "pool", "nursery", "router") + ("version",) * 2 + ("reload",) * 7
)


def settings(chance: random.Random, root: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Of the models, and of the pool: what a reload can change of how requests wait and are joined."""

    def batching() -> Any:
        rows = {
            "max_batch_size": chance.choice([128, 1000]),
            "max_enqueued_batches": chance.choice([10, 100]),
        }
        joined = {"batch_timeout_micros": chance.choice([0, 5000]), "adaptive": chance.random() < 0.3}
        split = {"enable_large_batch_splitting": True, "max_execution_batch_size": chance.choice([16, 64])}
        return chance.choice(["off", {**rows, **joined}, {**rows, **split}])

    served = {
        HALF: {"batching": batching()},
        OTHER: {"base_path": str(root / HALF), "batching": batching()},
        SEQUENCES: {
            "base_path": str(root / SEQUENCES),
            "batching": chance.choice(["off", {"max_batch_size": 64}]),
        },
    }
    scheduling = {
        "policy": chance.choice(["fifo", "sjf", "edf"]),
        "dispatch": chance.choice(["least_loaded", "round_robin"]),
        "slow_lane": chance.choice([0, 1]),
        "running_per_device": chance.choice([0, 3]),
        "refuse_late": chance.random() < 0.7,
        "fair_by": "metadata:x-tenant",  # which no reload changes
    }
    bounds = {
        "max_queued_requests": chance.choice([50, 10_000]),
        "max_queued_bytes": chance.choice(["32MiB", "4GiB"]),
    }
    return served, {"scheduling": scheduling, **bounds}


class Crowd:
    """Clients that send what chance has them send. A context manager; they run in a thread of their own.

    Attributes:
        right: answers, by kind of request.
        failed: requests without one, by kind and reason.
        wrong: kinds of requests that were answered wrong.
    """

    def __init__(self, pool: Pool, seed: int) -> None:
        self.right: Counter[str] = Counter()
        self.failed: Counter[tuple[str, str]] = Counter()
        self.wrong: list[str] = []
        self._pool = pool
        self._chance = random.Random(seed)
        self._next = 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()))

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        """All that was sent has come to its end."""
        self._over.set()
        self._thread.join(_LONG_S + 60)
        assert not self._thread.is_alive()

    def goes_on(self) -> None:
        before = self.right.total()
        until(lambda: self.right.total() > before + _ANSWERED, 60, "requests are answered")

    async def _run(self) -> None:
        async with asyncio.TaskGroup() as clients:
            for _ in range(CLIENTS):
                clients.create_task(self._grpc())
            clients.create_task(self._rest())
            clients.create_task(self._rude())

    async def _grpc(self) -> None:
        """One connection after the other, with some calls at once on each."""
        while not self._over.is_set():
            options = [("grpc.use_local_subchannel_pool", 1)]
            async with grpc.aio.insecure_channel(self._pool.address, options) as channel:
                call = channel.unary_unary(PREDICT)
                for _ in range(20):
                    at_once = self._chance.choice([1, 8, 32])
                    await asyncio.gather(*(self._ask(call) for _ in range(at_once)))
                    if self._over.is_set():
                        return

    async def _ask(self, call: Any) -> None:
        kind, body, is_right = self._request()
        chance = self._chance
        metadata = [
            ("x-tenant", chance.choice("abc")),
            ("x-mpspool-priority", str(chance.choice([0, 0, 0, 3]))),
        ]
        timeout_s = chance.choice([_LONG_S, 10, 1, 0.1, 0.02])
        sent = call(body, timeout=timeout_s, metadata=metadata)
        if takes_back := chance.random() < 0.05:
            asyncio.get_running_loop().call_later(chance.random() / 20, sent.cancel)
        try:
            answer = tfs.PredictResponse.FromString(await sent)
        except grpc.aio.AioRpcError as error:
            forgotten = error.code() is grpc.StatusCode.DEADLINE_EXCEEDED and timeout_s == _LONG_S
            self.failed[kind, "forgotten" if forgotten else error.code().name] += 1
        except asyncio.CancelledError:
            self.failed[kind, "taken back" if takes_back else "CANCELLED"] += 1
        else:
            self._note(kind, right=is_right(answer))

    def _note(self, kind: str, *, right: bool) -> None:
        if right:
            self.right[kind] += 1
        else:
            self.wrong.append(kind)

    def _request(self) -> tuple[str, bytes, Callable[[Any], bool]]:
        """One that no other is like, and what its answer has to be."""
        chance = self._chance
        kind = chance.choice([HALF, OTHER, SEQUENCES])
        request = tfs.PredictRequest()
        request.model_spec.name = kind
        if kind == SEQUENCES:  # now and then 200 KB, which do not travel in the message itself
            rows, columns = chance.choice([(1, 4), (5, 9), (20, 5), (1, 50_000)])
            values = self._values(rows * columns)
            request.output_filter.append("sum")
            sums = [sum(values[row * columns : (row + 1) * columns]) for row in range(rows)]
            fill(request, values, (rows, columns))
            return kind, request.SerializeToString(), lambda answer: close(floats(answer, "sum"), sums)
        values = self._values(chance.choice([1, 1, 3, 17, 100]))
        fill(request, values, (len(values),))
        want = array("f", (value / 2 + 2 for value in values))
        return kind, request.SerializeToString(), lambda answer: floats(answer, "y") == want

    def _values(self, count: int) -> array[float]:
        first, self._next = self._next, (self._next + count) % 2**20
        return array("f", range(first, first + count))

    async def _rest(self) -> None:
        while not self._over.is_set():
            try:
                async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(60)) as session:
                    while not self._over.is_set():
                        await self._post(session)
            except aiohttp.ClientError:
                self.failed["REST", "gone"] += 1
            except TimeoutError:
                self.failed["REST", "forgotten"] += 1

    async def _post(self, session: aiohttp.ClientSession) -> None:
        values = self._values(self._chance.choice([1, 5, 100])).tolist()
        model = self._chance.choice([HALF, OTHER])
        url = f"http://127.0.0.1:{self._pool.rest_port}/v1/models/{model}:predict"
        headers = {
            "x-tenant": self._chance.choice("abc"),
            "x-mpspool-timeout-ms": self._chance.choice(["50", "5000"]),
        }
        async with session.post(url, json={"instances": values}, headers=headers) as answer:
            told = json.loads(await answer.read())
            if answer.status == 200:
                self._note("REST", right=told["predictions"] == [value / 2 + 2 for value in values])
            else:
                self.failed["REST", str(answer.status)] += 1

    async def _rude(self) -> None:
        """Begins requests, and goes."""
        head = (
            f"POST /v1/models/{HALF}:predict HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n\r\n".encode()
        )
        while not self._over.is_set():
            for port, begun in (
                (self._pool.rest_port, head + bytes(9000)),
                (self._pool.grpc_port, bytes(100)),
            ):
                try:
                    _, writer = await asyncio.open_connection("127.0.0.1", port)
                    writer.write(begun)
                    await writer.drain()
                    writer.close()
                except OSError:  # the router is away
                    pass
            await asyncio.sleep(0.1)


def fill(request: Any, values: array[float], shape: tuple[int, ...]) -> None:
    tensor = request.inputs["x"]
    tensor.dtype = DT_FLOAT
    for size in shape:
        tensor.tensor_shape.dim.add(size=size)
    tensor.tensor_content = values.tobytes()


def floats(answer: Any, output: str) -> array[float]:
    tensor = answer.outputs[output]
    values = array("f", tensor.float_val)
    values.frombytes(tensor.tensor_content)
    return values


def close(found: array[float], wanted: list[float]) -> bool:
    """Sums, in whatever order they were added."""
    return len(found) == len(wanted) and all(
        map(lambda a, b: math.isclose(a, b, rel_tol=1e-4), found, wanted)
    )


def held(pool: Pool) -> dict[str, float]:
    """What the router has of requests, where it has any."""
    with urllib.request.urlopen(f"http://127.0.0.1:{pool.rest_port}/metrics", timeout=20) as page:
        lines = page.read().decode().splitlines()
    names = r"mpspool_(held_bytes|queued_requests|queued_slow_requests|worker_in_flight_requests|device_running)[ {]"
    found = dict(line.rsplit(" ", 1) for line in lines if re.match(names, line))
    assert len(found) >= 5
    return {name: float(value) for name, value in found.items() if float(value)}


def test_everything_at_once(start_pool: PoolStarter, models_root: Path) -> None:
    """None is wrong, each that has no answer says a reason that can be, the pool comes to rest, and no log has an error."""
    chance = random.Random(29)
    for name in (HALF, SEQUENCES):
        models.build(name, models_root)
    with short_dir() as root:
        base = root / "models"
        shutil.copytree(models_root / HALF / "1", base / "1")
        file = File(root / "pool.yaml", base)

        def edit() -> None:
            served, pool_keys = settings(chance, models_root)
            file.write(served, **pool_keys)

        edit()
        pool = start_pool(file.path).wait()
        with Crowd(pool, seed=29) as crowd:
            for number, event in enumerate(chance.sample(EVENTS, len(EVENTS)), start=2):
                crowd.goes_on()
                if event == "reload":
                    edit()
                    reload(pool)
                elif event == "version":
                    shutil.copytree(base / "1", root / "new")
                    (root / "new").rename(base / str(number))
                elif event.endswith("worker"):
                    pid = chance.choice(
                        [worker["pid"] for worker in pool.workers().values() if worker["pid"]]
                    )
                    with contextlib.suppress(ProcessLookupError):  # a version that went has taken it along
                        os.kill(pid, signal.SIGSTOP if event.startswith("stopped") else signal.SIGKILL)
                elif pid := pool.process_pid(event):
                    os.kill(pid, signal.SIGKILL)
            crowd.goes_on()
        print(
            "crowd:",
            json.dumps({"right": crowd.right, "failed": {" ".join(k): n for k, n in crowd.failed.items()}}),
        )
        assert not crowd.wrong
        assert {reason for kind, reason in crowd.failed if kind != "REST"} <= REASONS
        assert {reason for kind, reason in crowd.failed if kind == "REST"} <= REST_REASONS
        assert all(crowd.right[kind] > 100 for kind in (HALF, OTHER, SEQUENCES, "REST"))
        until(pool.all_ready, 60, "all are READY again")
        until(lambda: not held(pool), 20, "the router holds nothing")
        for name in ("pool", "router"):
            assert [event for event in pool.events(name) if event["level"] in ("error", "critical")] == []
