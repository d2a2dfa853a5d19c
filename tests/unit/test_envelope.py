"""The peek at a request's model_spec agrees with protobuf's own parse, whatever the bytes."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from typing import Any

import pytest
from google.protobuf.message import DecodeError
from google.protobuf.wrappers_pb2 import BytesValue
from hypothesis import example, given
from hypothesis import strategies as st

from mpspool.core import envelope, tfs
from mpspool.core.envelope import ModelSpecPeek, peek_rows
from mpspool.core.errors import Code, PoolError
from mpspool.core.methods import Method


def _parse(body: bytes) -> ModelSpecPeek | None:
    """What protobuf makes of it; None where it has no model_spec."""
    request = tfs.PredictRequest.FromString(body)
    if not request.HasField("model_spec"):
        return None
    spec = request.model_spec
    choice = spec.WhichOneof("version_choice")
    return ModelSpecPeek(
        spec.name,
        spec.version.value if choice == "version" else None,
        spec.version_label if choice == "version_label" else None,
        spec.signature_name,
    )


def _request(**spec: Any) -> Any:
    request = tfs.PredictRequest()
    request.model_spec.SetInParent()
    version = spec.pop("version", None)
    for name, value in spec.items():
        setattr(request.model_spec, name, value)
    if version is not None:
        request.model_spec.version.value = version
    return request


def _peek(body: bytes) -> ModelSpecPeek | PoolError:
    try:
        return envelope.peek(body)
    except PoolError as error:
        return error


def _check(body: bytes) -> None:
    found = _peek(body)
    if isinstance(found, PoolError):
        assert found.code is Code.INVALID_ARGUMENT
    try:
        expected = _parse(body)
    except DecodeError:
        return  # what is wrong may lie within a tensor, where peek does not look
    if isinstance(found, ModelSpecPeek):
        assert found == expected
    elif expected is None:
        assert found.message == "Missing ModelSpec"
    else:
        assert (expected.name, found.message) == ("", "ModelSpec has no name specified.")


names = st.text(st.characters(codec="utf-8"), max_size=8)
specs = st.builds(
    lambda name, signature, version, label: _request(
        name=name,
        signature_name=signature,
        **({"version": version} if version is not None else {}),
        **({"version_label": label} if label is not None else {}),
    ).SerializeToString(),
    names,
    names,
    st.none() | st.integers(-(2**63), 2**63 - 1),
    st.none() | names,
)
tensors = st.builds(
    lambda alias, content: tfs.PredictRequest(
        inputs={alias: tfs.TensorProto(dtype=1, tensor_content=content)}
    ).SerializeToString(),
    names,
    st.binary(max_size=300),
)
# Fields that PredictRequest does not know, of every wire type, groups within groups among them.
unknown = st.sampled_from(
    [
        b"\x58\x96\x01",
        b"\x5d\x01\x02\x03\x04",
        b"\x59\x01\x02\x03\x04\x05\x06\x07\x08",
        b"\x5a\x02hi",
        b"\x5b\x08\x01\x13\x14\x5c",
        b"\x08\x05",  # model_spec's number with another wire type
        b"\x8a\x00\x06\x0a\x04over",  # model_spec's tag in two bytes
        b"\xa2\x06\x00",
    ]
)


@given(st.lists(specs | tensors | unknown, max_size=6).map(b"".join))
def test_agrees_with_protobuf_on_requests(body: bytes) -> None:
    """Fields in any order, repeated, merged, unknown: peek reads the model_spec that protobuf reads."""
    _check(body)


@given(st.binary(max_size=64))
@example(b"\x0b\x0c")
@example(b"[\x00\x01\x13\x14\\")
@example(b"\x0c")
@example(b"\x00")
@example(b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01")
@example(b"\x0b" * 500)
def test_agrees_with_protobuf_on_garbage(body: bytes) -> None:
    """Any bytes at all: what protobuf parses is read alike, the rest ends in INVALID_ARGUMENT or is read."""
    _check(body)


@given(st.lists(specs | tensors | unknown, min_size=1, max_size=4).map(b"".join), st.data())
def test_agrees_with_protobuf_on_damage(body: bytes, data: st.DataObject) -> None:
    """A request with one byte changed is judged as protobuf judges it, and never raises anything else."""
    at = data.draw(st.integers(0, max(0, len(body) - 1)))
    _check(body[:at] + bytes([data.draw(st.integers(0, 255))]) + body[at + 1 :])


@given(specs, tensors)
def test_truncation_is_seen(spec: bytes, tensor: bytes) -> None:
    """A request cut off anywhere inside a field is refused, with the message's type and the length."""
    body = spec + tensor
    for cut in range(len(spec) + 1, len(body)):
        with pytest.raises(
            PoolError, match=rf"The {cut} bytes received are not a tensorflow\.serving\.PredictReq"
        ):
            envelope.peek(body[:cut])


