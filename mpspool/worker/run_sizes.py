"""Whether calls that can share a run are sooner done in one or in two, learned from what both have taken. Pure.

A row of a larger run costs less, until what it works on does not fit into the processor's caches. Which of the two is sooner
shows when it has gone on for some time: the first runs after a change find neither caches nor memory as they leave them.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

# What every call costs is too large a part of a shorter run for two to be sooner.
_LEAST_NS = 1_000_000
# A trial of what is not usual has so many runs; one that goes as badly as this ends after these.
_TRIAL = 96
_BAD, _BAD_AFTER = 1.5, 8
# So many trials decide.
_TRIALS = 3
# Runs between trials, and the part of a worker's time that these may cost by what is known of them.
_LEAST_PAUSE, _MOST_PAUSE = 96, 20_000
_TRIALS_COST = 0.005
# So much less two have to take before they are usual.
_WORTH_HALVING = 0.98
# Of the newest in the moving averages, of runs and of trials.
_WEIGHT, _TRIAL_WEIGHT = 0.05, 0.2
# What one run counts for at the most, in averages: one stall is not what all take.
_MOST = 2.0
_MAX_SIZES = 1024


@dataclass(slots=True)
class _Size:
    """Runs of one kind, of so many rows that differ by less than a factor of two.

    Attributes:
        halved: they are made two, as a rule.
        row_ns, tried_ns: what a row takes so, on average, and what it takes the other way in the trial that is under way.
        tried: runs of that trial.
        pause: runs before it.
        ratio: what two take to what one does.
        trials: that were made.
    """

    halved: bool = False
    row_ns: float = 0.0
    tried_ns: float = 0.0
    tried: int = 0
    pause: int = _LEAST_PAUSE
    ratio: float = 1.0
    trials: int = 0


class RunSizes:
    """Of one model version, in one worker."""

    def __init__(self) -> None:
        self._sizes: dict[tuple[Hashable, int], _Size] = {}

    def halves(self, kind: Hashable, rows: int) -> bool:
        """Whether the next run of so many rows is to be made two: as a rule, or to try it."""
        size = self._sizes.get((kind, rows.bit_length()))
        if size is None or (not size.halved and size.row_ns * rows < _LEAST_NS):
            return False
        if size.pause:
            size.pause -= 1
            return size.halved
        return not size.halved

    def took(self, kind: Hashable, rows: int, ns: int, *, halved: bool) -> None:
        """So many rows took that long in one run, or in two."""
        name = kind, rows.bit_length()
        size = self._sizes.get(name)
        if size is None:
            if len(self._sizes) >= _MAX_SIZES:
                self._sizes.clear()
            size = self._sizes[name] = _Size()
        row_ns = max(1, ns) / rows
        if halved == size.halved:
            size.row_ns = _averaged(size.row_ns, row_ns)
            return
        size.tried += 1
        size.tried_ns = _averaged(size.tried_ns, row_ns)
        if size.tried >= _TRIAL or (size.tried >= _BAD_AFTER and size.tried_ns > _BAD * size.row_ns):
            _decide(size)


def _averaged(known: float, new: float) -> float:
    return known + _WEIGHT * (min(new, _MOST * known) - known) if known else new


def _decide(size: _Size) -> None:
    """A trial is over."""
    size.trials += 1
    two_ns, one_ns = (size.row_ns, size.tried_ns) if size.halved else (size.tried_ns, size.row_ns)
    size.ratio += max(_TRIAL_WEIGHT, 1 / size.trials) * (two_ns / one_ns - size.ratio)
    halved, size.pause = size.halved, _LEAST_PAUSE
    if size.trials >= _TRIALS:
        halved = size.ratio < (1.0 if size.halved else _WORTH_HALVING)
        loss = (1 / size.ratio if halved else size.ratio) - 1
        size.pause = min(max(int(size.tried * loss / _TRIALS_COST), _LEAST_PAUSE), _MOST_PAUSE)
    if halved != size.halved:
        size.halved, size.row_ns = halved, size.tried_ns
    size.tried, size.tried_ns = 0, 0.0


def middle(rows: Sequence[int]) -> int:
    """Before which call two runs are the most equal; each gets one at least."""
    half, taken = sum(rows) / 2, 0
    for position, count in enumerate(rows):
        if position and taken + count / 2 > half:
            return position
        taken += count
    return len(rows) - 1
