"""Checkpoints for tests: TensorFlow's own, written in a child process, and made-up ones that take no TensorFlow.

`build(root)` gives a folder with a version folder per name of NAMES; beside each checkpoint lies what
TensorFlow reads in it. `python -m tests.checkpoints DIR` is the child.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import struct
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import google_crc32c

from tests.models import REPOSITORY

NAMES = ["keras", "dtypes", "partitioned", "shards", "far_slices"]
SHARDS = 12
_STARTS = [0, 1, 63, 64, 127, 8191, 8192, 2**20 - 1, 2**20, 2**34, 2**41, 2**48, 2**55]


def build(root: Path) -> Path:
    """Writes them under root, once, whoever asks. Returns the folder of the version folders."""
    folder = root / "checkpoints"
    with open(root / ".checkpoints.lock", "w", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.is_dir():
            child = subprocess.run(
                [sys.executable, "-m", "tests.checkpoints", str(folder)],
                check=False,
                cwd=REPOSITORY,
                env={**os.environ, "CUDA_VISIBLE_DEVICES": "-1", "TF_CPP_MIN_LOG_LEVEL": "3"},
                timeout=300,
                capture_output=True,
                text=True,
            )
            assert child.returncode == 0, child.stderr
    return folder


def prefix(version: Path) -> Path:
    return version / "variables" / "variables"


def expected(version: Path) -> dict[tuple[str, str], dict[str, Any]]:
    """What TensorFlow reads: key and spec -> dtype, shape and sha256 of the bytes (empty for strings and such)."""
    return {(item["key"], item["spec"]): item for item in json.loads((version / "expected.json").read_text())}


def digest(data: bytes | memoryview) -> str:
    return hashlib.sha256(data).hexdigest()


def write_large(version: Path, size: int, *, tensors: int = 1) -> Path:
    """A checkpoint of float32 zeros whose data file takes no room on the disk."""
    path = prefix(version)
    path.parent.mkdir(parents=True)
    each = size // tensors
    checksum, chunk = 0, bytes(2**20)
    for _ in range(each // len(chunk)):
        checksum = google_crc32c.extend(checksum, chunk)
    assert not each % len(chunk)
    entries = {f"v{i:05}": entry([each // 4], each, offset=each * i, crc32c=checksum) for i in range(tensors)}
    path.with_name("variables.index").write_bytes(table({"": header(), **entries}))
    shard = path.with_name("variables.data-00000-of-00001")
    shard.touch()
    os.truncate(shard, size)
    return version


def table(entries: dict[str, bytes] | dict[bytes, bytes], *, compression: int = 0) -> bytes:
    """An index file of one block."""
    block = b""
    for key, value in entries.items():
        name = key.encode() if isinstance(key, str) else key
        block += b"\0" + varint(len(name)) + varint(len(value)) + name + value
    data = _closed(block, compression)
    handle = varint(0) + varint(len(data) - 5)
    index = _closed(b"\0\1" + varint(len(handle)) + b"\xff" + handle, 0)
    footer = (b"\0\0" + varint(len(data)) + varint(len(index) - 5)).ljust(40, b"\0")
    return data + index + footer + struct.pack("<Q", 0xDB4775248B80FB57)


def header(shards: int = 1, endianness: int = 0, min_consumer: int = 0) -> bytes:
    version = b"\x08\1\x10" + varint(min_consumer)
    return b"\x08" + varint(shards) + b"\x10" + varint(endianness) + b"\x1a" + varint(len(version)) + version


def entry(
    shape: Iterable[int],
    size: int,
    *,
    dtype: int = 1,
    shard: int = 0,
    offset: int = 0,
    crc32c: int = 0,
    slices: Iterable[list[tuple[int, int]]] = (),
) -> bytes:
    """A BundleEntryProto. A slice's extents are starts and lengths."""
    dimensions = b"".join(_field(2, b"\x08" + varint(length)) for length in shape)
    data = b"\x08" + varint(dtype) + _field(2, dimensions) + b"\x18" + varint(shard)
    data += b"\x20" + varint(offset) + b"\x28" + varint(size)
    mask = ((crc32c >> 15 | crc32c << 17) + 0xA282EAD8) & 0xFFFFFFFF
    data += b"\x35" + struct.pack("<I", mask)
    for extents in slices:
        parts = (b"\x08" + varint(start) + b"\x10" + varint(length) for start, length in extents)
        data += _field(7, b"".join(_field(1, part) for part in parts))
    return data


