"""Copies a model version's weights into a segment.

The process hands the segment to the pool and ends. It needs neither TensorFlow nor a second copy: the
tensors are copied by the places that the checkpoint's index gives, each one's checksum verified.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterable
from pathlib import Path

import google_crc32c

from mpspool.core import log, process
from mpspool.core.ids import ModelVersion
from mpspool.core.rundir import RunDir
from mpspool.core.segment_file import MAGIC, Manifest, Placed, SegmentError, header, memfd_name, source_of
from mpspool.core.settings import ModelSettings, PublishSettings
from mpspool.core.tfrecord import masked
from mpspool.core.weights import Offer
from mpspool.worker.weights import segment
from mpspool.worker.weights.checkpoint import (
    EXPORT_AGAIN,
    Checkpoint,
    CheckpointError,
    Tensor,
    UnsupportedError,
    is_absent,
    read_index,
    shard_file,
)
from mpspool.worker.weights.huge_pages import HugePages
from mpspool.worker.weights.layout import lay_out
from mpspool.worker.weights.rests import Rests
from mpspool.worker.weights.weights_socket import HandoverError, offer

logger = log.get("publish")

# Large enough for the system calls not to count, small enough for the processor's cache.
_CHUNK_BYTES = 2**20
# With less to share a worker's own copy is the cheaper one.
_WORTH_BYTES = 2**20
# Of one that rests: so much longer, at most, and at most this part of the time that a start may take.
_RESTS_S, _RESTS_PART = 60.0, 0.25


class NothingToShareError(Exception):
    """Why there is no segment for a model."""


def publish(model: ModelSettings, *, gives_way: bool = False) -> tuple[int, Manifest]:
    """Makes a model version's segment.

    Args:
        model: of that version.
        gives_way: whether it takes its time, for the sake of those that serve.

    Returns:
        Its descriptor, sealed and read-only, and its manifest.

    Raises:
        NothingToShareError: the workers do without.
        CheckpointError: the checkpoint can never be read as it is.
        SegmentError: there is no room for it now.
    """
    prefix = Path(model.path) / "variables" / "variables"
    checkpoint = _read(prefix)
    manifest = lay_out(
        checkpoint.tensors, model.name, model.version, source_of(prefix), shared=model.weights.shared
    )
    _require_worth(manifest, model.weights.shared)
    name = memfd_name(ModelVersion(model.name, model.version))
    descriptor = segment.create(model.weights.backing, model.weights.folder, manifest.size, name)
    try:
        with HugePages(descriptor, manifest.size) as huge:
            rests = Rests(min(_RESTS_S, _RESTS_PART * model.start_timeout_s) if gives_way else 0.0)
            _fill(descriptor, huge, rests, prefix, checkpoint, manifest)
        segment.complete(descriptor, manifest.size)
    except BaseException:
        os.close(descriptor)
        raise
    logger.info("in huge pages", bytes=huge.bytes, of=manifest.size)
    return segment.seal(descriptor), manifest


def _read(prefix: Path) -> Checkpoint:
    if is_absent(prefix):
        raise NothingToShareError("the model has no checkpoint")
    try:
        return read_index(prefix)
    except UnsupportedError as error:
        raise NothingToShareError(str(error)) from error


def _require_worth(manifest: Manifest, shared: str) -> None:
    total = sum(tensor.size for tensor in manifest.tensors)
    if shared == "on" and not total:
        raise NothingToShareError("none of the model's variables can be shared")
    if shared != "on" and not total:
        size = sum(tensor.size for tensor in manifest.private)
        reasons = ", ".join(sorted({tensor.reason for tensor in manifest.private})) or "it has no variables"
        raise NothingToShareError(f"none of its {size:,} bytes are worth sharing ({reasons})")
    if shared != "on" and total < _WORTH_BYTES:
        raise NothingToShareError(f"only {total:,} bytes of it are worth sharing")


def _fill(
    descriptor: int, huge: HugePages, rests: Rests, prefix: Path, checkpoint: Checkpoint, manifest: Manifest
) -> None:
    """The header, the tensors shard by shard, and the magic last."""
    head = header(manifest)
    huge.prepare(0, len(MAGIC) + len(head))
    segment.write(descriptor, head, len(MAGIC))
    places = {(placed.key, placed.spec): placed for placed in manifest.tensors}
    shards: dict[int, list[tuple[Tensor, Placed]]] = {}
    for tensor in checkpoint.tensors:
        placed = places.get((tensor.key, tensor.spec))
        if placed is not None:
            shards.setdefault(tensor.shard, []).append((tensor, placed))
    for shard, tensors in sorted(shards.items()):
        _copy_shard(descriptor, huge, rests, shard_file(prefix, shard, checkpoint.shards), tensors)
    segment.write(descriptor, MAGIC, 0)


def _copy_shard(
    descriptor: int, huge: HugePages, rests: Rests, path: Path, tensors: Iterable[tuple[Tensor, Placed]]
) -> None:
    try:
        with open(path, "rb", buffering=0) as shard:
            source = shard.fileno()
            os.posix_fadvise(source, 0, 0, os.POSIX_FADV_SEQUENTIAL)
            for tensor, placed in sorted(tensors, key=lambda pair: pair[0].offset):
                checksum = _copy(source, tensor, descriptor, huge, rests, placed.offset, path)
                if masked(checksum) != tensor.crc32c:
                    raise CheckpointError(
                        f"{path} is damaged: {tensor.key} does not match its checksum: {EXPORT_AGAIN}"
                    )
    except FileNotFoundError as error:
        raise CheckpointError(f"{path} is missing: {EXPORT_AGAIN}") from error
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror}") from error


def _copy(
    source: int, tensor: Tensor, descriptor: int, huge: HugePages, rests: Rests, place: int, path: Path
) -> int:
    """Copies a tensor's bytes and returns their checksum."""
    checksum = done = 0
    while done < tensor.size:
        data = os.pread(source, min(_CHUNK_BYTES, tensor.size - done), tensor.offset + done)
        if not data:
            raise CheckpointError(f"{path} is cut: it ends within {tensor.key}: {EXPORT_AGAIN}")
        checksum = google_crc32c.extend(checksum, data)
        huge.prepare(place + done, place + done + len(data))
        segment.write(descriptor, data, place + done)
        done += len(data)
        rests.rest()
    return checksum


