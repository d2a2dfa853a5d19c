"""One copy of the weights in a real pool: published once, held by descriptors, found again, or refused."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from mpspool.core.process import alive
from mpspool.core.segment_file import MAGIC, PAGE
from mpspool.core.weights import COPIED
from tests import checkpoints, models
from tests.conftest import PoolStarter, pools
from tests.polling import until
from tests.pool import ROOT, Pool, cli, processes_of
from tests.reloading import reload

ONE, TWO = "gigabyte@1.cpu0.0", "gigabyte@1.cpu0.1"
GIGABYTE = 10**9
ModelDir = Callable[[str], Path]


@pytest.fixture(scope="module")
def pool(model_dir: ModelDir) -> Iterator[Pool]:
    """Two workers of the 1 GB model, which the module's tests share."""
    with pools() as start:
        yield start("--model", f"gigabyte={model_dir('gigabyte')}", "--cpu-slots", 2).wait()


def descriptors(pid: int) -> dict[Path, str]:
    """What a process has open, and under which name; nothing of one that has ended."""
    found = {}
    with contextlib.suppress(FileNotFoundError):
        for entry in list(Path(f"/proc/{pid}/fd").iterdir()):
            with contextlib.suppress(FileNotFoundError):  # closed meanwhile
                found[entry] = os.readlink(entry)
    return found


def segments(pid: int) -> set[int]:
    """The inodes of the weights segments that a process holds."""
    found = set()
    for entry, name in descriptors(pid).items():
        if name.startswith("/memfd:mpspool."):
            with contextlib.suppress(FileNotFoundError):
                found.add(entry.stat().st_ino)
    return found


def weights(pool: Pool, model: str = "gigabyte") -> dict[str, Any]:
    found = next(item for item in pool.status()["models"] if item["name"] == model)
    report: dict[str, Any] = found["versions"][0]["weights"]
    return report


def rows(pool: Pool, *ids: int) -> list[float]:
    asked = cli("predict", "gigabyte", "--input", json.dumps({"ids": ids}), "--address", pool.address)
    assert asked.returncode == 0, asked.stderr
    answer: list[float] = json.loads(asked.stdout)["rows"]
    return answer


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    until(lambda: not alive(pid), 20)


def published(pool: Pool) -> int:
    """How often, as the log of the pool process has it."""
    return (pool.run_dir / "logs" / "pool.log").read_text().count('"event": "publishing"')


def test_all_workers_hold_the_one_segment(pool: Pool) -> None:
    """1 GB shared in both workers and the pool process, and nothing of it private, also after requests."""
    pids = [worker["pid"] for worker in pool.workers().values()] + [pool.process_pid("pool")]
    assert len(set.union(*map(segments, pids))) == 1
    report = weights(pool)
    assert report["shared_bytes"] == GIGABYTE
    assert (report["private_bytes"], report["excess_bytes"], report["shared_variables"]) == (0, 0, 1)
    for _ in range(4):  # idle workers take turns
        assert rows(pool, 0, 1, 2_499_999) == [0, 1, 2_499_999]
    workers = pool.workers().values()
    assert all(worker["served"] for worker in workers)
    assert all(worker["memory"]["private_bytes"] < GIGABYTE / 3 for worker in workers)
    assert "publish" not in " ".join(item["name"] for item in pool.status()["processes"])


def test_a_new_pool_process_has_it_back_from_a_living_worker(pool: Pool) -> None:
    """Kill the pool process, then a worker: the new worker maps the same segment, nothing is published again."""
    before, count = pool.workers(), published(pool)
    [segment] = segments(before[ONE]["pid"])
    kill(pool.process_pid("pool"))
    kill(before[ONE]["pid"])
    until(lambda: pool.workers()[ONE]["generation"] > before[ONE]["generation"] and pool.all_ready(), 60)
    after = pool.workers()
    assert after[TWO]["pid"] == before[TWO]["pid"]
    assert segments(after[ONE]["pid"]) == segments(pool.process_pid("pool")) == {segment}
    assert published(pool) == count
    assert rows(pool, 7, 2_000_000) == [7, 2_000_000]