def varint(value: int) -> bytes:
    value &= 2**64 - 1
    data = bytearray()
    while value >= 0x80:
        data.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*data, value])


def _field(number: int, data: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(data)) + data


def _closed(block: bytes, compression: int) -> bytes:
    """With its one restart, its compression and its checksum."""
    block += struct.pack("<II", 0, 1) + bytes([compression])
    crc = google_crc32c.value(block)
    return block + struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)


def _keras(tf: Any, path: str) -> None:
    tf.keras.utils.set_random_seed(3)
    layers = tf.keras.layers
    inputs = tf.keras.Input((None,), name="x", dtype="int64")
    hidden = layers.GlobalAveragePooling1D()(layers.Embedding(5000, 64)(inputs))
    model = tf.keras.Model(inputs, layers.Dense(1)(layers.BatchNormalization()(layers.Dense(128)(hidden))))
    model.export(str(Path(path).parents[1]), verbose=False)


def _dtypes(tf: Any, path: str) -> None:
    import numpy as np

    random = np.random.default_rng(5)
    values: dict[str, Any] = {}
    for name in ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"):
        values[name] = tf.constant(random.integers(0, 100, (16, 96)), name)
    for name in ("float16", "float32", "float64", "bfloat16", "float8_e5m2", "float8_e4m3fn"):
        values[name] = tf.cast(tf.constant(random.normal(0, 3, (64, 80)), tf.float32), name)
    for name in ("int4", "uint4"):
        values[name] = tf.cast(tf.constant(random.integers(0, 7, (16, 8)), tf.int8), name)
    values["bool"] = tf.constant(random.integers(0, 2, (64, 2)), "bool")
    for name in ("complex64", "complex128"):
        values[name] = tf.complex(
            tf.constant(random.normal(size=(8, 9))), tf.constant(random.normal(size=(8, 9)))
        )
        values[name] = tf.cast(values[name], name)
    values["qint8"] = tf.quantization.quantize(random.normal(size=(64, 64)), -3.0, 3.0, tf.qint8)[0]
    values["string"] = tf.constant([["a", "longer" * 50], ["", "ü"]])
    values["empty"] = tf.zeros([0, 7])
    values["odd"] = tf.constant(random.normal(size=(3, 5)), tf.float32)
    values["scalar"] = tf.constant(7, tf.int64)
    values["page"] = tf.constant(random.normal(size=1024), tf.float32)
    values["save_counter/.ATTRIBUTES/VARIABLE_VALUE"] = tf.constant(1, tf.int64)
    values["_CHECKPOINTABLE_OBJECT_GRAPH"] = tf.constant(b"not a real one")
    _save(tf, path, {(key, ""): value for key, value in values.items()})


def _partitioned(tf: Any, path: str) -> None:
    """Ref and resource variables in slices, of several devices and so in several shards."""
    v1 = tf.compat.v1
    random, parts = v1.random_normal_initializer(seed=1), v1.fixed_size_partitioner
    config = v1.ConfigProto(device_count={"CPU": 3})
    with tf.Graph().as_default(), v1.Session(config=config) as session:
        for device, resource in enumerate((True, False)):
            with tf.device(f"/cpu:{device}"), v1.variable_scope(f"r{resource}", use_resource=resource):
                v1.get_variable("rows", [100, 48], initializer=random, partitioner=parts(3))
                v1.get_variable("columns", [7, 1000], initializer=random, partitioner=parts(4, axis=1))
                v1.get_variable("one_part", [64, 10], initializer=random, partitioner=parts(1))
                v1.get_variable("whole", [333], initializer=random)
        session.run(v1.global_variables_initializer())
        saver = v1.train.Saver(sharded=True)
        saver.save(session, path, write_meta_graph=False)
        constants = {
            node.name.rpartition("/")[2]: []
            for node in session.graph.as_graph_def().node
            if "RestoreV2" in node.name
        }
        for node in session.graph.as_graph_def().node:
            if "RestoreV2" in node.name and node.op == "Const":
                found = tf.make_ndarray(node.attr["value"].tensor)
                constants[node.name.rpartition("/")[2]] += [text.decode() for text in found]
    pairs = list(zip(constants["tensor_names"], constants["shape_and_slices"], strict=True))
    Path(path).parents[1].joinpath("restores.json").write_text(json.dumps(pairs))


