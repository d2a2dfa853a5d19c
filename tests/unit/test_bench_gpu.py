"""The GPU benchmark's judgement: what its report says of canned samples, and when a fault is over."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from bench.cell import Sample
from bench.gpu import __main__, device, report
from bench.gpu.device import Gpu, Used
from bench.gpu.faults import Recovery, Times, timeline
from bench.gpu.pool import ONE, GpuSample, Setting
from bench.gpu.rates import Cell, Load, Pair, Plan, Results
from bench.gpu.steady import summary
from mpspool.mps.devices import Inventory
from mpspool.mps.telemetry import GpuReading

TESTING = Gpu("GPU-1", "TESTING GPU", "0.0", 2**30, simulated=False)
STAND_IN = Gpu("GPU-1", "SIMULATED GPU", "", 2**30, simulated=True)
ONE_MPS, TWO, FOUR = Setting(1, mps=True), Setting(2, mps=True), Setting(4, mps=True)
FOUR_OFF = Setting(4, mps=False)


def sample(rate: float, *, told: bool = True) -> GpuSample:
    used = Used(0.5, 300.0, 2**30, {1: 2**20}) if told else Used(None, None, None, {})
    return GpuSample(Sample(rate, 1.0, 2.0, 1.0, 1.0, 0.95, 0.0), used, 2**20 if told else None)


def pairs(*ratios: float, told: bool = True) -> list[Pair]:
    """Rounds whose answers per second differ, and their ratios are these."""
    return [
        Pair(sample(100.0 * (turn + 1), told=told), sample(100.0 * (turn + 1) * ratio, told=told))
        for turn, ratio in enumerate(ratios)
    ]


def measured(gpu: Gpu, model: str, rows: Mapping[Setting, list[Pair]]) -> tuple[Results, Plan]:
    load = Load(32)
    results = Results(gpu, pairs={Cell(model, 8, load): dict(rows)}, attached={(model, FOUR): 3})
    return results, Plan({model: [8]}, [1, 2, 4], [load], 1.0, 3)


def test_small_kernels_are_judged_at_four_contexts_under_mps() -> None:
    """The median of the rounds' ratios is what counts, and what MPS does not speed up is no target."""
    results, plan = measured(TESTING, "widedeep", {FOUR: pairs(1.9, 2.1, 9.0), FOUR_OFF: pairs(0.5)})
    (target,) = report.targets(results, plan)
    assert target[2:] == (2.0, pytest.approx(2.1))
    said = report.markdown(results, plan)
    assert "| widedeep, batch 8: 4 contexts, MPS | one process, no MPS | 2.00 | 2.10 | reached |" in said
    assert "use 4 workers: `--contexts-per-gpu 4 --mps on` (2.10 x of the best single process)" in said
    assert "SIMULATED" not in said


def test_heavy_models_are_held_against_the_best_single_process() -> None:
    """That may be the one under MPS; where several bring nothing, the advice is one worker."""
    rows = {ONE_MPS: pairs(1.1), TWO: pairs(1.12), FOUR: pairs(1.0)}
    results, plan = measured(TESTING, "tower", rows)
    found = {what: ratio for what, _, _, ratio in report.targets(results, plan)}
    assert found == {
        "tower, batch 8: 2 contexts, MPS": pytest.approx(1.12 / 1.1),
        "tower, batch 8: 4 contexts, MPS": pytest.approx(1.0 / 1.1),
    }
    said = report.markdown(results, plan)
    assert "0.95 | 0.91 | not reached |" in said
    assert "use one worker: `--contexts-per-gpu 1 --mps on` (several give 1.02 x of it at best)" in said


def test_every_table_says_what_ran_and_where() -> None:
    """Device, driver, TensorFlow; who is attached; what is not told; a driver of the load that is itself the limit."""
    results, plan = measured(TESTING, "widedeep", {FOUR: pairs(2.0), TWO: pairs(1.5, told=False)})
    results.recoveries.append(
        Recovery(
            "a client faults", 4, 3, Times(0.01, 0.02, 1.0, None), 7, {"ABORTED": 1}, 0.9, "CUDA error 700"
        )
    )
    said = report.markdown(results, plan)
    sections = said.split("\n## ")[1:]
    assert [section.split("\n")[0] for section in sections] == [
        "widedeep, batch 8, 32 requests in flight",
        "Faults",
        "Targets, 32 requests in flight",
        "Advice",
    ]
    for section in sections[:3]:
        assert "on TESTING GPU, driver 0.0." in section
        assert "TensorFlow" in section
    assert "| 2.00 | 50% | 300 | 1 | 1024 | 3 of 4 | 1.00 + 0.95 (full) |" in said
    assert "| 1.50 | not told | not told | not told | not told | not told | 1.00 + 0.95 (full) |" in said
    assert (
        "| a client faults | 3 of 4 | 0.010 | 0.020 | 1.000 | never | 0.90 | 7 | 1 ABORTED | CUDA error 700 |"
        in said
    )


