"""What one copy of the weights and of TensorFlow is worth: memory by workers, and the time to be back.

Our own pool against itself, variant by variant. Of the 1 GB model every row is asked for before memory is read.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from bench import embedding
from bench.guard import Run
from bench.variants import OURS, VARIANTS, Held, Pool, Variant

_RESTARTS = 20
_ROWS_ASKED = (1, 512, 20_000)


@dataclass(slots=True)
class Sharing:
    """All that was measured here.

    Attributes:
        held: by variant and number of workers.
        back_s: by variant, the times from a worker's SIGKILL until its slot is READY again.
        back_big_s: the same for a worker with the 1 GB model.
        load_big_s: what of that the loading of the model takes, without TensorFlow's import and the warm-up.
        slower: by rows asked for, the time of an answer from shared weights by that from private ones,
            one pair of requests after another.
    """

    held: dict[tuple[Variant, int], Held]
    back_s: dict[Variant, list[float]]
    back_big_s: dict[Variant, list[float]]
    load_big_s: dict[Variant, list[float]]
    slower: dict[int, list[float]]


def measure_sharing(run: Run, *, quick: bool) -> Sharing:
    """Raises BenchError: a pool did not come up or answered wrong."""
    big = embedding.ensure_exported(run.models)
    small = run.models / "half_plus_two"
    found = Sharing({}, {}, {}, {}, {})
    for variant in VARIANTS:
        for workers in (2,) if quick else (1, 2, 4):
            with Pool(run, embedding.NAME, big, variant, workers) as pool:
                pool.touch_all()
                found.held[variant, workers] = pool.held()
                if workers != 1:
                    found.back_big_s[variant] = pool.back_s(2 if quick else 5)
                    found.load_big_s[variant] = pool.load_s()
                print(f"{variant.title:14} {workers} workers {found.held[variant, workers]}", flush=True)
        with Pool(run, "half_plus_two", small, variant, 2) as pool:
            found.back_s[variant] = pool.back_s(3 if quick else _RESTARTS)
            print(
                f"{variant.title:14} back after {statistics.median(found.back_s[variant]):.2f} s", flush=True
            )
    found.slower.update(_compare_answers(run, big, 20 if quick else 200))
    return found


def _compare_answers(run: Run, big: Path, pairs: int) -> Iterator[tuple[int, list[float]]]:
    """Rows asked for, and the ratios of shared to private of that many pairs of requests."""
    with (
        Pool(run, embedding.NAME, big, OURS, 1) as shared,
        Pool(run, embedding.NAME, big, Variant(shared=False, fork=True), 1) as private,
    ):
        for pool in (shared, private):
            pool.touch_all()
        for count in _ROWS_ASKED:
            yield (
                count,
                [shared.answer_s(count, seed) / private.answer_s(count, seed) for seed in range(pairs)],
            )
