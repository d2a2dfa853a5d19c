"""The bound on bytes, in all and for each model."""

from __future__ import annotations

from collections import defaultdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpspool.core.errors import Code, PoolError
from mpspool.router.memory import Admission, Memory


def test_what_does_not_fit_is_refused() -> None:
    """With the figures, and RESOURCE_EXHAUSTED; what is released makes room."""
    memory = Memory(10)
    admission = memory.admit(8)
    with pytest.raises(PoolError, match="hold 8 of 10 bytes and this one has 3") as refused:
        memory.admit(3)
    assert refused.value.code is Code.RESOURCE_EXHAUSTED
    admission.release()
    memory.admit(10)


def test_one_model_does_not_take_all() -> None:
    """A model's own limit refuses it while others are taken in."""
    memory = Memory(100)
    memory.limits = {"a": 10, "b": 10}
    memory.admit(10, "a")
    with pytest.raises(PoolError, match="Requests for a hold 10 of 10 bytes"):
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
        PoolError, match="of this client for any model hold 60 bytes, 60 are free and this one has 1"
    ) as refused:
        memory.admit(1, client="a")
    assert refused.value.code is Code.RESOURCE_EXHAUSTED
    assert (flood("b"), flood("c")) == (30, 15)
    for admission in (one for admissions in held.values() for one in admissions):
        admission.release()
    assert not memory._by_client


def test_a_client_leaves_room_at_each_model() -> None:
    """It cannot take all of a model's bytes either; one that holds nothing is given what fits, whatever its size."""
    memory = Memory(1000)
    memory.limits = {"m": 100, "n": 100}
    large = memory.admit(100, "m", "a")
    with pytest.raises(PoolError, match="Requests for m hold 100 of 100 bytes"):
        memory.admit(1, "m", "b")
    large.release()
    memory.admit(40, "m", "a")
    with pytest.raises(PoolError, match="of this client for m hold 40 bytes, 60 are free"):
        memory.admit(20, "m", "a")
    memory.admit(20, "n", "a")
    memory.admit(30, "m", "b")


def test_several_may_hold_the_same_bytes() -> None:
    """They count until the last has released them."""
    memory = Memory(10)
    admission = memory.admit(10)
    admission.share(3)
    for _ in range(2):
        admission.release()
    assert memory.used == 10
    admission.release()
    assert memory.used == 0
    admission.release()
    assert memory.used == 0


@given(st.data())
def test_it_all_adds_up(data: st.DataObject) -> None:
    """Whatever is admitted, assigned, grown and released: never above a limit, and nothing is left in the end."""
    memory = Memory(100)
    memory.limits = {"a": 40, "b": 60, "": 70}
    held: list[Admission] = []
    for _ in range(data.draw(st.integers(0, 30))):
        try:
            match data.draw(st.sampled_from(["admit", "belong", "grow", "release"])):
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
        except PoolError:
            pass
        assert memory.used == sum(admission.size for admission in held) <= 100
        for model, limit in memory.limits.items():
            counted = sum(admission.size for admission in held if admission.model == model)
            assert memory._by_model[model] == counted <= limit
        shares: defaultdict[tuple[str | None, str], int] = defaultdict(int)
        for admission in held:
            if admission.client is not None and admission.size:
                for model in {None, admission.model}:
                    shares[model, admission.client] += admission.size
        assert memory._by_client == shares
    for admission in held:
        admission.release()
    assert memory.used == 0
    assert not any(memory._by_model.values())
    assert not memory._by_client
