"""What a pool file says, judged on a trace: the rules of its models, its workers, and what it cannot be judged on."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest

from bench.sim.__main__ import main
from bench.sim.arrivals import Replay
from bench.sim.engine import Simulation
from bench.sim.pool_file import read
from bench.sim.service import Linear, Pool, Service
from bench.sim.trace import Request
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
    assert f"{other} is as that file says." in lines
    assert "1 device with 4 workers (ranker 3, ocr 1)." in lines
    assert row(lines, str(one)) == {**row(lines, "fifo"), "": str(one)}
    lines = play(tmp_path, own, "--slots", "2")
    assert f"{other} is as that file says." in lines
    assert "1 device with 2 workers (ranker 1, ocr 1)." in lines


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
            "scheduling.policy nowhere: LookupError: no policy 'nowhere'",
        ),
        (
            MODELS.replace("/r", "/r, policy: no.where:x"),
            "models.ranker.policy no.where:x: ModuleNotFoundError: ",
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
    assert f"/dev/fd/{read_end} is as that file says." in (tmp_path / "trace.md").read_text()
