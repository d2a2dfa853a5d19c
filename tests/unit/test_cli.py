"""The command line: quick to start, plain in its refusals."""

from __future__ import annotations

import fcntl
import json
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import click
import msgspec
import pytest
from click.testing import CliRunner

from mpspool import client
from mpspool.cli import main
from mpspool.cli.common import SECONDS
from mpspool.core.rundir import RunDir, default_run_dir
from mpspool.core.settings import PoolSettings, RouterSettings, save
from mpspool.core.states import NO_SLOT, NOT_SERVED
from mpspool.supervisor import lock, report
from mpspool.supervisor.commands import ask, describe
from mpspool.supervisor.commands import mps as mps_command
from tests.conftest import short_dir
from tests.pool import free_port

HEAVY = ("tensorflow", "grpc", "zmq", "pydantic", "numpy", "rich", "asyncio", "structlog")


@pytest.mark.parametrize(
    ("module", "forbidden"),
    [
        ("mpspool.cli", HEAVY),
        ("mpspool.supervisor.commands.ask", ("tensorflow", "grpc", "zmq", "pydantic", "numpy")),
        ("mpspool.supervisor.pool.pool", ("tensorflow", "grpc", "zmq", "pydantic", "numpy")),
        ("mpspool.router.app", ("tensorflow", "pydantic", "numpy")),
    ],
)
def test_imports_stay_light(module: str, forbidden: tuple[str, ...]) -> None:
    """The command line needs next to nothing, and nothing but a worker ever imports TensorFlow."""
    code = f"import sys, {module}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not set(forbidden) & set(done.stdout.split())


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--run-dir", "/tmp/x", "status"], "--run-dir goes behind the command: mpspool status --run-dir"),
        (["--gpus", "0,2"], "--gpus goes behind the command: mpspool start --gpus"),
        (
            ["--run-dir", "/tmp/x", "mps", "set"],
            "--run-dir goes behind the command: mpspool mps set --run-dir",
        ),
        (["--gpus", "0,2", "status"], "No such option '--gpus'"),
        (["--frobnicate"], "No such option '--frobnicate'"),
    ],
)
def test_an_option_before_its_command_is_told_where_it_goes(words: list[str], said: str) -> None:
    done = CliRunner().invoke(main, words)
    assert done.exit_code == 2
    assert said in done.output


@pytest.mark.parametrize(
    "command",
    [
        "start",
        "wait",
        "status",
        "top",
        "clients",
        "density",
        "record",
        "model",
        "stop",
        "logs",
        "predict",
        "bench",
        "convert",
    ],
)
def test_help_teaches_by_example(command: str) -> None:
    """Every command's help ends with commands to copy."""
    done = CliRunner().invoke(main, [command, "--help"])
    assert done.exit_code == 0
    assert f"mpspool {command}" in done.output.split("Examples:")[1]


def test_the_help_says_in_a_line_what_each_command_is_for() -> None:
    """In a narrow terminal, too: none is cut off."""
    done = CliRunner(env={"COLUMNS": "80"}).invoke(main, ["--help"])
    commands = done.output.split("Commands:")[1].split("Examples:")[0].strip().splitlines()
    assert [line.split()[0] for line in commands] == sorted(main.commands)
    assert all(line.endswith(".") and not line.endswith("...") for line in commands)


def test_wait_takes_versions() -> None:
    """Without a version a name says nothing that `wait` alone does not."""
    done = CliRunner().invoke(main, ["wait", "ranker@8", "ranker"])
    assert done.exit_code == 2
    assert "'ranker' names no version; write NAME@VERSION, such as ranker@8" in done.stderr


def test_start_names_every_problem_and_starts_nothing() -> None:
    """Each problem has its own line; the exit status is 2, and no run folder is made."""
    with short_dir() as root:
        run = root / "run"
        args = ["--model", f"a={root}/none", "--model", f"b={root}/nothing", "--run-dir", str(run)]
        args += ["--grpc-port", str(free_port()), "--rest-port", str(free_port())]
        done = CliRunner().invoke(main, ["start", *args, "--check"])
        assert done.exit_code == 2
        problems = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
        assert len(problems) == 2
        assert "nothing was started" in done.stderr
        assert not run.exists()


@pytest.mark.parametrize("command", ["start", "doctor"])
@pytest.mark.parametrize(
    ("words", "told"),
    [
        (
            "--slow-lane 2",
            "; scheduling.slow_lane is a key of POOL.yaml, or MPSPOOL_SCHEDULING_SLOW_LANE=2 in the environment",
        ),
        ("--scheduling-policy sjf", "; write it as --policy"),
        ("--restart-retries=5", "; restart.retries is a key of POOL.yaml, or MPSPOOL_RESTART_RETRIES=5 in"),
        ("--max_queued_bytes '1 GiB'", "MPSPOOL_MAX_QUEUED_BYTES='1 GiB' in the environment"),
        ("--dispatch --host x", "MPSPOOL_SCHEDULING_DISPATCH=... in the environment"),
        ("--port=8500", "'--port'; `mpspool tensorflow_model_server` takes TensorFlow Serving's flags"),
        ("--rest-api-port 8501", "; `mpspool tensorflow_model_server` takes TensorFlow Serving's flags"),
        ("--oss-endpoint=x", "; `mpspool tensorflow_model_server` takes TensorFlow Serving's flags"),
        ("--polcy sjf", "Did you mean '--policy'?"),
        ("--grpc_port 1", "'--grpc-port'"),
        ("--mps-mode on", "; write it as --mps"),
    ],
)
def test_an_option_that_is_a_key_of_the_file_says_so(command: str, words: str, told: str) -> None:
    """With the variable that says the same; what an option is nearly named as, click says."""
    done = CliRunner().invoke(main, [command, "pool.yaml", *shlex.split(words)])
    assert done.exit_code == 2
    assert told in done.stderr
    assert ("is a key of" in done.stderr) == ("MPSPOOL" in told)
    assert ("takes TensorFlow Serving's flags" in done.stderr) == ("TensorFlow" in told)


