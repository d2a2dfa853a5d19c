"""The weights socket as publishers and workers use it: they bring a segment to the pool, or fetch one."""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path

import msgspec

from mpspool.core import weights
from mpspool.core.weights import Message, Offer, Taken, Want

_RETRY_S = 0.05
_OFFER_S = 60.0


class HandoverError(Exception):
    """The pool process could not be reached in time; the text says what to do."""


def offer(path: Path, message: Offer, descriptor: int | None) -> None:
    """Brings a segment, or the reason why there is none, and waits until the pool has it.

    The pool may be away for a while: it is asked again until the time is over.

    Raises:
        HandoverError: the time is over.
    """
    answer, received = _ask(path, message, descriptor, time.monotonic() + _OFFER_S)
    _close(received)
    if not isinstance(answer, Taken):
        raise HandoverError(f"the pool process answered a segment with {answer}")


def want(path: Path, model: str, version: int, timeout_s: float) -> tuple[Offer, int | None]:
    """Fetches a model version's segment, which may still be in the making.

    Returns:
        The offer, and its descriptor, which is the caller's; None with the reason in the offer.

    Raises:
        HandoverError: the time is over.
    """
    answer, descriptor = _ask(path, Want(model, version), None, time.monotonic() + timeout_s)
    if not isinstance(answer, Offer) or (answer.model, answer.version) != (model, version):
        _close(descriptor)
        raise HandoverError(f"the pool process was asked for {model}@{version}, and answered {answer}")
    return answer, descriptor


def _ask(path: Path, message: Message, descriptor: int | None, end: float) -> tuple[Message, int | None]:
    """Asks again after every failure: a repeated question does no harm."""
    while True:
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
                connection.settimeout(max(end - time.monotonic(), _RETRY_S))
                connection.connect(str(path))
                weights.send(connection, message, descriptor)
                return weights.receive(connection)
        except msgspec.DecodeError as error:
            raise HandoverError(f"the pool process is of another version: {error}") from error
        except OSError as error:
            if time.monotonic() + _RETRY_S > end:
                raise HandoverError(
                    f"the pool process did not answer on {path}: {error}: see its log and mpspool status"
                ) from error
        time.sleep(_RETRY_S)


def _close(descriptor: int | None) -> None:
    if descriptor is not None:
        os.close(descriptor)
