"""Another configuration under load: what changes, changes; what does not is not touched; no client notices.

One pool serves a module's model with two workers; each test leaves it as its file was at the start.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest

from mpspool.core import control
from mpspool.core.rundir import RunDir
from mpspool.core.states import ModelVersionState
from mpspool.supervisor.commands import versions as versions_command
from tests import models
from tests.conftest import PoolStarter, short_dir
from tests.polling import until
from tests.pool import Load, Pool, cli, processes_of, running_first
from tests.reloading import File, alike, answered_by, ask, predict, refused, reload, status_of

LoadStarter = Callable[..., Load]
MODEL = "half_plus_two"
OTHER = "other"


@pytest.fixture(scope="module")
def file(model_dir: Callable[[str], Path]) -> Iterator[File]:
    """With the model as the module's tests have it."""
    with short_dir() as root:
        shutil.copytree(model_dir(MODEL) / "1", root / "models" / "1")
        found = File(root / "pool.yaml", root / "models")
        found.write({MODEL: {}})
        yield found


@pytest.fixture(scope="module")
def pool(start_module_pool: PoolStarter, file: File) -> Pool:
    return start_module_pool(file.path).wait()


@pytest.fixture(autouse=True)
def as_at_the_start(pool: Pool, file: File) -> None:
    """What an earlier test has changed is taken back."""
    file.write({MODEL: {}})
    reload(pool)


def test_nothing_changes_where_nothing_has(pool: Pool) -> None:
    """Every worker stays as it is, and the command says so."""
    before = pool.workers()
    assert reload(pool) == "nothing has changed\n"
    assert alike(before, pool.workers()) == before.keys()


def test_models_come_and_go(pool: Pool, file: File, load: LoadStarter) -> None:
    """One that is added is served when the command returns, one that is taken out is not; the others' workers stay."""
    before = pool.workers()
    running = load(pool, MODEL)
    pool.serves_on()
    file.write({MODEL: {}, OTHER: {"cpu_slots": 1}})
    assert "other          is added\n" in reload(pool)
    assert predict(pool, OTHER) == [2.5, 3.0]
    pool.serves_on()
    file.write({MODEL: {}})
    assert "other          is taken out\n" in reload(pool)
    assert "NOT_FOUND" in predict(pool, OTHER)
    assert {worker.split("@")[0] for worker in pool.workers()} == {MODEL}
    until(lambda: not [name for name in processes_of(pool.run_dir).values() if OTHER in name], 20)
    running.end_clean()
    assert alike(before, pool.workers()) == before.keys()


@pytest.fixture
def slow_to_tell(tmp_path: Path) -> dict[str, str]:
    """The environment of a pool process that takes a second to tell its router anything new."""
    return running_first(
        tmp_path,
        """
import sys

if "mpspool.supervisor" in sys.orig_argv:
    import asyncio

    from mpspool.supervisor.pool.router_link import RouterLink

    tell = RouterLink.tell

    async def wait_and_tell(self, message):
        if message != self._told:
            await asyncio.sleep(1)
        await tell(self, message)

    RouterLink.tell = wait_and_tell
""",
    )


def test_the_command_returns_when_the_router_has_been_told(
    start_pool: PoolStarter, file: File, slow_to_tell: dict[str, str]
) -> None:
    """That a model has gone, too: who asks for it then is not told to try again."""
    file.write({MODEL: {}, OTHER: {"cpu_slots": 1}})
    pool = start_pool(file.path, env=slow_to_tell).wait()
    assert predict(pool, OTHER) == [2.5, 3.0]
    file.write({MODEL: {}})
    assert "other          is taken out\n" in reload(pool)
    assert "NOT_FOUND" in predict(pool, OTHER)


def test_a_model_that_is_taken_out_answers_what_it_has(pool: Pool, file: File, load: LoadStarter) -> None:
    """And one that is put back at once is served again."""
    file.write({MODEL: {}, OTHER: {}})
    reload(pool)
    running = load(pool, OTHER)
    pool.serves_on()
    file.write({MODEL: {}})
    reload(pool, "--no-wait")
    file.write({MODEL: {}, OTHER: {}})
    reload(pool)
    report = running.end()
    assert predict(pool, OTHER) == [2.5, 3.0]
    assert not report["wrong"]
    assert set(report["errors"]) <= {"UNAVAILABLE", "NOT_FOUND"}, report


