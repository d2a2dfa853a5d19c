"""Publishing weights: real checkpoints, real segments, a real publisher process, and a pool that is a socket."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import mmap
import os
import random
import resource
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mpspool.core import process, segment_file, settings, weights
from mpspool.core.ids import ModelVersion
from mpspool.core.rundir import RunDir
from mpspool.core.segment_file import PAGE, Manifest
from mpspool.core.settings import ModelSettings, PublishSettings, WeightsSettings
from mpspool.core.weights import Offer, Taken, Want
from mpspool.worker.weights import huge_pages, memory, segment, weights_socket
from mpspool.worker.weights.checkpoint import read_index, shard_file
from mpspool.worker.weights.huge_pages import HugePages
from mpspool.worker.weights.layout import lay_out
from mpspool.worker.weights.segment import Segment, SegmentError
from mpspool.worker.weights.weights_socket import HandoverError
from tests import checkpoints, models
from tests.conftest import short_dir
from tests.polling import until
from tests.smaps import huge_mapped_bytes

MODEL = ModelVersion("some model", 7)
BACKINGS = ["memfd", "shm", "file"]
MODULE = "mpspool.worker.weights"


class FakePool:
    """The pool's side of the weights socket: takes offers and answers with the model's last one, or else another's."""

    def __init__(self, path: Path, *offers: Offer) -> None:
        self.offers: list[tuple[Offer, int | None]] = [(offer, None) for offer in offers]
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.bind(str(path))
        self._socket.listen()
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            with connection, contextlib.suppress(OSError):
                self._answer(connection)

    def _answer(self, connection: socket.socket) -> None:
        message, descriptor = weights.receive(connection)
        if isinstance(message, Offer):
            self.offers.append((message, descriptor))
            weights.send(connection, Taken())
        elif isinstance(message, Want):
            known = [offer for offer in self.offers if offer[0].model == message.model]
            weights.send(connection, *(known or self.offers)[-1])

    def close(self) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._thread.join()
        for _, descriptor in self.offers:
            if descriptor is not None:
                os.close(descriptor)


class Bench:
    """A run folder with a pool in it, and publishers that are started there."""

    def __init__(self, root: Path) -> None:
        self.run_dir = RunDir(root / "run")
        for folder in self.run_dir.folders():
            folder.mkdir()
        self.folder = root / "weights"
        self.folder.mkdir()
        self.pool = FakePool(self.run_dir.weights_socket)

    def settings(self, version: Path, backing: str = "memfd", shared: str = "auto", folder: str = "") -> Path:
        kept = WeightsSettings(shared=shared, backing=backing, folder=folder or str(self.folder))
        model = ModelSettings(
            name=MODEL.name, version=MODEL.version, path=str(version), slots=[], weights=kept
        )
        path = self.run_dir.settings_file(MODEL.publisher)
        settings.save(path, PublishSettings(run_dir=str(self.run_dir.root), model=model))
        return path

    def start(self, path: Path, **kwargs: Any) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, "-P", "-m", MODULE, str(path), "--give-way"], stderr=subprocess.DEVNULL, **kwargs
        )

    def publish(self, version: Path, backing: str = "memfd", shared: str = "auto", **kwargs: Any) -> int:
        folder = kwargs.pop("folder", "")
        return self.start(self.settings(version, backing, shared, folder), **kwargs).wait(timeout=120)

    def error(self) -> str:
        return self.run_dir.error_file(MODEL.publisher).read_text().strip()

    def assert_nothing_left(self) -> None:
        assert not os.listdir(self.folder)
        assert not [name for name in os.listdir("/dev/shm") if "mpspool" in name]


@pytest.fixture
def bench() -> Iterator[Bench]:
    with short_dir() as root:
        made = Bench(root)
        try:
            yield made
            made.assert_nothing_left()
        finally:
            made.pool.close()


@pytest.fixture(scope="module")
def written(models_root: Path) -> Path:
    return checkpoints.build(models_root)


