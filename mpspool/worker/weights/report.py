"""What a worker says of its weights: a WeightsReport, counted up variable by variable."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from mpspool.core.weights import COPIED, WeightsReport
from mpspool.worker.weights.checkpoint import CheckpointError, canonical, read_index, variable_name
from mpspool.worker.weights.layout import lay_out
from mpspool.worker.weights.segment import Manifest, Placed, Private

_MAX_NAMES = 5


@dataclass(frozen=True, slots=True)
class Stray:
    """A variable that was bound, and is not or not wholly in the segment any more.

    Attributes:
        private_bytes: how much of it.
        reason: why.
    """

    placed: Placed
    private_bytes: int
    reason: str


class Account:
    """Counts the variables of one checkpoint as they are bound and restored.

    Args:
        manifest: says how large they are, and which cannot be shared.
    """

    def __init__(self, manifest: Manifest) -> None:
        self._sizes = {(tensor.key, canonical(tensor.spec)): tensor.size for tensor in _tensors(manifest)}
        self._reasons = {(tensor.key, canonical(tensor.spec)): tensor.reason for tensor in manifest.private}
        self._bytes = {True: 0, False: 0}
        self._count = {True: 0, False: 0}
        self._why: dict[str, list[str]] = {}

    def reason(self, key: str, spec: str = "") -> str:
        """Why a tensor of the checkpoint is not in the segment; empty for one that is."""
        found = (key, canonical(spec))
        return self._reasons.get(
            found, "" if found in self._sizes else "the checkpoint has it in other slices"
        )

    def share(self, key: str, spec: str = "") -> None:
        self._add(key, spec, shared=True)

    def keep(self, key: str, spec: str, reason: str) -> None:
        """Counts a variable that is private for a reason."""
        self._add(key, spec, shared=False)
        _name(self._why, reason, key)

    def keep_others(self, keys: Container[str], reason: str) -> None:
        """Counts what the checkpoint has under other keys than these as private for a reason."""
        for key, spec in self._sizes:
            if key not in keys:
                self.keep(key, spec, reason)

    def note(self, reason: str) -> None:
        """A reason that holds for no variable in particular."""
        self._why.setdefault(reason, [])

    def report(self, strays: Iterable[Stray] = ()) -> WeightsReport:
        """The whole.

        Args:
            strays: counted as shared, but not there; the largest are named. One of which only a part is private
                stays a shared variable.
        """
        strays = sorted(strays, key=lambda stray: -stray.private_bytes)
        why = {reason: list(names) for reason, names in self._why.items()}
        for stray in strays:
            _name(why, stray.reason, stray.placed.key)
        strayed = sum(stray.private_bytes for stray in strays)
        lost = sum(stray.private_bytes == stray.placed.size for stray in strays)
        return WeightsReport(
            shared_bytes=self._bytes[True] - strayed,
            private_bytes=self._bytes[False] + strayed,
            shared_variables=self._count[True] - lost,
            private_variables=self._count[False] + lost,
            why=why,
            excess_bytes=sum(stray.private_bytes for stray in strays if stray.reason == COPIED),
        )

    def _add(self, key: str, spec: str, *, shared: bool) -> None:
        self._count[shared] += 1
        self._bytes[shared] += self._sizes.get((key, canonical(spec)), 0)


def _name(why: dict[str, list[str]], reason: str, key: str) -> None:
    """Names a variable under a reason, where it is one of the first."""
    names, name = why.setdefault(reason, []), variable_name(key)
    if name not in names and len(names) < _MAX_NAMES:
        names.append(name)


def all_private(path: Path, reason: str) -> WeightsReport:
    """The report of a version folder whose variables are all private, for one reason."""
    try:
        tensors = read_index(path / "variables" / "variables").tensors
    except CheckpointError:
        tensors = ()  # there is none, or only TensorFlow can read it
    manifest = lay_out(tensors, "", 0, "")
    account = Account(manifest)
    account.note(reason)
    account.keep_others(set(), reason)
    return account.report()


def _tensors(manifest: Manifest) -> Iterator[Placed | Private]:
    yield from manifest.tensors
    yield from manifest.private