def test_slots_come_and_go(pool: Pool, file: File, load: LoadStarter) -> None:
    """The workers of those that stay are not touched, and no request fails."""
    before = pool.workers()
    running = load(pool, MODEL)
    pool.serves_on()
    file.write({MODEL: {"cpu_slots": 3}})
    assert "slots come: cpu0.2" in reload(pool)
    assert len(pool.workers()) == 3
    pool.serves_on()
    file.write({MODEL: {"cpu_slots": 1}})
    assert "slots go: cpu0.1, cpu0.2" in reload(pool)
    assert list(pool.workers()) == [f"{MODEL}@1.cpu0.0"]
    pool.serves_on()
    running.end_clean()
    assert alike(before, pool.workers()) == {f"{MODEL}@1.cpu0.0"}


@pytest.mark.parametrize("slots", [1, 2])
def test_workers_with_other_threads_come_anew(pool: Pool, file: File, load: LoadStarter, slots: int) -> None:
    """One after another, and where there is one alone beside another that stands in for it; no request fails."""
    file.write({MODEL: {"cpu_slots": slots}, OTHER: {"cpu_slots": 1}})
    reload(pool)
    before = pool.workers()
    running = load(pool, MODEL)
    pool.serves_on()
    file.write({MODEL: {"cpu_slots": slots, "intra_op_threads": 2}, OTHER: {"cpu_slots": 1}})
    assert "intra_op_threads: its workers come anew" in reload(pool)
    after = pool.workers()
    assert after.keys() == before.keys()
    assert alike(before, after) == {f"{OTHER}@1.cpu0.0"}
    for slot in range(slots):
        name = f"{MODEL}@1.cpu0.{slot}"
        assert after[name]["restarts"] == before[name]["restarts"] + 1
    pool.serves_on()
    running.end_clean()


def test_how_long_a_batch_waits_holds_at_once(pool: Pool, file: File) -> None:
    """For what waits already, too, and no worker comes anew."""
    batching = {"max_batch_size": 64, "batch_timeout_micros": 600_000_000}
    file.write({MODEL: {"batching": batching}})
    reload(pool)
    before = pool.workers()
    with ThreadPoolExecutor() as asking:
        asked = asking.submit(
            cli, "predict", MODEL, "--run-dir", pool.run_dir, "--input", '{"x": [1, 2]}', "--timeout", 90
        )
        until(lambda: control.call(RunDir(pool.run_dir).router_control, "snapshot")["queued"] == 1)
        file.write({MODEL: {"batching": {**batching, "batch_timeout_micros": 0}}})
        assert reload(pool) == f"{MODEL}  batching.batch_timeout_micros holds at once\n"
        assert json.loads(asked.result().stdout)["y"] == [2.5, 3.0]
    assert alike(before, pool.workers()) == before.keys()


def test_more_operations_at_once(pool: Pool, file: File, load: LoadStarter) -> None:
    """inter_op_threads, of workers that come anew one after another; no request fails."""
    before = pool.workers()
    running = load(pool, MODEL)
    pool.serves_on()
    file.write({MODEL: {"inter_op_threads": 2}})
    assert "inter_op_threads: its workers come anew" in reload(pool)
    after = pool.workers()
    assert after.keys() == before.keys()
    assert not alike(before, after)
    for worker in after:
        given = json.loads((pool.run_dir / "settings" / f"worker.{worker}.json").read_text())
        assert given["model"]["inter_op_threads"] == 2
    pool.serves_on()
    running.end_clean()


