"""What ran where and when: decoded, summed up, told and drawn."""

from __future__ import annotations

import asyncio
import base64
import json
import struct
import sys
from collections.abc import Sequence
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st

from mpspool.cli import main
from mpspool.core.control import ControlServer
from mpspool.core.ids import WorkerId
from mpspool.core.rundir import RunDir
from mpspool.router.task_log import SIZE, TaskLog
from mpspool.supervisor import lock, report
from mpspool.supervisor.commands import ask
from mpspool.supervisor.density import command, draw, figures, read
from mpspool.supervisor.density.figures import DeviceFigures
from mpspool.supervisor.density.read import BrokenRecordError, Record
from mpspool.supervisor.density.window import Window
from tests.conftest import short_dir

S = 10**9
# (worker, began, ended, requests)
Task = tuple[str, int, int, int]
HEAD = {"now_ns": 100, "simulated": "", "devices": ["gpu0"], "running": {}}
TAIL = {"begins_ns": 1, "keeps": 0}


def record(tasks: Sequence[Task], now_ns: int = 100, **fields: Any) -> Record:
    workers = list(dict.fromkeys(task[0] for task in tasks))
    columns = np.array([(workers.index(who), *rest) for who, *rest in tasks], np.int64).reshape(-1, 4).T
    given = {"begins_ns": 0, "keeps": 0, "simulated": "", "devices": ["gpu0", "gpu1"]} | fields
    return Record(now_ns, workers=[WorkerId.parse(name) for name in workers], **given, **of_columns(columns))


def of_columns(columns: Any) -> dict[str, Any]:
    return dict(zip(("worker", "began_ns", "ended_ns", "requests"), columns, strict=True))


def one_device(tasks: Sequence[Task], begin: int, end: int) -> DeviceFigures:
    return figures.of_devices(record(tasks, end), ["gpu0"], begin, end)[0]


# -- sums -----------------------------------------------------------------------------------------


def test_two_at_once_wait_for_each_other() -> None:
    """2 s alone and 2 s beside another: 3 s of a device's time, and 1 s of waiting for each."""
    found = one_device([("a@1.gpu0.0", 0, 4 * S, 1), ("b@1.gpu0.0", 2 * S, 4 * S, 3)], 0, 10 * S)
    total = found.total
    assert (total.dispatches, total.requests, total.busy_s, total.effective_s) == (2, 4, 6, 4)
    assert (total.running_share, total.mean_running, total.max_running) == (0.4, 0.6, 2)
    assert (total.waiting_s, total.waiting_share) == (2, pytest.approx(1 / 3))
    assert {name: (model.busy_s, model.effective_s) for name, model in found.models.items()} == {
        "a@1": (4, 3),
        "b@1": (2, 1),
    }


def test_one_after_the_other_waits_for_nobody() -> None:
    """An end and a beginning at the same time are no overlap."""
    total = one_device([("a@1.gpu0.0", 0, S, 1), ("a@1.gpu0.1", S, 2 * S, 1)], 0, 4 * S).total
    assert (total.max_running, total.waiting_s, total.running_share) == (1, 0, 0.5)


def test_only_what_lies_in_the_window_counts() -> None:
    """Time outside does not, nor do dispatches and requests that ended outside or still run."""
    tasks = [
        ("a@1.gpu0.0", 0, 2 * S, 1),
        ("a@1.gpu0.1", 3 * S, 9 * S, 0),
        ("a@1.gpu0.2", 4 * S, 6 * S, 7),
        ("a@1.gpu0.0", 9 * S, 9 * S + 5, 1),
    ]
    total = one_device(tasks, S, 5 * S).total
    assert (total.busy_s, total.dispatches, total.requests) == (4, 1, 1)


def test_a_device_on_which_nothing_ran_is_all_zeros() -> None:
    """It has figures, without models."""
    found = figures.of_devices(record([("a@1.gpu0.0", 0, 5, 1)]), ["gpu0", "gpu1"], 0, 10)
    assert (found[1].models, found[1].total) == ({}, figures.Totals(0, 0, 0, 0, 0, 0, 0))
    assert figures.steps(found[1].course, 5).running == []


