"""`python -m mpspool.supervisor.planning.version_batching`: how a later version's requests are joined.

A child of the pool process, which does not import the configuration: a JSON object on stdin, another on stdout.
"""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec

from mpspool.core.settings import BatchingSettings, VersionBatching
from mpspool.supervisor.config.batching import read_version_file
from mpspool.supervisor.planning.queues import batching_of_version


class Question(msgspec.Struct, kw_only=True):
    """A version of this model has this file."""

    model: str
    file: str
    said: VersionBatching


class Answer(msgspec.Struct, kw_only=True):
    """How its requests are joined, or what is wrong with the file."""

    batching: BatchingSettings | None = None
    error: str = ""


def answer(question: Question) -> Answer:
    """Reads the file."""
    file, problems = read_version_file(Path(question.file))
    settings = None
    if file is not None:
        settings, problems = batching_of_version(question.model, question.said, file)
    return Answer(batching=settings, error="; ".join(map(str, problems)))


if __name__ == "__main__":
    asked = msgspec.json.decode(sys.stdin.buffer.read(), type=Question)
    sys.stdout.buffer.write(msgspec.json.encode(answer(asked)))