def main(config: PublishSettings, *, gives_way: bool = False) -> int:
    """Publishes, hands over and returns the exit status."""
    _end_first()
    model = ModelVersion(config.model.name, config.model.version)
    run_dir = RunDir(Path(config.run_dir))

    def failed(reason: str, status: int) -> int:
        logger.error("failed", reason=reason)
        run_dir.set_last_words(model.publisher, reason)
        return status

    run_dir.set_last_words(model.publisher, "")
    try:
        _publish_and_offer(config.model, run_dir.weights_socket, gives_way=gives_way)
    except CheckpointError as error:
        return failed(str(error), process.EXIT_NEVER)
    except NothingToShareError as error:
        return failed(f"weights.shared is on, but {error}: set it to auto", process.EXIT_NEVER)
    except (SegmentError, HandoverError) as error:
        return failed(str(error), 1)
    except Exception as error:
        logger.exception("crashed")
        return failed(f"{type(error).__name__}: {error}", 1)
    return 0


def _publish_and_offer(model: ModelSettings, path: Path, *, gives_way: bool) -> None:
    start = time.monotonic()
    try:
        descriptor, manifest = publish(model, gives_way=gives_way)
    except NothingToShareError as error:
        if model.weights.shared == "on":
            raise
        logger.info("not shared", reason=str(error))
        offer(path, Offer(model.name, model.version, str(error)), None)
        return
    seconds = time.monotonic() - start
    logger.info(
        "published",
        bytes=manifest.size,
        tensors=len(manifest.tensors),
        private=len(manifest.private),
        backing=model.weights.backing,
        seconds=round(seconds, 2),
    )
    offer(path, Offer(model.name, model.version), descriptor)


def _end_first() -> None:
    """Where memory runs out all the same the kernel ends this process, and the segment with it, not a worker."""
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")