def test_reads_name_version_and_signature() -> None:
    """The common request is read, with tensors of any size after the spec or before it."""
    spec = _request(name="half", version=3, signature_name="sum").SerializeToString()
    tensor = tfs.PredictRequest(
        inputs={"x": tfs.TensorProto(tensor_content=b"x" * 10**6)}
    ).SerializeToString()
    expected = ModelSpecPeek("half", 3, None, "sum")
    assert envelope.peek(spec + tensor) == envelope.peek(tensor + spec) == expected


def test_a_long_name_is_not_remembered() -> None:
    """Names that a client makes up do not pile up in memory, and are read all the same."""
    before = envelope._known_spec.cache_info().currsize
    long = "x" * 10**6
    assert envelope.peek(_request(name=long).SerializeToString()).name == long
    assert envelope._known_spec.cache_info().currsize == before


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "Missing ModelSpec"),
        (tfs.PredictRequest(output_filter=["y"]).SerializeToString(), "Missing ModelSpec"),
        (_request().SerializeToString(), "ModelSpec has no name specified."),
        (_request(version=1).SerializeToString(), "ModelSpec has no name specified."),
    ],
)
def test_refuses_in_the_words_of_tensorflow_serving(body: bytes, message: str) -> None:
    """A request for no model is the client's error, in TensorFlow Serving's words."""
    with pytest.raises(PoolError) as raised:
        envelope.peek(body)
    assert (raised.value.code, raised.value.message) == (Code.INVALID_ARGUMENT, message)


def _tensor(request: Any, alias: str, sizes: Sequence[int], dtype: int = 1, content: bytes = b"") -> None:
    tensor = request.inputs[alias]
    tensor.dtype = dtype
    tensor.tensor_content = content
    tensor.tensor_shape.SetInParent()
    for size in sizes:
        tensor.tensor_shape.dim.add(size=size)


@given(
    aliases=st.lists(st.text(max_size=200), min_size=1, max_size=3, unique=True),
    sizes=st.lists(st.integers(0, 2**40), max_size=4),
    dtype=st.integers(0, 200),
    outputs=st.lists(st.text(max_size=5), max_size=2),
    content=st.binary(max_size=300),
)
def test_rows_are_dimension_0(
    aliases: list[str], sizes: list[int], dtype: int, outputs: list[str], content: bytes
) -> None:
    """Whatever surrounds them, the rows are those of the inputs' shapes; 0 where these have none."""
    request = tfs.PredictRequest()
    request.model_spec.name = "m"
    request.output_filter.extend(outputs)
    for alias in aliases:
        _tensor(request, alias, sizes, dtype, content)
    rows, asked, inner = peek_rows(request.SerializeToString())
    expected = sizes[0] if sizes and sizes[0] < 2**31 else 0
    assert rows == expected
    assert asked == (b"".join(f"{name}\n".encode() for name in outputs) if expected else b"")
    assert bool(inner) == (expected > 0)