def test_where_none_lives_it_is_published_again(pool: Pool) -> None:
    """Kill the pool process and every worker: one new segment for all."""
    before, count = pool.workers(), published(pool)
    [segment] = segments(before[ONE]["pid"])
    os.kill(pool.process_pid("pool"), signal.SIGSTOP)
    for worker in before.values():
        os.kill(worker["pid"], signal.SIGKILL)
    until(lambda: not any(alive(worker["pid"]) for worker in before.values()), 20)
    kill(next(iter(_pool_pids(pool))))
    until(pool.all_ready, 90)
    after = pool.workers()
    assert published(pool) == count + 1
    [new] = segments(after[ONE]["pid"])
    assert segments(after[TWO]["pid"]) == {new} != {segment}


def _pool_pids(pool: Pool) -> list[int]:
    """The pool process by its command line: a stopped one answers nobody."""
    return [pid for pid, command in processes_of(pool.run_dir).items() if "-m mpspool.supervisor " in command]


def half_written(segment: Path) -> bool:
    """Its header is there, and its first word, which is written last, is not."""
    with open(segment, "rb") as file:
        start = file.read(PAGE)
    return any(start[len(MAGIC) :]) and not start.startswith(MAGIC)


def stopped_half_way(pool: Pool) -> tuple[int, int] | None:
    """The publisher, while it copies, by a SIGSTOP, and the inode of its segment."""
    for pid, command in processes_of(pool.run_dir).items():
        if "-m mpspool.worker.weights " not in command:
            continue
        for entry, name in descriptors(pid).items():
            with contextlib.suppress(FileNotFoundError):  # closed meanwhile
                if name.startswith("/memfd:mpspool.") and half_written(entry):
                    os.kill(pid, signal.SIGSTOP)
                    if half_written(entry):
                        return pid, entry.stat().st_ino
                    os.kill(pid, signal.SIGCONT)
    return None


def with_one_stopped_half_way(start: Callable[[], Pool]) -> tuple[Pool, int, int]:
    """A pool, its publisher and the inode of its segment. One may be through while this process has no CPU to look: then another pool."""

    def through(pool: Pool) -> bool:
        log = pool.run_dir / "logs" / "pool.log"
        return log.exists() and '"event": "worker ready"' in log.read_text()

    for _ in range(5):
        pool = start()
        found = until(lambda pool=pool: stopped_half_way(pool) or through(pool), 60, "a publisher")
        if isinstance(found, tuple):
            return pool, *found
        pool.stop()
    raise AssertionError("every one of five was through before it was stopped")


def test_a_publisher_killed_half_way_is_started_again(start_pool: PoolStarter, model_dir: ModelDir) -> None:
    """SIGKILL while it copies: nothing of it is ever mapped, the next one's is, and the pool gets READY."""
    pool, publisher, unfinished = with_one_stopped_half_way(
        lambda: start_pool("--model", f"gigabyte={model_dir('gigabyte')}", "--cpu-slots", 1)
    )
    kill(publisher)
    assert not any(unfinished in segments(pid) for pid in processes_of(pool.run_dir))
    pool.wait()
    assert published(pool) == 2
    assert unfinished not in segments(pool.workers()[ONE]["pid"])
    assert rows(pool, 3) == [3]