@pytest.fixture(autouse=True)
def _mappings_end(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A worker's mappings are for life; this process has many tests to run."""
    mapped = []
    map_aligned = huge_pages.map_aligned

    def noted(descriptor: int, size: int, flags: int, access: int) -> int:
        address = map_aligned(descriptor, size, flags, access)
        if flags & mmap.MAP_PRIVATE:
            mapped.append((address, size))
        return address

    monkeypatch.setattr(huge_pages, "map_aligned", noted)
    yield
    for address, size in mapped:
        huge_pages.unmap(address, size)


def only_offer(bench: Bench) -> tuple[Offer, int]:
    """Given again where nobody took it in time, as on a busy machine."""
    assert all(message == Offer(MODEL.name, MODEL.version) for message, _ in bench.pool.offers)
    message, descriptor = bench.pool.offers[-1]
    assert descriptor is not None
    return message, descriptor


def made(version: Path, backing: str, folder: Path, model: ModelVersion = MODEL) -> int:
    """A segment published in this process."""
    from mpspool.worker.weights.publish import publish

    kept = WeightsSettings(shared="on", backing=backing, folder=str(folder))
    descriptor, _ = publish(
        ModelSettings(name=model.name, version=model.version, path=str(version), slots=[], weights=kept)
    )
    return descriptor


@pytest.mark.parametrize("backing", BACKINGS)
@pytest.mark.parametrize("name", checkpoints.NAMES)
def test_a_segment_holds_what_tensorflow_reads(bench: Bench, written: Path, name: str, backing: str) -> None:
    """Every tensor of a real checkpoint is in the segment byte for byte, or named as private."""
    assert bench.publish(written / name, backing, "on") == 0
    _, descriptor = only_offer(bench)
    manifest = segment_file.read_manifest(descriptor)
    expected = checkpoints.expected(written / name)
    bookkeeping = {key for key in expected if key[0].startswith(("_CHECKPOINTABLE", "save_counter"))}
    assert {(item.key, item.spec) for item in [*manifest.tensors, *manifest.private]} == (
        set(expected) - bookkeeping
    )
    assert manifest.tensors
    for placed in manifest.tensors:
        data = os.pread(descriptor, placed.size, placed.offset)
        wanted = expected[placed.key, placed.spec]
        assert checkpoints.digest(data) == wanted["sha256"]
        assert (placed.dtype, list(placed.shape)) == (wanted["dtype"], wanted["shape"])
    assert manifest.source == segment_file.source_of(checkpoints.prefix(written / name))


@pytest.mark.parametrize("backing", BACKINGS)
def test_nobody_can_change_a_segment(written: Path, tmp_path: Path, backing: str) -> None:
    """The descriptor that is handed over can be neither written nor cut; a memfd not even opened anew for it."""
    descriptor = made(written / "keras", backing, tmp_path)
    with pytest.raises(OSError):
        os.pwrite(descriptor, b"x", PAGE)
    with pytest.raises(OSError):
        os.ftruncate(descriptor, PAGE)
    if backing == "memfd":
        again = os.open(f"/proc/self/fd/{descriptor}", os.O_RDWR)
        for change in (lambda: os.pwrite(again, b"x", PAGE), lambda: os.ftruncate(again, PAGE)):
            with pytest.raises(PermissionError):
                change()
        os.close(again)
    assert os.fstat(descriptor).st_nlink == 0
    os.close(descriptor)


def test_a_mapping_is_of_the_worker_alone(written: Path, tmp_path: Path) -> None:
    """Arrays lie on pages, have TensorFlow's types and a spare element; what is written stays private."""
    descriptor = made(written / "dtypes", "memfd", tmp_path)
    first, second = Segment.open(descriptor), Segment.open(os.dup(descriptor))
    first.map()
    second.map()
    for placed in first.manifest.tensors:
        array, spare = first.array(placed.key), first.array(placed.key, spare=True)
        assert array is not None
        assert spare is not None
        assert (array.shape, array.nbytes) == (placed.shape, placed.size)
        assert spare.shape == (array.size + 1,)
        assert array.ctypes.data == spare.ctypes.data
        assert array.ctypes.data % PAGE == 0
        before = array.tobytes()
        array.reshape(-1).view("uint8")[0] ^= 1
        assert array.tobytes() != before
        other = second.array(placed.key)
        assert other is not None
        assert other.tobytes() == before
    names = {placed.key: first.array(placed.key) for placed in first.manifest.tensors}
    assert {str(array.dtype) for array in names.values() if array is not None} >= {
        "bfloat16",
        "bool",
        "complex64",
    }
    assert first.array("no such key") is None
    del array, spare, other, names
    os.close(first.fd)
    os.close(second.fd)


def test_a_mapping_is_made_afresh(tmp_path: Path) -> None:
    """What was written to an earlier mapping is not in the next, and takes no memory any more."""
    opened = Segment.open(made(checkpoints.write_large(tmp_path / "1", 2**20), "memfd", tmp_path))
    key = opened.manifest.tensors[0].key
    opened.map()
    earlier = opened.array(key)
    assert earlier is not None
    earlier[:] = 1
    assert opened.written().sum() == earlier.nbytes // PAGE
    opened.map()
    again = opened.array(key)
    assert again is not None
    assert not again.any()
    assert not opened.written().any()
    assert not earlier.any()
    os.close(opened.fd)


def test_what_was_written_is_known_page_by_page(tmp_path: Path) -> None:
    """A page that was written to is known, one that was read is not, nor is the file changed by it."""
    opened = Segment.open(made(checkpoints.write_large(tmp_path / "1", 2**20), "memfd", tmp_path))
    opened.map()
    (placed,) = opened.manifest.tensors
    array = opened.array(placed.key)
    assert array is not None
    assert array.sum() == 0
    array[2 * PAGE // 4] = array[5 * PAGE // 4 + 7] = 1
    first = placed.offset // PAGE
    assert opened.written().nonzero()[0].tolist() == [first + 2, first + 5]
    assert opened.offset(array[PAGE // 4 :]) == placed.offset + PAGE
    assert opened.offset(array.copy()) is None
    assert not opened.published(placed, array)
    array[:] = 0
    assert opened.published(placed, array)
    assert not opened.published(placed, array[1:])
    os.close(opened.fd)


def test_where_the_kernel_does_not_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without /proc/self/pagemap no page is known to have been written to, and nothing fails."""
    opened = Segment.open(made(checkpoints.write_large(tmp_path / "1", 2**20), "memfd", tmp_path))
    opened.map()
    array = opened.array(opened.manifest.tensors[0].key)
    assert array is not None
    array[:] = 1
    monkeypatch.setattr(memory, "_PAGEMAP", tmp_path / "none")
    assert not opened.written().any()
    os.close(opened.fd)


def test_slices_are_found_by_the_graphs_own_specs(written: Path, tmp_path: Path) -> None:
    """Whatever RestoreV2 says of a partitioned variable finds its slice, also one that was stored whole."""
    opened = Segment.open(made(written / "partitioned", "memfd", tmp_path))
    opened.map()
    found = 0
    for key, spec in json.loads((written / "partitioned" / "restores.json").read_text()):
        array = opened.array(key, spec)
        private = any(item.key == key for item in opened.manifest.private)
        assert (array is None) == private
        found += array is not None
    assert found >= 8
    assert opened.array("rTrue/rows") is None
    os.close(opened.fd)


@pytest.mark.parametrize("backing", ["memfd", "shm"])
def test_a_segment_lies_in_huge_pages(tmp_path: Path, backing: str) -> None:
    huge = huge_pages.huge_bytes()
    version = checkpoints.write_large(tmp_path / "1", 4 * huge)
    if not _gives_huge_pages():
        pytest.skip("this kernel gives no huge pages: older than 6.1, or memory is in pieces")
    opened = Segment.open(made(version, backing, tmp_path))
    opened.map()
    [placed] = opened.manifest.tensors
    array = opened.array(placed.key, placed.spec)
    assert array is not None
    assert huge_mapped_bytes(array.ctypes.data - placed.offset) >= 4 * huge
    os.close(opened.fd)


def _gives_huge_pages() -> bool:
    size = huge_pages.huge_bytes()
    descriptor = os.memfd_create("mpspool-huge")
    os.ftruncate(descriptor, size)
    try:
        with HugePages(descriptor, size) as huge:
            huge.prepare(0, size)
            return huge.bytes == size
    finally:
        os.close(descriptor)


def test_the_publisher_is_light(bench: Bench, tmp_path: Path) -> None:
    """Neither TensorFlow nor NumPy is imported; and a variable of 384 MiB takes no memory of the process; whoever serves goes first."""
    size = 384 * 2**20
    path = bench.settings(checkpoints.write_large(tmp_path / "1", size))
    script = (
        "import os, runpy, sys\n"
        f"sys.argv = ['publish', {str(path)!r}, '--give-way']\n"
        "try:\n"
        f"    runpy.run_module({MODULE!r}, run_name='__main__')\n"
        "except SystemExit as end:\n"
        "    assert end.code == 0, end\n"
        "heavy = {'tensorflow', 'numpy', 'grpc', 'zmq'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
        "assert os.getpriority(os.PRIO_PROCESS, 0) == 19\n"
        "print(next(line for line in open('/proc/self/status') if line.startswith('VmHWM')))\n"
    )
    done = subprocess.run([sys.executable, "-P", "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout.split()[1]) < 128 * 1024
    _, descriptor = only_offer(bench)
    [placed] = segment_file.read_manifest(descriptor).tensors
    assert placed.size == size


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ("truncated", "variables.data-00000-of-00001 is cut: it ends within"),
        ("missing_shard", "variables.data-00000-of-00001 is missing"),
        ("missing_index", "variables.index is missing"),
        ("bad_index", "variables.index is damaged"),
        ("flipped", "variables.data-00000-of-00001 is damaged: "),
    ],
)
def test_a_damaged_checkpoint_is_never_published(
    bench: Bench, written: Path, tmp_path: Path, how: str, says: str
) -> None:
    """Nothing is handed over, starting again is no use, and the reason names the file and the remedy."""
    (tmp_path / "base").mkdir()
    shutil.copytree(written / "keras", tmp_path / "base" / "1")
    version = models.corrupt(tmp_path / "base", how, tmp_path / "copy") / "1"
    if how == "flipped":  # the byte that is flipped must be one of a tensor that is copied
        index = read_index(checkpoints.prefix(written / "keras"))
        shared = {placed.key for placed in lay_out(index.tensors, "", 0, "", shared="on").tensors}
        tensor = next(tensor for tensor in index.tensors if tensor.key in shared)
        with open(shard_file(checkpoints.prefix(version), 0, 1), "r+b") as file:
            file.seek(tensor.offset + tensor.size - 1)
            [last] = file.read(1)
            file.seek(-1, os.SEEK_CUR)
            file.write(bytes([last ^ 1]))
    assert bench.publish(version, shared="on") == process.EXIT_NEVER
    assert says in bench.error()
    assert "copy its whole variables folder" in bench.error()
    assert "\n" not in bench.error()
    assert not bench.pool.offers


def test_one_missing_shard_of_many_is_named(bench: Bench, written: Path, tmp_path: Path) -> None:
    """The version fails and the shard is named."""
    version = shutil.copytree(written / "shards", tmp_path / "1")
    lost = shard_file(checkpoints.prefix(version), 7, checkpoints.SHARDS)
    lost.unlink()
    assert bench.publish(version, "file", "on") == process.EXIT_NEVER
    assert str(lost) in bench.error()
    assert not bench.pool.offers


def test_what_is_not_worth_a_segment_is_said(bench: Bench, written: Path, tmp_path: Path) -> None:
    """With auto the pool gets the reason and no segment; with on the model is refused."""
    (tmp_path / "none").mkdir()
    for version, reason in (
        (written / "partitioned", "bytes are worth sharing (less than 64 KiB)"),
        (tmp_path / "none", "the model has no checkpoint"),
    ):
        assert bench.publish(version) == 0
        message, descriptor = bench.pool.offers.pop()
        assert reason in message.reason
        assert descriptor is None
    assert bench.publish(tmp_path / "none", shared="on") == process.EXIT_NEVER
    assert bench.error() == "weights.shared is on, but the model has no checkpoint: set it to auto"
    assert not bench.pool.offers
    assert bench.publish(written / "partitioned", shared="on") == 0
    assert not bench.run_dir.error_file(MODEL.publisher).exists()


@pytest.mark.parametrize("backing", BACKINGS)
def test_a_shortage_says_what_was_wanted(bench: Bench, tmp_path: Path, backing: str) -> None:
    """Bytes, backing and remedy; starting again may help; nothing is left and nothing handed over."""
    version = checkpoints.write_large(tmp_path / "1", 8 * 2**20)
    limit = 2**20

    def limited() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

    assert bench.publish(version, backing, preexec_fn=limited) == 1
    assert f"the weights need {8 * 2**20 + 2 * PAGE:,} bytes in " in bench.error()
    assert f"(weights.backing: {backing})" in bench.error()
    assert (
        "set weights.backing: file" if backing == "memfd" else "set weights.backing: memfd"
    ) in bench.error()
    assert not bench.pool.offers


def test_a_full_file_system_is_a_shortage(bench: Bench, tmp_path: Path) -> None:
    """A folder that is too small for the weights is found before a byte is copied."""
    small = tmp_path / "small"
    small.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(small)],
        check=False,
        capture_output=True,
        text=True,
    )
    if mounted.returncode:
        pytest.skip(f"a tmpfs cannot be mounted here: {mounted.stderr.strip()}")
    try:
        version = checkpoints.write_large(tmp_path / "1", 8 * 2**20)
        assert bench.publish(version, "file", folder=str(small)) == 1
        assert "No space left on device: free space there" in bench.error()
        assert not os.listdir(small)
        assert not bench.pool.offers
    finally:
        subprocess.run(["umount", str(small)], check=True)


def test_more_than_the_memory_is_refused_before_it_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel would end a process for it."""
    monkeypatch.setattr(segment.available_memory, "available_bytes", lambda: 1000)
    with pytest.raises(SegmentError, match=r"need 1,001 bytes in memory .*: 1,000 bytes are available: free"):
        segment.create("memfd", "", 1001, "name")
    os.close(segment.create("memfd", "", 1000, "name"))


@pytest.mark.parametrize("backing", BACKINGS)
def test_a_publisher_killed_half_way_leaves_nothing(bench: Bench, tmp_path: Path, backing: str) -> None:
    """Whenever it is killed: no file, and no segment that is not whole; the next one does it all."""
    path = bench.settings(checkpoints.write_large(tmp_path / "1", 200 * 2**20, tensors=8), backing)
    start = time.monotonic()
    assert bench.start(path).wait(timeout=120) == 0
    whole_s = time.monotonic() - start
    chance = random.Random(backing)
    for _ in range(6):
        child = bench.start(path)
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(timeout=chance.uniform(0.1, 1.0) * whole_s)
        forked = process.children(child.pid)
        child.kill()
        assert child.wait() in {0, -signal.SIGKILL}
        until(lambda pids=forked: not any(map(process.alive, pids)), what="its child ends with it")
        bench.assert_nothing_left()
    assert bench.start(path).wait(timeout=120) == 0
    assert len(bench.pool.offers) >= 2
    for _, descriptor in bench.pool.offers:
        assert descriptor is not None
        assert len(segment_file.read_manifest(descriptor).tensors) == 8


def test_a_publisher_killed_while_it_writes_leaves_nothing(bench: Bench, tmp_path: Path) -> None:
    """Killed when its file is already there and unfinished: the file is gone with it."""
    # So many bytes take seconds to copy: time enough to be seen.
    path = bench.settings(checkpoints.write_large(tmp_path / "1", 2**30, tensors=8), "file")
    child = bench.start(path)

    def half_made() -> int:
        """Its pid."""
        with contextlib.suppress(OSError):
            for pid in process.children(child.pid):
                for name in os.listdir(f"/proc/{pid}/fd"):
                    if os.readlink(f"/proc/{pid}/fd/{name}").startswith(str(bench.folder)):
                        os.kill(pid, signal.SIGSTOP)
                        return pid
        return 0

    writer = until(half_made, what="the segment's file")
    os.kill(writer, signal.SIGKILL)
    assert child.wait() == -signal.SIGKILL
    assert not bench.pool.offers


def test_an_unfinished_segment_is_never_opened(tmp_path: Path) -> None:
    """Without the magic, without the seals, or cut: refused."""
    content = segment_file.header(Manifest("m", 1, "", [], [], PAGE))
    unsealed = segment.create("memfd", "", PAGE, "mpspool.m@1")
    segment.write(unsealed, content, len(segment_file.MAGIC))
    with pytest.raises(SegmentError, match="no finished"):
        Segment.open(unsealed)
    segment.write(unsealed, segment_file.MAGIC, 0)
    with pytest.raises(SegmentError, match="no finished"):
        Segment.open(unsealed)
    assert segment_file.find(os.getpid(), ModelVersion("m", 1)) is None
    sealed = segment.seal(unsealed)
    opened = Segment.open(sealed)
    assert fcntl.fcntl(sealed, fcntl.F_GET_SEALS) & fcntl.F_SEAL_WRITE
    os.close(opened.fd)
    cut = tmp_path / "cut"
    cut.write_bytes(segment_file.MAGIC + content)
    with open(cut, "rb") as file, pytest.raises(SegmentError, match=f"instead of {PAGE}"):
        Segment.open(file.fileno())


@pytest.mark.parametrize("backing", BACKINGS)
def test_a_segment_is_found_in_a_living_process(written: Path, tmp_path: Path, backing: str) -> None:
    """A process that holds it is enough: by model and version, and never another's."""
    descriptor = made(written / "keras", backing, tmp_path)
    other = made(written / "dtypes", backing, tmp_path, ModelVersion("other", 1))
    holder = subprocess.Popen(["sleep", "60"], pass_fds=[descriptor, other])
    source = segment_file.read_manifest(descriptor).source
    os.close(descriptor)
    os.close(other)
    try:
        found = segment_file.find(holder.pid, MODEL)
        assert found is not None
        opened = Segment.open(found)
        assert (opened.manifest.model, opened.manifest.source) == (MODEL.name, source)
        assert fcntl.fcntl(found, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY
        os.close(found)
        assert segment_file.find(holder.pid, ModelVersion(MODEL.name, 8)) is None
    finally:
        holder.kill()
        holder.wait()
    assert segment_file.find(holder.pid, MODEL) is None


def test_a_memfd_is_named_after_its_model(written: Path, tmp_path: Path) -> None:
    """A person who looks at /proc sees whose weights these are; a long name is cut."""
    descriptor = made(written / "keras", "memfd", tmp_path)
    assert os.readlink(f"/proc/self/fd/{descriptor}") == "/memfd:mpspool.some~20model@7 (deleted)"
    os.close(descriptor)
    long = made(written / "keras", "memfd", tmp_path, ModelVersion("é" * 300, 1))
    found = segment_file.find(os.getpid(), ModelVersion("é" * 300, 1))
    assert found is not None
    os.close(found)
    os.close(long)


def test_a_folder_without_unnamed_files_will_do(
    written: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the file system has no O_TMPFILE the file loses its name at once."""
    real = os.open

    def refuses(path: str, flags: int, *args: int) -> int:
        if flags & os.O_TMPFILE == os.O_TMPFILE:
            raise OSError(errno.EOPNOTSUPP, "Operation not supported")
        return real(path, flags, *args)

    monkeypatch.setattr(os, "open", refuses)
    descriptor = made(written / "keras", "file", tmp_path)
    assert not os.listdir(tmp_path)
    assert segment_file.read_manifest(descriptor).tensors
    os.close(descriptor)


def test_the_pool_may_be_away(bench: Bench, written: Path) -> None:
    """A publisher and a worker whose pool is just restarting wait for it."""
    bench.pool.close()
    path = bench.run_dir.weights_socket
    path.unlink()
    child = bench.start(bench.settings(written / "keras"))
    answers: list[Any] = []
    asking = threading.Thread(target=lambda: answers.append(weights_socket.want(path, "later", 1, 30.0)))
    asking.start()
    bench.pool = FakePool(path, Offer("later", 1, "none to share"))
    asking.join()
    assert child.wait(timeout=60) == 0
    assert answers == [(Offer("later", 1, "none to share"), None)]
    # Given again where nobody took it in time, as on a busy machine.
    assert {message.model for message, _ in bench.pool.offers} == {"later", MODEL.name}


def test_a_worker_fetches_the_segment(bench: Bench, written: Path) -> None:
    """What was offered is what a worker gets, in a descriptor of its own."""
    assert bench.publish(written / "keras") == 0
    message, descriptor = weights_socket.want(bench.run_dir.weights_socket, MODEL.name, MODEL.version, 10.0)
    assert message.reason == ""
    assert descriptor is not None
    assert Segment.open(descriptor).manifest.model == MODEL.name
    os.close(descriptor)


def test_an_absent_pool_is_an_error_in_time(tmp_path: Path) -> None:
    """The error names the socket."""
    start = time.monotonic()
    with pytest.raises(HandoverError, match=r"did not answer on .*none\.sock.*mpspool status"):
        weights_socket.want(tmp_path / "none.sock", "m", 1, 0.3)
    assert time.monotonic() - start < 30


def test_an_answer_for_another_is_refused(bench: Bench) -> None:
    """A worker never gets another model's weights."""
    bench.pool.offers.append((Offer("other", 1), None))
    with pytest.raises(HandoverError, match="asked for m@1"):
        weights_socket.want(bench.run_dir.weights_socket, "m", 1, 5.0)
