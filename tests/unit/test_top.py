"""What `mpspool top` shows: figures from samples, and lines from figures."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.cells import cell_len

from mpspool.core.control import ControlError
from mpspool.core.rundir import RunDir
from mpspool.mps.telemetry import GpuReading, as_message
from mpspool.supervisor.top import sample as sampling
from mpspool.supervisor.top import screen
from mpspool.supervisor.top.figures import Figures, Sample, figures, quantile, steady
from mpspool.supervisor.top.frame import Frame, frame

BOUNDS_S = [0.001, 0.002, 0.01]
READING = GpuReading("GPU-x", "H100", 0.52, 12_300_000_000, 80_000_000_000, 54, 310.4, 700.0, 0)


def worker(name: str, **fields: Any) -> dict[str, Any]:
    """As in the status."""
    place, slot = name.rsplit(".", 1)
    model, device = place.rsplit(".", 1)
    return {
        "id": name,
        "model": model.split("@")[0],
        "version": 1,
        "device": device,
        "slot": int(slot),
        "generation": 1,
        "pid": 100 + int(slot),
        "state": "READY",
        "restarts": 0,
        "in_flight": 0,
        "served": 0,
        "cpus": [int(slot)],
        **fields,
    }


def status(*workers: dict[str, Any], **fields: Any) -> dict[str, Any]:
    names = dict.fromkeys(one["model"] for one in workers)
    version = {"version": 1, "state": "AVAILABLE", "error": ""}
    pool = {"state": "RUNNING", "pid": 1, "run_dir": "/r", "grpc_port": 1, "rest_port": 0, "mps": "off"}
    return {
        "pool": pool,
        "devices": [],
        "models": [{"name": name, "versions": [version]} for name in names],
        "workers": list(workers),
        "processes": [],
        **fields,
    }


def router(
    *reports: tuple[str, int, float, float],
    epoch: int = 7,
    queued: int = 0,
    generation: int = 1,
    refused: Sequence[tuple[str, str, int]] = (),
) -> Any:
    """Its snapshot; of each worker (id, served, busy, running); refused as (model, version, count)."""
    return {
        "epoch": epoch,
        "models": [{"name": "half", "versions": [{"version": 1, "queued": queued}]}],
        "workers": [
            {
                "id": name,
                "generation": generation,
                "in_flight": 1,
                "served": served,
                "busy_s": busy_s,
                "running_s": running_s,
            }
            for name, served, busy_s, running_s in reports
        ],
        "refusals": [
            {"model": model, "version": version, "reason": "queue_requests", "count": count}
            for model, version, count in refused
        ],
    }


def latencies(**models: list[int]) -> Any:
    return {"bounds_s": BOUNDS_S, "models": {f"{name}@1": counts for name, counts in models.items()}}


def pair(before: Any, after: Any, elapsed_s: float = 2.0, **fields: Any) -> list[Sample]:
    """Two samples of one pool with two workers, one of them on a GPU."""
    told = fields.pop("told", status(worker("half@1.cpu0.0"), worker("half@1.cpu0.1")))
    first, second = ({"router": before}, {"router": after})
    return [Sample(10.0, told, **first, **fields), Sample(10.0 + elapsed_s, told, **second, **fields)]


ONE, TWO = "half@1.cpu0.0", "half@1.cpu0.1"


def test_rates_are_what_came_between_two_samples() -> None:
    """Requests a second and the share of the time, of a worker, its device and its model."""
    found = figures(
        pair(
            router((ONE, 100, 5.0, 0.0), (TWO, 10, 1.0, 0.0)),
            router((ONE, 300, 6.0, 0.0), (TWO, 10, 1.0, 0.0), queued=3),
        )
    )
    assert [(one.rate, one.busy, one.in_flight) for one in found.workers] == [(100, 0.5, 1), (0, 0, 1)]
    (device,) = found.devices
    assert (device.name, device.running, device.slots, device.density) == ("cpu0", 0.5, 2, 0.25)
    (model,) = found.models
    assert (model.name, model.running, model.queued, model.ready, model.slots) == ("half@1", 0.5, 3, 2, 2)
    assert (found.total.running, found.total.queued, found.in_flight) == (0.5, 3, 2)


def test_a_request_that_is_still_running_counts_as_it_runs() -> None:
    """Through all of the interval it is 1, also where it began long before; its end adds nothing twice."""
    running = router((ONE, 0, 0.0, 30.0))
    assert figures(pair(router((ONE, 0, 0.0, 28.0)), running)).workers[0].busy == 1
    assert figures(pair(running, router((ONE, 1, 30.5, 0.0)))).workers[0].busy == 0.25
    # Its answer is on the way: the page says idle already.
    assert figures(pair(running, router((ONE, 0, 0.0, 0.0)))).workers[0].busy == 0


@pytest.mark.parametrize("fields", [{"epoch": 8}, {"generation": 2}])
def test_a_new_router_or_worker_counts_from_zero(fields: dict[str, int]) -> None:
    """It is not taken for one that has served less than before."""
    told = status(worker(ONE, generation=fields.get("generation", 1)))
    found = figures(
        pair(router((ONE, 1000, 5.0, 0.0)), router((ONE, 20, 0.5, 0.0), **fields), told=told)  # type: ignore[arg-type]
    )
    assert (found.workers[0].rate, found.workers[0].busy) == (10, 0.25)


def test_what_is_not_known_is_none() -> None:
    """The first sample has no rates, a router that is silent none either; the pool's own words stay."""
    told = status(worker(ONE, in_flight=4, served=9, restarts=2))
    for samples in (
        [Sample(1.0, told, router((ONE, 1, 1.0, 0.0)))],
        pair(None, router((ONE, 1, 1.0, 0.0)), told=told),
        pair(router((ONE, 1, 1.0, 0.0)), None, told=told),
    ):
        found = figures(samples)
        assert (found.workers[0].rate, found.workers[0].busy, found.workers[0].cpu) == (None, None, None)
        assert (found.total.rate, found.total.p50_s, found.devices[0].density) == (None, None, None)
        assert found.workers[0].restarts == 2
    assert (found.workers[0].in_flight, found.workers[0].served) == (4, 9)
    gone = figures([Sample(1.0, None, problem="no pool runs in /r")])
    assert (gone.pool, gone.problems, gone.workers) == (None, ["no pool runs in /r"], ())