def test_models_stand_in_the_same_order_on_every_device() -> None:
    """The busiest of all devices together first."""
    tasks = [
        ("a@1.gpu0.0", 0, 5, 1),
        ("b@1.gpu0.0", 0, 2, 1),
        ("a@1.gpu1.0", 0, 1, 1),
        ("b@1.gpu1.0", 0, 9, 1),
    ]
    assert [list(one.models) for one in figures.of_devices(record(tasks), ["gpu0", "gpu1"], 0, 10)] == [
        ["b@1", "a@1"],
        ["b@1", "a@1"],
    ]


_tasks = st.lists(
    st.tuples(
        st.sampled_from(["a@1.gpu0.0", "a@1.gpu0.1", "b@2.gpu0.0", "b@2.gpu1.0"]),
        st.integers(0, 40),
        st.integers(0, 20),
        st.integers(0, 3),
    ).map(lambda task: (task[0], task[1], task[1] + task[2], task[3])),
    max_size=12,
)


def grid(tasks: Sequence[Task], begin: int, end: int) -> dict[str, list[int]]:
    """By model version, how many ran on gpu0 in each nanosecond."""
    counts: dict[str, list[int]] = {}
    for who, began, ended, _ in tasks:
        if who.split(".")[1] == "gpu0" and ended > begin and began < end:
            row = counts.setdefault(who.split(".", maxsplit=1)[0], [0] * (end - begin))
            for at in range(max(began, begin), min(ended, end)):
                row[at - begin] += 1
    return counts


@given(_tasks, st.integers(0, 30), st.integers(1, 30))
def test_sums_are_those_of_a_grid(tasks: list[Task], begin: int, length: int) -> None:
    """Whatever ran: busy and effective time, shares, means and maxima are those counted nanosecond by nanosecond."""
    end = begin + length
    found = one_device(tasks, begin, end)
    counts = grid(tasks, begin, end)
    together = [sum(column) for column in zip(*counts.values(), strict=True)] or [0] * length
    assert set(found.models) == set(counts)
    for totals, row in ((found.total, together), *((found.models[name], counts[name]) for name in counts)):
        assert totals.busy_s * 1e9 == pytest.approx(sum(row))
        effective = sum(mine / all_ for mine, all_ in zip(row, together, strict=True) if all_)
        assert totals.effective_s * 1e9 == pytest.approx(effective)
        assert totals.running_share == pytest.approx(sum(map(bool, row)) / length)
        assert totals.mean_running == pytest.approx(sum(row) / length)
        assert totals.max_running == max(row)


@given(_tasks, st.integers(0, 30), st.integers(1, 8), st.integers(1, 6))
def test_what_is_drawn_is_the_mean_and_the_most_of_the_grid(
    tasks: list[Task], begin: int, count: int, width: int
) -> None:
    """Of each step; or the course itself, where it has few steps."""
    end = begin + count * width
    found = one_device(tasks, begin, end)
    counts = grid(tasks, begin, end)
    drawn = figures.steps(found.course, count)
    if drawn.most is None:
        at = np.searchsorted(drawn.at_ns, np.arange(begin, end), side="right") - 1
        assert [list(row[at]) for row in drawn.running] == [counts[name] for name in found.models]
        return
    assert list(drawn.at_ns) == list(range(begin, end + 1, width))
    parts = [slice(number * width, (number + 1) * width) for number in range(count)]
    for row, name in zip(drawn.running, found.models, strict=True):
        assert list(row) == pytest.approx([sum(counts[name][part]) / width for part in parts])
    together = [sum(column) for column in zip(*counts.values(), strict=True)]
    assert list(drawn.most) == [max(together[part]) for part in parts]


