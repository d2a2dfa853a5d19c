"""Header blocks: HPACK against an implementation of others, what is remembered, and what a request's headers say."""

from __future__ import annotations

import contextlib

import pytest
from hpack import Decoder, Encoder
from hpack.hpack import encode_integer
from hypothesis import given
from hypothesis import strategies as st

from mpspool.core.http2_frames import NO_TABLE, ErrorCode, ProtocolError
from mpspool.router.fronts.http2.headers import HeaderDecoder, RequestHead, encode

BASE = [
    (b":method", b"POST"),
    (b":scheme", b"http"),
    (b":path", b"/tensorflow.serving.PredictionService/Predict"),
    (b":authority", b"localhost:8500"),
    (b"te", b"trailers"),
    (b"content-type", b"application/grpc"),
]

names = st.from_regex(rb"x-[a-z0-9._-]{0,12}", fullmatch=True)
values = st.text(st.characters(min_codepoint=33, max_codepoint=126), max_size=40).map(str.encode)


def decoder(max_list_bytes: int = 16384) -> HeaderDecoder:
    return HeaderDecoder("1.2.3.4:5", max_list_bytes)


def read(*fields: tuple[bytes, bytes]):
    return decoder().decode(encode(*fields))


@given(
    st.lists(
        st.tuples(st.lists(st.tuples(names, values), max_size=5), st.booleans(), st.integers(0, 9)),
        max_size=12,
    )
)
def test_what_others_encode_is_read(requests) -> None:
    """Blocks of an encoder with a dynamic table, Huffman codes or not, in any order: the metadata is what was sent."""
    encoder, ours = Encoder(), decoder()
    for fields, huffman, timeout in requests:
        sent = [*BASE, (b"grpc-timeout", b"%dS" % timeout), *fields]
        head = ours.decode(encoder.encode(sent, huffman=huffman))
        expected: dict[str, list[str]] = {}
        for name, value in fields:
            expected.setdefault(name.decode(), []).append(value.decode())
        assert head.metadata == {name: ",".join(parts) for name, parts in expected.items()}
        assert (head.method, head.path, head.timeout_ns) == ("POST", BASE[2][1].decode(), timeout * 10**9)
        assert (head.peer, head.malformed) == ("1.2.3.4:5", "")


@given(st.lists(st.tuples(names, values), max_size=8))
def test_others_read_what_is_encoded_here(fields) -> None:
    """Also where their table was made empty before, and in any order of blocks."""
    theirs = Decoder()
    theirs.max_allowed_table_size = 0
    block = NO_TABLE + encode(*fields)
    for _ in range(2):
        assert [tuple(field) for field in theirs.decode(block, raw=True)] == fields
        block = block.removeprefix(NO_TABLE)


@given(st.lists(st.binary(max_size=60), max_size=6))
def test_garbage_ends_the_connection_and_nothing_else(blocks) -> None:
    """Any bytes are either a block or a ProtocolError."""
    ours = decoder()
    for block in blocks:
        with contextlib.suppress(ProtocolError):
            assert isinstance(ours.decode(block), RequestHead)


def added(value: bytes) -> bytes:
    """A request with x-a, which is put into the table."""
    return encode(*BASE) + b"\x40\x03x-a" + encode_integer(len(value), 7) + value


NEWEST = encode(*BASE) + b"\xbe"  # a request with what the table has first


def test_a_block_that_is_repeated_is_remembered_until_the_table_changes() -> None:
    """The same bytes mean something else once another field was put before it in the table."""
    ours = decoder()
    ours.decode(added(b"1"))
    first = ours.decode(NEWEST)
    assert ours.decode(NEWEST) is first
    assert first.metadata == {"x-a": "1"}
    ours.decode(added(b"2"))
    assert ours.decode(NEWEST).metadata == {"x-a": "2"}
    ours.decode(b"\x20" + encode(*BASE))
    with pytest.raises(ProtocolError):
        ours.decode(NEWEST)


def test_the_table_changes_though_its_length_does_not() -> None:
    """One entry in, one out: what was remembered is forgotten all the same."""
    ours = decoder()
    for letter in b"abcdefgh":
        ours.decode(added(bytes([letter]) * 1000))
        assert ours.decode(NEWEST).metadata["x-a"] == chr(letter) * 1000
        assert ours.decode(NEWEST) is ours.decode(NEWEST)


def test_what_is_remembered_is_bounded() -> None:
    """A client that never repeats itself costs no more than one that does."""
    ours = decoder()
    for n in range(1000):
        ours.decode(encode(*BASE, (b"x-n", b"%d" % n)))
    assert len(ours._blocks) <= 64
    assert len(ours._heads) <= 32


def test_what_is_remembered_of_short_blocks_is_bounded() -> None:
    """A byte may stand for all that the table has."""
    ours = decoder()
    ours.decode(added(b"v" * 3900))
    for n in range(200):
        ours.decode(NEWEST + b"\xbe" * 3 + encode((b"x-n", b"%d" % n)))
        assert sum(head.kept_bytes for head in ours._blocks.values()) <= 2**17