def test_the_cpu_device_is_what_its_workers_use() -> None:
    """Of the CPUs that they are pinned to, or of all; memory of the machine's."""
    samples = pair(None, None, pss_bytes={ONE: 30, TWO: 10}, memory_bytes=400, cpus=8)
    samples = [
        Sample(s.at, s.status, cpu_s={100: at, 101: 5.0}, pss_bytes=s.pss_bytes, memory_bytes=400, cpus=8)
        for s, at in zip(samples, (1.0, 2.0), strict=True)
    ]
    found = figures(samples)
    assert [one.cpu for one in found.workers] == [0.5, 0.0]
    (device,) = found.devices
    assert (device.use, device.used_bytes, device.total_bytes) == (0.25, 40, 400)
    assert samples[0].status is not None
    samples[0].status["workers"][0]["cpus"] = []
    assert figures(samples).devices[0].use == 0.5 / 8


def test_a_gpu_is_what_the_pool_tells_of_it() -> None:
    """With its workers' share of its memory; one that has no slots is there, too."""
    mine = {"half@1.gpu0.0": 100}
    used = GpuReading("GPU-x", "H100", 0.5, 12, 80, processes={100: 5}, xids={13: 2})
    devices = [
        as_message("gpu0", used, "SERVING", workers=mine, simulated=True),
        as_message("gpu1", GpuReading("GPU-y"), "LOST", "Xid 79"),
    ]
    ended = worker("half@1.gpu2.0", pid=0, error="ended: gpu1 failed: Xid 79")
    told = status(worker("half@1.gpu0.0"), ended, devices=devices)
    found = figures([Sample(1.0, told)])
    assert [(device.name, device.state, device.use, device.slots) for device in found.devices] == [
        ("gpu0", "SERVING", 0.5, 1),
        ("gpu1", "LOST", None, 0),
        ("gpu2", "", None, 1),
    ]
    assert (found.devices[0].simulated, found.devices[0].xids) == (True, {"13": 2})
    assert [one.gpu_bytes for one in found.workers] == [5, None]
    assert found.problems == ["gpu1: Xid 79"]


