"""Versions change under load, in every way that goes well or wrong: no client notices.

One pool with two workers serves the module from a base path of its own; each test leaves it whole, with one version.
"""

from __future__ import annotations

import os
import shutil
import signal
import struct
import subprocess
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from mpspool.core import control, tfrecord, tfs
from mpspool.core.rundir import RunDir
from tests import checkpoints, models, slices
from tests.conftest import PoolStarter, short_dir
from tests.light import metric
from tests.polling import until
from tests.pool import CLI, RATE, ROOT, Load, Pool, cli, processes_of
from tests.reloading import File, reload
from tests.versioning import (
    MODEL,
    answering,
    error,
    folders,
    newest,
    one_row,
    publish,
    remove,
    serves,
    states,
)

LoadStarter = Callable[..., Load]
# What may have been sent before a change was known.
IN_FLIGHT = 20


@pytest.fixture(scope="module")
def base(model_dir: Callable[[str], Path]) -> Iterator[Path]:
    """A base path with version 1."""
    with short_dir() as root:
        shutil.copytree(model_dir(MODEL) / "1", root / "1")
        yield root


@pytest.fixture(scope="module")
def pool(start_module_pool: PoolStarter, base: Path) -> Pool:
    args = ("--cpu-slots", 2, "--intra-op-threads", 1, "--inter-op-threads", 1)
    often = ("--file-system-poll-wait-seconds", 0.2)
    return start_module_pool("--model", f"{MODEL}={base}", *args, *often).wait()


@pytest.fixture(autouse=True)
def whole(pool: Pool, base: Path) -> None:
    """Each test starts from one version, the newest folder, with all its workers READY, and nothing said by hand."""
    remove(base, *(number for number in folders(base) if number != newest(base)))
    cli("load", MODEL, "--run-dir", pool.run_dir)
    until(lambda: states(pool) == {newest(base): "AVAILABLE"} and pool.all_ready(), 60, "one version serves")


def status_over_grpc(pool: Pool, version: int) -> Any:
    """What GetModelStatus says of a version."""
    request = tfs.GetModelStatusRequest()
    request.model_spec.name, request.model_spec.version.value = MODEL, version
    with grpc.insecure_channel(pool.address) as channel:
        call = channel.unary_unary(
            f"/{tfs.MODEL_SERVICE}/GetModelStatus",
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=tfs.GetModelStatusResponse.FromString,
        )
        (found,) = call(request, timeout=10).model_version_status
    return found


def test_a_new_version_takes_over(pool: Pool, base: Path, load: LoadStarter) -> None:
    """No request fails; `wait` tells when it is served; the old version's processes, programs and files are gone."""
    old = newest(base)
    before = {worker["pid"] for worker in pool.workers().values()}
    running = load(pool, MODEL)
    pool.serves_on()
    publish(base, base / str(old), old + 1)
    done = cli("wait", f"{MODEL}@{old + 1}", "--run-dir", pool.run_dir, timeout=120)
    assert done.returncode == 0, done.stderr
    assert states(pool)[old + 1] == "AVAILABLE"
    serves(pool, old + 1)
    pool.serves_on()
    running.end_clean()
    until(lambda: not before & processes_of(pool.run_dir).keys(), 20, "the old workers have gone")
    left = [
        file.name
        for folder in ("programs", "settings", "progress")
        for file in (pool.run_dir / folder).iterdir()
    ]
    assert not [name for name in left if f"@{old}." in name], left
    remove(base, old)


