"""What a pool file says, judged on a trace: the rules of its models, its workers, and what it cannot be judged on."""

from __future__ import annotations

import json
import os
import random
import re
from pathlib import Path

import msgspec
import pytest

from bench.sim.__main__ import main
from bench.sim.arrivals import Replay
from bench.sim.engine import Simulation
from bench.sim.pool_file import Placement, read
from bench.sim.service import Linear, Pool, Service
from bench.sim.setup import Setup
from bench.sim.trace import Request
from mpspool.core.settings import BatchingSettings
from mpspool.supervisor.config.scheduling import SchedulingConfig
from tests.unit.test_sim import cells

TRACE = "".join(
    f'{{"time": {n / 1000}, "model": "{model}", "cost_us": 4000, "priority": {n % 2}}}\n'
    for n in range(400)
    for model in ("ranker", "ocr")
)
MODELS = "models: {ranker: {base_path: /r}, ocr: {base_path: /o}}\n"


def play(folder: Path, text: str, *args: str) -> list[str]:
    """The report's lines; what is played is more than the workers can do."""
    (folder / "t.jsonl").write_text(TRACE)
    (folder / "pool.yaml").write_text(text)
    files = [
        "--trace",
        str(folder / "t.jsonl"),
        "--config",
        str(folder / "pool.yaml"),
        "--results",
        str(folder),
    ]
    assert main([*files, "--gpus", "1", "--processes", "1", *args]) == 0
    return (folder / "trace.md").read_text().splitlines()


def row(lines: list[str], title: str) -> dict[str, str]:
    return next(row for row in cells("\n".join(lines)) if row[""] == title)


def test_the_rules_of_a_pool_file_are_a_row(tmp_path: Path) -> None:
    """Before those of the policies: one model joins requests, the other has a short queue of its own."""
    text = (
        "max_queued_requests: 9000\nscheduling: {policy: sjf, slow_lane: 1, fair_by: peer}\n"
        "models:\n  ranker: {base_path: /r, batching: {max_batch_size: 8, adaptive: true}}\n"
        "  ocr: {base_path: /o, policy: fifo, max_queued_requests: 3}\n"
    )
    lines = play(tmp_path, text, "--slots", "ranker=2,ocr=2")
    title = str(tmp_path / "pool.yaml")
    found = row(lines, title)
    assert re.fullmatch(r"ranker [5-8]\.\d", found["rows a batch"])
    assert float(found["refused"].removesuffix(" %")) > 20
    assert re.search(r", \d+ % unanswered", found["ocr p99"])
    assert row(lines, "fifo")["refused"] == "0 %"
    assert lines.index(f"{title} is as that file says.") < next(
        number for number, line in enumerate(lines) if title in line and line[:1] == "|"
    )
    assert json.loads((tmp_path / "trace.json").read_text())["options"]["configs"] == [title]


def test_every_rule_of_a_pool_file_counts(tmp_path: Path) -> None:
    """One that is new has to be read here, too."""
    said = {
        "policy": "edf",
        "dispatch": "round_robin",
        "aging": 7,
        "running_per_device": 5,
        "slow_lane": 2,
        "slow_ms": 30,
        "priority_key": "",
        "fair_by": "peer",
        "refuse_late": False,
    }
    assert said.keys() == SchedulingConfig.model_fields.keys()
    file = tmp_path / "pool.yaml"
    file.write_text(
        f"max_queued_requests: 50\nscheduling: {json.dumps(said)}\n"
        "models: {ranker: {base_path: /r, policy: sjf, batching: {max_batch_size: 8}}}\n"
    )
    setup, _ = read(file, [Request(time=0, model="ranker")])
    queue, batching = setup.models["ranker"]
    assert (queue.policy, queue.max_queued_requests) == ("sjf", 50)
    assert batching == BatchingSettings(max_batch_size=8)
    assert setup == Setup(
        str(file),
        policy="edf",
        dispatch="round_robin",
        aging=7,
        running=5,
        long=2,
        long_us=30_000,
        priority_s=0,
        fair=True,
        refuse_late=False,
        models=setup.models,
    )


