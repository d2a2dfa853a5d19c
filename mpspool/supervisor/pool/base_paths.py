"""What lies in a model's base path, looked at again and again. Blocks: a file system may be slow, or hang."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from mpspool.core.settings import VersionPolicy
from mpspool.supervisor.pool.versions import Found, chosen
from mpspool.supervisor.saved_model import check_saved_model
from mpspool.supervisor.version_folders import is_saved_model, stamp, version_folders

# A copy over a network may pause for so long.
_STALLED_S = 5.0


@dataclass(frozen=True, slots=True)
class _Look:
    """What a folder was like, and since when."""

    stamp: str
    since: float


class BasePath:
    """One model's.

    A version that is still being copied is not there yet: it is once it holds a SavedModel, and nothing in it has
    changed from one look to the next. One that is not whole by then may be on its way still: it is broken when nothing
    has come for a while.

    Args:
        path: the folder that holds the version folders.

    Attributes:
        waits: the last look has found a version of which it is to be seen whether it is whole.
    """

    def __init__(self, path: str) -> None:
        self.waits = False
        self._path = Path(path)
        self._looks: dict[int, _Look] = {}

    def numbers(self) -> list[int]:
        """The versions that have a folder, whole or not, in order. Raises OSError."""
        return sorted(version_folders(self._path, os.listdir(self._path)))

    def look(
        self,
        policy: VersionPolicy,
        known: Mapping[int, Found],
        settled: Collection[int],
        loaded: Collection[int] = (),
        unloaded: Collection[int] = (),
        failed: Collection[int] = (),
        *,
        now: float,
    ) -> dict[int, Found]:
        """The versions that are there, by number.

        Args:
            policy: what it does not mean is not looked into.
            known: what the last look has found.
            settled: versions that need not be looked into, for they have been.
            loaded: what is looked into, whatever the policy says.
            unloaded: what is not.
            failed: looked into again; where the policy means one of these, so is the version before it.
            now: seconds of a clock.

        Raises:
            OSError: the base path cannot be read.
        """
        folders = version_folders(self._path, os.listdir(self._path))
        found = {number: known[number] for number in folders if number in settled and number in known}
        looks: dict[int, _Look] = {}
        for number in sorted(folders.keys() - found.keys(), reverse=True):
            there = {number, *found} - set(unloaded)
            meant = chosen(there, policy) | chosen(there - set(failed), policy)
            if number not in {*meant, *loaded, *failed}:
                continue
            one = self._look_into(number, folders[number], looks, now) or known.get(number)
            if one is not None:
                found[number] = one
        self._looks = looks
        self.waits = bool(looks.keys() - found.keys())
        return found

    def _look_into(self, number: int, folder: Path, looks: dict[int, _Look], now: float) -> Found | None:
        """None for one that is not whole yet, or has gone."""
        try:
            if not is_saved_model(folder):
                return None
            look = _Look(stamp(folder), now)
        except OSError:
            return None
        before = self._looks.get(number)
        if before is None or before.stamp != look.stamp:
            looks[number] = look
            return None
        looks[number] = before
        wrong = "; ".join(check_saved_model(folder))
        if wrong and now - before.since < _STALLED_S:
            return None
        return Found(str(folder), look.stamp, wrong)