def _shards(tf: Any, path: str) -> None:
    """Many tensors, an index of many blocks, and as many shards as a large training job writes."""
    parts = []
    for shard in range(SHARDS):
        parts.append(f"{path}_part{shard}")
        tensors = {
            (f"a_rather_long_scope_name/layer_{index:04}/kernel", ""): tf.random.stateless_normal(
                [8, 16], [1, index]
            )
            for index in range(shard, 600, SHARDS)
        }
        _save(tf, parts[-1], tensors)
    tf.raw_ops.MergeV2Checkpoints(checkpoint_prefixes=parts, destination_prefix=path, delete_old_dirs=False)


def _far_slices(tf: Any, path: str) -> None:
    """Slices whose starts take from one byte to many in their keys; and whole dimensions, which have none."""
    tensors = {
        (f"far{start}", f"{2**60} 4 {start},16:0,4"): tf.random.stateless_normal([16, 4], [2, start])
        for start in _STARTS
    }
    tensors["half_open", "10 20 5,5:-"] = tf.random.stateless_normal([5, 20], [2, 3])
    _save(tf, path, tensors)


def _save(tf: Any, path: str, tensors: dict[tuple[str, str], Any]) -> None:
    names, specs = zip(*tensors, strict=True)
    tf.raw_ops.SaveV2(prefix=path, tensor_names=names, shape_and_slices=specs, tensors=list(tensors.values()))


def _expect(tf: Any, path: str) -> list[dict[str, Any]]:
    """What TensorFlow itself reads, tensor by tensor and slice by slice."""
    reader = tf.train.load_checkpoint(path)
    dtypes, shapes = reader.get_variable_to_dtype_map(), reader.get_variable_to_shape_map()
    restores = Path(path).parents[1] / "restores.json"
    specs: dict[str, list[str]] = {}
    if restores.exists():
        for key, spec in json.loads(restores.read_text()):
            specs.setdefault(key, []).append("" if "one_part" in key else spec)
    elif "far_slices" in path:
        specs = {f"far{start}": [f"{2**60} 4 {start},16:0,4"] for start in _STARTS}
        specs["half_open"] = ["10 20 5,5:-"]
    found = []
    for key, dtype in dtypes.items():
        plain = dtype.base_dtype != tf.string
        for spec in specs.get(key, [""]):
            [value] = tf.raw_ops.RestoreV2(
                prefix=path, tensor_names=[key], shape_and_slices=[spec], dtypes=[dtype]
            )
            if not spec:
                assert list(value.shape) == shapes[key]
                if plain and dtype.is_numpy_compatible and not dtype.is_quantized:
                    assert reader.get_tensor(key).tobytes() == value.numpy().tobytes()
            data = digest(value.numpy().tobytes()) if plain else ""
            item = {"key": key, "spec": spec, "dtype": dtype.as_datatype_enum, "shape": list(value.shape)}
            found.append({**item, "sha256": data})
    return found


def main(folder: str) -> None:
    import tensorflow as tf

    unfinished = Path(f"{folder}.{os.getpid()}")
    for name in NAMES:
        path = prefix(unfinished / name)
        path.parent.mkdir(parents=True)
        globals()[f"_{name}"](tf, str(path))
        (unfinished / name / "expected.json").write_text(json.dumps(_expect(tf, str(path))))
    unfinished.rename(folder)


if __name__ == "__main__":
    main(*sys.argv[1:])