def test_a_whole_model_goes_and_comes_by_hand(pool: Pool, file: File, load: LoadStarter) -> None:
    """Beside another, whose requests do not fail: NOT_FOUND until it is loaded again."""
    file.write({MODEL: {}, OTHER: {"cpu_slots": 1}})
    reload(pool)
    before = pool.workers()
    running = load(pool, MODEL)
    pool.serves_on()
    assert cli("unload", OTHER, "--run-dir", pool.run_dir).returncode == 0
    assert "NOT_FOUND" in predict(pool, OTHER)
    until(lambda: all(worker.startswith(MODEL) for worker in pool.workers()), 30, "its workers go")
    assert cli("load", OTHER, "--run-dir", pool.run_dir).returncode == 0
    assert predict(pool, OTHER) == [2.5, 3.0]
    pool.serves_on()
    running.end_clean()
    after = pool.workers()
    assert alike(before, after) == {worker for worker in after if worker.startswith(MODEL)}


def test_labels_of_the_configuration(pool: Pool, file: File, load: LoadStarter) -> None:
    """Whoever asks by a label is answered by its version, from the reload on by another; one that is none is refused.

    What the configuration moves takes the place of what was said by hand; what it leaves as it was does not.
    """
    shutil.copytree(file.base / "1", file.base / "2")
    try:
        file.write({MODEL: {"version_policy": "all", "version_labels": {"stable": 1}}})
        reload(pool)
        running = load(pool, MODEL)
        pool.serves_on()
        assert {answered_by(pool, "stable") for _ in range(5)} == {1}
        with pytest.raises(grpc.RpcError) as caught:
            answered_by(pool, "canary")
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert "Unrecognized servable version label: canary" in caught.value.details()
        done = cli("route", MODEL, "--label", "stable=2", "--label", "new=2", "--run-dir", pool.run_dir)
        assert done.returncode == 0, done.stderr
        file.write({MODEL: {"version_policy": "all", "version_labels": {"stable": 1, "canary": 2}}})
        reload(pool)
        assert (answered_by(pool, "stable"), answered_by(pool, "canary")) == (2, 2)
        file.write({MODEL: {"version_policy": "all", "version_labels": {"canary": 1, "stable": 2}}})
        reload(pool)
        file.write({MODEL: {"version_policy": "all", "version_labels": {"stable": 1}}})
        reload(pool)
        assert (answered_by(pool, "stable"), answered_by(pool, "new")) == (1, 2)
        file.write({MODEL: {"version_policy": "all", "version_labels": {"stable": 2, "canary": 1}}})
        assert "version_labels holds at once" in reload(pool)
        assert {answered_by(pool, "stable") for _ in range(5)} == {2}
        assert answered_by(pool, "canary") == 1
        pool.serves_on()
        running.end_clean()
    finally:
        shutil.rmtree(file.base / "2")


def test_another_cpuset_is_one_slots_alone(pool: Pool, file: File, load: LoadStarter) -> None:
    """Its worker runs on the CPU that it was given; the other's is not touched."""
    cpu = min(os.sched_getaffinity(0))
    file.write({MODEL: {"cpusets": [[cpu], [cpu]]}})
    reload(pool)
    before = pool.workers()
    running = load(pool, MODEL)
    pool.serves_on()
    others = sorted(os.sched_getaffinity(0))
    file.write({MODEL: {"cpusets": [[cpu], others]}})
    assert "cpus: the workers of cpu0.1 come anew" in reload(pool) or len(others) == 1
    after = pool.workers()
    assert alike(before, after) == {f"{MODEL}@1.cpu0.0"} | (set(before) if len(others) == 1 else set())
    assert os.sched_getaffinity(after[f"{MODEL}@1.cpu0.1"]["pid"]) == set(others)
    running.end_clean()


def test_what_the_router_goes_by_holds_at_once(pool: Pool, file: File, load: LoadStarter) -> None:
    """Labels, limits and policies change while it serves, and no process is started for them."""
    before = pool.workers()
    router = pool.process_pid("router")
    running = load(pool, MODEL)
    pool.serves_on()
    file.write(
        {MODEL: {"version_labels": {"stable": 1}, "policy": "edf"}},
        max_queued_bytes=2**20,
        scheduling={"aging": 2.0, "running_per_device": 3},
    )
    told = reload(pool)
    for key in ("version_labels", "scheduling.policy", "max_queued_bytes", "scheduling.aging"):
        assert f"{key} holds at once" in told, told
    (model,) = pool.status()["models"]
    assert model["versions"][0]["policy"] == "edf"
    pool.serves_on()
    running.end_clean()
    assert alike(before, pool.workers()) == before.keys()
    assert pool.process_pid("router") == router


