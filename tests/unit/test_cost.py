"""What the cost table keeps of what it was told, and what it makes of it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpspool.router.scheduling import cost
from mpspool.router.scheduling.cost import CostTable


@pytest.mark.parametrize("rows", [0, 1])
def test_the_table_keeps_what_was_seen_last(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where there are more signatures than it has room for, the one that was not seen for longest is forgotten."""
    monkeypatch.setattr(cost, "_MAX_SIGNATURES", 3)
    table = CostTable()
    for signature in ("a", "b", "c", "a", "d"):
        table.observe("m", signature, 100, 5.0, rows)
    predicted = {signature: table.predict("m", signature, 100, rows) for signature in "abcd"}
    assert predicted == {"a": 5.0, "b": None, "c": 5.0, "d": 5.0}


@pytest.mark.parametrize("rows", [0, 4])
def test_a_cost_is_a_moving_average(rows: int) -> None:
    """The first observation is believed; each later one moves what is known a fifth of the way to it."""
    table = CostTable()
    seen = []
    for cost_us in (100.0, 200.0, 200.0, 20.0):
        table.observe("m", "s", 64, cost_us, rows)
        seen.append(table.predict("m", "s", 64, rows))
    assert seen == pytest.approx([100.0, 120.0, 136.0, 112.8])


@given(st.lists(st.floats(1.0, 1e6), min_size=1, max_size=40), st.sampled_from([0, 4]))
def test_a_cost_is_within_what_was_seen(costs_us: list[float], rows: int) -> None:
    """However it came and went."""
    table = CostTable()
    for cost_us in costs_us:
        table.observe("m", "s", 64, cost_us, rows)
    predicted = table.predict("m", "s", 64, rows)
    assert predicted is not None
    assert min(costs_us) * 0.999 <= predicted <= max(costs_us) * 1.001


def test_a_new_cost_is_learned_soon() -> None:
    """After 20 requests that cost a tenth of what they did, the prediction is nearer to that than to the old one by far."""
    table = CostTable()
    table.observe("m", "s", 64, 1000.0)
    for _ in range(20):
        table.observe("m", "s", 64, 100.0)
    assert table.predict("m", "s", 64) == pytest.approx(100.0, rel=0.2)


@pytest.mark.parametrize("rows", [0, 4])
def test_one_stall_is_not_what_all_others_cost(rows: int) -> None:
    """A request that took 270 times as long raises what the next are expected to take by three fifths, not fifty times."""
    table = CostTable()
    for cost_us in (1000.0, 270_000.0):
        table.observe("m", "s", 64, cost_us, rows)
    assert table.predict("m", "s", 64, rows) == pytest.approx(1600.0)


@pytest.mark.parametrize("rows", [0, 4])
@pytest.mark.parametrize("first_us", [0.0, 1000.0])
def test_a_cost_that_stays_is_learned(first_us: float, rows: int) -> None:
    """However much more than before it is, also than nothing, it is what is expected after 60 of them."""
    table = CostTable()
    table.observe("m", "s", 64, first_us, rows)
    for _ in range(60):
        table.observe("m", "s", 64, 100_000.0, rows)
    assert table.predict("m", "s", 64, rows) == pytest.approx(100_000.0, rel=0.01)


def test_sizes_are_learned_by_class() -> None:
    """Bodies of as many bits in their length are alike; of another size, signature or model nothing is known."""
    table = CostTable()
    table.observe("m", "s", 64, 100.0)
    assert table.predict("m", "s", 127) == 100.0
    assert table.predict("m", "s", 63) is None
    assert table.predict("m", "s", 128) is None
    assert table.predict("m", "other", 64) is None
    assert table.predict("other", "s", 64) is None
    assert table.predict("m", "s", 64, rows=1) is None


def test_between_and_beyond_the_rows_that_were_seen() -> None:
    """A batch is predicted from those of nearest sizes: on the line between them; the least below; in proportion above."""
    table = CostTable()
    for rows, cost_us in ((4, 400.0), (16, 1000.0)):
        table.observe("m", "s", 0, cost_us, rows)
    predicted = [table.predict("m", "s", 0, rows) for rows in (1, 4, 10, 16, 32)]
    assert predicted == pytest.approx([400.0, 400.0, 700.0, 1000.0, 2000.0])


def test_no_less_than_what_the_largest_took() -> None:
    """Of what is larger than all that were seen nobody knows more; in between it is what is predicted, and below in proportion."""
    table = CostTable()
    assert table.at_least("m", "", 0, 5) == 0
    for rows in (4, 16, 4, 16):
        table.observe("m", "", 0, 100 * rows, rows)
    found = [table.at_least("m", "", 0, rows) for rows in (1, 10, 16, 17, 1000)]
    assert found == [100, 1000, 1600, 1600, 1600]


