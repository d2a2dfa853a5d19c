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
        new = {one.path: one for number, one in found.items() if number not in settled and not one.wrong}
        self._read = {path: self._known(one, self.said) for path, one in new.items()}
        return {
            number: self._read.get(one.path, one) if number not in settled else one
            for number, one in found.items()
        }

    def _known(self, found: Found, said: VersionBatching) -> Found:
        """As it was read before, where the folder is as it was then."""
        before = self._read.get(found.path)
        return before if before is not None and before.stamp == found.stamp else self._look_into(found, said)

    def _look_into(self, found: Found, said: VersionBatching) -> Found:
        file = os.path.join(found.path, BATCHING_FILE)
        if not os.path.exists(file):
            return replace(found, batching=said.without)
        question = msgspec.json.encode({"model": self.model, "file": file, "said": said})
        try:
            done = subprocess.run(
                [sys.executable, *_READ],
                input=question,
                stdout=subprocess.PIPE,
                timeout=_LIMIT_S,
                check=True,
            )
            answer = msgspec.json.decode(done.stdout)
        except (OSError, subprocess.SubprocessError, msgspec.DecodeError) as error:
            return replace(found, wrong=f"{file} cannot be read: {error}; mend it, or remove it")
        if answer["error"]:
            return replace(found, wrong=f"{answer['error']}; mend it, or remove it")
        return replace(found, batching=msgspec.convert(answer["batching"], BatchingSettings))