def test_a_version_that_is_being_copied_waits(pool: Pool, base: Path, load: LoadStarter) -> None:
    """Without saved_model.pb, and while its files grow; it is served once they do not."""
    old = newest(base)
    running = load(pool, MODEL)
    pool.serves_on()
    folder = base / str(old + 1)
    shutil.copytree(base / str(old), folder, ignore=shutil.ignore_patterns("saved_model.pb"))
    pool.serves_on()
    assert states(pool) == {old: "AVAILABLE"}
    content = (base / str(old) / "saved_model.pb").read_bytes()
    with (folder / "saved_model.pb").open("wb") as file:
        for at in range(0, len(content), len(content) // 20 + 1):
            file.write(content[at : at + len(content) // 20 + 1])
            file.flush()
            seen = pool.served()
            until(lambda seen=seen: pool.served() > seen, 20)
            assert states(pool)[old] == "AVAILABLE"
    serves(pool, old + 1)
    running.end_clean()
    assert not [event for event in pool.events() if event["event"] == "not served"]
    remove(base, old)


@pytest.mark.parametrize("how", ["flipped", "graph"])
def test_a_corrupt_version_is_never_served(
    pool: Pool, base: Path, load: LoadStarter, how: str, tmp_path: Path
) -> None:
    """The old one serves on; GetModelStatus, the status, `wait`, the log and a metric say why; copied whole, it takes over."""
    old = newest(base)
    running = load(pool, MODEL)
    pool.serves_on()
    if how == "flipped":
        source = models.corrupt(_only(base, old, tmp_path), "flipped", tmp_path / "corrupt") / "1"
    else:
        source = tmp_path / "cut"
        shutil.copytree(base / str(old), source)
        os.truncate(source / "saved_model.pb", 100)
    publish(base, source, old + 1)
    why = error(pool, old + 1)
    assert states(pool) == {old: "AVAILABLE", old + 1: "END"}
    for named, rc, said in [
        ([], 1, f"{MODEL}@{old + 1} is not served: {why}"),
        ([f"{MODEL}@{old + 1}"], 1, f"{MODEL}@{old + 1} is not served: {why}"),
        ([f"{MODEL}@{old}"], 0, ""),
        (
            [f"{MODEL}@{old + 2}", "--timeout", 0.5],
            1,
            f"{MODEL}@{old + 2} is not there; there is {MODEL}@{old}",
        ),
    ]:
        done = cli("wait", *named, "--run-dir", pool.run_dir)
        assert (done.returncode, said in done.stderr) == (rc, True), done.stderr
    there = {"model": MODEL, "version": str(old + 1)}
    assert metric(pool, "mpspool_model_version_state", **there) == 50
    assert metric(pool, "mpspool_model_version_error", **there, error=escaped(why)) == 1
    assert why in status_over_grpc(pool, old + 1).status.error_message
    assert [event for event in pool.events() if event["event"] == "not served" and event["why"] == why]
    pool.serves_on()
    remove(base, old + 1)
    until(lambda: states(pool) == {old: "AVAILABLE"}, 20, "it is forgotten")
    publish(base, base / str(old), old + 1)
    serves(pool, old + 1)
    assert not metric(pool, "mpspool_model_version_error")
    running.end_clean()
    remove(base, old)


def escaped(text: str) -> str:
    """A label's value as it stands in the metrics."""
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def _only(base: Path, number: int, root: Path) -> Path:
    """A base path with this version as its version 1."""
    shutil.copytree(base / str(number), root / "only" / "1")
    return root / "only"


def test_a_version_with_other_inputs_is_refused(
    pool: Pool, base: Path, model_dir: Callable[[str], Path], load: LoadStarter
) -> None:
    """Clients would send what it does not take: it says so, and the old one serves on."""
    old = newest(base)
    running = load(pool, MODEL)
    pool.serves_on()
    publish(base, model_dir("defaults") / "1", old + 1)
    why = error(pool, old + 1)
    assert f"clients of version {old}" in why
    assert "it has no input 'x'" in why
    until(lambda: {w["version"] for w in pool.workers().values()} == {old}, 20, "its workers have gone")
    pool.serves_on()
    running.end_clean()
    remove(base, old + 1)


def recording_what_fails(base: Path, source: int, number: int) -> None:
    """A version whose second recorded request has an input that it does not know."""
    records = b""
    for alias in ("x", "typo"):
        entry = tfs.PredictionLog()
        entry.predict_log.request.inputs[alias].CopyFrom(one_row().inputs["x"])
        records += tfrecord.framed(entry.SerializeToString())
    recording(base, source, number, records)


def recording(base: Path, source: int, number: int, records: bytes) -> None:
    shutil.copytree(base / str(source), base / "incoming")
    (base / "incoming" / "assets.extra").mkdir()
    (base / "incoming" / "assets.extra" / "tf_serving_warmup_requests").write_bytes(records)
    (base / "incoming").rename(base / str(number))


@pytest.mark.parametrize("records", ["none", "one that fails"])
def test_a_version_whose_warm_up_fails_is_refused(
    pool: Pool, base: Path, load: LoadStarter, records: str
) -> None:
    """Its own recorded requests are what it must answer first."""
    old = newest(base)
    running = load(pool, MODEL)
    pool.serves_on()
    if records == "none":
        recording(base, old, old + 1, b"no records at all" * 9)
        assert "warmup" in error(pool, old + 1)
    else:
        recording_what_fails(base, old, old + 1)
        why = error(pool, old + 1)
        assert "warm-up record 2 of" in why
        assert "typo" in why
    pool.serves_on()
    assert states(pool)[old] == "AVAILABLE"
    running.end_clean()
    remove(base, old + 1)


def test_going_back_to_what_cannot_be_loaded(
    pool: Pool, base: Path, load: LoadStarter, tmp_path: Path
) -> None:
    """The present version serves on, and is wanted as before; the command says why, each time anew, and nothing older is loaded.

    Where it is to be unloaded, an older one comes in its place.
    """
    old = newest(base)
    publish(base, base / str(old), old + 2)
    serves(pool, old + 2)
    running = load(pool, MODEL)
    pool.serves_on()
    publish(base, models.corrupt(_only(base, old, tmp_path), "flipped", tmp_path / "corrupt") / "1", old + 1)
    for _ in range(2):
        done = cli("rollback", MODEL, "--run-dir", pool.run_dir)
        assert done.returncode == 1, done.stdout
        assert f"{MODEL}@{old + 1}: " in done.stderr
        assert "variables" in done.stderr
    until(lambda: set(states(pool)) == {old + 1, old + 2}, 20)
    os.kill(pool.process_pid("pool"), signal.SIGKILL)
    pool.serves_on()
    assert states(pool) == {old + 1: "END", old + 2: "AVAILABLE"}
    done = cli("unload", f"{MODEL}@{old + 2}", "--run-dir", pool.run_dir)
    assert done.returncode == 0, done.stderr
    until(lambda: states(pool).get(old) == "AVAILABLE", 20)
    running.end_clean()
    remove(base, old, old + 1)


def test_what_was_captured_warms_the_next_version(pool: Pool, base: Path, load: LoadStarter) -> None:
    """Requests under load go into the version's own file, by REST, too; the next version, which has none, must answer them."""
    old = newest(base)
    running = load(pool, MODEL)
    pool.serves_on()
    file = base / str(old) / "assets.extra" / "tf_serving_warmup_requests"
    url = f"http://127.0.0.1:{pool.rest_port}/v1/models/{MODEL}:predict"
    asked = 0

    def over() -> bool:
        nonlocal asked
        with urllib.request.urlopen(url, b'{"instances": [[5.0]]}', 10) as answer:
            asked += answer.status == 200
        return capturing.poll() is not None

    capturing = subprocess.Popen(
        [*CLI, "capture", MODEL, "--count", "300", "--run-dir", str(pool.run_dir)], text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT,
    )  # fmt: skip
    try:
        until(over, 60, "so many have been captured")
    finally:
        capturing.kill()
        told, errors = capturing.communicate()
    assert told.strip() == f"300 requests in {file}", errors
    content, float_5 = file.read_bytes(), struct.pack("<f", 5.0)
    assert asked
    assert content.count(float_5) > 0
    bare = shutil.copytree(base / str(old), base / "bare", ignore=shutil.ignore_patterns("assets.extra"))
    bare.rename(base / str(old + 1))
    serves(pool, old + 1)
    running.end_clean()
    events = pool.events(f"worker.{MODEL}@{old + 1}.cpu0.0")
    [*_, warm] = [event for event in events if event["event"] == "warm"]
    assert (warm["recorded"], warm["calls"]) == (True, 300)
    remove(base, old)


def test_a_worker_killed_during_a_swap(pool: Pool, base: Path, load: LoadStarter) -> None:
    """One of the old version, and one of the new before it is READY: the swap goes on."""
    old = newest(base)
    running = load(pool, MODEL)
    pool.serves_on()
    victim = next(worker["pid"] for worker in pool.workers().values())

    def status() -> dict[str, Any]:
        """Asked directly: a command of its own takes as long as it takes a worker to be READY."""
        return control.call(RunDir(pool.run_dir).pool_control, "status")

    def coming() -> list[int]:
        return [w["pid"] for w in status()["workers"] if w["version"] == old + 1 and w["pid"]]

    publish(base, base / str(old), old + 1)
    os.kill(until(coming, 30)[0], signal.SIGKILL)
    (model,) = status()["models"]
    assert {v["version"]: v["state"] for v in model["versions"]}[old] == "AVAILABLE"
    os.kill(victim, signal.SIGKILL)
    serves(pool, old + 1)
    pool.serves_on()
    running.end_clean()
    remove(base, old)


def test_the_pool_process_killed_during_a_swap(pool: Pool, base: Path, load: LoadStarter) -> None:
    """Its successor goes on where it was."""
    old = newest(base)
    running = load(pool, MODEL)
    pool.serves_on()
    publish(base, base / str(old), old + 1)
    until(lambda: old + 1 in states(pool), 30, "it is being loaded")
    victim = pool.process_pid("pool")
    os.kill(victim, signal.SIGKILL)
    until(lambda: pool.process_pid("pool") not in (0, victim), 20)
    serves(pool, old + 1)
    pool.serves_on()
    running.end_clean()
    remove(base, old)


def test_a_reload_during_a_swap(
    start_pool: PoolStarter, model_dir: Callable[[str], Path], load: LoadStarter, tmp_path: Path
) -> None:
    """It takes one slot more, and waits for the version that comes, which has it, too."""
    file = File(tmp_path / "pool.yaml", tmp_path / "base")
    shutil.copytree(model_dir(MODEL) / "1", file.base / "1")
    file.write({MODEL: {}})
    pool = start_pool(file.path).wait()
    running = load(pool, MODEL)
    pool.serves_on()
    publish(file.base, file.base / "1", 2)
    until(lambda: 2 in states(pool), 30, "it is being loaded")
    file.write({MODEL: {"cpu_slots": 3}})
    reload(pool)
    serves(pool, 2)
    assert sorted(pool.workers()) == [f"{MODEL}@2.cpu0.{slot}" for slot in range(3)]
    pool.serves_on()
    running.end_clean()


@pytest.mark.parametrize("killed", [False, True])
def test_a_request_that_outlives_the_change(
    start_pool: PoolStarter,
    model_dir: Callable[[str], Path],
    testing_ops: Path,
    load: LoadStarter,
    tmp_path: Path,
    *,
    killed: bool,
) -> None:
    """The version that it was sent to answers it, and goes then; also where the pool process is killed meanwhile."""
    base, wake = tmp_path / "dozer", tmp_path / "wake"
    shutil.copytree(model_dir("dozer") / "1", base / "1")
    config = tmp_path / "pool.yaml"
    config.write_text(f"""models:
  - {{name: dozer, base_path: {base}, cpu_slots: 2, hang_timeout_s: 90, intra_op_threads: 1, inter_op_threads: 1,
      custom_ops: [{testing_ops}]}}
file_system_poll_wait_seconds: 0.2
""")
    pool = start_pool(config, env={"TESTING_WAKE": str(wake)}).wait()
    before = {worker["pid"] for worker in pool.workers().values()}
    running = load(pool, "dozer", "--first", 1000, "--timeout", 60)
    pool.serves_on()
    with grpc.insecure_channel(pool.address) as channel:
        call = channel.unary_unary(
            f"/{tfs.PREDICTION_SERVICE}/Predict",
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=tfs.PredictResponse.FromString,
        )
        slow = call.future(one_row("dozer", 13.0), timeout=90)
        pool.serves_on()
        publish(base, base / "1", 2)
        until(lambda: states(pool) == {1: "UNLOADING", 2: "AVAILABLE"}, 60, "version 2 takes over")
        assert not slow.done()
        if killed:
            victim = pool.process_pid("pool")
            os.kill(victim, signal.SIGKILL)
            until(lambda: pool.process_pid("pool") not in (0, victim), 20)
        wake.touch()
        answer = slow.result()
    assert answer.model_spec.version.value == 1
    serves(pool, 2)
    until(lambda: not before & processes_of(pool.run_dir).keys(), 30, "the old workers have gone")
    pool.serves_on()
    running.end_clean()
    assert not list((pool.run_dir / "programs").glob("worker.dozer*@1.*"))


def test_the_last_version_is_lost(start_pool: PoolStarter, model_dir: Callable[[str], Path]) -> None:
    """Its folder is deleted, then its worker dies: all say why nobody serves, until the folder is back."""
    with short_dir() as root:
        shutil.copytree(model_dir(MODEL) / "1", root / "m" / "1")
        args = ("--model", f"{MODEL}={root / 'm'}", "--cpu-slots", 1, "--file-system-poll-wait-seconds", 0.2)
        pool = start_pool(*args).wait()
        (root / "m" / "1").rename(root / "away")
        (worker,) = pool.workers().values()
        os.kill(worker["pid"], signal.SIGKILL)
        why = error(pool, 1)
        assert str(root / "m" / "1") in why
        until(lambda: states(pool) == {1: "END"}, 20)
        assert pool.status()["pool"]["state"] == "DEGRADED"
        assert why in status_over_grpc(pool, 1).status.error_message
        asked = cli("predict", MODEL, "--input", "[1]", "--run-dir", pool.run_dir).stderr
        assert "UNAVAILABLE" in asked
        assert why in asked
        tried = cli("load", MODEL, "--run-dir", pool.run_dir)
        assert tried.returncode == 1
        assert f"{root / 'm'} has no whole version of {MODEL}" in tried.stderr
        (root / "away").rename(root / "m" / "1")
        serves(pool, 1)


def test_a_folder_deleted_while_it_serves(pool: Pool, base: Path, load: LoadStarter, tmp_path: Path) -> None:
    """With no other left, what is served stays; with an older one, that takes over."""
    old = newest(base)
    running = load(pool, MODEL)
    pool.serves_on()
    kept = (base / str(old)).rename(tmp_path / "kept")
    pool.serves_on()
    assert states(pool) == {old: "AVAILABLE"}
    publish(base, kept, old - 1)
    serves(pool, old - 1)
    publish(base, kept, old)
    serves(pool, old)
    running.end_clean()
    remove(base, old - 1)


@pytest.mark.parametrize("how", ["unloaded", "deleted"])
def test_a_publisher_that_hangs_ends_with_its_version(
    pool: Pool, base: Path, load: LoadStarter, how: str
) -> None:
    """What publishes the weights of a version that is given up is gone with it; what serves is not touched."""
    old = newest(base)
    running = load(pool, MODEL)
    pool.serves_on()
    # So many bytes take a second to publish: time enough to be seen.
    incoming = shutil.copytree(base / str(old), base / "incoming")
    shutil.rmtree(incoming / "variables")
    checkpoints.write_large(incoming, 512 * 2**20).rename(base / str(old + 1))

    def publishers() -> list[int]:
        commands = processes_of(pool.run_dir).items()
        return [pid for pid, command in commands if f"publish.{MODEL}@{old + 1}." in command]

    # Two: the one that supervisord knows waits for the one that publishes.
    for pid in until(lambda: len(found := publishers()) == 2 and found, 20, "its weights are published"):
        os.kill(pid, signal.SIGSTOP)
    if how == "unloaded":
        assert cli("unload", f"{MODEL}@{old + 1}", "--run-dir", pool.run_dir).returncode == 0
        remove(base, old + 1)
    else:
        remove(base, old + 1)
    until(lambda: not publishers(), 20, "the publisher has gone")
    serves(pool, old)
    pool.serves_on()
    running.end_clean()


def test_two_versions_at_once(pool: Pool, base: Path, load: LoadStarter) -> None:
    """The newer one is served."""
    old = newest(base)
    running = load(pool, MODEL)
    pool.serves_on()
    for number in (old + 1, old + 2):
        publish(base, base / str(old), number)
    serves(pool, old + 2)
    running.end_clean()
    remove(base, old, old + 1)


def test_a_share_of_the_requests(pool: Pool, base: Path, load: LoadStarter) -> None:
    """A version that was loaded by hand gets what the route says, by label, metadata and weight, moved while it is under
    load; its metrics say so.
    """
    old = newest(base)
    publish(base, base / str(old), old + 1)
    serves(pool, old + 1)
    assert cli("load", f"{MODEL}@{old}", "--run-dir", pool.run_dir).returncode == 0
    running = load(pool, MODEL)
    pool.serves_on()

    def answered() -> dict[int, int]:
        return {
            number: int(metric(pool, "mpspool_requests_total", model=MODEL, version=str(number), code="OK"))
            for number in (old, old + 1)
        }

    def some_more(count: int) -> None:
        before = sum(answered().values())
        until(lambda: sum(answered().values()) > before + count, 20, f"{count} more are answered")

    def moved(*words: object) -> dict[int, int]:
        done = cli("route", MODEL, *words, "--run-dir", pool.run_dir)
        assert done.returncode == 0, done.stderr
        some_more(RATE // 2)  # what was sent before, on a slow machine
        before = answered()
        some_more(RATE)
        return {number: count - before[number] for number, count in answered().items()}

    with grpc.insecure_channel(pool.address) as channel:
        for mine, other in ((old, old + 1), (old + 1, old)):
            words = (f"{other}=1", "--label", f"canary={mine}", "--metadata", f"x-canary=yes:{mine}")
            done = cli("route", MODEL, *words, "--run-dir", pool.run_dir)
            assert done.returncode == 0, done.stderr
            assert answering(channel, 20) == {other: 20}
            assert answering(channel, 20, label="canary") == {mine: 20}
            assert answering(channel, 20, metadata=(("x-canary", "yes"),)) == {mine: 20}
            assert answering(channel, 20, metadata=(("x-canary", "no"),)) == {other: 20}
    shared = moved(f"{old}=25,{old + 1}=75")
    assert 0.2 < shared[old] / sum(shared.values()) < 0.3
    assert moved(f"{old}=1")[old + 1] <= IN_FLIGHT
    assert moved("latest")[old] <= IN_FLIGHT
    running.end_clean()
    refused = cli("route", MODEL, "999=1", "--run-dir", pool.run_dir)
    assert (refused.returncode, "version 999" in refused.stderr) == (1, True)
    remove(base, old)


def test_a_route_outlives_the_router_and_the_pool_process(pool: Pool, base: Path) -> None:
    """The router is killed while the pool process is away: the one that follows has its weights and labels at once, and
    both when the pool process is back, too.
    """
    old = newest(base)
    publish(base, base / str(old), old + 1)
    serves(pool, old + 1)
    assert cli("load", f"{MODEL}@{old}", "--run-dir", pool.run_dir).returncode == 0
    words = (f"{old}=75,{old + 1}=25", "--label", f"canary={old + 1}")
    assert cli("route", MODEL, *words, "--run-dir", pool.run_dir).returncode == 0
    router, process = pool.process_pid("router"), pool.process_pid("pool")
    os.kill(process, signal.SIGSTOP)
    os.kill(router, signal.SIGKILL)
    until(lambda: router not in processes_of(pool.run_dir), 20, "the router has gone")
    with grpc.insecure_channel(pool.address) as channel:
        shared = {old: 30, old + 1: 10}
        answering(channel, 1)
        assert answering(channel, 40) == shared
        assert answering(channel, 5, label="canary") == {old + 1: 5}
        os.kill(process, signal.SIGKILL)
        until(lambda: pool.process_pid("pool") not in (0, process), 20, "it has a successor")
        until(pool.all_ready, 20, "and that knows the workers")
        assert answering(channel, 40) == shared
        assert answering(channel, 5, label="canary") == {old + 1: 5}
    assert cli("route", MODEL, "latest", "--run-dir", pool.run_dir).returncode == 0
    remove(base, old)


@contextmanager
def full_pool(
    start_pool: PoolStarter,
    model_dir: Callable[[str], Path],
    load: LoadStarter,
    swap: str,
    environment: Mapping[str, str] | None = None,
) -> Iterator[tuple[Pool, Path]]:
    """A pool with as many workers as slots, under load, and its base path, with version 1.

    When the block is left slot by slot no request has failed, else none in another way than UNAVAILABLE.
    """
    with short_dir() as root:
        shutil.copytree(model_dir(MODEL) / "1", root / "1")
        args = ("--model", f"{MODEL}={root}", "--cpu-slots", 2, "--file-system-poll-wait-seconds", 0.2)
        pool = start_pool(*args, env={"MPSPOOL_SWAP": swap, **(environment or {})}).wait()
        running = load(pool, MODEL)
        pool.serves_on()
        yield pool, root
        pool.serves_on()
        if swap == "rolling":
            running.end_clean()
            return
        report = running.end()
        assert report["wrong"] == 0
        assert set(report["errors"]) <= {"UNAVAILABLE"}, report


@pytest.mark.parametrize("swap", ["rolling", "stop_first"])
def test_without_room_for_two(
    start_pool: PoolStarter, model_dir: Callable[[str], Path], load: LoadStarter, swap: str
) -> None:
    """Never more workers than there are slots; slot by slot no request fails, and where the old version stops first
    they are UNAVAILABLE until the new one is there.
    """
    with full_pool(start_pool, model_dir, load, swap) as (pool, root):
        publish(root, root / "1", 2)
        most, ready = 0, []

        def over() -> bool:
            nonlocal most
            workers = pool.workers().values()
            most = max(most, sum(bool(worker["pid"]) for worker in workers))
            ready.append(sum(worker["state"] == "READY" for worker in workers))
            return states(pool) == {2: "AVAILABLE"} and pool.all_ready()

        until(over, 60, "version 2 serves alone")
        assert most <= 2
        if swap == "rolling":
            assert min(ready) >= 1


@pytest.mark.parametrize("swap", ["rolling", "stop_first"])
def test_without_room_for_two_the_pool_process_is_killed(
    start_pool: PoolStarter, model_dir: Callable[[str], Path], load: LoadStarter, swap: str
) -> None:
    """Its successor goes on where it was."""
    with full_pool(start_pool, model_dir, load, swap) as (pool, root):
        publish(root, root / "1", 2)
        until(lambda: any(worker["version"] == 2 for worker in pool.workers().values()), 30, "it is loaded")
        victim = pool.process_pid("pool")
        os.kill(victim, signal.SIGKILL)
        until(lambda: pool.process_pid("pool") not in (0, victim), 20)
        until(lambda: states(pool) == {2: "AVAILABLE"} and pool.all_ready(), 60, "version 2 serves alone")


@pytest.mark.parametrize("swap", ["rolling", "stop_first"])
def test_without_room_for_two_a_version_fails(
    start_pool: PoolStarter, model_dir: Callable[[str], Path], load: LoadStarter, swap: str
) -> None:
    """Its warm-up does, or it lacks an input, after workers of the old one have left for it: they come again, and it never answers."""
    with full_pool(start_pool, model_dir, load, swap, {"MPSPOOL_MAX_NUM_LOAD_RETRIES": "0"}) as (pool, root):
        recording_what_fails(root, 1, 2)
        assert "typo" in error(pool, 2)
        until(lambda: states(pool) == {1: "AVAILABLE", 2: "END"}, 60, "version 1 serves")
        until(lambda: [w["state"] for w in pool.workers().values()] == ["READY"] * 2, 60, "as before")
        pool.serves_on()
        publish(root, model_dir("defaults") / "1", 3)
        assert "clients of version 1 could not be its clients: it has no input 'x'" in error(pool, 3)
        until(lambda: states(pool).get(1) == "AVAILABLE" and pool.all_ready(), 60, "version 1 serves")


def test_a_load_is_tried_again_as_often_as_configured(
    start_pool: PoolStarter, model_dir: Callable[[str], Path], load: LoadStarter, tmp_path: Path
) -> None:
    """Twice more, and no more when the next version has come."""
    with short_dir() as root:
        shutil.copytree(model_dir(MODEL) / "1", root / "1")
        args = ("--model", f"{MODEL}={root}", "--cpu-slots", 1, "--file-system-poll-wait-seconds", 0.2)
        retries = {"MPSPOOL_MAX_NUM_LOAD_RETRIES": "2", "MPSPOOL_LOAD_RETRY_INTERVAL_MICROS": "100000"}
        pool = start_pool(*args, env=retries).wait()
        running = load(pool, MODEL)
        pool.serves_on()
        publish(root, models.corrupt(_only(root, 1, tmp_path), "flipped", tmp_path / "corrupt") / "1", 2)

        def tried() -> int:
            return sum(event["event"] == "not served" for event in pool.events())

        until(lambda: tried() == 3, 60, "it has been tried three times")
        publish(root, root / "1", 3)
        until(lambda: states(pool).get(3) == "AVAILABLE" and 1 not in states(pool), 60, "version 3 serves")
        running.end_clean()
        assert tried() == 3


def test_workers_come_and_go_one_after_another(
    start_pool: PoolStarter, model_dir: Callable[[str], Path], load: LoadStarter
) -> None:
    """On one processor, beside those that serve; at the start, when nobody does, they come together."""
    processors = os.sched_getaffinity(0)
    with short_dir() as root:
        shutil.copytree(model_dir(MODEL) / "1", root / "1")
        args = ("--model", f"{MODEL}={root}", "--cpu-slots", 2, "--file-system-poll-wait-seconds", 0.2)
        os.sched_setaffinity(0, {min(processors)})
        try:
            pool = start_pool(*args).wait()
        finally:
            os.sched_setaffinity(0, processors)
        running = load(pool, MODEL)
        pool.serves_on()
        publish(root, root / "1", 2)
        serves(pool, 2)
        running.end_clean()
        if slices.KNOWN:  # those that gave way until they served, too
            pids = [worker["pid"] for worker in pool.workers().values()]
            assert [slices.slices_ns(pid) for pid in pids] == 2 * [{slices.SHORT_NS}]

        def order(version: int, *kinds: str) -> list[str]:
            """The kinds of what the pool noted of this version's workers, as it came, each once for each worker."""
            mine = f"{MODEL}@{version}.cpu0."
            noted = ((event["event"], event.get("worker", "")) for event in pool.events())
            return [
                kind for kind, worker in dict.fromkeys(noted) if kind in kinds and worker.startswith(mine)
            ]

        assert order(1, "worker started", "worker ready") == 2 * ["worker started"] + 2 * ["worker ready"]
        assert order(2, "worker started", "worker ready") == 2 * ["worker started", "worker ready"]
        assert order(1, "worker leaves", "worker left") == 2 * ["worker leaves", "worker left"]
        publishing = [event["gives_way"] for event in pool.events("pool") if event["event"] == "publishing"]
        assert publishing == [False, True]


def test_back_and_forward_by_hand(pool: Pool, base: Path, load: LoadStarter) -> None:
    """rollback, load and unload do what they say, and wait for it."""
    old = newest(base)
    publish(base, base / str(old), old + 1)
    serves(pool, old + 1)
    running = load(pool, MODEL)
    pool.serves_on()

    def order(*words: object) -> str:
        done = cli(*words, "--run-dir", pool.run_dir)
        assert done.returncode == 0, done.stderr
        assert "holds until the pool ends" in done.stderr
        return done.stdout.strip()

    assert order("rollback", MODEL) == f"{MODEL}@{old} AVAILABLE"
    assert states(pool) == {old: "AVAILABLE"}
    assert order("load", f"{MODEL}@{old + 1}") == f"{MODEL}@{old + 1} AVAILABLE"
    serves(pool, old + 1)
    assert order("load", f"{MODEL}@{old}") == f"{MODEL}@{old} AVAILABLE"
    assert states(pool) == {old: "AVAILABLE", old + 1: "AVAILABLE"}
    assert (
        order("unload", f"{MODEL}@{old}") == f"{MODEL}@{old} is not served, and left out until it is loaded"
    )
    running.end_clean()
    for words, why in (
        (("load", f"{MODEL}@999"), "there is no version 999"),
        (("load", "other"), "there is no model 'other'"),
    ):
        done = cli(*words, "--run-dir", pool.run_dir)
        assert done.returncode == 1
        assert why in done.stderr
    remove(base, old)