def test_orders_by_hand_are_answered_while_it_is_taken_up(pool: Pool, file: File) -> None:
    """Each by the pool process that there is then, or by the one that takes over."""
    over = threading.Event()

    def order() -> int:
        count = 0
        while not over.is_set():
            assert versions_command.load(RunDir(pool.run_dir), MODEL, None, 60) == f"{MODEL}@1 AVAILABLE"
            count += 1
        return count

    with ThreadPoolExecutor() as threads:
        ordering = threads.submit(order)
        try:
            for most in (100, 200, 300, 400):
                file.write({MODEL: {}}, max_queued_requests=most)
                reload(pool)
        finally:
            over.set()
        assert ordering.result() > 4


def test_a_bad_configuration_is_refused_whole(pool: Pool, file: File, load: LoadStarter) -> None:
    """With all that is wrong, as `start` says it; the running one stays, for the processes that come, too."""
    running = load(pool, MODEL)
    pool.serves_on()
    file.write({MODEL: {"cpu_slots": 3}, OTHER: {"base_path": "/nowhere", "quorum": 9}}, max_conections=1)
    why = refused(pool)
    assert "/nowhere" in why
    assert "max_connections" in why
    file.path.write_text("models: [")
    refused(pool)
    os.kill(pool.process_pid("pool"), signal.SIGKILL)
    pool.serves_on()
    assert len(pool.workers()) == 2
    running.end_clean()


def test_what_would_change_can_be_asked(pool: Pool, file: File) -> None:
    """Nothing does, also where that file is another than the pool's."""
    before, other = pool.workers(), File(file.path.with_name("other.yaml"), file.base)
    other.write({MODEL: {"cpu_slots": 3}, OTHER: {}})
    done = cli("reload", "--check", "--config", other.path, "--run-dir", pool.run_dir)
    assert done.returncode == 0, done.stderr
    assert f"{OTHER}" in done.stdout
    other.write({MODEL: {"base_path": "/nowhere"}})
    assert "/nowhere" in refused(pool, "--check", "--config", other.path)
    assert reload(pool) == "nothing has changed\n"
    assert alike(before, pool.workers()) == before.keys() == pool.workers().keys()


def test_folders_of_models_that_serve_refuse_nothing(
    pool: Pool, file: File, load: LoadStarter, tmp_path: Path
) -> None:
    """A model is added beside whose version a newer one is half copied, others change then, and also when its folder has gone."""
    base = tmp_path / OTHER
    shutil.copytree(file.base, base)
    (base / "2" / "variables").mkdir(parents=True)
    file.write({MODEL: {}, OTHER: {"base_path": str(base)}})
    done = cli("reload", "--run-dir", pool.run_dir, timeout=120)
    assert done.returncode == 0, done.stderr
    assert f"{base / '2'} is not a SavedModel" in done.stderr
    assert "Version 1 is served until a newer one is whole" in done.stderr
    running = load(pool, OTHER)
    pool.serves_on()
    file.write({MODEL: {"cpu_slots": 3}, OTHER: {"base_path": str(base)}})
    assert "slots come: cpu0.2" in reload(pool)
    shutil.rmtree(base)
    file.write({MODEL: {}, OTHER: {"base_path": str(base)}})
    assert "slots go: cpu0.2" in reload(pool)
    pool.serves_on()
    running.end_clean()
    file.write({MODEL: {}, OTHER: {"base_path": str(base / "elsewhere")}})
    assert str(base / "elsewhere") in refused(pool)


def test_what_needs_a_new_start_is_refused(pool: Pool, file: File) -> None:
    """Each key is named, with what to do instead."""
    file.write({MODEL: {"weights": {"shared": "off"}, "cpu_slots": 1}}, host="127.0.0.2")
    why = refused(pool)
    assert "host: '127.0.0.1' cannot become '127.0.0.2' now" in why
    assert f"models.{MODEL}.weights" in why
    assert "mpspool stop" in why


