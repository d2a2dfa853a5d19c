"""How the requests of a version are joined that says so in its folder. Blocks: a child reads the file, never we."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

import msgspec

from mpspool.core.settings import BatchingSettings, VersionBatching
from mpspool.supervisor.pool.versions import Found
from mpspool.supervisor.version_folders import BATCHING_FILE

# Part of the planning, which is not imported here: it is only named. -P as the pool process is started.
_READ = ("-P", "-m", "mpspool.supervisor.planning.version_batching")
_LIMIT_S = 60.0


@dataclass(slots=True)
class BatchingFiles:
    """Of one model's versions.

    Args:
        model: its name.
        said: None where versions do not say it.
    """

    model: str
    said: VersionBatching | None
    # By folder: as it was when its file was read, and what came of that.
    _read: dict[str, Found] = field(default_factory=dict)

    def of(self, found: Mapping[int, Found], settled: Collection[int]) -> dict[int, Found]:
        """Each of these versions as its file has it; one whose file is of no use cannot be served.

        Args:
            found: whole folders, by number.
            settled: those that are as they were read before.
        """
        if self.said is None:
            return dict(found)
        before, self._read = self._read, {}
        return {
            number: one
            if number in settled or one.wrong
            else self._look_into(one, self.said, before.get(one.path))
            for number, one in found.items()
        }

    def _look_into(self, found: Found, said: VersionBatching, before: Found | None) -> Found:
        """As it was read before, where the folder is as it was then; what could not be read is, at the next look."""
        file = os.path.join(found.path, BATCHING_FILE)
        if before is None or before.stamp != found.stamp:
            try:
                before = _read(self.model, file, found, said)
            except (OSError, subprocess.SubprocessError, msgspec.DecodeError) as error:
                return replace(found, wrong=f"{file} cannot be read: {error}; mend it, or remove it")
        self._read[found.path] = before
        return before


def _read(model: str, file: str, found: Found, said: VersionBatching) -> Found:
    """Raises OSError, SubprocessError and DecodeError where that does not come off."""
    if not os.path.exists(file):
        return replace(found, batching=said.without)
    question = msgspec.json.encode({"model": model, "file": file, "said": said})
    done = subprocess.run(
        [sys.executable, *_READ], input=question, stdout=subprocess.PIPE, timeout=_LIMIT_S, check=True
    )
    answer = msgspec.json.decode(done.stdout)
    if answer["error"]:
        return replace(found, wrong=f"{answer['error']}; mend it, or remove it")
    return replace(found, batching=msgspec.convert(answer["batching"], BatchingSettings))
