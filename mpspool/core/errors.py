"""One error base: a canonical code (gRPC's names and numbers) and what the caller reads."""

from __future__ import annotations

import enum
from dataclasses import dataclass

# TensorFlow Serving cuts error texts at this many bytes (util/grpc_status_util). Each of them is up to three in grpc-message, and
# past 8 KiB of headers gRPC's clients read RESOURCE_EXHAUSTED now and then in place of the status.
MAX_ERROR_BYTES = 1024
_CUT_MARK = "...TRUNCATED"


class Code(enum.IntEnum):
    """gRPC's canonical status codes."""

    OK = 0
    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    ABORTED = 10
    OUT_OF_RANGE = 11
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    DATA_LOSS = 15
    UNAUTHENTICATED = 16


class Lack(enum.Enum):
    """What there is too little of for a request: room for it in the queue, as a batch, among the bytes, or for its answer; or time."""

    REQUESTS = "queue_requests"
    BATCHES = "queue_batches"
    BYTES = "bytes"
    ANSWERS = "answers"
    TIME = "late"


class PoolError(Exception):
    """A request or a command that cannot be served.

    Attributes:
        code: the canonical code every protocol maps from.
        message: what the caller reads.
        lack: for want of what it is refused, for the metrics; None for any other reason.
    """

    def __init__(self, code: Code, message: str, lack: Lack | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.lack = lack


def invalid(message: str) -> PoolError:
    """The request is wrong, whoever is asked, and whenever."""
    return PoolError(Code.INVALID_ARGUMENT, message)


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing wrong with what the user asked for: where, what, and what to do about it.

    Attributes:
        path: of the field, "models.half.gpus".
        line: of the file, where it stands in one.
        beside: of the other fields that it does not go together with.
    """

    path: str
    message: str
    line: int = 0
    beside: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.path}: {self.message}" if self.path else self.message


class StartError(Exception):
    """What was asked for cannot be started. Carries every problem found, not just the first."""

    def __init__(self, problems: list[Problem]) -> None:
        super().__init__("\n".join(str(problem) for problem in problems))
        self.problems = problems


def cut(text: str) -> str:
    """The text as TensorFlow Serving would send it: at most 1024 bytes of UTF-8, then a mark. What is no Unicode is replaced."""
    data = text.encode(errors="replace")
    if len(data) <= MAX_ERROR_BYTES:
        return data.decode()
    # What is left of a character that is cut in two is left out.
    return data[:MAX_ERROR_BYTES].decode(errors="ignore") + _CUT_MARK