def test_the_pool_process_is_killed_in_the_middle(pool: Pool, file: File, load: LoadStarter) -> None:
    """Its successor goes on with the new configuration; no request fails."""
    running = load(pool, MODEL)
    pool.serves_on()
    file.write({MODEL: {"cpu_slots": 3, "intra_op_threads": 2}, OTHER: {"cpu_slots": 1}})
    reload(pool, "--no-wait")
    for _ in range(3):
        os.kill(until(lambda: pool.process_pid("pool"), 20), signal.SIGKILL)
    reload(pool)
    workers = pool.workers()
    assert sorted(workers) == [*(f"{MODEL}@1.cpu0.{slot}" for slot in range(3)), f"{OTHER}@1.cpu0.0"]
    assert predict(pool, OTHER) == [2.5, 3.0]
    pool.serves_on()
    running.end_clean()
    settings = (pool.run_dir / "settings").glob(f"worker.{MODEL}*.json")
    assert {json.loads(one.read_text())["model"]["intra_op_threads"] for one in settings} == {2}


def test_one_that_was_overtaken_reads_again(pool: Pool, file: File, tmp_path: Path) -> None:
    """What a reload has read does not take the place of what has been written, and taken up, since."""
    read, go = tmp_path / "read", tmp_path / "go"
    env = running_first(
        tmp_path,
        f"""
import sys

if "reload" in sys.orig_argv:
    import os
    import time

    from mpspool.supervisor.commands import reload as reload_command

    read = reload_command._read

    def read_and_wait(*arguments):
        found = read(*arguments)
        open({str(read)!r}, "w").close()
        while not os.path.exists({str(go)!r}):
            time.sleep(0.02)
        return found

    reload_command._read = read_and_wait
""",
    )
    file.write({MODEL: {}, OTHER: {"cpu_slots": 1}})
    with ThreadPoolExecutor() as threads:
        first = threads.submit(cli, "reload", "--run-dir", pool.run_dir, env={**os.environ, **env})
        try:
            until(read.exists, 20, "the first has read")
            file.write({MODEL: {}, "another": {"cpu_slots": 1}})
            reload(pool)
        finally:
            go.touch()
        done = first.result()
    assert (done.returncode, done.stdout) == (0, "nothing has changed\n"), done.stderr
    assert {worker.split("@")[0] for worker in pool.workers()} == {MODEL, "another"}


def test_another_file_holds_from_then_on(pool: Pool, file: File, tmp_path: Path) -> None:
    """--config names it once; a later reload reads it again."""
    other = File(tmp_path / "other.yaml", file.base)
    other.write({MODEL: {"cpu_slots": 1}})
    reload(pool, "--config", other.path)
    assert len(pool.workers()) == 1
    other.write({MODEL: {"cpu_slots": 2}})
    reload(pool)
    assert len(pool.workers()) == 2
    reload(pool, "--config", file.path)


def test_a_model_that_cannot_be_loaded_is_told(pool: Pool, file: File, tmp_path: Path) -> None:
    """Exit status 1 and the reason; the others serve on, and a reload without it takes it out."""
    broken = models.corrupt(file.base, "flipped", tmp_path / "broken")
    before = pool.workers()
    file.write({MODEL: {}, OTHER: {"base_path": str(broken)}}, max_num_load_retries=0)
    done = cli("reload", "--run-dir", pool.run_dir, "--timeout", 90, timeout=120)
    assert done.returncode == 1, done.stdout + done.stderr
    assert f"{OTHER}@1" in done.stderr
    file.write({MODEL: {}})
    reload(pool)
    assert alike(before, pool.workers()) == before.keys()


@pytest.mark.parametrize("whom", ["foreground", "pool"])
def test_a_hangup_reloads(pool: Pool, file: File, load: LoadStarter, whom: str) -> None:
    """SIGHUP to the process that was started, or to the pool process, does the same; the result is in the log."""
    before = pool.workers()
    running = load(pool, MODEL)
    pool.serves_on()
    file.write({MODEL: {"cpu_slots": 3}})
    said = len(pool.output.read_text())
    os.kill(pool.pid if whom == "foreground" else pool.process_pid("pool"), signal.SIGHUP)
    until(lambda: "reload: done" in pool.output.read_text()[said:], 60)
    assert "slots come: cpu0.2" in pool.output.read_text()[said:]
    assert len(pool.workers()) == 3
    file.write({MODEL: {"cpu_slots": -1}})
    os.kill(pool.pid, signal.SIGHUP)
    until(lambda: "reload: refused" in pool.output.read_text()[said:], 60)
    assert "error: models.half_plus_two.cpu_slots" in pool.output.read_text()[said:]
    running.end_clean()
    assert alike(before, pool.workers()) == before.keys()