def test_rows_of_one_class_are_averaged_together() -> None:
    """Batches of 4 to 7 rows are one point of the curve, which moves in both directions."""
    table = CostTable()
    table.observe("m", "s", 0, 400.0, rows=4)
    table.observe("m", "s", 0, 900.0, rows=7)
    table.observe("m", "s", 0, 5000.0, rows=100)
    assert table.predict("m", "s", 0, rows=4) == pytest.approx(500.0)
    middle = table.predict("m", "s", 0, rows=5)
    assert middle is not None
    assert 500.0 < middle < 700.0


def test_the_least_per_row_is_of_the_best_class() -> None:
    """Of the classes of sizes, each by its average: 0 where nothing is known, and no other signature's."""
    table = CostTable()
    assert table.least_per_row("m", "s") == 0.0
    table.observe("m", "s", 64, 1.0)
    assert table.least_per_row("m", "s") == 0.0, "it shared no batch"
    for rows, cost_us in ((1, 100.0), (16, 320.0), (64, 1920.0)):
        table.observe("m", "s", 0, cost_us, rows)
    assert table.least_per_row("m", "s") == pytest.approx(20.0)
    table.observe("m", "s", 0, 1120.0, 16)
    assert table.least_per_row("m", "s") == pytest.approx(30.0), (
        "16 rows cost 480 us on average now, 64 still 1920"
    )
    assert table.least_per_row("m", "other") == 0.0


@pytest.mark.parametrize("rows", [0, 4])
def test_a_new_version_begins_with_what_another_costs(rows: int) -> None:
    """The last one that knows; its own first observation counts in place of that, later ones as any; the others' stay."""
    table = CostTable()
    for model, cost_us in (("m1", 100.0), ("m2", 300.0)):
        table.observe(model, "s", 64, cost_us, rows)
    table.observe("m1", "other", 64, 50.0, rows)
    table.take_over("m3", ["m1", "m2"])
    assert table.predict("m3", "s", 64, rows) == 300.0
    assert table.predict("m3", "other", 64, rows) == 50.0
    seen = []
    for cost_us in (1000.0, 2000.0):
        table.observe("m3", "s", 64, cost_us, rows)
        seen.append(table.predict("m3", "s", 64, rows))
    assert seen == [1000.0, 1200.0]
    assert table.predict("m2", "s", 64, rows) == 300.0


def test_a_new_version_learns_size_by_size() -> None:
    """Of sizes that it has not run yet, what they cost before counts on."""
    table = CostTable()
    for rows, cost_us in ((1, 100.0), (16, 800.0)):
        table.observe("m1", "s", 0, cost_us, rows)
    table.take_over("m2", ["m1"])
    assert table.least_per_row("m2", "s") == 50.0
    table.observe("m2", "s", 0, 200.0, rows=1)
    assert [table.predict("m2", "s", 0, rows) for rows in (1, 16)] == [200.0, 800.0]
    table.observe("m2", "s", 0, 1600.0, rows=20)
    assert [table.predict("m2", "s", 0, rows) for rows in (1, 20)] == [200.0, 1600.0]
    assert [table.predict("m1", "s", 0, rows) for rows in (1, 16)] == [100.0, 800.0]


@pytest.mark.parametrize("rows", [0, 1])
def test_what_was_taken_over_stays_when_the_other_goes(rows: int) -> None:
    """And goes with the version that has taken it over; nobody takes over what was only taken over."""
    table = CostTable()
    table.observe("m1", "s", 64, 100.0, rows)
    table.take_over("m2", ["m1"])
    table.take_over("m3", ["m2"])
    table.forget("m1")
    assert table.predict("m2", "s", 64, rows) == 100.0
    assert table.predict("m3", "s", 64, rows) is None
    table.forget("m2")
    assert table.predict("m2", "s", 64, rows) is None
    table.take_over("m4", ["m2"])
    assert table.predict("m4", "s", 64, rows) is None