def test_what_is_shorter_than_a_step_is_drawn_as_part_of_one() -> None:
    """However few ran: by itself it would be too narrow to be seen. The most says that it was there."""
    drawn = figures.steps(one_device([("a@1.gpu0.0", 30, 32, 1)], 0, 100).course, 10)
    assert list(drawn.running[0]) == pytest.approx([0, 0, 0, 0.2, 0, 0, 0, 0, 0, 0])
    assert drawn.most is not None
    assert list(drawn.most) == [0, 0, 0, 1, 0, 0, 0, 0, 0, 0]


def test_requests_a_second_count_where_their_dispatches_ended() -> None:
    """In the step of the end, whenever it began."""
    found = one_device([("a@1.gpu0.0", 0, 3 * S, 4), ("a@1.gpu0.1", 0, 1 * S + 1, 2)], 0, 4 * S)
    at_ns, rates = figures.rates(found, 0, 4 * S, 2)
    assert (list(at_ns), list(rates)) == ([0, 2 * S, 4 * S], [1, 2])


def large(count: int = SIZE) -> Record:
    """As many dispatches as the router keeps, on two devices, of three models."""
    workers = [WorkerId(f"m{m}", 1, f"gpu{d}", s) for m in range(3) for d in range(2) for s in range(2)]
    random = np.random.default_rng(3)
    worker = np.arange(count) % len(workers)
    began_ns = np.sort(random.integers(0, 600 * S, count))
    ended_ns = began_ns + random.integers(1, 40_000_000, count)
    ones = np.ones(count, np.int64)
    return Record(601 * S, 0, SIZE, "gpus", ["gpu0", "gpu1"], workers, worker, began_ns, ended_ns, ones)


def test_a_full_record_is_summed_up() -> None:
    """All that the router keeps, of which every dispatch is in the sums, and in the means of so many steps."""
    whole = large()
    found = figures.of_devices(whole, whole.devices, 0, whole.now_ns)
    assert sum(device.total.dispatches for device in found) == SIZE
    took_s = float((whole.ended_ns - whole.began_ns).sum()) / S
    assert sum(device.total.busy_s for device in found) == pytest.approx(took_s)
    drawn = [figures.steps(device.course, 552) for device in found]
    assert [len(steps.at_ns) for steps in drawn] == [553, 553]
    drawn_s = sum(float((np.diff(steps.at_ns) * sum(steps.running)).sum()) / S for steps in drawn)
    assert drawn_s == pytest.approx(took_s)


# -- reading --------------------------------------------------------------------------------------


def told(log: TaskLog, at_most: int = 3, **head: Any) -> list[dict[str, Any]]:
    """As the router tells it, through JSON."""
    pieces = [{**HEAD, **head}, *log.parts(0, at_most), log.begins()]
    return [json.loads(json.dumps(piece)) for piece in pieces]


def test_what_the_router_tells_is_what_ran() -> None:
    """Over several parts, with every column; what still runs is there until now, without requests."""
    log = TaskLog(1)
    tasks = [(f"m@{n % 3}.gpu0.{n % 4}", 2**62 + n, 10 + n, n) for n in range(1, 9)]
    for task in tasks:
        log.add(*task)
    now_ns = 2**62 + S
    found = read.decode(told(log, now_ns=now_ns, running={"m@1.gpu0.7": 2**62}, simulated="gpus"))
    names = [str(found.workers[number]) for number in found.worker]
    rows = set(zip(names, found.began_ns, found.ended_ns, found.requests, strict=True))
    ended = {(who, began, began + took * 1000, requests) for who, began, took, requests in tasks}
    assert rows == {*ended, ("m@1.gpu0.7", 2**62, now_ns, 0)}
    assert len(names) == 9
    assert (found.now_ns, found.begins_ns, found.keeps, found.simulated) == (now_ns, 1, 0, "gpus")


def test_a_worker_keeps_its_name_over_parts_that_number_it_otherwise() -> None:
    """Each part has numbers of its own, for the router may have begun to number anew."""
    row = base64.b64encode(struct.pack("=QIHH", 5, 1, 0, 1)).decode()
    parts = [{"rows": row, "workers": {"0": who}} for who in ("a@1.gpu0.0", "b@1.gpu0.0")]
    found = read.decode([HEAD, *parts, TAIL])
    assert [str(found.workers[number]) for number in found.worker] == ["a@1.gpu0.0", "b@1.gpu0.0"]