def test_a_hangup_takes_the_place_of_one_that_waits(pool: Pool, file: File) -> None:
    """What the one before it has taken up does not come about, for the nursery stands still: nobody waits for that."""
    file.write({MODEL: {}})
    reload(pool)
    before = pool.workers()
    nursery = pool.process_pid("nursery")
    said = len(pool.output.read_text())
    os.kill(nursery, signal.SIGSTOP)
    try:
        file.write({MODEL: {}, OTHER: {}})
        os.kill(pool.pid, signal.SIGHUP)
        until(lambda: "is added" in pool.output.read_text()[said:], 10)
        file.write({MODEL: {}})
        os.kill(pool.pid, signal.SIGHUP)
        until(lambda: "is taken out" in pool.output.read_text()[said:], 10)
    finally:
        os.kill(nursery, signal.SIGCONT)
    until(lambda: "reload: done" in pool.output.read_text()[said:], 60)
    assert "reload: another has been taken up in its place" in pool.output.read_text()[said:]
    assert alike(before, pool.workers()) == before.keys()


def test_what_cannot_be_started_with_other_settings_serves_on(
    pool: Pool, file: File, load: LoadStarter, tmp_path: Path
) -> None:
    """A lone worker is ended once another has come with the new settings: none comes, and it is told."""
    file.write({MODEL: {"cpu_slots": 1}}, restart={"retries": 0})
    reload(pool)
    until(lambda: len(pool.workers()) == 1, 20)
    before = pool.workers()
    variables = file.base / "1" / "variables"
    shutil.copytree(variables, tmp_path / "whole")
    broken = models.corrupt(file.base, "flipped", tmp_path / "broken")
    shutil.copytree(broken / "1" / "variables", variables, dirs_exist_ok=True)
    running = load(pool, MODEL)
    pool.serves_on()
    try:
        file.write({MODEL: {"cpu_slots": 1, "intra_op_threads": 2}}, restart={"retries": 0})
        done = cli("reload", "--run-dir", pool.run_dir, "--timeout", 90, timeout=120)
        assert done.returncode == 1
        assert "runs with its former settings" in done.stderr
        assert "was given up" in done.stderr
    finally:
        shutil.copytree(tmp_path / "whole", variables, dirs_exist_ok=True)
    running.end_clean()
    assert alike(before, pool.workers()) == before.keys()


def test_clients_reload(pool: Pool, file: File, load: LoadStarter) -> None:
    """HandleReloadConfigRequest: answered when the new models are AVAILABLE; those not listed go; then the file counts."""
    before = pool.workers()
    running = load(pool, MODEL)
    pool.serves_on()
    assert ask(pool, {MODEL: str(file.base), OTHER: str(file.base)}).status.error_code == 0
    assert predict(pool, OTHER) == [2.5, 3.0]
    pool.serves_on()
    with pytest.raises(grpc.RpcError) as caught:
        ask(pool, {MODEL: str(file.base), OTHER: str(file.base)}, labels={"stable": 2})
    assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION
    assert f"label to version 2 of model {MODEL}, which is not currently available" in caught.value.details()
    asked = ask(pool, {MODEL: str(file.base)}, specific=[1], labels={"stable": 1})
    assert asked.status.error_code == 0
    assert "NOT_FOUND" in predict(pool, OTHER)
    assert "version_policy holds at once" in reload(pool)
    running.end_clean()
    assert alike(before, pool.workers()) == before.keys()