@pytest.mark.parametrize("rows", [0, 1])
def test_what_is_taken_over_is_bounded(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many versions it is from: the last one's stays."""
    monkeypatch.setattr(cost, "_MAX_SIGNATURES", 3)
    table = CostTable()
    for version, signatures in enumerate(["abc", "def"]):
        for signature in signatures:
            table.observe(version, signature, 100, 5.0, rows)
    table.take_over(2, [0, 1])
    assert [s for s in "abcdef" if table.predict(2, s, 100, rows) is not None] == list("def")


@pytest.mark.parametrize("rows", [0, 1])
def test_no_model_pushes_out_what_is_known_of_another(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """As hundreds of them would, each with a few signatures."""
    monkeypatch.setattr(cost, "_MAX_SIGNATURES", 3)
    table = CostTable()
    for model in range(100):
        for signature in "abc":
            table.observe(model, signature, 100, 5.0, rows)
    assert all(table.predict(model, s, 100, rows) == 5.0 for model in range(100) for s in "abc")


@pytest.mark.parametrize("rows", [0, 4])
@pytest.mark.parametrize(("second_us", "known_us"), [(1_000, 1_000), (400_000, 384_000)])
def test_a_first_run_is_not_what_all_others_cost(second_us: int, known_us: int, rows: int) -> None:
    """It may compile, tune and allocate: one that takes less tells what the size costs, and one that takes more is averaged."""
    table = CostTable()
    table.observe("m", "", 4, 380_000, rows)
    assert table.at_least("m", "", 4, rows) == 0
    table.observe("m", "", 4, second_us, rows)
    assert table.predict("m", "", 4, rows) == table.at_least("m", "", 4, rows) == known_us
    table.observe("m", "", 4, second_us / 2, rows)
    assert table.predict("m", "", 4, rows) == pytest.approx(0.8 * known_us + 0.1 * second_us)


def test_what_is_sure_is_not_by_a_size_that_was_seen_once() -> None:
    """It is by those of its neighbours that were seen again, though there be one that is nearer."""
    table = CostTable()
    for rows in (1, 1, 16, 64, 64, 300):
        table.observe("m", "", 0, 1_000 * rows if rows != 16 else 10**6, rows)
    sure = [table.at_least("m", "", 0, rows) for rows in (1, 16, 40, 64, 300)]
    assert sure == pytest.approx([1_000, 16_000, 40_000, 64_000, 64_000])


def test_a_first_run_is_not_what_fewer_rows_cost_than_were_seen_again() -> None:
    """Two rows that took 87 ms by themselves, once, where 32 take 3: as long as no others are run so, nobody will see them again."""
    table = CostTable()
    for cost_us, rows in ((87_000, 2), (83_000, 32), (3_000, 32), (3_000, 32)):
        table.observe("m", "", 0, cost_us, rows)
    assert [table.predict("m", "", 0, rows) for rows in (1, 2, 16, 32)] == [3_000] * 4
    table.observe("m", "", 0, 9_000, 256)
    assert table.predict("m", "", 0, 256) == 9_000, "seen once, and none larger"
    assert table.at_least("m", "", 0, 2) < 3_000


def test_what_is_sure_is_no_more_than_what_a_first_run_took() -> None:
    """A row that ran in a millisecond does not take for sure what 64 do; nor what those of an older version did."""
    table = CostTable()
    for cost_us, rows in ((1_000, 1), (40_000, 64), (40_000, 64)):
        table.observe("m1", "", 0, cost_us, rows)
    assert table.at_least("m1", "", 0, 1) == pytest.approx(625)
    table.take_over("m2", ["m1"])
    table.observe("m2", "", 0, 2_000, 64)
    assert table.at_least("m2", "", 0, 64) <= 2_000


@given(
    st.lists(st.tuples(st.integers(1, 300), st.floats(1.0, 1e6)), min_size=1, max_size=30),
    st.integers(1, 400),
)
def test_no_more_is_sure_than_is_predicted(seen: list[tuple[int, float]], rows: int) -> None:
    """Whatever came, and whichever of it was seen again."""
    table = CostTable()
    for one, cost_us in seen:
        table.observe("m", "s", 0, cost_us, one)
    predicted = table.predict("m", "s", 0, rows)
    assert predicted is not None
    assert 0 <= table.at_least("m", "s", 0, rows) <= predicted


def test_the_second_run_of_a_class_is_all_that_is_known_of_it() -> None:
    """Where it took less, what it cost goes with its own rows, not with those of the first."""
    table = CostTable()
    for rows in (31, 16):
        table.observe("m", "", 0, 1_000 * rows, rows)
    assert table.least_per_row("m", "") == 1_000
    assert table.predict("m", "", 0, 32) == 32_000


@pytest.mark.parametrize("rows", [0, 4])
def test_a_new_version_s_first_run_is_one(rows: int) -> None:
    """What it took over is as sure as it was, until it is seen what it costs itself."""
    table = CostTable()
    for _ in range(2):
        table.observe("m1", "", 4, 1_000, rows)
    table.take_over("m2", ["m1"])
    assert table.at_least("m2", "", 4, rows) == 1_000
    table.observe("m2", "", 4, 90_000, rows)
    assert table.at_least("m2", "", 4, rows) == 0
    table.observe("m2", "", 4, 2_000, rows)
    assert table.at_least("m2", "", 4, rows) == 2_000
    assert table.at_least("m1", "", 4, rows) == 1_000


@pytest.mark.parametrize("rows", [0, 4])
def test_a_first_run_is_taken_over_as_one(rows: int) -> None:
    """Another version's only run says no more of the next one than of itself."""
    table = CostTable()
    table.observe("m1", "", 4, 400_000, rows)
    table.take_over("m2", ["m1"])
    assert table.predict("m2", "", 4, rows) == 400_000
    assert table.at_least("m2", "", 4, rows) == 0
    table.observe("m1", "", 4, 1_000, rows)
    table.take_over("m3", ["m1"])
    assert table.at_least("m3", "", 4, rows) == 1_000