@given(
    pieces=st.lists(
        st.fixed_dictionaries(
            {},
            optional={
                "dtype": st.integers(0, 200),
                "tensor_shape": st.lists(st.integers(1, 200), max_size=3).map(
                    lambda sizes: {"dim": [{"size": size} for size in sizes]}
                ),
                "tensor_content": st.binary(max_size=40),
            },
        ),
        min_size=1,
        max_size=3,
    ),
    unknown=st.sampled_from([b"", b"\x28\x02"]),
)
def test_rows_of_a_tensor_in_pieces_are_its_own_or_not_known(pieces: list[Any], unknown: bytes) -> None:
    """Nothing that follows the first piece is taken for what it is not."""
    entry = _field(0x0A, b"x")
    for piece in pieces:
        entry += _field(0x12, unknown + tfs.TensorProto(**piece).SerializeToString())
    request = tfs.PredictRequest.FromString(_field(0x12, entry))
    sizes = [dim.size for dim in request.inputs["x"].tensor_shape.dim]
    assert peek_rows(_field(0x12, entry))[0] in (0, *sizes[:1])


def test_a_second_piece_is_no_shape() -> None:
    """A shape begins with an unknown field here, as which its own bytes and those before it could be read."""
    shape = b"\x08\x02" + _field(0x12, b"\x08\x03")
    second = _field(0x12, shape) + _field(0x2A, bytes(12))
    body = _field(0x12, _field(0x0A, b"x") + _field(0x12, b"\x08\x01") + _field(0x12, second))
    assert [dim.size for dim in tfs.PredictRequest.FromString(body).inputs["x"].tensor_shape.dim] == [3]
    assert peek_rows(body)[0] == 0


class _Counting(bytes):
    """Bytes that count how many of them slices and sums have copied."""

    copied = 0

    def __getitem__(self, key: Any) -> Any:
        found = super().__getitem__(key)
        return found if isinstance(found, int) else self._copy(found)

    def __add__(self, other: Any) -> Any:
        return self._copy(bytes(self) + other)

    def __radd__(self, other: Any) -> Any:
        # What grows in place copies only what is added.
        return NotImplemented if isinstance(other, bytearray) else self._copy(other + bytes(self))

    @classmethod
    def _copy(cls, data: bytes) -> _Counting:
        cls.copied += len(data)
        return cls(data)


def _field(tag: int, content: bytes) -> bytes:
    return bytes([tag]) + (BytesValue(value=content).SerializeToString()[1:] or b"\0")


_THREE = tfs.TensorProto(dtype=1, tensor_shape={"dim": [{"size": 3}]})


@pytest.mark.parametrize(
    ("look", "body"),
    [
        (envelope.peek, _request(name="half", version=3).SerializeToString() * 2000),
        (peek_rows, tfs.PredictRequest(output_filter=["y"] * 2000, inputs={"x": _THREE}).SerializeToString()),
        (
            peek_rows,
            _field(0x12, _field(0x0A, b"x") + _field(0x12, b"\x08\x01" * 2000 + _THREE.SerializeToString())),
        ),
    ],
    ids=["model_spec", "output_filter", "dtype"],
)
def test_what_comes_in_pieces_is_not_copied_with_each(look: Any, body: bytes) -> None:
    """A field that is sent thousands of times is gone through a few times, not once for each: the router waits meanwhile."""
    before = _Counting.copied
    assert look(_Counting(body)) == look(body)
    assert _Counting.copied - before < 5 * len(body)


def _entry(name: bytes, way: str) -> bytes:
    key, tensor = _field(0x0A, name) if name else b"", _field(0x12, _THREE.SerializeToString())
    ways = {"usual": key + tensor, "turned": tensor + key, "renamed": _field(0x0A, b"other") + tensor + key}
    return _field(0x12, ways[way])


entries = st.builds(
    _entry, st.sampled_from([b"", b"x", b"y", b"z" * 200]), st.sampled_from(["usual", "turned", "renamed"])
)


@given(st.lists(entries, max_size=4), st.lists(specs | unknown, max_size=2).map(b"".join))
def test_an_input_that_comes_twice_is_seen(found: list[bytes], more: bytes) -> None:
    """However an entry is written: without a name, with two, or after its tensor."""
    body = more + b"".join(found)
    assert envelope.names_twice(body) == (len(tfs.PredictRequest.FromString(body).inputs) < len(found))