def test_it_runs_on_its_own_workers_unless_others_are_said(tmp_path: Path) -> None:
    """As do the policies, with those of the first file; where it does not say them of all, they are divided by load."""
    own = (
        "contexts_per_gpu: 1\nmodels: {ranker: {base_path: /r, contexts_per_gpu: 3}, ocr: {base_path: /o}}\n"
    )
    one = tmp_path / "one.yaml"
    one.write_text(own)
    other = tmp_path / "pool.yaml"
    lines = play(tmp_path, MODELS.replace("/r", "/r, cpu_slots: 2"), "--config", str(one))
    assert f"{one} is as that file says, with its own workers on each device (ranker 3, ocr 1)." in lines
    lacks = "which does not say the workers of each model: they are as above"
    assert f"{other} is as that file says, {lacks}." in lines
    assert "1 device with 4 workers (ranker 3, ocr 1)." in lines
    assert row(lines, str(one)) == {**row(lines, "fifo"), "": str(one)}
    lines = play(tmp_path, own, "--slots", "2")
    assert f"{other} is as that file says." in lines
    assert "1 device with 2 workers (ranker 1, ocr 1)." in lines


@pytest.mark.parametrize(
    ("text", "devices", "workers"),
    [
        ("{base_path: /r}", 0, {}),
        ("{base_path: /r, contexts_per_gpu: 3}", 0, {"ranker": 3}),
        ("{base_path: /r, cpu_slots: 2}", 1, {"ranker": 2}),
        ("{base_path: /r, gpus: none, contexts_per_gpu: 3}", 1, {}),
        ("{base_path: /r, gpus: all, contexts_per_gpu: 3, cpu_slots: 2}", 0, {"ranker": 3}),
        ("{base_path: /r, gpus: [0, 2]}", 2, {"ranker": 4}),
        ("{base_path: /r, gpus: auto, cpu_slots: 2}", 0, {"ranker": 2}),
    ],
)
def test_where_it_runs(tmp_path: Path, text: str, devices: int, workers: dict[str, int]) -> None:
    """As the pool would have it, where that does not depend on its machine."""
    file = tmp_path / "pool.yaml"
    file.write_text(f"models: {{ranker: {text}}}")
    assert read(file, [Request(time=0, model="ranker")])[1] == Placement(devices, workers)


def test_it_runs_on_its_own_devices_unless_others_are_said(tmp_path: Path) -> None:
    text = "cpu_slots: 3\n" + MODELS
    (tmp_path / "t.jsonl").write_text(TRACE)
    file = tmp_path / "pool.yaml"
    file.write_text(text)
    args = ["--trace", str(tmp_path / "t.jsonl"), "--config", str(file), "--results", str(tmp_path)]
    own = "with its own workers on each device (ranker 3, ocr 3)."
    for more, told, devices in (
        ([], f"{file} is as that file says, on 1 device, {own}", "1 device with 6 workers"),
        (["--gpus", "2"], f"{file} is as that file says, {own}", "2 devices with 6 workers each"),
    ):
        assert main([*args, "--processes", "1", *more]) == 0
        lines = (tmp_path / "trace.md").read_text().splitlines()
        assert told in lines
        assert f"{devices} (ranker 3, ocr 3)." in lines