@pytest.mark.parametrize("words", ["doctor --detach", "doctor --check", "start --version", "start --hepl"])
def test_what_is_another_commands_option_is_not_taken_for_a_flag_of_tensorflow_serving(words: str) -> None:
    done = CliRunner().invoke(main, shlex.split(words))
    assert done.exit_code == 2
    assert "TensorFlow" not in done.stderr


@pytest.mark.parametrize("words", ["--refuse-late pool.yaml", "--slow-lane", "--slow-lane= pool.yaml"])
def test_a_pool_file_is_not_an_options_value(words: str) -> None:
    """Nor is nothing."""
    done = CliRunner().invoke(main, ["start", *shlex.split(words)])
    assert done.exit_code == 2
    assert "=... in the environment" in done.stderr


def test_a_run_folder_supervisord_cannot_carry_is_refused(tmp_path: Path) -> None:
    """The problem is found before anything is started."""
    done = CliRunner().invoke(
        main, ["start", "--model", "a=/none", "--run-dir", str(tmp_path / "a;b"), "--check"]
    )
    assert done.exit_code == 2
    assert "';'" in done.stderr


@pytest.mark.parametrize(
    ("slots", "told", "verdict"),
    [
        (1, [], "All is well; nothing"),
        (500, [], "It can start, with the warnings above; nothing"),
        (1, ["models.half: it waits"], "It can start, with the warnings above; nothing"),
    ],
)
def test_a_check_with_warnings_is_not_all_well(
    monkeypatch: pytest.MonkeyPatch, slots: int, told: list[str], verdict: str
) -> None:
    """Of the plan or of a model. It could start, which is what was asked."""
    monkeypatch.setattr(describe, "check", lambda _models: ([], told))
    with short_dir() as root:
        (root / "half/1").mkdir(parents=True)
        (root / "half/1/saved_model.pb").write_bytes(b"\x08\x01\x12\x01x")
        flags = f"--model half={root}/half --run-dir {root}/run --grpc-port 0 --rest-port {free_port()}"
        counts = f"--cpu-slots {slots} --simulate-cpus 4"
        done = CliRunner().invoke(main, ["start", "--check", *flags.split(), *counts.split()])
    assert done.exit_code == 0, done.output
    assert done.stdout.splitlines()[-1].startswith(verdict)
    assert all(f"warning: {line}" in done.stderr for line in told)


def test_status_without_a_pool_says_what_to_do(tmp_path: Path) -> None:
    """Exit 1, the folder that was looked at, and how to start one."""
    done = CliRunner().invoke(main, ["status", "--run-dir", str(tmp_path)])
    assert done.exit_code == 1
    assert str(tmp_path) in done.stderr
    assert "mpspool start" in done.stderr


def test_stop_without_a_pool_is_content(tmp_path: Path) -> None:
    """Nothing is left, which is what was asked for."""
    done = CliRunner().invoke(main, ["stop", "--run-dir", str(tmp_path)])
    assert (done.exit_code, "nothing to stop" in done.output) == (0, True)


def test_stop_leaves_alone_who_does_not_hold_the_lock(tmp_path: Path) -> None:
    """A pool in another pid namespace: its number is somebody else's here, and exit 1 says that it runs on."""
    run = RunDir(tmp_path / "run")
    with lock.held(run), subprocess.Popen(["sleep", "60"]) as other:
        try:
            for pid in (other.pid, 2**22):  # somebody else's, nobody's
                run.lock.write_text(f"{pid}\n")
                done = CliRunner().invoke(main, ["stop", "--run-dir", str(run.root), "--timeout", "5"])
                assert (done.exit_code, f"the pool in {run.root} runs on" in done.stderr) == (1, True)
            assert other.poll() is None
        finally:
            other.kill()


def test_wait_without_a_pool_times_out_with_the_reason(tmp_path: Path) -> None:
    """It waits for a pool that is not there yet, until its time is over."""
    done = CliRunner().invoke(main, ["wait", "--run-dir", str(tmp_path), "--timeout", "0.3"])
    assert done.exit_code == 1
    first, last = done.stderr.splitlines()
    assert first.startswith(f"no pool runs in {tmp_path}")
    assert last.startswith("not ready after 0.3 s: no pool runs in")