def test_latencies_are_of_all_samples_and_rates_of_two() -> None:
    """Sums over the models are their sum; a model that nobody asked has none; another router's do not mix."""
    told = status(worker(ONE), worker("other@1.cpu0.0"), worker("quiet@1.cpu0.0"))
    samples = [
        Sample(float(at), told, router(), latencies(half=[n, 2 * n, 2 * n, 2 * n], other=[0, 0, n, n]))
        for at, n in enumerate((0, 100, 300))
    ]
    found = figures(samples)
    half, other, quiet = found.models
    assert (half.rate, half.p50_s, half.p99_s) == (400, 0.001, pytest.approx(0.00198))
    assert (other.rate, other.p50_s) == (200, pytest.approx(0.006))
    assert (quiet.rate, quiet.p50_s, quiet.p99_s) == (0, None, None)
    assert (found.total.rate, found.total.p50_s) == (600, pytest.approx(0.0015))
    samples.append(Sample(3.0, told, router(epoch=8), latencies(half=[5, 5, 5, 5])))
    assert figures(samples).total.rate is None
    samples.append(Sample(4.0, told, router(epoch=8), latencies(half=[8, 8, 8, 8])))
    assert figures(samples).total.rate == 3


@pytest.mark.parametrize(
    ("counts", "share", "expected"),
    [
        ([], 0.5, None),
        ([0, 0, 0, 0], 0.5, None),
        ([4, 4, 4, 4], 0.5, 0.0005),
        ([0, 4, 4, 4], 0.5, 0.0015),
        ([0, 0, 0, 4], 0.5, 0.01),
        ([0, 0, 4, 4], 1.0, 0.01),
    ],
)
def test_quantiles_are_prometheus(counts: list[int], share: float, expected: float | None) -> None:
    """Even within a bucket, the highest bound above the last, none of nothing."""
    assert quantile(BOUNDS_S, counts, share) == (None if expected is None else pytest.approx(expected))


def test_samples_of_a_while_are_kept() -> None:
    """And one from before, so that they cover the whole of it; always two where there are two."""
    samples = [Sample(float(at), None) for at in range(30)]
    assert [one.at for one in steady(samples, 10.0)] == list(range(19, 30))
    assert [one.at for one in steady(samples, 0.5)] == [28, 29]
    assert steady(samples[:1], 10.0) == samples[:1]


# -- lines ----------------------------------------------------------------------------------------


def busy_pool(count: int = 4, **fields: Any) -> Figures:
    names = [f"half_plus_two@1.gpu{number % 2}.{number // 2}" for number in range(count)]
    workers = [worker(name, pid=4_000_000 + number) for number, name in enumerate(names)]
    devices = [
        as_message(name, READING, "SERVING", workers={names[0]: 1}, simulated=True)
        for name in ("gpu0", "gpu1")
    ]
    told = status(*workers, devices=devices)
    told["pool"] = {**told["pool"], "mps": "simulated", "simulated": "gpus"}
    told.update(fields)
    pss = dict.fromkeys(names, 182_000_000)
    return figures(
        [
            Sample(
                float(at),
                told,
                router(*((name, 100 * at, 0.4 * at, 0.0) for name in names)),
                latencies(half_plus_two=[at, 300 * at, 400 * at, 400 * at]),
                {4_000_000 + number: 0.5 * at for number in range(count)},
                pss,
            )
            for at in range(2)
        ]
    )


def plain(drawn: Frame) -> list[str]:
    return [line.plain.rstrip() for line in drawn.lines]


