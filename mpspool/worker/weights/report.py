"""What a worker says of its weights: a WeightsReport, counted up variable by variable."""

from __future__ import annotations

from collections.abc import Container, Iterator
from pathlib import Path

from mpspool.core.weights import WeightsReport
from mpspool.worker.weights.checkpoint import CheckpointError, canonical, read_index
from mpspool.worker.weights.layout import lay_out
from mpspool.worker.weights.segment import Manifest, Placed, Private

_MAX_NAMES = 5
_SUFFIX = "/.ATTRIBUTES/VARIABLE_VALUE"


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
        self.note(reason)
        names, name = self._why[reason], key.removesuffix(_SUFFIX)
        if name not in names and len(names) < _MAX_NAMES:
            names.append(name)

    def keep_others(self, keys: Container[str], reason: str) -> None:
        """Counts what the checkpoint has under other keys than these as private for a reason."""
        for key, spec in self._sizes:
            if key not in keys:
                self.keep(key, spec, reason)

    def note(self, reason: str) -> None:
        """A reason that holds for no variable in particular."""
        self._why.setdefault(reason, [])

    def report(self) -> WeightsReport:
        return WeightsReport(
            shared_bytes=self._bytes[True],
            private_bytes=self._bytes[False],
            shared_variables=self._count[True],
            private_variables=self._count[False],
            why=self._why,
        )

    def _add(self, key: str, spec: str, *, shared: bool) -> None:
        self._count[shared] += 1
        self._bytes[shared] += self._sizes.get((key, canonical(spec)), 0)


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