@pytest.mark.parametrize(
    ("text", "ns"),
    [
        (b"1H", 3600 * 10**9), (b"2M", 120 * 10**9), (b"3S", 3 * 10**9), (b"4m", 4 * 10**6), (b"5u", 5000), (b"6n", 6),
        (b"99999999H", 99999999 * 3600 * 10**9), (b"0S", 0),
        (b"", -1), (b"5", -1), (b"S", -1), (b"5s", -1), (b"-5S", -1), (b"5.0S", -1), (b"999999999S", -1), (b"5S ", -1),
    ],
)  # fmt: skip
def test_timeouts(text: bytes, ns: int) -> None:
    """Every unit; what is none is told apart from having none."""
    assert read(*BASE, (b"grpc-timeout", text)).timeout_ns == ns
    assert read(*BASE).timeout_ns is None


@pytest.mark.parametrize(
    "fields",
    [
        BASE[1:],
        [BASE[0], BASE[2]],
        BASE[:2],
        [*BASE, (b":method", b"POST")],
        [*BASE, (b":path", b"/late")],
        [BASE[0], *BASE],
        [*BASE[:3], (b":protocol", b"x"), *BASE[3:]],
        [*BASE[:2], (b":path", b"")],
        [*BASE, (b"X-Upper", b"1")],
        [*BASE, (b"", b"1")],
        [*BASE, (b"x y", b"1")],
        [*BASE, (b"x", b"a\r\nb")],
        [*BASE, (b"x", b"a\x00b")],
        [*BASE, (b"connection", b"close")],
        [*BASE, (b"transfer-encoding", b"chunked")],
        [*BASE, (b"te", b"gzip")],
        [*BASE, (b"content-length", b"x")],
        [*BASE, (b"content-length", b"-1")],
        [*BASE, (b"content-length", b"1"), (b"content-length", b"2")],
        [*BASE, (b"content-length", b"9" * 5000)],
    ],
)
def test_malformed_requests(fields) -> None:
    """What RFC 9113, section 8, does not allow is seen."""
    assert read(*fields).malformed


@pytest.mark.parametrize(
    ("kind", "is_call"),
    [
        (b"application/grpc", True), (b"application/grpc+proto", True), (b"application/grpc;x=y", True),
        (b"application/grpc-web", False), (b"application/json", False), (b"", False),
    ],
)  # fmt: skip
def test_content_types(kind: bytes, is_call: bool) -> None:
    """Those of gRPC, with any format behind it; and there is no call by another method than POST."""
    assert read(*BASE[:5], (b"content-type", kind)).is_call is is_call
    others = [field for field in BASE[:5] if field[0] != b":method"]
    assert not read((b":method", b"GET"), *others, (b"content-type", kind)).is_call


def test_fields_that_are_grpcs_own_are_no_metadata() -> None:
    """What the protocol uses is not the user's; what is the user's is, the user agent too."""
    head = read(
        *BASE,
        (b"grpc-encoding", b"gzip"),
        (b"grpc-trace-bin", b"AA"),
        (b"user-agent", b"me"),
        (b"x-bin", b"AA"),
    )
    assert head.metadata == {"user-agent": "me", "x-bin": "AA"}
    assert head.encoding == "gzip"
    with pytest.raises(TypeError):
        head.metadata["x"] = "y"


def test_a_list_over_the_limit_is_no_request_but_keeps_the_table() -> None:
    """It is known to be too large and nothing else; the next block is read as if nothing had been."""
    encoder, ours = Encoder(), decoder(1000)
    assert ours.decode(encoder.encode([*BASE, (b"x-long", b"x" * 2000)])).oversized
    head = ours.decode(encoder.encode([*BASE, (b"x-a", b"1")]))
    assert (head.oversized, head.metadata) == (False, {"x-a": "1"})


def test_a_table_that_is_emptied_and_grows_again() -> None:
    """Two size updates say so, before the first field."""
    ours = decoder()
    ours.decode(added(b"v"))
    assert ours.decode(b"\x20\x3f\xe1\x1f" + added(b"w")).metadata
    with pytest.raises(ProtocolError):
        ours.decode(b"\xbf")  # the one before it has gone


def test_a_bomb_is_not_inflated() -> None:
    """4 KB in the table, or little, named ten thousand times by one byte each: it is not read to its end."""
    for size in (3000, 1):
        ours = decoder()
        ours.decode(added(b"v" * size))
        assert not ours.decode(NEWEST).oversized
        assert ours.decode(b"\xbe" * (40_000 // (size + 35))).oversized
        with pytest.raises(ProtocolError) as error:
            ours.decode(b"\xbe" * 10_000)
        assert error.value.code is ErrorCode.ENHANCE_YOUR_CALM


@pytest.mark.parametrize(
    "block",
    [
        b"\x80",  # index 0
        b"\xbe",  # an empty table's first
        b"\x3f\xe2\x1f",  # a table of 4097
        b"\x82\x20",  # a size update after a field
        b"\x20\x20\x20",  # more of them than tell the least and the last
        b"\x40\x05x",  # a name that is cut off
        b"\x40\x01x\x05v",  # a value that is cut off
        b"\xff\xff\xff\xff\xff\xff\xff\xff",  # a number without end
        b"\x00\x81\xff\x00",  # Huffman's end of string
        b"\x40",
    ],
)
def test_broken_blocks(block: bytes) -> None:
    """Each of HPACK's errors is the connection's end."""
    with pytest.raises(ProtocolError) as error:
        decoder().decode(block)
    assert error.value.code is ErrorCode.COMPRESSION_ERROR