def test_nothing_told_is_an_empty_record() -> None:
    """A pool that has just been started."""
    found = read.decode([HEAD, TAIL])
    assert (len(found.worker), found.workers) == (0, [])
    assert figures.of_devices(found, ["gpu0"], 0, 10)[0].models == {}


@pytest.mark.parametrize("pieces", [[], [HEAD], [TAIL], [HEAD, {"rows": "", "workers": {}}]])
def test_half_an_answer_is_none(pieces: list[dict[str, Any]]) -> None:
    """A router that went away while it told has told nothing."""
    with pytest.raises(BrokenRecordError):
        read.decode(pieces)


def test_the_router_is_asked_over_its_socket() -> None:
    """Piece by piece, with the window that is asked for."""
    log = TaskLog(1)
    log.add("a@1.gpu0.0", 5, 1, 1)
    asked = []

    async def tasks(request: dict[str, Any]) -> Any:
        asked.append(request)
        for piece in told(log):
            yield piece

    async def ask(run: RunDir) -> Record:
        server = ControlServer(run.router_control, {"tasks": tasks})
        await server.start()
        try:
            return await asyncio.to_thread(read.ask_router, run, 12.5)
        finally:
            await server.close()

    with short_dir() as root:
        found = asyncio.run(ask(RunDir(root)))
    assert (asked, [str(worker) for worker in found.workers]) == ([{"last_s": 12.5}], ["a@1.gpu0.0"])


# -- the window -----------------------------------------------------------------------------------


ENDED = datetime(2026, 3, 4, 14, 2, 41, 250_000, timezone(timedelta(hours=5)))


def looked_at(length_s: float, begins_ns: int = 0, now_ns: int = 10_000 * S) -> Window:
    return Window.of(record([], now_ns, begins_ns=begins_ns), length_s, ENDED)


@pytest.mark.parametrize(
    ("length_s", "text"),
    [
        (30, "2026-03-04 14:02:11 to 14:02:41 UTC+0500 (30 s)"),
        (0.5, "2026-03-04 14:02:40.750 to 14:02:41.250 UTC+0500 (0.5 s)"),
        (1.5, "2026-03-04 14:02:39.750 to 14:02:41.250 UTC+0500 (1.5 s)"),
    ],
)
def test_a_window_is_told_by_the_clock(length_s: float, text: str) -> None:
    """With how far that is from UTC, and with fractions of seconds where it is short."""
    assert str(looked_at(length_s)) == text


def test_a_window_over_midnight_has_both_days() -> None:
    """For the times alone would run backwards."""
    assert (
        str(looked_at(15 * 3600, now_ns=10**6 * S))
        == "2026-03-03 23:02:41 to 2026-03-04 14:02:41 UTC+0500 (54000 s)"
    )


def test_a_window_begins_where_the_record_does() -> None:
    """It says so; and one that the record began in just now has a length all the same."""
    found = looked_at(30, begins_ns=9990 * S)
    assert (found.begin_ns, found.length_s, found.shortened) == (9990 * S, 10, True)
    assert not looked_at(30).shortened
    assert looked_at(30, begins_ns=10_000 * S).length_s > 0


@pytest.mark.parametrize(
    ("length_s", "labels"),
    [
        (30, ["14:02:15", "14:02:20", "14:02:25", "14:02:30", "14:02:35", "14:02:40"]),
        (1.0, [f"14:02:4{tenth // 10}.{tenth % 10}00" for tenth in (4, 6, 8, 10, 12)]),
        (7200, [f"{12 + step // 60}:{step % 60:02}:00" for step in (15, 30, 45, 60, 75, 90, 105, 120)]),
    ],
)
def test_marks_are_round_times_of_the_clock(length_s: float, labels: list[str]) -> None:
    """At most eight, in the window, each where its label says."""
    found = looked_at(length_s)
    at_s, written = found.ticks(8)
    assert written == labels
    assert all(0 <= one <= length_s for one in at_s)
    first = found.began + timedelta(seconds=at_s[0])
    assert first.strftime("%H:%M:%S.%f").startswith(labels[0])