def test_priorities_mean_something_where_the_file_has_a_key_for_them(tmp_path: Path) -> None:
    requests = [Request(time=n / 1000, model="ranker", cost_us=4000, priority=n % 2) for n in range(300)]
    service = Service("ranker", Linear(4))
    pool = Pool(1, (service,))
    file = tmp_path / "pool.yaml"
    for text, goes_before in ((MODELS, True), (f"{MODELS}scheduling: {{priority_key: ''}}", False)):
        file.write_text(text)
        setup, _ = read(file, requests)
        ended = Simulation(pool, setup, Replay(requests), 1.0, 1).run().ended
        half = [one.request.priority for one in ended[: len(ended) // 2]]
        assert (sum(half) > 0.9 * len(half)) == goes_before


def test_priorities_that_no_key_names_are_none(tmp_path: Path) -> None:
    """All ends as where nobody has any: who is in time, and who is refused."""
    draw = random.Random(1)
    requests = [
        Request(time=n / 400, model="ranker", cost_us=4000, priority=draw.randrange(-1, 2), deadline_ms=30)
        for n in range(300)
    ]
    plain = [msgspec.structs.replace(request, priority=0) for request in requests]
    pool = Pool(1, (Service("ranker", Linear(4)),))
    file = tmp_path / "pool.yaml"
    file.write_text(f"{MODELS}scheduling: {{priority_key: ''}}")
    setup, _ = read(file, requests)
    first, second = (Simulation(pool, setup, Replay(each), 1.0, 1).run() for each in (requests, plain))
    assert [(one.at_s, one.outcome) for one in first.ended] == [
        (one.at_s, one.outcome) for one in second.ended
    ]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (
            "models: {ranker: {base_path: /r}}",
            "has no model ocr, which the trace asks for; add it, or leave its",
        ),
        (f"{MODELS}polcy: sjf", "polcy: unknown key in pool.yaml line 2; known are"),
        (
            f"{MODELS}scheduling: {{policy: nowhere}}",
            "scheduling.policy nowhere: 'nowhere' is neither built in (",
        ),
        (
            MODELS.replace("/r", "/r, policy: no.where:x"),
            "models.ranker.policy no.where:x: there is no module no; install it beside",
        ),
        (
            f"{MODELS}batching: {{max_batch_size: 8, allowed_batch_sizes: [4]}}",
            "in pool.yaml line 2: allowed_batch_sizes ends",
        ),
        (
            f"{MODELS}batching: {{per_model: true}}",
            "with batching.per_model the folder of each version says how",
        ),
        (
            MODELS.replace("/r", "/r, gpus: [0, 1]").replace("/o", "/o, cpu_slots: 1"),
            "has ranker on gpus 0,1 and ocr on the CPU, and here each device has workers of every model",
        ),
        (
            f"{MODELS}batching: {{max_batch_size: 2}}",
            "takes requests of 2 rows for ranker at most (max_batch_size), and",
        ),
    ],
)
def test_what_cannot_be_judged_is_said_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, why: str
) -> None:
    """The file, and what to do; exit status 2, and no files."""
    (tmp_path / "t.jsonl").write_text(TRACE + '{"time": 1, "model": "ranker", "rows": 3}\n')
    file, folder = tmp_path / "pool.yaml", tmp_path / "results"
    file.write_text(text)
    args = ["--trace", str(tmp_path / "t.jsonl"), "--config", str(file), "--results", str(folder)]
    assert main(args) == 2
    said = capsys.readouterr().err
    assert file.name in said
    assert said.count(why) == 1
    assert not folder.exists()


def test_a_pool_file_that_is_not_there_or_for_no_trace_is_said_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "t.jsonl").write_text(TRACE)
    assert main(["--trace", str(tmp_path / "t.jsonl"), "--config", str(tmp_path / "none.yaml")]) == 2
    assert f"bench.sim: {tmp_path / 'none.yaml'}: cannot be read" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["--config", "pool.yaml"])
    assert "--config is judged on a --trace: give one, as of `mpspool record`" in capsys.readouterr().err


def hopeless(waiting: object) -> float:
    """A policy that fails on each request."""
    return float(object())  # type: ignore[arg-type]


def test_a_policy_of_a_pool_file_that_fails_is_said_so(tmp_path: Path) -> None:
    """Be it that of another model than the first."""
    text = f"models: {{ranker: {{base_path: /r}}, ocr: {{base_path: /o, policy: '{__name__}:hopeless'}}}}"
    lines = play(tmp_path, text)
    failed = f"**A policy in {tmp_path / 'pool.yaml'} failed on up to 400 requests of a cell, which went in the order"
    assert any(line.startswith(failed) for line in lines)
    other = tmp_path / "other.yaml"
    other.write_text(text)
    lines = play(tmp_path, text, "--config", str(other))
    for file in ("pool.yaml", "other.yaml"):
        assert sum(line.startswith(f"**A policy in {tmp_path / file} failed on up to") for line in lines) == 1


def test_a_pool_file_is_not_called_as_a_policy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One of the two rows would be told as the other's."""
    monkeypatch.chdir(tmp_path)
    Path("t.jsonl").write_text(TRACE)
    Path("sjf").write_text(MODELS)
    assert main(["--trace", "t.jsonl", "--config", "sjf"]) == 2
    assert "--config sjf: a policy has a row of that name; call the file otherwise" in capsys.readouterr().err


def test_a_pool_file_comes_through_a_pipe(tmp_path: Path) -> None:
    """It is read once, for what runs and for the report."""
    (tmp_path / "t.jsonl").write_text(TRACE)
    read_end, write_end = os.pipe()
    os.write(write_end, MODELS.encode())
    os.close(write_end)
    files = ["--trace", str(tmp_path / "t.jsonl"), "--config", f"/dev/fd/{read_end}"]
    try:
        assert main([*files, "--gpus", "1", "--processes", "1", "--results", str(tmp_path)]) == 0
    finally:
        os.close(read_end)
    assert f"/dev/fd/{read_end} is as that file says, " in (tmp_path / "trace.md").read_text()