def test_more_weights_than_memory_fail_their_version(
    start_pool: PoolStarter, model_dir: ModelDir, tmp_path: Path
) -> None:
    """A table larger than any machine: tried as often as configured, then FATAL with what it wants; others serve."""
    huge = 8 * 2**40
    shutil.copytree(model_dir("large"), tmp_path / "huge")
    variables = tmp_path / "huge" / "1" / "variables"
    table = {"": checkpoints.header(), "table": checkpoints.entry([huge // 4], huge)}
    (variables / "variables.index").write_bytes(checkpoints.table(table))
    os.truncate(variables / "variables.data-00000-of-00001", huge)
    config = tmp_path / "pool.yaml"
    config.write_text(
        "cpu_slots: 1\nrestart: {retries: 1, backoff_s: 0.2}\nmodels:\n"
        f"  half_plus_two: {{base_path: {model_dir('half_plus_two')}}}\n  huge: {{base_path: {tmp_path / 'huge'}}}\n"
    )
    pool = start_pool(config)
    worker = until(lambda: (w := pool.workers()["huge@1.cpu0.0"])["state"] == "FATAL" and w, 60)
    assert re.search(r"the weights need 8,796,[\d,]+ bytes in memory .* bytes are available", worker["error"])
    assert "set weights.backing: file" in worker["error"]
    until(lambda: pool.workers()["half_plus_two@1.cpu0.0"]["state"] == "READY", 60)
    assert published(pool) == 2 + 1  # huge twice, and half_plus_two, which finds that it has nothing worth it
    assert not any(segments(pid) for pid in processes_of(pool.run_dir))


def test_a_publisher_that_hangs_is_started_again(
    start_pool: PoolStarter, model_dir: ModelDir, tmp_path: Path
) -> None:
    """SIGSTOP while it copies: it is killed after as long as a start may take, and the pool gets READY."""
    config = tmp_path / "pool.yaml"
    base_path = model_dir("gigabyte")
    config.write_text(
        f"models: {{gigabyte: {{base_path: {base_path}, cpu_slots: 1, start_timeout_s: 10}}}}\n"
    )
    pool, _, _ = with_one_stopped_half_way(lambda: start_pool(config))
    log = pool.run_dir / "logs" / "pool.log"
    reason = "hung and killed: its weights are not published after 10 s (start_timeout_s)"
    until(lambda: reason in log.read_text(), 30, reason)
    until(lambda: published(pool) == 2, 20, "it is started again")
    # The next one, and the worker, may take longer than the one that hangs is waited for.
    config.write_text(config.read_text().replace("start_timeout_s: 10", "start_timeout_s: 600"))
    reload(pool)
    pool.wait()
    assert published(pool) == 2
    assert rows(pool, 3) == [3]


@pytest.mark.parametrize(
    ("how", "words"),
    # A shard that is missing is found before anything starts (tests/unit/test_preflight.py).
    [("flipped", "is damaged"), ("truncated", "is cut")],
)
def test_a_checkpoint_that_cannot_be_copied_fails_its_version(
    start_pool: PoolStarter, model_dir: ModelDir, tmp_path: Path, how: str, words: str
) -> None:
    """A corrupt or incomplete checkpoint: FATAL at once with the file and what is wrong; the other serves."""
    broken = models.corrupt(model_dir("large"), how, tmp_path / "broken")
    good = f"half_plus_two={model_dir('half_plus_two')}"
    pool = start_pool("--model", f"broken={broken}", "--model", good, "--cpu-slots", 1)
    waited = cli("wait", "--run-dir", pool.run_dir, "--timeout", 60)
    assert waited.returncode == 1
    assert words in waited.stderr
    assert "variables.data-00000-of-00001" in waited.stderr
    until(lambda: pool.workers()["half_plus_two@1.cpu0.0"]["state"] == "READY", 60)
    broken_worker = pool.workers()["broken@1.cpu0.0"]
    assert (broken_worker["state"], broken_worker["generation"], broken_worker["pid"]) == ("FATAL", 1, None)
    assert words in cli("logs", "broken@1.cpu0.0", "--run-dir", pool.run_dir).stdout
    asked = cli("predict", "broken", "--input", "[1]", "--run-dir", pool.run_dir).stderr
    assert "NOT_FOUND: Servable not found for request: Latest(broken); version 1 is END: " in asked
    assert words in asked
    asked = cli("predict", "borken", "--input", "[1]", "--run-dir", pool.run_dir).stderr
    assert "Latest(borken); did you mean broken?" in asked


def test_on_refuses_what_cannot_be_shared_and_auto_says_why_not(
    start_pool: PoolStarter, model_dir: ModelDir, tmp_path: Path
) -> None:
    """weights.shared on: FATAL with the reason; auto: served from private weights, with the reason in the status."""
    config = tmp_path / "pool.yaml"
    config.write_text(
        "cpu_slots: 1\nmodels:\n"
        f"  on: {{base_path: {model_dir('half_plus_two')}, weights: {{shared: on}}}}\n"
        f"  auto: {{base_path: {model_dir('half_plus_two')}}}\n"
        f"  off: {{base_path: {model_dir('half_plus_two')}, weights: {{shared: off}}}}\n"
    )
    pool = start_pool(config)
    until(lambda: pool.workers()["on@1.cpu0.0"]["state"] == "FATAL", 60)
    assert (
        "weights.shared is on, but none of the model's variables can be shared"
        in (pool.workers()["on@1.cpu0.0"]["error"])
    )
    until(lambda: {pool.workers()[f"{name}@1.cpu0.0"]["state"] for name in ("auto", "off")} == {"READY"}, 60)
    assert list(weights(pool, "auto")["why"]) == ["none of its 8 bytes are worth sharing (less than 64 KiB)"]
    assert list(weights(pool, "off")["why"]) == ["weights.shared: off"]


def test_weights_that_tensorflow_copies_are_told(start_pool: PoolStarter, model_dir: ModelDir) -> None:
    """A worker that has them twice serves, and says so: in its log, in both forms of the status, by name."""
    env = {"PYTHONPATH": str(ROOT / "tests" / "fakes" / "copying_worker")}
    pool = start_pool("--model", f"large={model_dir('large')}", "--cpu-slots", 1, env=env).wait()
    report = weights(pool, "large")
    size = models.LARGE_ROWS * models.LARGE_COLUMNS * 4
    assert (report["excess_bytes"], report["why"]) == (size, {COPIED: ["table"]})
    assert (report["shared_bytes"], report["private_bytes"]) == (0, size)
    log = (pool.run_dir / "logs" / "worker.large@1.cpu0.0.log").read_text()
    assert "weights were copied in silence" in log
    shown = cli("status", "--run-dir", pool.run_dir).stdout
    assert "weights were copied that should be shared, such as table" in shown


@pytest.mark.parametrize("backing", ["shm", "file"])
def test_other_backings_leave_nothing(
    start_pool: PoolStarter, model_dir: ModelDir, tmp_path: Path, backing: str
) -> None:
    """Weights in /dev/shm or in a folder: shared all the same, and all of it is held by descriptors alone."""
    env = {"MPSPOOL_WEIGHTS_BACKING": backing, "MPSPOOL_WEIGHTS_SHARED": "on"}
    env |= {"MPSPOOL_WEIGHTS_FOLDER": str(tmp_path)} if backing == "file" else {}
    pool = start_pool("--model", f"large={model_dir('large')}", "--cpu-slots", 2, env=env).wait()
    assert weights(pool, "large")["shared_bytes"] == models.LARGE_ROWS * models.LARGE_COLUMNS * 4
    folder = "/dev/shm" if backing == "shm" else str(tmp_path)
    held = {
        file
        for pid in processes_of(pool.run_dir)
        for file in descriptors(pid).values()
        if file.startswith(folder)
    }
    assert held
    assert all(file.endswith(" (deleted)") for file in held), held


def test_a_folder_that_was_changed_in_place_is_refused(
    start_pool: PoolStarter, model_dir: ModelDir, tmp_path: Path
) -> None:
    """Another checkpoint under the same version number: a new worker says so, instead of mixing old and new."""
    shutil.copytree(model_dir("large"), tmp_path / "large")
    pool = start_pool("--model", f"large={tmp_path / 'large'}", "--cpu-slots", 1).wait()
    os.utime(tmp_path / "large" / "1" / "variables" / "variables.data-00000-of-00001", (1, 1))
    kill(pool.workers()["large@1.cpu0.0"]["pid"])
    worker = until(lambda: (w := pool.workers()["large@1.cpu0.0"])["state"] == "FATAL" and w, 60)
    assert "was changed since its weights were published" in worker["error"]
