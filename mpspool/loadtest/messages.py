"""What the command and its generator processes say to each other through pipes."""

from __future__ import annotations

from typing import BinaryIO

import msgspec

from mpspool.core.client_tls import ClientTls

HEAD_BYTES = 4


class Ask(msgspec.Struct, tag="ask"):
    """One call, whose answer is wanted."""

    host: str
    port: int
    block: bytes
    message: bytes
    timeout_s: float
    tls: ClientTls | None = None


class Job(msgspec.Struct, tag="job"):
    """What all phases have in common: where to, and the requests, which are taken in turn from `first` on."""

    host: str
    port: int
    block: bytes
    messages: list[bytes]
    first: int
    deadline_s: float
    any_answer: bool
    tls: ClientTls | None = None


class Phase(msgspec.Struct, tag="phase"):
    """A time under load. Closed loop: so many `in_flight`; open loop: `rate` a second, over so many connections.

    `begin_s` is CLOCK_MONOTONIC: when the first request of an open loop is due; 0 for now.
    """

    seconds: float
    in_flight: int = 0
    streams: int = 1
    rate: float = 0.0
    poisson: bool = True
    connections: int = 1
    begin_s: float = 0.0
    seed: int = 0


class Stop(msgspec.Struct, tag="stop"):
    """Send nothing more, wait for nothing, and tell."""


class Answer(msgspec.Struct, tag="answer"):
    """Of one call; `code` is gRPC's."""

    code: int
    text: str
    body: bytes


class Progress(msgspec.Struct, tag="progress"):
    """So far in this phase."""

    sent: int
    right: int
    failed: int


class Failure(msgspec.Struct, frozen=True):
    """So many requests that went wrong in one way."""

    code: str
    text: str
    count: int


class Result(msgspec.Struct, tag="result"):
    """What became of a phase.

    Attributes:
        seconds: how long it sent.
        whole_s: until all that it had sent was over.
        sent: requests, those aside that were on their way when it was told to stop.
        unsent: of an open loop, requests that were due before it sent no more, and were not sent: it had no time for them.
        right: answered as they should be.
        in_time: those of them before it sent no more.
        latencies_s: of the right ones, float32: from when each was due, or in a closed loop sent.
        lateness_s: of an open loop's requests, float32: from when each was due to when it was sent.
        stream_waits: requests that waited in the client, for the server allowed no more streams on their connection.
        failures: how the others went wrong.
        lengths: of the answers, by request: what they are compared with.
        cpu_s: of this process.
        waited_s: of it for a CPU; None where the kernel does not tell.
        error: why it could not be run; all else is nothing then.
    """

    seconds: float = 0.0
    whole_s: float = 0.0
    sent: int = 0
    unsent: int = 0
    right: int = 0
    in_time: int = 0
    latencies_s: bytes = b""
    lateness_s: bytes = b""
    stream_waits: int = 0
    failures: list[Failure] = []
    lengths: dict[int, int] = {}
    cpu_s: float = 0.0
    waited_s: float | None = None
    error: str = ""


ToGenerator = Ask | Job | Phase | Stop
FromGenerator = Answer | Progress | Result

_encode = msgspec.msgpack.Encoder().encode
decode_to_generator = msgspec.msgpack.Decoder(ToGenerator).decode
decode_from_generator = msgspec.msgpack.Decoder(FromGenerator).decode


def pack(message: ToGenerator | FromGenerator) -> bytes:
    """With its length before it."""
    body = _encode(message)
    return len(body).to_bytes(HEAD_BYTES, "big") + body


def write(file: BinaryIO, message: FromGenerator) -> None:
    file.write(pack(message))
    file.flush()