def test_stand_ins_are_never_judged(tmp_path: Path) -> None:
    """SIMULATED stands in the title, and neither a target nor advice is to be had."""
    results, plan = measured(STAND_IN, "widedeep", {FOUR: pairs(3.0)})
    said = report.markdown(results, plan)
    assert said.startswith("# Several workers on one GPU: SIMULATED\n")
    assert "None is judged: SIMULATED." in said
    assert "reached" not in said
    assert "Advice" not in said
    whole = json.loads(report.as_json(results, plan))
    assert whole["simulated"] is True
    assert "SIMULATED" in whole["title"]
    report.plot(results, plan, tmp_path / "plot.png")
    assert (tmp_path / "plot.png").stat().st_size > 1000


def test_one_process_is_measured_in_every_pair() -> None:
    """Its row has the samples of all of them."""
    results, _ = measured(TESTING, "widedeep", {FOUR: pairs(2.0, 2.0), TWO: pairs(1.5)})
    (cell,) = results.pairs
    assert len(report.samples(results, cell, ONE)) == 3
    assert report.ratio(results, cell, ONE) == 1.0


def line(at: float, event: str, worker: str = "") -> dict[str, object]:
    return {"at": at, "event": event, "worker": worker}


def test_a_fault_is_over_when_the_last_slot_is_back() -> None:
    """From the logs' lines after it; a worker that was lost twice counts from its first loss to its last start."""
    router = [
        line(9.0, "worker lost", "m@1.gpu0.0#1"),
        line(10.25, "worker lost", "m@1.gpu0.0#2"),
        line(10.5, "worker lost", "m@1.gpu0.1#1"),
        line(12.0, "worker lost", "m@1.gpu0.0#3"),
        line(10.1, "worker lost", "m@1.gpu1.0#1"),
    ]
    pool = [
        line(10.125, "GPU failed"),
        line(11.0, "worker ready", "m@1.gpu0.0"),
        line(11.5, "worker ready", "m@1.gpu0.1"),
        line(13.0, "worker ready", "m@1.gpu0.0"),
    ]
    hit = ["m@1.gpu0.0", "m@1.gpu0.1"]
    assert timeline(10.0, hit, router, pool) == Times(0.125, 0.5, 1.5, 3.0)
    told = [*router, line(10.0625, "device failed", "m@1.gpu0.0#2")]
    assert timeline(10.0, hit, told, pool).stopped_s == 0.0625, "that closes the device for all"
    assert timeline(10.0, hit, router, pool[:2]).all_ready_s is None
    assert timeline(20.0, [], router, pool) == Times(None, None, None, None)


def test_a_gap_counts_from_the_fault_to_the_end() -> None:
    """Nothing but right answers ends it."""
    outcomes = [(0.5, "OK"), (1.5, "OK"), (2.0, "WRONG"), (4.0, "ABORTED"), (4.5, "OK"), (9.0, "OK")]
    found = summary(outcomes, 1.0, 5.0)
    assert (found.right, found.failed, found.longest_gap_s) == (2, {"WRONG": 1, "ABORTED": 1}, 3.0)
    assert summary([], 1.0, 5.0).longest_gap_s == 4.0


def test_figures_that_nvml_does_not_tell_are_left_out() -> None:
    """A mean is over what was told, and of nothing there is none."""
    readings = [GpuReading("GPU-1", utilisation=0.2), GpuReading("GPU-1", utilisation=0.4, processes={7: 5})]
    assert device.mean_of(readings) == Used(pytest.approx(0.3), None, None, {7: 5})
    assert device.mean_of([]) == Used(None, None, None, {})


def test_without_a_gpu_one_line_says_what_can_be_done(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Nothing is started or written."""
    monkeypatch.setattr(
        device.devices, "inventory", lambda _: Inventory([], "NVML does not start: no library")
    )
    assert __main__.main(["--results", str(tmp_path)]) == 2
    assert capsys.readouterr().err == (
        "bench.gpu: no GPU: NVML does not start: no library; --simulate runs all of it on stand-ins\n"
    )
    assert not list(tmp_path.iterdir())


def test_merged_streams_have_rows_of_their_own(tmp_path: Path) -> None:
    """Each setting once more, one process too; they are advised where they are best, and no target."""
    merged = Setting(4, mps=True, merged=True)
    results, plan = measured(TESTING, "tower", {ONE_MPS: pairs(1.0), FOUR: pairs(1.2), merged: pairs(1.5)})
    said = report.markdown(results, plan)
    assert "| 4 contexts, MPS, merged streams | " in said
    assert "use 4 workers: `--contexts-per-gpu 4 --mps on` with `merge_copy_streams: true` (1.50 x" in said
    assert [what for what, *_ in report.targets(results, plan)] == ["tower, batch 8: 4 contexts, MPS"]
    report.plot(results, plan, tmp_path / "plot.png")
    both = Plan({"tower": [8]}, [1, 4], [Load(32)], 1.0, 3, merged=True)
    assert [(one.contexts, one.mps, one.merged) for one in both.settings()] == [
        (1, False, True),
        (1, True, False),
        (1, True, True),
        (4, False, False),
        (4, False, True),
        (4, True, False),
        (4, True, True),
    ]