def test_a_client_that_gives_up_is_in_nobodys_way(pool: Pool, file: File, load: LoadStarter) -> None:
    """What it asked for goes on; who asks next, and `mpspool reload` beside them, come after it and are not refused."""
    served = {MODEL: str(file.base), OTHER: str(file.base)}
    running = load(pool, MODEL)
    pool.serves_on()
    with pytest.raises(grpc.RpcError) as caught:
        ask(pool, served, timeout_s=0.3)
    assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    assert ask(pool, served).status.error_code == 0
    file.write({MODEL: {}}, max_queued_requests=77)
    with ThreadPoolExecutor() as threads:
        by_hand = threads.submit(cli, "reload", "--run-dir", pool.run_dir, "--no-wait", timeout=60)
        asked = [threads.submit(ask, pool, served) for _ in range(2)]
        assert by_hand.result().returncode == 0
        refused = [error for one in asked if (error := one.exception()) is not None]
    # One may have been taken up before what was asked by hand.
    assert [error.code() for error in refused] in ([], [grpc.StatusCode.ABORTED])
    reload(pool)
    running.end_clean()


def test_clients_unload_everything(pool: Pool, file: File) -> None:
    """A list without a model: requests are NOT_FOUND, the versions have ended; another list has models served again."""
    assert ask(pool, {}).status.error_code == 0
    assert f"NOT_FOUND: Servable not found for request: Latest({MODEL})" in predict(pool, MODEL)
    assert pool.workers() == {}
    states = {found.version: found.state for found in status_of(pool, MODEL)}
    assert states == dict.fromkeys(states, ModelVersionState.END)
    assert 1 in states
    assert cli("status", "--run-dir", pool.run_dir).returncode == 0
    killed = pool.process_pid("pool")
    os.kill(killed, signal.SIGKILL)
    until(lambda: (pid := pool.process_pid("pool")) and pid != killed, 20)

    def answered() -> bool:  # UNAVAILABLE while it is only beginning
        with contextlib.suppress(grpc.RpcError):
            return ask(pool, {}).status.error_code == 0
        return False

    until(answered, 60)
    assert pool.workers() == {}
    assert ask(pool, {OTHER: str(file.base)}).status.error_code == 0
    assert predict(pool, OTHER) == [2.5, 3.0]
    assert "NOT_FOUND" in predict(pool, MODEL)


def test_a_version_that_cannot_be_loaded_is_no_reason_beside_one_that_serves(
    pool: Pool, file: File, tmp_path: Path
) -> None:
    """The model is AVAILABLE, and was before: a client that asks for the same models is answered OK."""
    broken = models.corrupt(file.base, "flipped", tmp_path / "broken")
    shutil.move(broken / "1", file.base / "2")

    def state_of_the_new() -> str:
        (found,) = (model for model in pool.status()["models"] if model["name"] == MODEL)
        return {one["version"]: one["state"] for one in found["versions"]}.get(2, "")

    try:
        until(lambda: state_of_the_new() == "END", 60)
        assert ask(pool, {MODEL: str(file.base)}).status.error_code == 0
        assert predict(pool, MODEL) == [2.5, 3.0]
    finally:
        shutil.rmtree(file.base / "2")


def test_a_clients_reload_is_refused(pool: Pool, file: File, tmp_path: Path) -> None:
    """What is wrong is INVALID_ARGUMENT with its reason, what does not load UNKNOWN; the rest serves on."""
    with pytest.raises(grpc.RpcError) as caught:
        ask(pool, {MODEL: str(file.base), OTHER: "/nowhere"})
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "no such path: /nowhere" in caught.value.details()
    broken = models.corrupt(file.base, "flipped", tmp_path / "broken")
    with pytest.raises(grpc.RpcError) as caught:
        ask(pool, {MODEL: str(file.base), OTHER: str(broken)})
    assert caught.value.code() is grpc.StatusCode.UNKNOWN
    assert f"{OTHER}@1" in caught.value.details()
    assert predict(pool, MODEL) == [2.5, 3.0]
    file.write({MODEL: {}}, allow_reload=False)
    reload(pool)
    with pytest.raises(grpc.RpcError) as caught:
        ask(pool, {MODEL: str(file.base)})
    assert caught.value.code() is grpc.StatusCode.PERMISSION_DENIED
