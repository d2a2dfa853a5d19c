"""Reading a checkpoint's index without TensorFlow: against TensorFlow's own reader, and damaged in every way."""

from __future__ import annotations

import json
from pathlib import Path

import google_crc32c
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpspool.core import tfs
from mpspool.core.tfrecord import masked
from mpspool.worker.weights.checkpoint import (
    Checkpoint,
    CheckpointError,
    UnsupportedError,
    canonical,
    element_bytes,
    read_index,
    shard_file,
)
from tests import checkpoints
from tests.checkpoints import entry, header, table


@pytest.fixture(scope="module")
def written(models_root: Path) -> Path:
    return checkpoints.build(models_root)


def read(tmp_path: Path, index: bytes) -> Checkpoint:
    (tmp_path / "c.index").write_bytes(index)
    return read_index(tmp_path / "c")


def outcome(folder: Path, index: bytes) -> Checkpoint | CheckpointError:
    try:
        return read(folder, index)
    except CheckpointError as error:
        return error


@pytest.mark.parametrize("name", checkpoints.NAMES)
def test_an_index_says_what_tensorflow_reads(written: Path, name: str) -> None:
    """Keys, slices, types and shapes are TensorFlow's, and the bytes at each place, with their checksum."""
    prefix = checkpoints.prefix(written / name)
    checkpoint = read_index(prefix)
    expected = checkpoints.expected(written / name)
    assert {(tensor.key, tensor.spec) for tensor in checkpoint.tensors} == set(expected)
    assert len(checkpoint.tensors) == len(expected)
    for tensor in checkpoint.tensors:
        wanted = expected[tensor.key, tensor.spec]
        assert (tensor.dtype, list(tensor.shape)) == (wanted["dtype"], wanted["shape"])
        shard = shard_file(prefix, tensor.shard, checkpoint.shards).read_bytes()
        data = shard[tensor.offset : tensor.offset + tensor.size]
        assert len(data) == tensor.size
        if wanted["sha256"]:
            assert checkpoints.digest(data) == wanted["sha256"], tensor
            assert masked(google_crc32c.value(data)) == tensor.crc32c


def test_specs_are_those_of_the_graph(written: Path) -> None:
    """A slice's spec is the text that the graph's RestoreV2 holds; a variable in one part is stored whole."""
    restores = json.loads((written / "partitioned" / "restores.json").read_text())
    tensors = read_index(checkpoints.prefix(written / "partitioned")).tensors
    assert {(key, "" if "one_part" in key else spec) for key, spec in restores} == {
        (tensor.key, tensor.spec) for tensor in tensors
    }
    assert {(key, canonical(spec)) for key, spec in restores} == {
        (tensor.key, canonical(tensor.spec)) for tensor in tensors
    }


def test_shards_are_counted(written: Path) -> None:
    """The shards of several devices, and of a merged checkpoint, are all there."""
    for name, shards in (("partitioned", 2), ("shards", checkpoints.SHARDS)):
        checkpoint = read_index(checkpoints.prefix(written / name))
        assert checkpoint.shards == shards
        assert {tensor.shard for tensor in checkpoint.tensors} == set(range(shards))


def test_element_sizes_are_numpys() -> None:
    """The sizes that are read off the types' names are those of the arrays."""
    known = {number for number in tfs.DATA_TYPES if element_bytes(number) is not None}
    assert len(known) >= 15
    for number in known:
        assert tfs.numpy_dtype(number).itemsize == element_bytes(number)


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ("", ""),
        ("10 20 0,10:0,20", ""),
        ("10 20 -:-", ""),
        ("10 20 -:0,5", "10 20 0,10:0,5"),
        ("10 20 5,5:0,20", "10 20 5,5:0,20"),
        ("7 3,4", "7 3,4"),
    ],
)
def test_specs_of_one_slice_become_one(spec: str, expected: str) -> None:
    """A dimension may be written out or as "-", and a slice may be the whole tensor."""
    assert canonical(spec) == expected


@pytest.mark.parametrize("spec", ["10 20", "10 20 5,5", "10 5:5", "a 0,1", "10 0,1,2"])
def test_what_is_no_spec_is_refused(spec: str) -> None:
    """Never a wrong slice."""
    with pytest.raises(ValueError):
        canonical(spec)


@pytest.mark.parametrize(
    ("index", "reason"),
    [
        (table({"": header(endianness=1)}), "big-endian"),
        (table({"": header(min_consumer=2)}), "newer format"),
        (table({"": header()}, compression=1), "compressed"),
    ],
)
def test_what_only_tensorflow_reads_is_told_apart(tmp_path: Path, index: bytes, reason: str) -> None:
    """Such a checkpoint is sound: its workers restore it for themselves."""
    with pytest.raises(UnsupportedError, match=f"c.index is .*{reason}"):
        read(tmp_path, index)


@pytest.mark.parametrize(
    ("entries", "reason"),
    [
        ({"v": entry([4], 16)}, "no header"),
        ({"": header(), "v": entry([4], 12)}, "v has 12 bytes"),
        ({"": header(), "v": entry([-1], 0)}, "shape is not known"),
        ({"": header(2), "v": entry([4], 16, shard=2)}, "shard 2 of 2"),
        ({"": header(), "v": entry([4], 0, slices=[[(0, 2)]])}, "lacks a slice"),
        ({"": header(), "v": entry([4], 0, slices=[[(0, 2), (0, 1)]])}, "another rank"),
        (
            {
                "": header(),
                b"\0v\0\1\1\1\x80\x82": entry([3], 12),
                "v": entry([4], 0, slices=[[(0, 2)]]),
            },
            "not as it says",
        ),
        ({"": header(), "v": b"\x08"}, "index out of range"),
        ({"": header(), "v": b"\x0b"}, "cannot be parsed"),
        ({"": header(), "v": b"\x12\x09\x00"}, "cut"),
        ({"": header(), b"\xff": entry([4], 16)}, "utf-8"),
    ],
)
def test_an_index_that_makes_no_sense_is_refused(
    tmp_path: Path, entries: dict[str, bytes], reason: str
) -> None:
    """What its checksums do not find: the error names the file, what is wrong and what to do."""
    with pytest.raises(CheckpointError, match=rf"c\.index is damaged \(.*{reason}.*\): export") as caught:
        read(tmp_path, table(entries))
    assert not isinstance(caught.value, UnsupportedError)


def test_a_missing_index_is_named(tmp_path: Path) -> None:
    """The file, and what to do."""
    with pytest.raises(CheckpointError, match=r"c\.index is missing: export the model again"):
        read_index(tmp_path / "c")


@given(data=st.data())
def test_damage_is_always_found(
    written: Path, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """Cut anywhere, or one byte changed: an error that names the file, or (in the padding) the same answer."""
    path = checkpoints.prefix(written / "partitioned")
    sound = path.with_name("variables.index").read_bytes()
    position = data.draw(st.integers(0, len(sound) - 1))
    damaged = bytearray(sound)
    if data.draw(st.booleans()):
        del damaged[position:]
    else:
        damaged[position] ^= data.draw(st.integers(1, 255))
    folder = tmp_path_factory.mktemp("damaged")
    found = outcome(folder, bytes(damaged))
    if isinstance(found, Checkpoint):
        assert found == read_index(path)
    else:
        assert str(folder) in str(found)
        assert not isinstance(found, UnsupportedError)