# -- the command ----------------------------------------------------------------------------------


class Said:
    """The command on a record of its own."""

    def __init__(self, found: Record, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
        monkeypatch.setattr(read, "ask_router", lambda *_: found)
        self.folder = folder

    def __call__(self, *args: object) -> Result:
        output = ["--output", self.folder / "out.png"] if "--output" not in args else []
        return CliRunner().invoke(main, ["density", *map(str, [*output, *args])])


@pytest.fixture
def busy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Said:
    """Something ran on gpu0, nothing on gpu1."""
    tasks = [("half@3.gpu0.0", 9 * S, 10 * S, 1), ("half@3.gpu0.1", 9 * S, 10 * S, 1)]
    return Said(record(tasks, 10 * S, simulated="gpus"), monkeypatch, tmp_path)


def test_the_table_has_what_the_picture_has(busy: Said) -> None:
    """A row for each device and model version; where the picture is; and that devices are stand-ins."""
    done = busy("--last", "4s")
    assert done.exit_code == 0, done.output
    rows = [line.split() for line in done.output.splitlines()]
    assert ["gpu0", "all", "2", "2", "2.000", "1.000", "50%", "0.50", "2"] in rows
    assert ["half@3", "2", "2", "2.000", "1.000", "50%", "0.50", "2"] in rows
    assert ["gpu1", "all", "0", "0", "0.000", "0.000", "0%", "0.00", "0"] in rows
    assert "(4 s), SIMULATED gpus" in done.output
    assert f"drawn: {busy.folder / 'out.png'}" in done.output
    assert (busy.folder / "out.png").read_bytes().startswith(b"\x89PNG")


def test_a_narrow_terminal_has_the_names(busy: Said, monkeypatch: pytest.MonkeyPatch) -> None:
    """In 80 columns whole: some figures are left out, and nothing is cut."""
    monkeypatch.setattr(report, "_PLAIN_COLUMNS", 80)
    lines = busy("--last", "4s").output.splitlines()
    rows = [line.split() for line in lines]
    assert ["gpu0", "all", "2", "2.000", "1.000", "50%", "0.50"] in rows
    assert ["half@3", "2", "2.000", "1.000", "50%", "0.50"] in rows
    (titles,) = [line for line in lines if line.startswith("device ")]
    assert titles.split("  ")[-1].strip() == "mean running"


def test_json_has_the_same(busy: Said) -> None:
    """On standard output alone, or in a file beside the table."""
    alone = busy("--last", "4s", "--json", "-")
    found = json.loads(alone.stdout)
    beside = busy("--last", "4s", "--json", busy.folder / "out.json")
    assert "50%" in beside.stdout
    in_file = json.loads((busy.folder / "out.json").read_text())
    assert in_file["devices"] == found["devices"]
    assert (found["seconds"], found["asked_seconds"], found["simulated"]) == (4, 4, "gpus")
    length_s = datetime.fromisoformat(found["to"]) - datetime.fromisoformat(found["from"])
    assert length_s.total_seconds() == pytest.approx(4, abs=1e-3)
    gpu0, gpu1 = found["devices"]
    values = {
        "dispatches": 2,
        "requests": 2,
        "requests_per_s": 0.5,
        "busy_s": 2,
        "effective_s": 1,
        "waiting_s": 1,
        "waiting_share": 0.5,
        "running_share": 0.25,
        "mean_running": 0.5,
        "max_running": 2,
    }
    assert gpu0 == {"device": "gpu0", **values, "models": [{"model": "half@3", **values}]}
    assert (gpu1["device"], gpu1["busy_s"], gpu1["models"]) == ("gpu1", 0, [])


def test_devices_can_be_chosen(busy: Said) -> None:
    """In the order in which they are named; one that there is not is refused, and those that there are named."""
    found = json.loads(busy("--device", "gpu1, gpu0", "--json", "-").stdout)
    assert [device["device"] for device in found["devices"]] == ["gpu1", "gpu0"]
    refused = busy("--device", "gpu0,gpu7")
    assert (refused.exit_code, refused.stderr) == (
        1,
        "--device names 'gpu7', which the pool does not have; it has: gpu0, gpu1\n",
    )


def test_a_window_in_which_nothing_ran_has_no_picture(busy: Said) -> None:
    """It says so, and that is no error."""
    done = busy("--device", "gpu1", "--json", busy.folder / "out.json")
    assert done.exit_code == 0
    assert "Nothing ran on gpu1 from" in done.output
    assert not (busy.folder / "out.png").exists()
    assert json.loads((busy.folder / "out.json").read_text())["devices"][0]["busy_s"] == 0


def test_scripts_are_told_apart_from_the_json_that_there_is_no_picture(busy: Said) -> None:
    """On standard error, for standard output is the JSON's."""
    done = busy("--device", "gpu1", "--json", "-")
    assert (done.exit_code, json.loads(done.stdout)["devices"][0]["busy_s"]) == (0, 0)
    assert done.stderr.startswith("Nothing ran on gpu1 from")
    assert done.stderr.endswith(": there is nothing to draw.\n")
    assert busy("--json", "-").stderr == ""


@pytest.mark.parametrize(
    ("keeps", "why"),
    [(SIZE, "the router keeps its last 131,072 dispatches"), (0, "the router was started then")],
)
def test_a_record_that_begins_later_is_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, keeps: int, why: str
) -> None:
    """From when on it is whole, and why not from before."""
    tasks = [("half@3.gpu0.0", 9 * S, 10 * S, 1)]
    told = Said(record(tasks, 10 * S, begins_ns=8 * S, keeps=keeps), monkeypatch, tmp_path)
    done = told("--last", "1m")
    assert done.output.startswith(f"60 s were asked for, the record begins 2 s ago: {why}.")