def test_logs_prints_one_process_or_all_and_lists_those_there_are(tmp_path: Path) -> None:
    """A worker goes by its id or its program; an unknown name is answered with the known ones."""
    logs = RunDir(tmp_path).logs
    logs.mkdir()
    (logs / "router.log").write_text("from the router\n")
    (logs / "worker.half@1.cpu0.0.log").write_text("from the worker\n")
    base = ["logs", "--run-dir", str(tmp_path)]
    for name in ("half@1.cpu0.0", "worker.half@1.cpu0.0"):
        assert CliRunner().invoke(main, [*base, name]).output == "from the worker\n"
    everything = CliRunner().invoke(main, base).output
    assert "==> router <==" in everything
    assert "from the worker" in everything
    unknown = CliRunner().invoke(main, [*base, "../lock"])
    assert unknown.exit_code == 1
    assert "router, worker.half@1.cpu0.0" in unknown.stderr


@pytest.mark.parametrize("text", ["{x: 1}", "[" * 100_000], ids=["a name without quotes", "too deep"])
def test_predict_refuses_what_is_no_json(text: str) -> None:
    """The error shows what would do."""
    done = CliRunner().invoke(main, ["predict", "half", "--input", text])
    assert done.exit_code == 1
    assert "--input '{\"x\": [1, 2, 5]}'" in done.stderr


@pytest.mark.parametrize("address", ["127.0.0.1:74036", "[::1]:0", "host:999999", "host:"])
def test_predict_refuses_what_is_no_port(address: str) -> None:
    done = CliRunner().invoke(main, ["predict", "half", "--input", "[1]", "--address", address])
    assert done.exit_code == 2
    assert (
        f"--address {address}: the port '{address.rpartition(':')[2]}' is no number from 1 to 65535"
        in done.stderr
    )


def test_predict_shows_code_and_text() -> None:
    """A server that is not there: the code, the reason and a hint."""
    done = CliRunner().invoke(
        main, ["predict", "half", "--input", "[1]", "--address", "127.0.0.1:1", "--timeout", "5"]
    )
    assert done.exit_code == 1
    assert done.stderr.startswith("UNAVAILABLE: ")
    assert done.stderr.endswith("is a server running at 127.0.0.1:1?\n")


def test_predict_asks_the_pool_of_the_folder(tmp_path: Path) -> None:
    """Its gRPC port is found with --run-dir, which the hint repeats; a folder without a pool is refused."""
    run = RunDir(tmp_path / "run")
    args = ["predict", "half", "--input", "[1]", "--timeout", "5", "--run-dir", str(run.root)]
    done = CliRunner().invoke(main, args)
    assert (done.exit_code, f"no pool runs in {run.root}" in done.stderr) == (1, True)
    with lock.held(run):
        for port, told in ((1, "is a server running at 127.0.0.1:1? ("), (0, "gRPC front off")):
            router = RouterSettings(run_dir=str(run.root), host="127.0.0.1", grpc_port=port, rest_port=0)
            pool = PoolSettings(run_dir=str(run.root), mps="off", models=[], mps_daemons=[], router=router)
            run.settings.mkdir(exist_ok=True)
            save(run.settings_file("pool"), pool)
            done = CliRunner().invoke(main, args)
            assert done.exit_code == 1
            assert told in done.stderr
            assert (f"status --run-dir {run.root})" in done.stderr) == bool(port)
        router = msgspec.structs.replace(router, grpc_socket_path="/s")
        save(run.settings_file("pool"), msgspec.structs.replace(pool, router=router))
        assert "it has a socket, for predict: --address unix:/s" in CliRunner().invoke(main, args).stderr


@pytest.fixture
def held(tmp_path: Path) -> Iterator[RunDir]:
    """The run folder of a pool with its fronts on ports 1 and 2, which has one model."""
    run = RunDir(tmp_path / "run")
    with lock.held(run):
        router = RouterSettings(run_dir=str(run.root), host="127.0.0.1", grpc_port=1, rest_port=2)
        save(
            run.settings_file("pool"),
            PoolSettings(run_dir=str(run.root), mps="off", models=[], mps_daemons=[], router=router),
        )
        yield run


def predict_fails(monkeypatch: pytest.MonkeyPatch, run: RunDir, error: client.CallError, *args: str) -> str:
    def refuse(*_args: object, **_kwargs: object) -> None:
        raise error

    models = [{"name": "ranker", "versions": []}, {"name": "ocr", "versions": []}]
    monkeypatch.setattr(client, "predict", refuse)
    monkeypatch.setattr(ask, "status", lambda _run: {"models": models})
    base = ["predict", "rankr", "--input", "[1]", "--run-dir", str(run.root)]
    done = CliRunner().invoke(main, [*base, *args])
    assert done.exit_code == 1
    return done.stderr


def test_predict_suggests_a_model_of_the_pool(monkeypatch: pytest.MonkeyPatch, held: RunDir) -> None:
    """Where it is that pool that was asked, by its address too."""
    error = client.CallError("NOT_FOUND: no rankr")
    for args in ([], ["--address", "127.0.0.1:1"]):
        assert predict_fails(monkeypatch, held, error, *args) == "NOT_FOUND: no rankr; did you mean ranker?\n"
    assert predict_fails(monkeypatch, held, error, "--address", "127.0.0.1:9") == "NOT_FOUND: no rankr\n"


def test_predict_names_the_port_of_grpc(monkeypatch: pytest.MonkeyPatch, held: RunDir) -> None:
    """To who took the HTTP port of a pool that is known."""
    error = client.NotGrpcError("HTTP")
    told = predict_fails(monkeypatch, held, error, "--address", "127.0.0.1:2")
    assert told == "HTTP; the pool's gRPC port is 1\n"
    assert predict_fails(monkeypatch, held, error, "--address", "127.0.0.1:9") == "HTTP\n"


