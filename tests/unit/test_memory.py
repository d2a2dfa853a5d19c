"""The bound on bytes, in all and for each model."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpspool.core.errors import Code, Lack, PoolError
from mpspool.router.memory import Admission, Memory, _Counts


def test_what_does_not_fit_is_refused() -> None:
    """With the figures, and RESOURCE_EXHAUSTED; what is released makes room."""
    memory = Memory(10)
    admission = memory.admit(8)
    with pytest.raises(PoolError, match="hold 8 of 10 bytes and this one has 3") as refused:
        memory.admit(3)
    assert refused.value.code is Code.RESOURCE_EXHAUSTED
    admission.release()
    memory.admit(10)


def test_what_is_to_come_stays_free() -> None:
    """And copies of two; where something is held, and no more than half of what a message leaves: it finds room, however large, when little is."""
    memory = Memory(100)
    memory.admit(90, to_come=(100, 10)).release()
    first = memory.admit(10, "m", to_come=(100, 10))
    memory.admit(81, to_come=(100, 10)).release()
    with pytest.raises(PoolError, match="another 9 are for answers to come,"):
        memory.admit(82, to_come=(100, 10))
    second = memory.admit(40)
    memory.admit(35, to_come=(1, 5)).release()
    with pytest.raises(
        PoolError, match="hold 50 of 100 bytes, another 15 are for answers to come, and this one has 36;"
    ):
        memory.admit(36, to_come=(1, 5))
    second.release()
    first.expect(48)  # of the half that answers may have: so that two are left, beside the copies
    memory.admit(30, to_come=(5, 5)).release()
    with pytest.raises(PoolError, match="hold 58 of 100 bytes, another 12 are for answers to come"):
        memory.admit(31, to_come=(5, 5))
    first.release()


def test_answers_to_come_count_for_no_more_than_half() -> None:
    """Until their requests are released; requests have their half all the same, and clients their share."""
    memory = Memory(100)
    memory.limits = {"m": 60}
    first = memory.admit(10, "m", "a")
    first.expect(20)
    assert (memory.used, first.held(None)) == (30, 10)
    with pytest.raises(PoolError, match="hold 30 of 100 bytes and this one has 71;"):
        memory.admit(71)
    memory.admit(28, "n", "a").release()  # of which the client's own are 10
    first.expect(1_000)
    with pytest.raises(PoolError, match="of m hold 40 of 60 bytes and this one has 21;"):
        memory.admit(21, "m")
    with pytest.raises(PoolError, match="hold 60 of 100 bytes and this one has 41;"):
        memory.admit(41)
    second = memory.admit(40)
    first.check_answer(49)
    first.release()
    assert memory.used == 40
    second.release()
    first.release()
    assert memory.used == 0


def test_one_model_does_not_take_all() -> None:
    """A model's own limit refuses it while others are taken in."""
    memory = Memory(100)
    memory.limits = {"a": 10, "b": 10}
    memory.admit(10, "a")
    with pytest.raises(PoolError, match="Requests and answers of a hold 10 of 10 bytes"):
        memory.admit(1, "a")
    memory.admit(10, "b")


def test_whose_it_is_may_become_known_late() -> None:
    """Bytes that nobody's limit held count against a model's from then on, and not before."""
    memory = Memory(100)
    memory.limits = {"a": 10}
    admission = memory.admit(10)
    admission.belong("a")
    with pytest.raises(PoolError):
        memory.admit(1, "a")
    admission.release()
    assert memory.used == 0
    memory.admit(10, "a")


def test_a_client_leaves_as_much_free_as_it_holds() -> None:
    """By itself it has half of the bound, the next one half of the rest: there is always room for one more."""
    memory = Memory(120)
    held: dict[str, list[Admission]] = {client: [] for client in ("a", "b", "c")}

    def flood(client: str) -> int:
        while True:
            try:
                held[client].append(memory.admit(1, client=client))
            except PoolError:
                return len(held[client])

    assert flood("a") == 60
    with pytest.raises(
        PoolError, match="of the client 'a' for any model hold 60 bytes, 60 are free and this one has 1"
    ) as refused:
        memory.admit(1, client="a")
    assert refused.value.code is Code.RESOURCE_EXHAUSTED
    assert (flood("b"), flood("c")) == (30, 15)
    for admission in (one for admissions in held.values() for one in admissions):
        admission.release()
    assert not memory._all._by_client