def test_a_frame_of_80_columns() -> None:
    """Everything that matters is there, every line fits, and the stand-ins say so."""
    drawn = frame(busy_pool(), 80, 24, clock="12:34:56")
    lines = plain(drawn)
    assert len(lines) == 24
    assert all(len(line) <= 80 for line in lines)
    assert lines[0].startswith("mpspool RUNNING  4 of 4 READY  MPS simulated  SIMULATED gpus")
    assert lines[0].endswith("12:34:56")
    assert lines[1] == "400.0 req/s   queued 0   p50 1.7ms   p99 9.7ms   in flight 4   running 1.60"
    assert lines[3].split()[:2] == ["DEVICE", "STATE"]
    assert "gpu0   SERVING" in lines[4]
    assert all(text in lines[4] for text in ("40%]", "52%]", "12.3G/80.0G]", "54C"))
    assert lines[8].split() == ["half_plus_two@1", "AVAILABLE", "4/4", "400.0", "1.7ms", "9.7ms", "1.60", "0"]
    assert lines[11].startswith("half_plus_two@1.gpu0.0 READY")
    assert all(text in lines[11] for text in ("100.0", "40%]", "50%", "182M"))
    assert lines[-1].startswith(" q quit")
    assert not lines[-1].endswith("…")


def test_refusals_are_shown_while_there_are_some() -> None:
    """By model in its table, of all above it, by the second; neither says anything of them where there are none."""
    told = status(worker("half@1.cpu0.0"), worker("other@1.cpu0.0"))
    before = router((ONE, 0, 0.0, 0.0), refused=[("half", "1", 5), ("half", "1", 1)])
    after = router((ONE, 0, 0.0, 0.0), refused=[("half", "1", 25), ("half", "1", 1), ("", "", 10)])
    found = figures(pair(before, after, told=told))
    assert [model.refused for model in found.models] == [10.0, 0.0]
    assert found.total.refused == 15.0
    lines = plain(frame(found, 80, 24))
    assert "queued 0   refused 15.0/s   p50" in lines[1]
    assert [line.split()[-1] for line in lines[6:9]] == ["REFUSED/S", "10.0", "0"]
    quiet = figures(pair(after, after, told=told))
    assert quiet.total.refused == 0.0
    assert "refused" not in "\n".join(plain(frame(quiet, 80, 24))).lower()


def test_a_new_router_has_refused_nothing_yet() -> None:
    """Its counts begin with 0: between it and the one before there is no rate."""
    before = router((ONE, 0, 0.0, 0.0), refused=[("half", "1", 500)])
    after = router((ONE, 0, 0.0, 0.0), epoch=8, refused=[("half", "1", 3)])
    assert figures(pair(before, after)).total.refused is None
    assert figures(pair(after, after)[:1]).total.refused is None


def test_a_wide_frame_shows_more() -> None:
    """Process ids, restarts, power, products."""
    text = "\n".join(plain(frame(busy_pool(), 140, 40)))
    for words in ("PID", "RST", "SERVED", "GEN", "4000003", "310/700W", "H100"):
        assert words in text


@pytest.mark.parametrize("width", [*range(1, 60, 7), 79, 81, 200])
@pytest.mark.parametrize("height", [1, 2, 5, 13, 60])
def test_any_size_can_be_drawn(width: int, height: int) -> None:
    """As many lines as there are, none too wide, also with names and errors that are long and wide."""
    longest = worker(f"{'模型' * 40}@1.gpu0.0", state="BACKOFF", error="it is\nlong [bold] " * 40)
    found = busy_pool(workers=[worker("a@1.gpu0.0"), longest])
    lines = frame(found, width, height, first=5).lines
    assert len(lines) == height
    assert all(cell_len(line.plain) <= width for line in lines)
    assert not any("\n" in line.plain for line in lines)