def test_mps_set_tells_what_it_left_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """And passes on what the pool warns of, beside its answer."""
    share = {"active_thread_percentage": 50, "pinned_memory_bytes": 0, "priority": "normal", "inherited": []}
    one, two = ({"worker": name, "running": share, "next": share} for name in ("a", "b"))
    answers = [{"set": [], "warnings": ["too much"]}, {"renewed": one}, {"unchanged": two}]
    monkeypatch.setattr(mps_command, "change", lambda *_args, **_kwargs: iter(answers))
    done = CliRunner().invoke(main, ["mps", "set", "--restart", "--run-dir", str(tmp_path)])
    values = "threads 50%, memory no limit, priority normal"
    assert done.stdout.splitlines() == [f"renewed a: {values}", f"unchanged b: {values}"]
    assert done.stderr == "warning: too much\n"


@pytest.mark.parametrize(
    ("args", "told"),
    [
        ([], "either NAME"),
        (["half", "--path", "."], "either NAME"),
        (["half", "--saved-model-tag", "gpu"], "go with --path"),
        (["--path", ".", "--custom-op", "/nowhere/hash.so"], "/nowhere/hash.so"),
    ],
)
def test_model_refuses_what_does_not_go_together(args: list[str], told: str) -> None:
    """As a mistake in the command, exit status 2."""
    done = CliRunner().invoke(main, ["model", *args])
    assert (done.exit_code, told in done.stderr) == (2, True)


def test_model_without_a_pool_says_what_to_do(tmp_path: Path) -> None:
    """Exit 1, the folder that was looked at, and how to start one."""
    done = CliRunner().invoke(main, ["model", "half", "--run-dir", str(tmp_path)])
    assert (done.exit_code, f"no pool runs in {tmp_path}; start one" in done.stderr) == (1, True)


@pytest.mark.parametrize(
    ("script", "told"),
    [
        ("kill -SEGV $$", "the process that read it was ended by SIGSEGV"),
        ("echo noise >&2; echo why >&2; exit 3", "the process that read it ended with status 3: why"),
        ("exit 1", "status 1: it said nothing"),
        ('printf %s \'{"error": "in two\\nlines"}\'', "in two lines"),
    ],
)
def test_a_child_that_gives_no_answer_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, told: str
) -> None:
    """In one line: how it ended, and its last words."""
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\n{script}\n")
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    (tmp_path / "saved_model.pbtxt").write_text("not read")
    done = CliRunner().invoke(main, ["model", "--path", str(tmp_path)])
    assert (done.exit_code, done.stderr.count("\n")) == (1, 1)
    assert done.stderr.endswith(f"{told}\n")


def test_the_lock_refuses_a_second_pool_and_names_the_first(tmp_path: Path) -> None:
    """The holder's pid is known while it holds the run folder, and 0 once it has gone."""
    from mpspool.core.errors import StartError

    run = RunDir(tmp_path / "run")
    assert lock.holder(run) == 0
    with lock.held(run):
        assert lock.holder(run) == os.getpid()
        assert not lock.failed(run, os.getpid())
        with pytest.raises(StartError, match=str(os.getpid())), lock.held(run):
            pass
    assert lock.holder(run) == 0
    assert lock.failed(run, os.getpid())
    assert not lock.failed(run, 1)
    with lock.held(run):
        lock.leave(run)
    assert not lock.failed(run, os.getpid())


STATUS = {
    "pool": {"state": "DEGRADED", "pid": 1, "run_dir": "/r", "grpc_port": 8500, "rest_port": 0, "mps": "off"},
    "models": [{"name": "half", "versions": [{"version": 1, "state": "AVAILABLE", "error": "", "policy": "fifo", "batch_rows": 0}]}],
    "workers": [
        {
            "id": "half@1.cpu0.0", "model": "half", "version": 1, "device": "cpu0", "slot": 0, "generation": 2,
            "pid": 0, "state": "FATAL", "restarts": 1, "in_flight": 0, "served": 0, "cpus": [0, 1],
            "error": "no such [op]", "simulated": True,
        }
    ],
    "processes": [{"name": "router", "state": "RUNNING", "pid": 5}],
}  # fmt: skip


@pytest.mark.parametrize(
    ("pool", "told"),
    [
        ({}, "gRPC on port 8500"),
        ({"tls": "server", "rest_port": 8501}, "gRPC on port 8500 (TLS), HTTP on port 8501"),
        ({"tls": "mutual"}, "gRPC on port 8500 (TLS, clients need a certificate)"),
        ({"grpc_port": 0, "grpc_socket_path": "/s"}, "gRPC on unix:/s"),
        ({"grpc_port": 0, "grpc_socket_path": ""}, "both fronts off"),
    ],
)
def test_the_table_says_where_the_fronts_are(
    capsys: pytest.CaptureFixture[str], pool: dict[str, object], told: str
) -> None:
    """And whether gRPC's speaks TLS."""
    report.print_status({**STATUS, "pool": {**STATUS["pool"], **pool}})
    assert capsys.readouterr().out.splitlines()[0] == f"DEGRADED  pid 1  {told}"