@pytest.mark.parametrize(
    ("args", "status", "text"),
    [
        (
            ["--output", "out.bmp"],
            2,
            "--output is 'out.bmp'; its name has to end with one of .png, .svg, .pdf",
        ),
        (
            ["--output", "/nowhere/out.png"],
            2,
            "cannot write '/nowhere/out.png': there is no folder '/nowhere'",
        ),
        (
            ["--json", "/nowhere/out.json"],
            2,
            "cannot write '/nowhere/out.json': there is no folder '/nowhere'",
        ),
        (
            ["--json", "./same.svg", "--output", "same.svg"],
            2,
            "--json and --output both name './same.svg'; give each its own file",
        ),
        (["--json", "/proc"], 2, "cannot write '/proc': it is a folder; name another file with --json"),
    ],
)
def test_what_cannot_be_had_is_named(busy: Said, args: list[str], status: int, text: str) -> None:
    """In one line, with the option, its value and the remedy."""
    done = busy(*args)
    assert (done.exit_code, done.stdout, done.stderr.count("\n")) == (status, "", 1)
    assert text in done.stderr


@pytest.mark.parametrize(
    ("given", "told"),
    [("soon", "'soon' is no time; write"), ("0.5ms", "0.0005 is not in the range x>=0.001")],
)
def test_what_is_no_stretch_of_time_is_refused(busy: Said, given: str, told: str) -> None:
    """With the option, its value, and how to write one."""
    done = busy("--last", given)
    assert (done.exit_code, done.stdout) == (2, "")
    assert f"Invalid value for '--last': {told}" in done.stderr


def test_without_matplotlib_there_is_the_table(busy: Said, monkeypatch: pytest.MonkeyPatch) -> None:
    """And how to get the picture; exit status 2."""
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    done = busy()
    assert (done.exit_code, "half@3" in done.stdout) == (2, True)
    assert "`pip install matplotlib`" in done.stderr
    assert not (busy.folder / "out.png").exists()