def test_what_does_not_fit_can_be_scrolled_to() -> None:
    """The title says where one is; before the first and after the last there is nothing."""
    found = busy_pool(40)
    drawn = frame(found, 100, 24)
    assert drawn.shown < 40
    assert f"WORKER 1-{drawn.shown} of 40" in "\n".join(plain(drawn))
    places = []
    for keys in (b"j", b"\x1b[B", b"\x1b[6~", b"k", b"G", b"\x1b[6~", b"\x1b[5~", b"g", b"\x1b[A", b"x"):
        first = screen.moved(keys, drawn, 40)
        drawn = frame(found, 100, 24, first=first)
        assert drawn.first == first
        places.append(first)
    page = drawn.shown
    end = 40 - page
    assert places == [1, 2, 2 + page, 1 + page, end, end, end - page, 0, 0, 0]
    assert plain(frame(found, 100, 24, first=39))[-2].startswith("half_plus_two@1.gpu1.19")
    assert "half_plus_two@1.gpu1.19" in "\n".join(plain(frame(found, 160)))


def test_problems_stand_above_the_tables() -> None:
    """The first few, then how many more there are; without a pool there is nothing else."""
    errors = [
        {"name": f"p{number}", "state": "FATAL", "pid": 0, "error": f"e{number}"} for number in range(5)
    ]
    lines = plain(frame(busy_pool(processes=errors), 80, 24))
    assert lines[2:6] == ["p0: e0", "p1: e1", "p2: e2", "and 2 more; see `mpspool status`"]
    gone = figures([Sample(1.0, None, problem="no pool runs in /r")])
    assert plain(frame(gone, 80, clock="12:00:00")) == [
        "mpspool".ljust(72) + "12:00:00",
        "no pool runs in /r",
    ]
    assert len(frame(gone, 80, 24).lines) == 24


# -- samples --------------------------------------------------------------------------------------


def test_a_pool_that_goes_away_is_said_to_have_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its last words stay as long as its foreground process runs; then it is waited for, and found again."""
    run = RunDir(tmp_path)
    told = status(worker(ONE, pid=0, memory={"pss_bytes": 5}))
    silent: set[Path] = set()
    asked: list[tuple[str, bool]] = []
    busy = False
    now_s = 0.0

    def call(path: Path, op: str, *, timeout_s: float, memory: bool = False) -> Any:
        assert timeout_s <= 1
        if path in silent or (busy and memory):
            raise ControlError("nobody answers")
        asked.append((op, memory))
        return {"status": told, "snapshot": router(), "latencies": latencies()}[op]

    holders = itertools.repeat(1)
    monkeypatch.setattr(sampling.control, "call", call)
    monkeypatch.setattr(sampling.lock, "holder", lambda _run: next(holders))
    monkeypatch.setattr(sampling, "time", SimpleNamespace(monotonic=lambda: now_s))
    sampler = sampling.Sampler(run)
    silent |= {run.pool_control, run.router_control}
    assert sampler.take().problem == "the pool does not answer: it is only starting, or very busy"
    silent.clear()
    busy = True
    found = sampler.take()
    assert (found.status, found.problem, found.pss_bytes) == (told, "", {})
    busy = False
    asked.clear()
    sampler.take()
    assert asked == [("status", False), ("snapshot", False), ("latencies", False)]
    now_s += 10
    found = sampler.take()
    assert (found.status, found.problem, found.pss_bytes) == (told, "", {ONE: 5})
    assert asked[3:] == [("status", True), ("snapshot", False), ("latencies", False)]
    silent.add(run.router_control)
    found = sampler.take()
    assert (found.status, found.router, found.problem) == (told, None, "the router does not answer")
    assert asked[-1] == ("status", False)
    silent.symmetric_difference_update({run.router_control, run.pool_control})
    found = sampler.take()
    assert (found.status, found.problem) == (told, "the pool process does not answer")
    assert found.router is not None
    holders = itertools.repeat(0)
    found = sampler.take()
    assert (found.status, found.router) == (None, None)
    assert found.problem.startswith(f"no pool runs in {tmp_path}")
    silent.clear()
    assert sampler.take().status == told
