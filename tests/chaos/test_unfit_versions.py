"""Versions that do not take what clients send: they never get requests that were not meant for them, unless somebody allows it."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import grpc

from mpspool.core import tfrecord, tfs
from tests.conftest import PoolStarter, short_dir
from tests.polling import until
from tests.pool import Load, cli
from tests.reloading import reload
from tests.versioning import MODEL, answering, error, one_row, publish, serves, states, versions

LoadStarter = Callable[..., Load]
WHY = "clients of version 1 could not be its clients: it has no input 'x'"


def test_a_canary_with_other_inputs_has_no_share(
    start_pool: PoolStarter, model_dir: Callable[[str], Path], load: LoadStarter, tmp_path: Path
) -> None:
    """It serves who asks for it: neither a route nor another policy has it answer what names no version; status and log say why.

    Clients of its own it may have by metadata. Once that is allowed it takes over.
    """
    base, config = tmp_path / "base", tmp_path / "pool.yaml"
    shutil.copytree(model_dir(MODEL) / "1", base / "1")
    shutil.copytree(model_dir("defaults") / "1", base / "2")

    def configure(version: int, more: str = "") -> None:
        model = f"{{base_path: {base}, cpu_slots: 1, version_policy: {version}{more}}}"
        config.write_text(f"models: {{{MODEL}: {model}}}\nfile_system_poll_wait_seconds: 0.2\n")

    configure(1)
    pool = start_pool(config).wait()
    running = load(pool, MODEL)
    pool.serves_on()
    assert cli("load", f"{MODEL}@2", "--run-dir", pool.run_dir).returncode == 0
    refused = cli("route", MODEL, "1=90,2=10", "--run-dir", pool.run_dir)
    assert refused.returncode == 1
    assert f"{MODEL}@2 cannot have a share of the requests that name no version: {WHY}" in refused.stderr
    own = cli("route", MODEL, "--metadata", "x-canary=yes:2", "--run-dir", pool.run_dir)
    assert own.returncode == 0, own.stderr
    configure(2)
    done = cli("reload", "--run-dir", pool.run_dir, "--timeout", 60, timeout=70)
    assert done.returncode == 1
    assert f"{MODEL}@2: {WHY}" in done.stderr
    assert WHY in error(pool, 2)
    assert states(pool) == {1: "AVAILABLE", 2: "AVAILABLE"}
    assert "does not answer what names no version" in [event["event"] for event in pool.events()]
    pool.serves_on()
    running.end_clean()
    with grpc.insecure_channel(pool.address) as channel:
        assert answering(channel, 20) == {1: 20}
    configure(2, ", allow_signature_changes: true")
    reload(pool)
    serves(pool, 2)
    assert versions(pool)[2]["error"] == ""


def test_the_pool_process_is_killed_after_the_old_version_has_stopped_for_it(
    start_pool: PoolStarter, model_dir: Callable[[str], Path], load: LoadStarter
) -> None:
    """What clients of the old one send is known to its successor: the new one never answers, and the old one comes again."""
    with short_dir() as root:
        shutil.copytree(model_dir(MODEL) / "1", root / "1")
        args = ("--model", f"{MODEL}={root}", "--cpu-slots", 1, "--file-system-poll-wait-seconds", 0.2)
        pool = start_pool(*args, env={"MPSPOOL_SWAP": "stop_first"}).wait()
        running = load(pool, MODEL)
        pool.serves_on()
        victim = pool.process_pid("pool")

        def started() -> list[str]:
            return [event["worker"] for event in pool.events() if event["event"] == "worker started"]

        publish(root, model_dir("defaults") / "1", 2)
        until(lambda: f"{MODEL}@2.cpu0.0" in started(), 30, "version 1 has stopped")
        os.kill(victim, signal.SIGKILL)
        until(lambda: pool.process_pid("pool") not in (0, victim), 20)
        assert WHY in error(pool, 2)
        until(lambda: states(pool).get(1) == "AVAILABLE" and pool.all_ready(), 60, "version 1 serves")
        pool.serves_on()
        report = running.end()
        assert report["wrong"] == 0
        assert set(report["errors"]) <= {"UNAVAILABLE"}, report


def test_what_stops_first_is_what_is_there_by_now(
    start_pool: PoolStarter, model_dir: Callable[[str], Path]
) -> None:
    """Not what had its number before: a version is judged by the inputs of those files that were loaded last."""
    with short_dir() as root:
        shutil.copytree(model_dir(MODEL) / "1", root / "1")
        args = ("--model", f"{MODEL}={root}", "--cpu-slots", 1, "--file-system-poll-wait-seconds", 0.2)
        pool = start_pool(*args, env={"MPSPOOL_SWAP": "stop_first"}).wait()
        assert cli("unload", MODEL, "--run-dir", pool.run_dir).returncode == 0
        shutil.rmtree(root / "1")
        publish(root, model_dir("defaults") / "1", 1)
        assert cli("load", MODEL, "--run-dir", pool.run_dir).returncode == 0
        serves(pool, 1)
        publish(root, model_dir("defaults") / "1", 2)
        until(lambda: 2 in states(pool), 30, "version 2 is seen")
        serves(pool, 2)


def test_other_inputs_may_be_allowed(
    start_pool: PoolStarter, model_dir: Callable[[str], Path], tmp_path: Path
) -> None:
    """By a reload: the version is served then, and the log says how it differs, though it fails what was recorded of the other.

    Where nobody looks for it, it is tried only when it is loaded by hand. To go back by hand nothing needs to be allowed.
    """
    with short_dir() as root:
        shutil.copytree(model_dir(MODEL) / "1", root / "1")
        config = tmp_path / "pool.yaml"

        def configure(more: str = "") -> None:
            config.write_text(
                f"models: {{{MODEL}: {{base_path: {root}, cpu_slots: 1{more}}}}}\nfile_system_poll_wait_seconds: 0\n"
            )

        configure()
        pool = start_pool(config).wait()
        publish(root, model_dir("defaults") / "1", 2)
        with grpc.insecure_channel(pool.address) as channel:
            assert answering(channel, 1000) == {1: 1000}
        assert states(pool) == {1: "AVAILABLE"}
        entry = tfs.PredictionLog()
        entry.predict_log.request.CopyFrom(one_row())
        (root / "1" / "assets.extra").mkdir()
        (root / "1" / "assets.extra" / "tf_serving_warmup_requests").write_bytes(
            tfrecord.framed(entry.SerializeToString())
        )
        done = cli("load", MODEL, "--run-dir", pool.run_dir)
        assert done.returncode == 1
        assert f"{MODEL}@2: clients of version 1 could not be its clients: " in done.stderr
        assert "it has no input 'x'" in done.stderr
        configure(", allow_signature_changes: true")
        reload(pool)
        serves(pool, 2)
        assert "another version's request failed" in pool.logs()
        (how,) = [event["how"] for event in pool.events() if event["event"].startswith("signatures differ")]
        assert "it has no input 'x'" in how
        configure()
        reload(pool)
        assert cli("rollback", MODEL, "--run-dir", pool.run_dir).returncode == 0
        serves(pool, 1)