class Looked(bytes):
    """Bytes that count how often one of them is looked at."""

    looks = 0

    def __getitem__(self, key: Any) -> Any:
        Looked.looks += 1
        return super().__getitem__(key)


@pytest.mark.parametrize("look", [envelope.peek_examples, envelope.names_twice])
def test_what_goes_on_behind_its_end_is_not_followed_each_time(look: Any) -> None:
    """A group that begins in an input and ends with the body, thousands of times: the first one is malformed."""
    body = Looked(b"\x12\x03\x1b\x12\x03" * 2000 + b"\x12\x03\x00\x1c\x00")
    Looked.looks = 0
    assert look(body) in (0, True)
    assert Looked.looks <= 6 * len(body)


def _kind(
    sizes: Sequence[int],
    dtype: int = 1,
    outputs: Sequence[str] = (),
    *,
    padded: bool = False,
) -> tuple[bytes, bytes]:
    request = tfs.PredictRequest()
    request.output_filter.extend(outputs)
    _tensor(request, "x", sizes, dtype)
    return peek_rows(request.SerializeToString(), padded=padded)[1:]


def test_what_shares_a_batch_is_of_one_kind() -> None:
    """Rows and values make no difference; another output_filter does, and an input's type and other dimensions."""
    assert _kind([1, 4]) == _kind([300, 4])
    different = [
        _kind([1, 4]),
        _kind([1, 5]),
        _kind([1]),
        _kind([1, 4], 2),
        _kind([1, 4], 1, ["a"]),
        _kind([1, 4], 1, ["a", "b"]),
    ]
    assert len(set(different)) == len(different)