def test_a_client_leaves_room_at_each_model() -> None:
    """It cannot take all of a model's bytes either; one that holds nothing is given what fits, whatever its size."""
    memory = Memory(1000)
    memory.limits = {"m": 100, "n": 100}
    large = memory.admit(100, "m", "a")
    with pytest.raises(PoolError, match="Requests and answers of m hold 100 of 100 bytes"):
        memory.admit(1, "m", "b")
    large.release()
    memory.admit(40, "m", "a")
    with pytest.raises(PoolError, match="of the client 'a' for m hold 40 bytes, 60 are free"):
        memory.admit(20, "m", "a")
    memory.admit(20, "n", "a")
    memory.admit(30, "m", "b")


def test_several_may_hold_the_same_bytes() -> None:
    """They count until the last has released them."""
    memory = Memory(10)
    admission = memory.admit(10)
    admission.keep(2)
    for _ in range(2):
        admission.release()
    assert memory.used == 10
    admission.release()
    assert memory.used == 0
    admission.release()
    assert memory.used == 0


def fill(memory: Memory, model: str) -> list[Admission]:
    """As many bytes as it is given."""
    held = []
    while True:
        try:
            held.append(memory.admit(1, model))
        except PoolError:
            return held


def test_two_floods_leave_room_for_a_third_model() -> None:
    """Models that share leave as much free as they hold: one has half by itself, two come to a third each."""
    memory = Memory(120)
    memory.limits = dict.fromkeys(("a", "b", "c"), 60)
    memory.sharing = frozenset(memory.limits)
    first = fill(memory, "a")
    assert len(first) == 60
    second = fill(memory, "b")
    assert len(second) == 30
    with pytest.raises(
        PoolError, match="of b hold 30 bytes, of all 30 are free and this one has 1: as much as a model holds"
    ) as refused:
        memory.admit(1, "b")
    assert (refused.value.code, refused.value.lack) == (Code.RESOURCE_EXHAUSTED, Lack.BYTES)
    memory.admit(15, "c").release()
    for _ in range(40):
        first.pop().release()
        second += fill(memory, "b")
        first += fill(memory, "a")
    assert {len(first), len(second)} == {40}
    late = memory.admit(21)
    with pytest.raises(PoolError, match="of c hold 0 bytes, of all 40 are free and this one has 21"):
        late.belong("c")


def test_a_limit_that_was_given_is_there_whatever_others_hold() -> None:
    """A model with its own limit has all of it, and those that share what then is free."""
    memory = Memory(100)
    memory.limits = {"a": 50, "b": 50, "own": 80}
    memory.sharing = frozenset("ab")
    own = memory.admit(80, "own")
    assert len(fill(memory, "a")) == 10
    memory.admit(5, "b")
    own.release()
    memory.admit(80, "own")


def test_the_answers_of_two_models_leave_room_for_those_of_a_third() -> None:
    """As their requests do; an answer of a model that holds none may be of any size."""
    memory = Memory(200)
    memory.limits = dict.fromkeys(("a", "b", "c"), 100)
    memory.sharing = frozenset(memory.limits)
    for model, part in (("a", 50), ("b", 25)):
        for _ in range(part):
            admission = memory.admit(0, model)
            admission.check_answer(1)
            admission.hold(1)
        with pytest.raises(PoolError, match=f"Answers of {model} that") as refused:
            memory.admit(0, model).check_answer(1)
        assert refused.value.lack is Lack.ANSWERS
    memory.check_answer(500, "c", None)