def test_the_table_shows_states_errors_and_stand_ins(capsys: pytest.CaptureFixture[str]) -> None:
    """What a person looks at holds every worker whole, also where the output is no terminal."""
    report.print_status(json.loads(json.dumps(STATUS)))
    text = capsys.readouterr().out
    for word in (
        "DEGRADED",
        "half@1.cpu0.0 SIMULATED",
        "FATAL",
        "no such [op]",
        "0-1",
        "router",
        "AVAILABLE",
    ):
        assert word in text


def weights(**fields: object) -> dict[str, object]:
    none = dict.fromkeys(
        ("shared_bytes", "private_bytes", "shared_variables", "private_variables", "excess_bytes"), 0
    )
    return {**none, "why": {}, **fields}


@pytest.mark.parametrize(
    ("found", "told"),
    [
        ({}, "AVAILABLE  -"),
        (weights(), "AVAILABLE  none"),
        (weights(private_variables=2, private_bytes=8), "AVAILABLE  8 B private"),
        (
            weights(shared_variables=1, shared_bytes=36_800_000, private_variables=14, private_bytes=56),
            "AVAILABLE  36.8 MB shared, 56 B private",
        ),
        (
            weights(shared_variables=1, shared_bytes=2 * 10**9, excess_bytes=12_000_000),
            "half@1: a worker has 12.0 MB of private memory beyond what was expected",
        ),
    ],
)
def test_the_table_shows_what_is_shared(
    capsys: pytest.CaptureFixture[str], found: dict[str, object], told: str
) -> None:
    """Per model version; what was copied in silence is a line of its own."""
    version = {"version": 1, "state": "AVAILABLE", "error": "", "policy": "fifo", "batch_rows": 0}
    version |= {"weights": found}
    report.print_status({**STATUS, "models": [{"name": "half", "versions": [version]}]})
    out = capsys.readouterr().out
    assert told in out
    assert "policy" not in out
    assert "batches" not in out


def test_the_table_shows_policies_and_those_that_fail(capsys: pytest.CaptureFixture[str]) -> None:
    """Where any is not fifo."""
    version = {"version": 1, "state": "AVAILABLE", "error": "", "batch_rows": 0}
    failing = {**version, "policy": "mine:urgent", "policy_error": "KeyError: 'x'", "policy_slow_ms": 50.6}
    models = {"half": {**version, "policy": "fifo"}, "third": failing}
    report.print_status(
        {**STATUS, "models": [{"name": name, "versions": [one]} for name, one in models.items()]}
    )
    out = capsys.readouterr().out
    assert "AVAILABLE  -        mine:urgent" in out
    assert "AVAILABLE  -        fifo" in out
    assert (
        "third@1: the policy mine:urgent fails, and requests go in the order of arrival: KeyError: 'x'" in out
    )
    assert (
        "third@1: the policy mine:urgent takes 51 ms for a request, and nothing else is done meanwhile" in out
    )
    assert "half@1: the policy" not in out


def test_the_table_shows_what_was_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """By version and for want of what; that of no version, too."""
    found = [
        ("half", "1", "queue_requests", 95),
        ("half", "1", "late", 14),
        ("half", "", "answers", 2),
        ("", "", "bytes", 3),
    ]
    names = ("model", "version", "reason", "count")
    report.print_status({**STATUS, "refusals": [dict(zip(names, one, strict=True)) for one in found]})
    out = capsys.readouterr().out
    assert "half@1: refused so far: 95 x queue_requests, 14 x late\n" in out
    assert "half: refused so far: 2 x answers\n" in out
    assert "of what is not served: refused so far: 3 x bytes\n" in out
    report.print_status(STATUS)
    assert "refused" not in capsys.readouterr().out


def test_the_table_shows_how_requests_wait(capsys: pytest.CaptureFixture[str]) -> None:
    """The pool's slow lane and what tells clients apart, where there are."""
    pool = {**STATUS["pool"], "slow_lane": 2, "fair_by": "metadata:tenant"}
    report.print_status({**STATUS, "pool": pool})
    assert "MPS off  slow lane 2  clients share by metadata:tenant\n" in capsys.readouterr().out
    report.print_status({**STATUS, "pool": {**pool, "slow_lane": 0, "fair_by": "none"}})
    assert "MPS off\n" in capsys.readouterr().out


def test_the_table_shows_how_many_rows_run_together(capsys: pytest.CaptureFixture[str]) -> None:
    """Where any model is batched."""
    version = {"version": 1, "state": "AVAILABLE", "error": "", "policy": "fifo"}
    models = {"joined": {**version, "batch_rows": 128}, "single": {**version, "batch_rows": 0}}
    report.print_status(
        {**STATUS, "models": [{"name": name, "versions": [one]} for name, one in models.items()]}
    )
    out = capsys.readouterr().out
    assert "policy" not in out
    assert "AVAILABLE  -        to 128 rows" in out
    assert "AVAILABLE  -        -" in out


