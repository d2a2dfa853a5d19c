"""What is still to be heard of devices, and whether suspects may run meanwhile."""

from __future__ import annotations

from mpspool.router.fault_domains import BACK_S, VERDICT_S, FaultDomains


def test_a_death_holds_suspects_until_the_device_is_known_to_be_well() -> None:
    """Well after the last of its workers that died, not after the one before."""
    domains = FaultDomains()
    domains.died("gpu0", 0)
    assert domains.holds_suspects(["gpu0", "gpu1"])
    assert not domains.refuses("gpu0")
    domains.died("gpu0", 1)
    domains.well("gpu0", 0.5)
    assert domains.holds_suspects(["gpu0", "gpu1"]), "another has died since"
    domains.well("gpu0", 1)
    assert not domains.holds_suspects(["gpu0", "gpu1"])


def test_nobody_says_anything() -> None:
    """A death is then only a death; what a worker said of its device has to do."""
    domains = FaultDomains()
    domains.died("gpu0", 0)
    domains.failed("gpu1", "ECC", 0)
    assert domains.overdue(VERDICT_S - 0.1) == []
    assert domains.overdue(VERDICT_S) == [("gpu1", "ECC")]
    assert not domains.holds_suspects(["gpu0"])


def test_a_workers_word_outweighs_that_the_device_seems_well() -> None:
    """Only what the pool decides does."""
    domains = FaultDomains()
    domains.died("gpu0", 0)
    domains.failed("gpu0", "ECC", 0)
    domains.well("gpu0", 1)
    assert domains.refuses("gpu0")
    domains.condemned("gpu0", 0, comes_back=True)
    assert not domains.refuses("gpu0")


def test_suspects_wait_where_they_could_take_the_last_device_down() -> None:
    """With two others that serve they need not, nor for a device that does not come back, nor for ever."""
    domains = FaultDomains()
    domains.condemned("gpu0", 0, comes_back=True)
    assert domains.holds_suspects(["gpu1"])
    assert domains.holds_suspects([])
    assert not domains.holds_suspects(["gpu1", "gpu2"])
    domains.up("gpu0")
    assert not domains.holds_suspects(["gpu0", "gpu1"])
    domains.condemned("gpu0", 0, comes_back=False)
    assert not domains.holds_suspects(["gpu1"])
    domains.condemned("gpu0", 0, comes_back=True)
    domains.overdue(BACK_S)
    assert not domains.holds_suspects(["gpu1"])