def test_the_shapes_of_all_inputs_are_looked_at_to_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond that a request runs by itself: the router waits while it looks."""
    parsed: list[int] = []
    parse = envelope._parse_head

    def counted(head: bytes, padded: bool) -> tuple[int, bytes]:
        parsed.append(len(head))
        return parse(head, padded)

    monkeypatch.setattr(envelope, "_parse_head", counted)
    body = b""
    for number in range(200):
        request = tfs.PredictRequest()
        _tensor(request, f"x{number}", [3] + [0] * 3000)
        body += request.SerializeToString()
    assert peek_rows(body) == (0, b"", b"")
    assert 0 < sum(parsed) <= 2**14


SHAPES = st.lists(
    st.tuples(st.sampled_from("abc" + "d" * 3), st.integers(1, 3), st.lists(st.integers(1, 3), max_size=2)),
    unique_by=lambda one: one[0],
    min_size=1,
    max_size=4,
)


def _of_several(inputs: Iterable[tuple[str, int, list[int]]], rows: int, *, padded: bool) -> Any:
    body = b""
    for alias, dtype, inner in inputs:
        request = tfs.PredictRequest()
        _tensor(request, alias, [rows, *inner], dtype)
        body += request.SerializeToString()
    return peek_rows(body, padded=padded)


@given(SHAPES, SHAPES, st.booleans(), st.randoms())
def test_what_shares_a_batch_is_alike_in_all_its_inputs(
    one: list[Any], other: list[Any], padded: bool, random: random.Random
) -> None:
    """Types and other dimensions of each, in whatever order they come; where sizes are padded, how many there are."""

    def alike(inputs: list[Any]) -> Any:
        return sorted((dtype, len(inner) if padded else inner) for _, dtype, inner in inputs)

    kind = _of_several(one, 3, padded=padded)
    random.shuffle(one)
    assert _of_several(one, 3, padded=padded) == kind
    assert _of_several(one, 500, padded=padded) == (500, *kind[1:])
    assert (_of_several(other, 3, padded=padded) == kind) == (alike(one) == alike(other))


@pytest.mark.parametrize("sizes", [[2], [], [0], None], ids=["other rows", "scalar", "no rows", "unknown"])
@pytest.mark.parametrize("turned", [False, True])
def test_inputs_of_unequal_rows_have_none(sizes: list[int] | None, *, turned: bool) -> None:
    """Whichever comes first: such a request shares no batch, and its rows do not make it too large for one."""
    other = _field(0x12, _field(0x0A, b"z"))
    if sizes is not None:
        request = tfs.PredictRequest()
        _tensor(request, "z", sizes)
        other = request.SerializeToString()
    request = tfs.PredictRequest()
    _tensor(request, "a", [5000, 4])
    bodies = [request.SerializeToString(), other]
    assert peek_rows(b"".join(reversed(bodies) if turned else bodies)) == (0, b"", b"")


def test_what_is_padded_differs_in_its_sizes() -> None:
    """And not in its type or in how many dimensions it has; it is of no kind that is not padded."""
    assert _kind([1, 4], padded=True) == _kind([300, 5], padded=True)
    different = [
        _kind([1, 4], padded=True),
        _kind([1, 4, 1], padded=True),
        _kind([1, 4], 2, padded=True),
        _kind([1, 4]),
        _kind([1, 2]),
    ]
    assert len(set(different)) == len(different)


@given(st.binary(max_size=60))
def test_rows_of_anything(body: bytes) -> None:
    """Bytes that are no request have no rows, and never raise."""
    rows, _, _ = peek_rows(body)
    assert rows >= 0


examples = st.lists(
    st.binary(max_size=20).map(
        lambda x: tfs.Example(features={"feature": {"x": {"bytes_list": {"value": [x]}}}})
    ),
    max_size=5,
)


@given(st.lists(specs, max_size=3), st.lists(st.tuples(examples, st.booleans()), max_size=4))
def test_examples_are_counted(models: list[bytes], pieces: list[tuple[list[Any], bool]]) -> None:
    """As many as protobuf finds, whatever stands around them: a list sent in two pieces is one, and one of the other kind replaces it."""
    body = b"".join(models)
    for found, context in pieces:
        request = tfs.ClassificationRequest()
        given = request.input.example_list_with_context if context else request.input.example_list
        given.SetInParent()
        given.examples.extend(found)
        body += request.SerializeToString()
    whole = tfs.ClassificationRequest.FromString(body)
    kind = whole.input.WhichOneof("kind")
    assert envelope.peek_examples(body) == (len(getattr(whole.input, kind).examples) if kind else 0)


@given(st.binary(max_size=64))
def test_any_bytes_have_some_examples(body: bytes) -> None:
    """Counting never raises."""
    assert envelope.peek_examples(body) >= 0
    envelope.peek_start(body, Method.MULTI_INFERENCE)


@given(st.lists(specs, max_size=3), st.lists(unknown, max_size=2).map(b"".join))
def test_the_first_task_says_whose_it_is(models: list[bytes], more: bytes) -> None:
    """A MultiInferenceRequest is for the model of its first task; without one it has no name, as in TensorFlow Serving."""
    request = tfs.MultiInferenceRequest()
    for spec in models:
        request.tasks.add().model_spec.CopyFrom(tfs.PredictRequest.FromString(spec).model_spec)
    body = request.SerializeToString() + more
    try:
        request = tfs.MultiInferenceRequest.FromString(body)
    except DecodeError:
        return
    spec = request.tasks[0].model_spec if request.tasks else tfs.ModelSpec()
    if not spec.name:
        with pytest.raises(PoolError, match=r"ModelSpec has no name specified\."):
            envelope.peek(body, Method.MULTI_INFERENCE)
        return
    found = envelope.peek(body, Method.MULTI_INFERENCE)
    assert (found.name, found.signature_name) == (spec.name, spec.signature_name)
    if models:
        assert envelope.peek_start(body, Method.MULTI_INFERENCE) == found


@pytest.mark.parametrize(
    ("method", "message"),
    [
        (Method.CLASSIFY, "ClassificationRequest"),
        (Method.REGRESS, "RegressionRequest"),
        (Method.MULTI_INFERENCE, "MultiInferenceRequest"),
    ],
)
def test_what_is_malformed_is_named(method: Method, message: str) -> None:
    """Bytes that are no request: the text has the message's name."""
    with pytest.raises(PoolError, match=rf"The 2 bytes received are not a tensorflow\.serving\.{message}: "):
        envelope.peek(b"\x0a\x05", method)