def test_no_pool_is_told_as_everywhere() -> None:
    """With how to start one."""
    with short_dir() as root:
        done = CliRunner().invoke(main, ["density", "--run-dir", str(root)])
    assert (done.exit_code, f"no pool runs in {root}" in done.stderr) == (1, True)


def test_a_router_that_does_not_answer_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """After some patience, with the pool's process and where to look."""
    monkeypatch.setattr(ask, "PATIENCE_S", 0.0)
    with short_dir() as root, lock.held(RunDir(root)):
        done = CliRunner().invoke(main, ["density", "--run-dir", str(root)])
    assert done.exit_code == 1
    assert "does not answer" in done.stderr
    assert f"status --run-dir {root}" in done.stderr


def test_ten_devices_stand_in_their_order() -> None:
    """gpu10 after gpu9."""
    devices = [f"gpu{number}" for number in (10, 0, 9)]
    assert command._chosen(record([], devices=devices), None) == ["gpu0", "gpu9", "gpu10"]


# -- the picture ----------------------------------------------------------------------------------


def test_a_full_record_is_drawn(tmp_path: Path) -> None:
    """As wide as 1200 pixels, with a panel and a strip for each device, the means as areas and the most as a line."""
    from matplotlib.image import imread

    whole = large()
    found = figures.of_devices(whole, whole.devices, 0, whole.now_ns)
    drawn = draw.picture(found, Window.of(whole, 600, ENDED), "a title", "a note")
    assert len(drawn.axes) == 4
    assert [len(axes.collections) for axes in drawn.axes[::2]] == [3, 3]
    assert [axes.get_title(loc="left") for axes in drawn.axes[::2]] == ["gpu0", "gpu1"]
    names = [text.get_text() for text in drawn.legends[0].get_texts()]
    assert names == [*found[0].models, "most at once"]
    for axes in drawn.axes[::2]:
        (most,) = axes.patches
        assert most.get_zorder() < min(area.get_zorder() for area in axes.collections)
    draw.save(drawn, tmp_path / "out.png")
    height, width, _ = imread(tmp_path / "out.png").shape
    assert (width, 400 < height < 800) == (1200, True)


@pytest.mark.parametrize("suffix", draw.FORMATS)
def test_names_of_models_mean_nothing_to_matplotlib(tmp_path: Path, suffix: str) -> None:
    """Neither "$" nor a leading "_" nor their length; more models than colours share one, in every format."""
    odd = ["_half", "$a_b$", "$", "x" * 180, "<b>&"]
    tasks = [(f"{name}@1.gpu0.0", 9 * S, 10 * S, 1) for name in [*odd, *map(str, range(15))]]
    whole = record(tasks, 10 * S)
    drawn = draw.picture(
        figures.of_devices(whole, ["gpu0"], 9 * S, 10 * S), Window.of(whole, 1, ENDED), "$title$"
    )
    names = [text.get_text() for text in drawn.legends[0].get_texts()]
    assert len(names) == 13
    assert names[-1] == "8 others"
    assert max(map(len, names)) <= 60
    draw.save(drawn, tmp_path / f"out.{suffix}")
    assert (tmp_path / f"out.{suffix}").stat().st_size > 5000


def test_names_that_are_shortened_alike_are_told_apart() -> None:
    """They differ in the middle, and so have all of it; neither is one of the others."""
    first, second = (
        f"ranking-service-for-the-homepage-{zone}-west-1-with-wide-and-deep-tower@1" for zone in ("eu", "us")
    )
    third = "x" * 180 + "@1"
    names, columns = draw._legend_names({first: "#4477aa", second: "#ee6677", third: "#ccbb44"}, lines=False)
    assert list(names.values()) == ["#4477aa", "#ee6677", "#ccbb44"]
    assert (list(names)[:2], len(list(names)[2]), columns) == ([first, second], 60, 1)