@given(st.data())
def test_it_all_adds_up(data: st.DataObject) -> None:
    """Whatever is admitted, assigned, grown and released: never above a limit, and nothing is left in the end."""
    memory = Memory(100)
    memory.limits = {"a": 40, "b": 60, "": 70}
    memory.sharing = frozenset(data.draw(st.sets(st.sampled_from(list(memory.limits)))))
    held: list[Admission] = []
    answers: list[tuple[int, str | None, str | None]] = []
    for _ in range(data.draw(st.integers(0, 30))):
        try:
            match data.draw(st.sampled_from(["admit", "belong", "grow", "release", "hold", "taken"])):
                case "admit":
                    model = data.draw(st.sampled_from(["", "a", "b", "unknown"]))
                    client = data.draw(st.sampled_from([None, "", "c"]))
                    held.append(memory.admit(data.draw(st.integers(0, 50)), model, client))
                case "belong" if held:
                    data.draw(st.sampled_from(held)).belong(data.draw(st.sampled_from(["a", "b", "unknown"])))
                case "grow" if held:
                    data.draw(st.sampled_from(held)).grow(data.draw(st.integers(0, 50)))
                case "release" if held:
                    held.pop(data.draw(st.integers(0, len(held) - 1))).release()
                case "hold" if held:  # the answer to a request, which counts no more
                    admission = held.pop(data.draw(st.integers(0, len(held) - 1)))
                    admission.release()
                    size = data.draw(st.integers(0, 50))
                    admission.check_answer(size)
                    admission.hold(size)
                    answers.append((size, admission.model, admission.client))
                case "taken" if answers:
                    size, taken, client = answers.pop()
                    memory.hold(-size, taken, client)
        except PoolError:
            pass
        requests = [(admission.size, admission.model, admission.client) for admission in held]
        add_up(memory._answers, answers)
        add_up(memory._all, requests + answers)
        assert memory.used == memory._all.used
        # One answer may be as long as it likes.
        assert sum(size for size, _, _ in answers[:-1]) < 50 + 50
        assert sum(size for size, _, _ in requests) <= 100
        for model, limit in memory.limits.items():
            assert sum(size for size, whose, _ in requests if whose == model) <= limit
    for admission in held:
        admission.release()
    for size, whose, client in answers:
        memory.hold(-size, whose, client)
    for counts in (memory._all, memory._answers):
        add_up(counts, [])
        assert not counts._by_client


def add_up(counts: _Counts, held: Collection[tuple[int, str | None, str | None]]) -> None:
    """They are what is held: (bytes, model, client)."""
    by_model: defaultdict[str, int] = defaultdict(int)
    shares: defaultdict[tuple[str | None, str], int] = defaultdict(int)
    for size, model, client in held:
        if model is not None:
            by_model[model] += size
        if client is not None and size:
            for whose in {None, model}:
                shares[whose, client] += size
    assert counts.used == sum(size for size, _, _ in held)
    assert {model: size for model, size in counts.by_model.items() if size} == {
        model: size for model, size in by_model.items() if size
    }
    assert counts._by_client == shares


def test_answers_that_are_not_taken_have_half() -> None:
    """Of all, and of their model's: then none is kept any more, and requests find the other half; the last may be of any size."""
    memory = Memory(200)
    memory.limits = {"a": 40, "b": 180}
    first, second = memory.admit(1, "a"), memory.admit(0, "a")
    for size in (19, 50):
        first.check_answer(size)
        first.hold(size)
    with pytest.raises(
        PoolError, match=r"Answers of a that .* hold 69 of 20 bytes, so this one of 1 is not kept"
    ):
        second.check_answer(1)
    memory.check_answer(1, "b", None)
    memory.hold(31, "b")
    with pytest.raises(PoolError, match=r"Answers of any model that .* hold 100 of 100 bytes") as refused:
        memory.check_answer(1, "b", None)
    assert (refused.value.code, refused.value.lack) == (Code.RESOURCE_EXHAUSTED, Lack.ANSWERS)
    with pytest.raises(PoolError, match="Requests and answers of a hold 21 of 40 bytes"):
        memory.admit(20, "a")
    memory.admit(99, "b")
    first.hold(-50)
    second.check_answer(1)
    memory.check_answer(1, "b", None)


