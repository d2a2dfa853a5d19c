"""Whether calls that can share a run are sooner done in one or in two, learned from what both have taken. Pure.

A row of a larger run costs less, until what it works on does not fit into the processor's caches. Which of the two is sooner
shows when it has gone on for some time: the first runs after a change find neither caches nor memory as they leave them.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass, field

# What every call costs is too large a part of a shorter run for two to be sooner.
_LEAST_NS = 1_000_000
# A trial has so many runs of what is not usual; one in which they take so many times as long ends after a few.
_TRIAL = 96
_BAD, _BAD_AFTER = 1.3, 8
# So many trials decide for the first time, with so many runs before each of them.
_TRIALS = 3
_FIRST_PAUSE = 32
# Later they get seldom: more runs between them with each, and so many that they cost no more of the time than this.
_MOST_PAUSE = 20_000
_TRIALS_COST = 0.005
# So much less two have to take before they are usual.
_WORTH_HALVING = 0.97
# Of the newest in the moving averages, of runs and of trials.
_WEIGHT, _TRIAL_WEIGHT = 0.05, 0.2
# Times the average that one run counts for at the most: one stall is not what all take.
_MOST_TIMES = 2.0
# Kinds and sizes that are remembered, those that were seen last: requests may come in any number of shapes.
_MAX_SIZES = 1024


@dataclass(slots=True)
class _Average:
    """Nanoseconds for a row, on average of so many runs."""

    row_ns: float = 0.0
    count: int = 0

    def add(self, row_ns: float) -> None:
        """Of the first run TensorFlow may prepare itself for the size, and one of the next two may stall."""
        self.count += 1
        if self.count <= 2:
            self.row_ns = row_ns
        elif self.count == 3:
            self.row_ns = min(self.row_ns, row_ns)
        else:
            self.row_ns += _WEIGHT * (min(row_ns, _MOST_TIMES * self.row_ns) - self.row_ns)


@dataclass(slots=True)
class _Size:
    """Runs of one kind, of so many rows that differ by less than a factor of two.

    Attributes:
        usually_halved: they are made two, but for trials.
        usual, tried: as they usually run; and the other way, in the trial that is under way.
        pause: runs until the next trial.
        trials: that were made.
        ratio: the time of two runs by that of one, as trials have told.
    """

    usually_halved: bool = False
    usual: _Average = field(default_factory=_Average)
    tried: _Average = field(default_factory=_Average)
    pause: int = _FIRST_PAUSE
    trials: int = 0
    ratio: float = 1.0


class RunSizes:
    """Of one model version, in one worker."""

    def __init__(self) -> None:
        self._sizes: OrderedDict[tuple[Hashable, int], _Size] = OrderedDict()

    def halves(self, kind: Hashable, rows: int) -> bool:
        """Whether a run of so many rows is to be made two: as usual, or to try it."""
        size = self._sizes.get((kind, rows.bit_length()))
        if size is None or (not size.usually_halved and size.usual.row_ns * rows < _LEAST_NS):
            return False
        if size.pause:
            size.pause -= 1
            return size.usually_halved
        return not size.usually_halved

    def observe(self, kind: Hashable, rows: int, ns: int, *, halved: bool) -> bool:
        """So many rows took that long in one run, or in two. Returns whether from now on the other is usual."""
        name = kind, rows.bit_length()
        size = self._sizes.get(name)
        if size is None:
            size = self._sizes[name] = _Size()
            if len(self._sizes) > _MAX_SIZES:
                self._sizes.popitem(last=False)
        self._sizes.move_to_end(name)
        row_ns = max(1, ns) / rows
        if halved == size.usually_halved:
            size.usual.add(row_ns)
            return False
        tried = size.tried
        tried.add(row_ns)
        bad = tried.count >= _BAD_AFTER and tried.row_ns > _BAD * size.usual.row_ns
        return (bad or tried.count >= _TRIAL) and _decide(size)


def _decide(size: _Size) -> bool:
    """A trial is over. Returns whether what was tried is usual from now on."""
    size.trials += 1
    two, one = (size.usual, size.tried) if size.usually_halved else (size.tried, size.usual)
    size.ratio += max(_TRIAL_WEIGHT, 1 / size.trials) * (two.row_ns / one.row_ns - size.ratio)
    halve, size.pause = size.usually_halved, _FIRST_PAUSE
    if size.trials >= _TRIALS:
        halve = size.ratio < (1.0 if size.usually_halved else _WORTH_HALVING)
        loss = max(0.0, (1 / size.ratio if halve else size.ratio) - 1)
        size.pause = min(_TRIAL * size.trials + int(size.tried.count * loss / _TRIALS_COST), _MOST_PAUSE)
    changed = halve != size.usually_halved
    if changed:
        size.usually_halved, size.usual = halve, size.tried
    size.tried = _Average()
    return changed
