"""Where tensors lie in a segment and which stay private; and how much memory may be taken for it."""

from __future__ import annotations

import itertools
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpspool.core import tfs
from mpspool.core.segment_file import MAGIC, PAGE, Manifest, header
from mpspool.worker.weights import available_memory
from mpspool.worker.weights.checkpoint import Tensor, element_bytes
from mpspool.worker.weights.layout import WORTH_BYTES, lay_out, why_private

_NUMBER = {data_type.text: number for number, data_type in tfs.DATA_TYPES.items()}


def tensor(key: str = "v", dtype: str = "float", shape: tuple[int, ...] = (16,), size: int = -1) -> Tensor:
    number = _NUMBER[dtype]
    actual = math.prod(shape) * (element_bytes(number) or 1) if size < 0 else size
    return Tensor(key, "", number, shape, 0, 0, actual, 0)


tensors = st.lists(
    st.builds(
        tensor,
        st.text(st.characters(codec="utf-8"), min_size=1),
        st.sampled_from([name for name, number in _NUMBER.items() if tfs.DATA_TYPES[number].field]),
        st.lists(st.integers(0, 200), max_size=3).map(tuple),
    ),
    unique_by=lambda one: one.key,
)


@given(tensors, st.sampled_from(["auto", "on"]))
def test_every_tensor_has_a_place_or_a_reason(given_tensors: list[Tensor], shared: str) -> None:
    """Places begin on pages of their own, after the header, each with a spare element; no tensor is forgotten."""
    manifest = lay_out(given_tensors, "m", 3, "digest", shared=shared)
    assert (manifest.model, manifest.version, manifest.source) == ("m", 3, "digest")
    end = len(MAGIC) + len(header(manifest))
    for placed in manifest.tensors:
        assert placed.offset % PAGE == 0
        assert placed.offset >= end
        element = element_bytes(placed.dtype)
        assert element is not None
        assert placed.size == element * math.prod(placed.shape)
        end = placed.offset + placed.size + element
    assert end <= manifest.size
    assert manifest.size % PAGE == 0
    found = [item.key for item in itertools.chain(manifest.tensors, manifest.private)]
    assert sorted(found) == sorted(one.key for one in given_tensors)
    assert all(item.reason for item in manifest.private)


UNEVEN = "less than 64 KiB, and no multiple of 64 bytes"


@pytest.mark.parametrize(
    ("one", "reason"),
    [
        (tensor(), ""),
        (tensor(dtype="bfloat16", shape=(32,)), ""),
        (tensor(dtype="bool", shape=(64,)), ""),
        (tensor(dtype="complex128", shape=(2, 2)), ""),
        (tensor(shape=(15,)), UNEVEN),
        (tensor(shape=()), UNEVEN),
        (tensor(dtype="bool", shape=(2**16 - 1,)), UNEVEN),
        (tensor(dtype="bool", shape=(2**16 + 1,)), ""),
        (tensor(shape=(7, 0)), "empty"),
        (tensor(dtype="string", size=640), "string"),
        (tensor(dtype="variant", size=640), "dtype variant"),
        (tensor(dtype="float8_e4m3fn", shape=(64,)), "dtype float8_e4m3fn"),
        (tensor(dtype="int4", shape=(64,)), "dtype int4"),
        (tensor(dtype="qint8", shape=(64,)), "dtype qint8"),
        (Tensor("v", "", 77, (64,), 0, 0, 64, 0), "dtype number 77"),
    ],
)
def test_reasons(one: Tensor, reason: str) -> None:
    """What TensorFlow cannot take without a copy is private, and says why."""
    assert why_private(one, "on") == reason


def test_what_is_too_small_to_be_worth_it() -> None:
    """With auto a small variable is private, as its binding would take more of each worker than it saves."""
    assert why_private(tensor(dtype="bool", shape=(WORTH_BYTES,))) == ""
    assert why_private(tensor(dtype="bool", shape=(WORTH_BYTES - 64,))) == "less than 64 KiB"
    assert why_private(tensor(shape=(15,))) == "less than 64 KiB"


def test_the_exporters_own_entries_are_nobodys() -> None:
    """The object graph and the save counter are no variables of the model."""
    keys = ["_CHECKPOINTABLE_OBJECT_GRAPH", "save_counter/.ATTRIBUTES/VARIABLE_VALUE", "v"]
    manifest = lay_out([tensor(key) for key in keys], "m", 1, "", shared="on")
    assert [placed.key for placed in manifest.tensors] == ["v"]
    assert not manifest.private


def test_a_model_without_tensors_has_an_empty_layout() -> None:
    """Only the header."""
    assert lay_out([], "m", 1, "") == Manifest("m", 1, "", [], [], PAGE)


def tree(root: Path, files: dict[str, str]) -> Path:
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return root


_MEMINFO = {"proc/meminfo": "MemTotal: 9000 kB\nMemAvailable: 100 kB\nSwapFree: 20 kB\n"}
_GROUP = "sys/fs/cgroup/pod/box/memory"


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, None),
        (_MEMINFO, 120 * 1024),
        ({**_MEMINFO, "proc/self/cgroup": "0::/pod/box\n", f"{_GROUP}.max": "max\n"}, 120 * 1024),
        (
            {
                **_MEMINFO,
                "proc/self/cgroup": "0::/pod/box\n",
                f"{_GROUP}.max": "5000\n",
                f"{_GROUP}.current": "4000\n",
                f"{_GROUP}.stat": "anon 1\ninactive_file 300\nactive_file 40\n",
                "sys/fs/cgroup/pod/memory.max": "9000",
                "sys/fs/cgroup/pod/memory.current": "8900",
                "sys/fs/cgroup/pod/memory.stat": "file 2000\n",
            },
            100,
        ),
        (
            {
                "proc/self/cgroup": "5:cpu:/x\n4:memory:/host/path\n0::/\n",
                "sys/fs/cgroup/memory/memory.limit_in_bytes": "5000\n",
                "sys/fs/cgroup/memory/memory.usage_in_bytes": "6000\n",
                "sys/fs/cgroup/memory/memory.stat": "total_inactive_file 1500\ntotal_active_file 7\n",
            },
            507,
        ),
    ],
)
def test_the_tightest_limit_counts(tmp_path: Path, files: dict[str, str], expected: int | None) -> None:
    """The machine's memory and every control group's above the process, of both versions; caches can be taken."""
    assert available_memory.available_bytes(tree(tmp_path, files)) == expected


def test_this_machine_says_how_much_there_is() -> None:
    """The real files are read."""
    assert (available_memory.available_bytes() or 0) > 0