def test_an_answer_of_any_size_leaves_requests_their_half() -> None:
    """Of all, and of its model's; what is held is told as it counts."""
    memory = Memory(100)
    memory.limits = {"a": 40}
    admission = memory.admit(1, "a")
    admission.check_answer(500)
    admission.hold(500)
    memory.admit(25, "b")
    with pytest.raises(PoolError, match="Requests and answers hold 76 of 100 bytes"):
        memory.admit(25, "b")
    memory.admit(18, "a")
    with pytest.raises(PoolError, match="Requests and answers of a hold 39 of 40 bytes"):
        memory.admit(2, "a")
    assert memory.used == 544
    admission.hold(-500)
    admission.release()
    memory.admit(21, "a")


def test_clients_share_what_answers_may_have() -> None:
    """One that takes nothing has half of that, and leaves the rest to others."""
    memory = Memory(100)
    for _ in range(5):
        slow = memory.admit(0, None, "slow")
        slow.check_answer(5)
        slow.hold(5)
    with pytest.raises(
        PoolError, match="Answers of any model that this client has not taken hold 25 bytes, 25 are free"
    ):
        memory.check_answer(5, None, "slow")
    memory.check_answer(20, None, "quick")


def test_the_parts_of_one_answer_do_not_keep_each_other_out() -> None:
    """Alone, an answer in parts may be of any size, as it may in one; others' count, and what it leaves is theirs."""
    memory = Memory(100)
    memory.limits = {"a": 60}
    whole, other = memory.admit(1, "a"), memory.admit(1, "a")
    for _ in range(9):
        whole.check_answer(10)
        whole.hold(10)
    with pytest.raises(PoolError, match=r"Answers of any model that .* hold 90 of 50 bytes"):
        other.check_answer(1)
    whole.hold(-90)
    other.check_answer(1)
    other.hold(30)
    with pytest.raises(PoolError, match=r"Answers of a that .* hold 30 of 30 bytes"):
        whole.check_answer(1)


def test_a_client_has_no_more_by_asking_in_parts() -> None:
    """What is kept of an answer counts as though it came at once."""
    memory = Memory(200)
    memory.hold(30, None, "slow")
    whole = memory.admit(0, None, "slow")
    with pytest.raises(PoolError, match="that this client has not taken hold 30 bytes, 70 are free"):
        whole.check_answer(30)
    for _ in range(2):
        whole.check_answer(10)
        whole.hold(10)
    with pytest.raises(PoolError, match="that this client has not taken hold 30 bytes, 70 are free"):
        whole.check_answer(10)


def test_what_grows_is_not_in_its_own_way() -> None:
    """A client's only request fits, whether its size is known at once or not; beside another it leaves as much free as it holds."""
    memory = Memory(100)
    admission = memory.admit(5, "", "c")
    for _ in range(5):
        admission.grow(15)
    assert memory.used == 80
    with pytest.raises(PoolError, match="The request has 110 bytes and max_queued_bytes is 100"):
        admission.grow(30)
    with pytest.raises(
        PoolError, match="of the client 'c' for any model hold 80 bytes, 20 are free and this one has 5"
    ):
        memory.admit(5, "", "c")
    memory.admit(20, "", "d")
    admission.release()
    small = memory.admit(5, "", "d")
    with pytest.raises(
        PoolError, match="of the client 'd' for any model hold 20 bytes, 80 are free and this one has 45"
    ):
        small.grow(40)
    assert memory.used == 25


def test_what_grows_when_its_model_has_no_limit_any_more() -> None:
    """It is the model's as before, and nothing is left of it."""
    memory = Memory(100)
    memory.limits = {"a": 40}
    admission = memory.admit(10, "a", "c")
    memory.limits = {}
    admission.grow(10)
    add_up(memory._all, [(20, "a", "c")])
    admission.release()
    add_up(memory._all, [])