def test_the_table_shows_memory_and_fits_100_columns(capsys: pytest.CaptureFixture[str]) -> None:
    """Also of a worker that has served millions; one that is not there has none."""
    (worker,) = STATUS["workers"]
    big = {
        "id": "half_plus_two@1.gpu0.0", "simulated": False, "pid": 1234567, "served": 12_345_678,
        "memory": {"pss_bytes": 2_345_600_000, "private_bytes": 25_400_000, "shared_bytes": 9**11},
    }  # fmt: skip
    report.print_status({**STATUS, "workers": [worker, {**worker, **big}]})
    lines = capsys.readouterr().out.splitlines()
    (line,) = [line for line in lines if line.startswith("half_plus_two@1.gpu0.0  ")]
    assert line.split()[-3:] == ["2,346", "25", "0-1"]
    (line,) = [line for line in lines if line.startswith("half@1.cpu0.0 SIMULATED")]
    assert line.split()[-3:] == ["-", "-", "0-1"]
    assert max(map(len, lines)) <= 100


def test_the_table_fits_80_columns(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without what can be spared; every state and number is there, and an error is told once."""
    monkeypatch.setattr(report, "_PLAIN_COLUMNS", 80)
    (worker,) = STATUS["workers"]
    fatal = {
        "id": "a-rather-long-ranking-model@1.cpu0.0",
        "state": "FATAL",
        "error": "no such [op]",
        "memory": {},
    }
    version = {"version": 1, "state": "END", "error": "no such [op]", "policy": "fifo", "batch_rows": 0}
    version |= {"weights": weights()}
    models = [{"name": "a-rather-long-ranking-model", "versions": [version]}]
    ready = {"state": "READY", "pid": 1234567, "served": 12_345_678, "error": ""}
    ready |= {"memory": {"pss_bytes": 2_345_600_000, "private_bytes": 25_400_000, "shared_bytes": 0}}
    workers = [{**worker, **ready}, {**worker, **fatal}]
    report.print_status({**STATUS, "models": models, "workers": workers})
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= 80
    for text in ("restarts", "READY", "1234567", "12345678", "2,346", "FATAL", "END"):
        assert text in out
    assert out.count("no such [op]") == 1


def test_changes_are_told_once() -> None:
    """A line for what is new, nothing for what stays."""
    first = list(report.changes(None, STATUS))
    assert any("FATAL, given up: no such [op]" in line for line in first)
    assert list(report.changes(STATUS, STATUS)) == []


@pytest.mark.parametrize(("run_dir", "where"), [("/r", " --run-dir /r"), (str(default_run_dir()), "")])
def test_the_hint_at_a_log_names_the_run_folder(run_dir: str, where: str) -> None:
    """Unless it is the one that is looked at anyway."""
    told = list(report.changes(None, {**STATUS, "pool": {**STATUS["pool"], "run_dir": run_dir}}))
    assert [line for line in told if line.endswith(f" logs half@1.cpu0.0{where}")]


def states(*found: tuple[str, int], error: str = "it was killed") -> list[str]:
    """What is told while a worker is in one state and generation after the other."""
    worker = {"id": "m@1.cpu0.0", "error": error, "pid": 0, "cpus": [], "simulated": False}
    pool = {"state": "STARTING", "run_dir": "/r", "grpc_port": 1, "rest_port": 0}
    seen = [
        {"pool": pool, "workers": [{**worker, "state": state, "generation": generation}], "processes": []}
        for state, generation in found
    ]
    return [line for before, after in pairwise(seen) for line in report.changes(before, after)]


def test_a_workers_end_is_told_once() -> None:
    """When it is started again at once, and when it is later."""
    at_once = states(("READY", 1), ("STARTING", 2), ("WARMING", 2))
    assert at_once == ["m@1.cpu0.0 ended: it was killed; it is started again"]
    soon = states(("READY", 1), ("EMPTY", 1), ("EMPTY", 1), ("STARTING", 2), ("WARMING", 2))
    assert soon == ["m@1.cpu0.0 ended: it was killed; it is started again"]
    later = states(("READY", 1), ("BACKOFF", 1), ("STARTING", 2))
    assert later == [
        "m@1.cpu0.0 ended: it was killed; it is started again later",
        "m@1.cpu0.0 is started again",
    ]


def test_an_end_is_told_in_one_word() -> None:
    """Where the reason says itself that it ended; a slot without a worker yet has no end."""
    for why in ("ended: gpu0 failed: fault", "ended without being asked to"):
        assert states(("READY", 1), ("EMPTY", 1), error=why) == [f"m@1.cpu0.0 {why}; it is started again"]
    assert states(("EMPTY", 0), ("STARTING", 1)) == []


def test_what_is_given_up_is_not_told_to_start_again() -> None:
    """Also where the pool counts a generation that it never started."""
    told = states(("STARTING", 1), ("FATAL", 2), error="gpu0 is lost")
    assert told[0] == "m@1.cpu0.0 FATAL, given up: gpu0 is lost"
    assert not [line for line in told if "again" in line]


def test_on_a_lost_gpu_nothing_is_told_to_start_again() -> None:
    """The end of each worker is told all the same."""
    worker = {
        "id": "m@1.gpu0.0",
        "device": "gpu0",
        "error": "ended: gone",
        "generation": 1,
        "pid": 0,
        "cpus": [],
    }
    pool = {"state": "STARTING", "run_dir": "/r", "grpc_port": 1, "rest_port": 0}
    gpu = {"device": "gpu0", "state": "LOST", "error": "gone"}
    before, after = (
        {"pool": pool, "devices": [gpu], "processes": [], "workers": [{**worker, "state": state}]}
        for state in ("READY", "EMPTY")
    )
    assert list(report.changes(before, after)) == ["m@1.gpu0.0 ended: gone"]


def test_how_many_are_left_is_told_at_each_change() -> None:
    """Of a pool that is degraded; one that starts tells its workers alone."""

    def told(state: str, *ready: int) -> list[str]:
        seen = []
        for number in ready:
            workers = [
                {"id": f"m@1.cpu0.{slot}", "state": "READY" if slot < number else "WARMING", "generation": 1,
                 "pid": 1, "cpus": []}
                for slot in range(6)
            ]  # fmt: skip
            pool = {"state": state, "run_dir": "/r", "grpc_port": 1, "rest_port": 0}
            seen.append({"pool": pool, "workers": workers, "processes": []})
        lines = [line for before, after in pairwise(seen) for line in report.changes(before, after)]
        return [line for line in lines if "of 6" in line]

    assert told("DEGRADED", 5, 4, 4, 5) == [
        "degraded: 4 of 6 workers READY",
        "degraded: 5 of 6 workers READY",
    ]
    assert told("STARTING", 1, 2) == []


def pids(*pids: int, name: str = "router", state: str = "RUNNING") -> list[str]:
    """What is told while a process has one pid after the other."""
    seen = [
        {
            "pool": {"state": state, "run_dir": "/r", "grpc_port": 1, "rest_port": 0},
            "workers": [],
            "processes": [{"name": name, "state": "RUNNING", "pid": pid}],
        }
        for pid in pids
    ]
    return [line for before, after in pairwise(seen) for line in report.changes(before, after)]


def test_versions_that_come_fail_and_go_are_told() -> None:
    """Beside others of their model: of its first one the workers and the pool tell. What leaves with its version does not come back."""

    def seen(*versions: tuple[int, str, str], worker: str = "READY") -> dict[str, Any]:
        found = [{"version": number, "state": state, "error": error} for number, state, error in versions]
        one = {"id": "m@1.cpu0.0", "model": "m", "version": 1, "generation": 1, "pid": 7, "cpus": []}
        workers = [{**one, "state": worker, "error": NOT_SERVED}]
        pool = {"state": "RUNNING", "run_dir": "/r", "grpc_port": 1, "rest_port": 0}
        return {
            "pool": pool,
            "models": [{"name": "m", "versions": found, "labels": {"stable": 1, "old": 0}}],
            "workers": workers,
            "processes": [],
        }

    first, both = (1, "AVAILABLE", ""), [(1, "AVAILABLE", ""), (2, "LOADING", "")]
    stories = [seen(), seen(first), seen(*both), seen(first, (2, "AVAILABLE", ""))]
    stories += [seen((1, "UNLOADING", ""), (2, "AVAILABLE", ""), worker="EMPTY")]
    stories += [seen((2, "AVAILABLE", ""), (3, "END", "it is cut"), worker="EMPTY")]
    stories += [seen((2, "AVAILABLE", ""), (3, "END", "it is cut"), worker="EMPTY")]
    told = [line for before, after in pairwise(stories) for line in report.changes(before, after)]
    assert told == [
        "m@2 has come, and is loaded",
        "m@2 AVAILABLE",
        "m@1.cpu0.0 ended: its version is not served any more",
        "m@3 is not served: it is cut",
        "m@1 has gone",
        "m: version_label stable stands for version 1, which is not served: requests with it are refused",
    ]


@pytest.mark.parametrize("reason", [NO_SLOT, NOT_SERVED])
def test_a_worker_that_is_not_wanted_any_more_does_not_come_back(reason: str) -> None:
    """Whatever its version is by then: one that is refused after its workers were READY is still said to be AVAILABLE."""

    def seen(state: str, error: str) -> dict[str, Any]:
        worker = {"id": "m@1.cpu0.1", "model": "m", "version": 1, "generation": 1, "pid": 7, "cpus": []}
        return {
            "pool": {"state": "RUNNING", "run_dir": "/r", "grpc_port": 1, "rest_port": 0},
            "models": [{"name": "m", "versions": [{"version": 1, "state": "AVAILABLE", "error": ""}]}],
            "workers": [{**worker, "state": state, "error": error}],
            "processes": [],
        }

    told = report.changes(seen("READY", ""), seen("EMPTY", reason))
    assert list(told) == [f"m@1.cpu0.1 ended: {reason}"]


def test_a_process_that_is_started_again_is_told_once() -> None:
    """Whether it was seen gone or not; not at its first start, not at the end, not where its end is its aim."""
    assert pids(0, 5, 5) == []
    assert pids(5, 7, 7) == ["router ended (pid 5) and was started again (pid 7)"]
    assert pids(5, 0, 0, 7) == ["router ended (pid 5) and is started again"]
    assert pids(5, 0, state="STOPPING") == []
    assert pids(5, 0, name="publish.half@1") == []


def test_a_gpus_fault_is_told_from_its_beginning_to_its_end() -> None:
    """Each change once; a device that serves from the start on is nothing to tell."""
    told: list[str] = []
    before: dict[str, Any] | None = None
    for state, error in [
        ("SERVING", ""),
        ("FAULTED", "bus"),
        ("RECOVERING", "bus"),
        ("SERVING", ""),
        ("LOST", "Xid"),
    ]:
        device = {"device": "gpu0", "state": state, "simulated": True, "error": error}
        after = {**STATUS, "devices": [device]}
        told += [line for line in report.changes(before, after) if line.startswith("gpu0")]
        before = after
    assert told == [
        "gpu0 SIMULATED FAULTED: bus; all its workers are ended and started again",
        "gpu0 SIMULATED can be used again: its workers come back one by one",
        "gpu0 SIMULATED has recovered",
        "gpu0 SIMULATED LOST: Xid; nothing is started on it any more",
    ]


def test_the_status_says_which_labels_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """Those of versions that have gone."""
    versions = STATUS["models"][0]["versions"]
    labels = {"now": versions[0]["version"], "stable": 77}
    report.print_status({**STATUS, "models": [{"name": "m", "versions": versions, "labels": labels}]})
    told = capsys.readouterr().out
    assert "m: version_label stable stands for version 77, which is not served" in told
    assert "version_label now" not in told


@pytest.mark.parametrize(
    ("said", "line"),
    [
        ({"off": True}, "m: unloaded by hand; `mpspool load m` has it back"),
        (
            {"unloaded": [7]},
            "m@7: left out by hand; after `mpspool load m` what version_policy means counts again",
        ),
        ({"loaded": [8]}, "m@8: loaded by hand"),
    ],
)
def test_the_status_says_what_was_said_by_hand(
    said: dict[str, Any], line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """And how it is taken back."""
    report.print_status({**STATUS, "models": [{"name": "m", "versions": [], "by_hand": said}]})
    assert line in capsys.readouterr().out


@pytest.mark.parametrize(
    "words",
    [
        ["wait", "--timeout", "0"],
        ["load", "m", "--timeout", "-1"],
        ["reload", "--timeout", "0"],
        ["predict", "m", "--input", "1", "--timeout", "0"],
    ],
)
def test_a_time_is_more_than_nothing(words: list[str]) -> None:
    """Else it is a mistake of whoever asks, and said so."""
    done = CliRunner().invoke(main, words)
    assert done.exit_code == 2
    assert "is not in the range x>0" in done.stderr


@pytest.mark.parametrize(
    "words",
    [
        ["wait", "--timeout", "nan"],
        ["capture", "m", "--timeout", "nan"],
        ["top", "--interval", "nan"],
        ["bench", "--model", "m", "--deadline", "nan"],
        ["simulate", "fault", "gpu0", "--kind", "daemon-hang", "--for", "nan"],
    ],
)
def test_what_is_no_number_is_no_time(words: list[str]) -> None:
    """Nothing would ever be later than that."""
    done = CliRunner().invoke(main, words)
    assert done.exit_code == 2
    assert "'nan' is no time; write a number and ms, s, m or h, as 500ms, 30s or 2m" in done.stderr


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("100ms", 0.1),
        ("2 m", 120.0),
        ("1.5", 1.5),
        ("1e-3", 0.001),
        ("0.5h", 1800.0),
        ("1234567s", 1234567.0),
        (".5s", 0.5),
        (" 10s ", 10.0),
        ("999999999h", 1e9),
    ],
)
def test_a_time_has_a_unit_or_is_seconds(text: str, found: float) -> None:
    """Wherever an option takes one."""
    assert SECONDS.convert(text, None, None) == pytest.approx(found)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("100 parsecs", "'100 parsecs' is no time; write a number and ms, s, m or h"),
        ("ms", "'ms' is no time; write"),
        ("", "'' is no time; write"),
        ("30ss", "'30ss' is no time; write"),
        ("\u0663s", "'\u0663s' is no time; write"),
        ("0ms", "0.0 is not in the range x>0"),
        ("-1", "-1.0 is not in the range x>0"),
    ],
)
def test_what_is_no_time(text: str, told: str) -> None:
    """It is told what one is."""
    with pytest.raises(click.BadParameter, match=re.escape(told)):
        SECONDS.convert(text, None, None)


@pytest.mark.parametrize("text", ["inf", "1e300"])
def test_a_time_without_an_end_can_be_waited_for(tmp_path: Path, text: str) -> None:
    """A process that has no sooner end is waited for, by select()."""
    run = RunDir(tmp_path)
    with run.lock.open("w") as file, subprocess.Popen(["sleep", "60"], stdout=file) as process:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.write(f"{process.pid}\n")
        file.flush()
        done = CliRunner().invoke(main, ["stop", "--run-dir", str(tmp_path), "--timeout", text])
    assert process.returncode == -signal.SIGTERM
    assert "OverflowError" not in repr(done)


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["2=1,2=3"], "has version 2 twice"),
        (["--metadata", "X Canary=yes:1"], "a key of metadata has letters, digits, - _ and . only"),
        (["--metadata", "x-bin=yes:1"], "a key of metadata has letters, digits, - _ and . only"),
        (["--metadata", "grpc-x=y:8"], "- _ and . only, without grpc- before or -bin behind"),
        (["7"], "is no route"),
        ([f"{'9' * 5000}=1"], "is no route"),
        (["--label", f"stable={'9' * 5000}"], "write LABEL=VERSION"),
    ],
)
def test_a_route_that_is_none(words: list[str], why: str) -> None:
    """It is refused before anybody is asked."""
    done = CliRunner().invoke(main, ["route", "m", *words])
    assert done.exit_code == 1
    assert why in done.stderr