def _sized(tag: int, content: bytes) -> bytes:
    size, head = len(content), b""
    while size > 0x7F:
        head += bytes([size & 0x7F | 0x80])
        size >>= 7
    return bytes([tag]) + head + bytes([size]) + content


_SPEC = _sized(0x0A, b"\x0a\x01m")
_NOTHINGS = b"\x12\x00" * 2**17


@pytest.mark.parametrize(
    ("body", "method"),
    [
        (_SPEC + _NOTHINGS, Method.PREDICT),
        (_SPEC * 2**17, Method.PREDICT),
        (_sized(0x0A, b"\x0a\x01m" + _NOTHINGS), Method.PREDICT),
        (_sized(0x0A, b"\x0a\x01m" + _sized(0x12, b"\x08\x01" * 2**16)), Method.PREDICT),
        (_sized(0x0A, b"\x0a\x01m" + _sized(0x12, b"\x08\x01" * 2**10) * 2**8), Method.PREDICT),
        (_SPEC + b"\x7b" + _NOTHINGS + b"\x7c", Method.PREDICT),
        (_SPEC + (b"\x7b" * 90 + b"\x7c" * 90) * 2**10, Method.PREDICT),
        (_SPEC + (b"\x7b" + b"\x12\x00" * 2**10 + b"\x7c") * 2**6, Method.PREDICT),
        (_sized(0x0A, _SPEC) + b"\x0a\x00" * 2**17, Method.MULTI_INFERENCE),
        (_sized(0x0A, _SPEC + _NOTHINGS), Method.MULTI_INFERENCE),
    ],
    ids=["fields", "specs", "spec", "version", "versions", "group", "nested", "groups", "tasks", "task"],
)
def test_more_fields_than_anybody_sends_are_refused(body: bytes, method: Method) -> None:
    """All others wait while they are gone through."""
    with pytest.raises(PoolError, match="truncated or malformed"):
        envelope.peek(body, method)


def test_no_more_is_gone_through_than_is_worth_it() -> None:
    """Rows and examples of what says them behind a hundred thousand other fields are not known: parts of what is counted would not be all."""
    assert envelope.peek_examples(_sized(0x12, _sized(0x0A, b"\x0a\x00" * 1000))) == 1000
    assert envelope.peek_examples(_sized(0x12, _sized(0x0A, b"\x0a\x00" * 2**19))) == 0
    assert envelope.peek_examples(_sized(0x12, _sized(0x0A, b"\x12\x00" * 2**19 + b"\x0a\x00"))) == 0
    whole = _sized(0x12, _sized(0x0A, b"\x0a\x00" * (2**18 - 2)))
    assert envelope.peek_examples(whole) == 2**18 - 2
    groups = (b"\x7b" + b"\x12\x00" * 2**14 + b"\x7c") * 2**4
    assert envelope.peek_examples(_sized(0x12, _sized(0x0A, b"\x0a\x00" + groups + b"\x0a\x00"))) == 0
    tensor = _sized(0x12, b"\x08\x01" + _sized(0x12, _sized(0x12, b"\x08\x07")))
    key = _sized(0x0A, b"x")
    assert envelope.peek_rows(_SPEC + _sized(0x12, key + tensor))[0] == 7
    assert envelope.peek_rows(_SPEC + _sized(0x12, b"\x1a\x00" * 2**17 + tensor))[0] == 0
    assert envelope.peek_rows(_SPEC + _sized(0x12, b"\x1a\x00" + _sized(0x12, b"\x08\x01" * 2**17)))[0] == 0
    endless = key + b"\x12" + b"\xff" * 2**20
    assert envelope.peek_rows(_SPEC + _sized(0x12, endless))[0] == 0
    assert envelope.names_twice(_SPEC + _sized(0x12, key * 2**17 + tensor)), "it cannot be told"
