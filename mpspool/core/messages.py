"""What a worker and the router say to each other: msgspec structs over ZeroMQ.

A message is frame 0, one msgpack-encoded struct of this module, then raw payload frames. A request's
or response's body lies in its struct while it is short, which saves the frame. Where the requests of a
dispatch are long together, theirs lie in the worker's inbox, and their places there are in the struct; a long one for
which that has no room, and a longer response, is None there and the next payload frame. Neither side ever unpickles. PROTOCOL travels in Hello; a mismatch is refused.

A DEALER is not told that its router was replaced, and a ROUTER drops what it cannot address. So
the router's epoch is in every message: a worker answers an unknown epoch with Hello, the router
answers an unknown worker with WhoAreYou, and what carries an old epoch or dispatch is dropped.
"""

from __future__ import annotations

import msgspec

from mpspool.core.inbox import Place
from mpspool.core.weights import WeightsReport

PROTOCOL = 5
INLINE_MAX_BYTES = 16 * 1024


class LoadReport(msgspec.Struct, frozen=True):
    """What a worker's start took. Times in microseconds.

    `path` is its version's folder. `warmup_records` are the recorded requests that it ran, 0 where it has none.
    `graphs` are the calls that were compiled in all that time, and in `graphs_us`.
    """

    path: str = ""
    load_us: int = 0
    warmup_us: int = 0
    warmup_records: int = 0
    graphs: int = 0
    graphs_us: int = 0


class Hello(msgspec.Struct, tag="hello", frozen=True):
    """Worker to router, at first contact, at each change of state, and every beat while idle.

    With epoch 0 it is a full introduction, to be answered by Welcome; otherwise only a beat.
    """

    protocol: int
    epoch: int
    worker: str
    generation: int
    pid: int
    state: str
    credits: int
    progress: str
    # What the router opens to write bodies to; "" for none.
    inbox: str = ""
    # Its device, where what fails there fails for every worker on it; else empty.
    domain: str = ""
    # In state FAILED: why it can use its device no more. It runs nothing from then on, and waits to be ended.
    failed: str = ""
    engine: str = ""
    # A serialised tensorflow.serving.SignatureDefMap; only once READY, and only with epoch 0.
    signatures: bytes = b""
    weights: WeightsReport = WeightsReport()  # only once READY
    loaded: LoadReport = LoadReport()  # but for the path, only once READY


class Outcome(msgspec.Struct, frozen=True, array_like=True):
    """How one request of a dispatch ended. Times in microseconds, as the worker measured them.

    run_us is that of the run that the request was in, alone or with others.
    """

    code: int
    body: bytes | None = b""
    message: str = ""
    parse_us: int = 0
    run_us: int = 0
    encode_us: int = 0

    @property
    def took_us(self) -> int:
        """Of the worker's time."""
        return self.parse_us + self.run_us + self.encode_us


class Result(msgspec.Struct, tag="result", frozen=True, omit_defaults=True):
    """Worker to router: a dispatch is finished and its credit given back.

    `began_ns` (CLOCK_MONOTONIC) is when it was begun, `busy_us` what all of it took. Of one that was sent `together`,
    `runs` are requests, rows and microseconds of each run that gave answers; `apart` says that what asks for the same
    outputs of the same signature can never share a run.
    """

    epoch: int
    dispatch: int
    outcomes: list[Outcome]
    began_ns: int = 0
    busy_us: int = 0
    runs: list[tuple[int, int, int]] = []
    apart: bool = False


class Leaving(msgspec.Struct, tag="leaving", frozen=True):
    """Worker to router: send me nothing more; I finish what I have and go."""

    epoch: int


class Request(msgspec.Struct, frozen=True, array_like=True):
    """One request of a dispatch.

    `deadline_ns` is CLOCK_MONOTONIC, 0 for none. `rows` are those of a large request that are to be run, from
    and up to; None for all. `method` is a Method: what the body is.
    """

    body: bytes | Place | None
    deadline_ns: int = 0
    rows: tuple[int, int] | None = None
    method: int = 0


class Dispatch(msgspec.Struct, tag="dispatch", frozen=True):
    """Router to worker: requests to run in order or, `together`, as one batch as far as their shapes allow."""

    epoch: int
    dispatch: int
    requests: list[Request]
    together: bool = False


class Welcome(msgspec.Struct, tag="welcome", frozen=True):
    """Router to worker: you are known under this epoch."""

    epoch: int


class WhoAreYou(msgspec.Struct, tag="who", frozen=True):
    """Router to worker: I have not met you (I was replaced); say Hello."""

    epoch: int


class Goodbye(msgspec.Struct, tag="goodbye", frozen=True):
    """Router to worker, the answer to Leaving: nothing follows this message."""

    epoch: int


class Refused(msgspec.Struct, tag="refused", frozen=True):
    """Router to worker: you may not join (protocol mismatch, or a newer generation is here)."""

    epoch: int
    reason: str


FromWorker = Hello | Result | Leaving
FromRouter = Dispatch | Welcome | WhoAreYou | Goodbye | Refused

encode = msgspec.msgpack.Encoder().encode
decode_from_worker = msgspec.msgpack.Decoder(FromWorker).decode
decode_from_router = msgspec.msgpack.Decoder(FromRouter).decode


def inline(body: bytes, frames: list[bytes]) -> bytes | None:
    """What stands for a body in its struct; a long one is added to the frames instead."""
    if len(body) <= INLINE_MAX_BYTES:
        return body
    frames.append(body)
    return None


def worker_identity(worker: str, generation: int) -> bytes:
    """The ZeroMQ routing id of one worker process."""
    return f"{worker}#{generation}".encode()
