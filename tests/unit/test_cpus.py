"""CPUs: cpusets as text, the machine's topology, and the laws of sharing it out."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpspool.supervisor.cpus import (
    Cpu,
    Topology,
    assign,
    format_cpus,
    parse_cpusets,
    read_topology,
)


def split(topology: Topology, slots: int, near: int | None = None) -> list[list[int]]:
    """Of slots that are all alike."""
    return assign(topology, [near] * slots)


def machine(nodes: int, cores: int, threads: int) -> Topology:
    """A regular machine, numbered as Linux does: first threads of all cores, then the second ones."""
    count = nodes * cores
    return Topology(
        tuple(
            sorted(
                Cpu(core // cores, core, thread * count + core)
                for core in range(count)
                for thread in range(threads)
            )
        )
    )


@st.composite
def machines(draw: st.DrawFn) -> Topology:
    """Machines with nodes of different sizes and some threads missing, as a cgroup may leave them."""
    whole = machine(draw(st.integers(1, 4)), draw(st.integers(1, 6)), draw(st.integers(1, 2)))
    kept = draw(st.sets(st.sampled_from(whole.cpus), min_size=1))
    return Topology(tuple(sorted(kept)))


def nodes_of(topology: Topology) -> dict[int, int]:
    return {cpu.number: cpu.node for cpu in topology.cpus}


def cores_of(topology: Topology) -> dict[int, int]:
    return {cpu.number: cpu.core for cpu in topology.cpus}


@pytest.mark.parametrize("text", ["2-4;5-7", "2,3,4;5,6,7", " 2-3, 4 ; 5,6-7 ", "4,3,2,3;7-7,5-6"])
def test_both_forms_mean_the_same(text: str) -> None:
    """Ranges and lists, mixed and with blanks, give the same sets."""
    assert parse_cpusets(text) == [[2, 3, 4], [5, 6, 7]]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "cpuset 1 of '' is empty"),
        ("0-1;;2", "cpuset 2 of '0-1;;2' is empty"),
        ("0;", "cpuset 2 of '0;' is empty"),
        ("0;a", "cpuset 2 of '0;a': 'a' is neither a CPU nor a range"),
        ("-1", "'-1' is neither"),
        ("1-", "'1-' is neither"),
        ("1-2-3", "'1-2-3' is neither"),
        ("0,,1", "'' is neither"),
        ("٣", "is neither"),
        ("4-2", "the range '4-2' runs backwards; write 2-4"),
        ("0-99999999", "CPU 99999999 is beyond 8191"),
    ],
)
def test_a_malformed_cpuset_is_named(text: str, message: str) -> None:
    """Each mistake is told with the set and the part it is in."""
    with pytest.raises(ValueError) as caught:
        parse_cpusets(text)
    assert message in str(caught.value)


@given(st.lists(st.sets(st.integers(0, 200), min_size=1), min_size=1))
def test_formatting_is_undone_by_parsing(sets: list[set[int]]) -> None:
    """What we print, we read back."""
    assert parse_cpusets(";".join(format_cpus(cpus) for cpus in sets)) == [sorted(cpus) for cpus in sets]


@given(machines(), st.integers(1, 40))
def test_no_slot_is_left_without_cpus(topology: Topology, slots: int) -> None:
    """However many slots, each gets CPUs that are there, and none gets one twice."""
    shares = split(topology, slots)
    assert len(shares) == slots
    for share in shares:
        assert share == sorted(set(share)) != []
        assert set(share) <= set(topology.numbers)


@given(machines(), st.integers(1, 40))
def test_enough_cpus_are_all_used_once_where_nodes_allow(topology: Topology, slots: int) -> None:
    """On one node (any number of slots up to its CPUs) every CPU is used exactly once."""
    one_node = Topology(tuple(Cpu(0, cpu.core, cpu.number) for cpu in topology.cpus))
    used = Counter(cpu for share in split(one_node, slots) for cpu in share)
    if slots <= len(one_node.cpus):
        assert used == Counter(one_node.numbers)
    else:
        assert max(used.values()) - min(used[cpu] for cpu in one_node.numbers) <= 1


@given(machines(), st.integers(1, 40))
def test_every_cpu_is_used_once_on_several_nodes(topology: Topology, slots: int) -> None:
    """Up to one slot per core, nothing lies idle and nothing is shared, whatever the nodes' sizes."""
    if slots <= len(set(cores_of(topology).values())):
        assert sorted(cpu for share in split(topology, slots) for cpu in share) == topology.numbers


@given(machines(), st.integers(1, 40))
def test_no_slot_straddles_nodes_where_it_need_not(topology: Topology, slots: int) -> None:
    """With at least as many slots as nodes, each slot stays on one."""
    node = nodes_of(topology)
    if slots >= len(set(node.values())):
        assert all(len({node[cpu] for cpu in share}) == 1 for share in split(topology, slots))


@given(machines(), st.integers(1, 40))
def test_slots_of_a_node_differ_by_one_core_at_most(topology: Topology, slots: int) -> None:
    """Within a node the shares are even, and cores are whole while there are enough of them."""
    node, core = nodes_of(topology), cores_of(topology)
    if slots < len(set(node.values())):
        return
    shares = split(topology, slots)
    for number in set(node.values()):
        mine = [share for share in shares if node[share[0]] == number]
        cores = {core[cpu] for cpu in topology.numbers if node[cpu] == number}
        sizes = [len({core[cpu] for cpu in share}) for share in mine]
        if len(mine) <= len(cores):
            assert max(sizes) - min(sizes) <= 1
            assert sum(sizes) == len(cores)


def test_hyperthreads_stay_together() -> None:
    """A slot gets both threads of its cores: two slots never meet on one core."""
    assert split(machine(1, 4, 2), 2) == [[0, 1, 4, 5], [2, 3, 6, 7]]
    assert split(machine(1, 2, 2), 3) == [[0, 2], [1], [3]]


def test_a_slot_near_a_gpu_gets_that_node() -> None:
    """Slots near a node share its CPUs, the others are left alone; a node without CPUs is no constraint."""
    topology = machine(2, 4, 1)
    assert split(topology, 2, near=1) == [[4, 5], [6, 7]]
    assert split(topology, 2, near=7) == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_slots_without_a_node_go_where_there_is_room() -> None:
    """Beside slots bound to node 0, the free ones take node 1."""
    assert assign(machine(2, 4, 1), [0, None, 0]) == [[0, 1], [4, 5, 6, 7], [2, 3]]


def test_one_slot_takes_the_whole_machine() -> None:
    """Fewer slots than nodes: straddling cannot be avoided, and whole nodes are joined."""
    assert split(machine(2, 2, 1), 1) == [[0, 1, 2, 3]]
    assert sorted(map(len, split(machine(3, 2, 1), 2))) == [2, 4]


def test_more_slots_than_cpus_share_in_turn() -> None:
    """Slot i takes CPU i modulo their number."""
    assert split(Topology.simulate(2), 5) == [[0], [1], [0], [1], [0]]


def test_simulated_cpus_say_so() -> None:
    """Stand-ins are marked, so that nobody pins to them."""
    topology = Topology.simulate(3)
    assert topology.simulated
    assert topology.numbers == [0, 1, 2]
    assert topology.cores == 3


@pytest.mark.parametrize(("quota", "cores"), [(None, 8), (2.0, 2), (2.5, 3), (0.5, 1), (64.0, 8)])
def test_the_quota_limits_the_cores(quota: float | None, cores: int) -> None:
    """A container's CPU limit counts, rounded up; hyperthreads do not count as cores."""
    assert Topology(machine(1, 8, 2).cpus, quota).cores == cores


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_the_machine_is_read_from_sys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nodes and cores come from /sys, the visible CPUs from the affinity."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 3, 5})
    system = tmp_path / "devices/system"
    write(system / "node/node0/cpulist", "0-1,4-5\n")
    write(system / "node/node1/cpulist", "2-3,6-7\n")
    write(system / "node/node2/cpulist", "\n")
    for cpu in range(8):
        write(system / f"cpu/cpu{cpu}/topology/core_cpus_list", f"{cpu % 4},{cpu % 4 + 4}\n")
    topology = read_topology(tmp_path, tmp_path)
    assert topology.cpus == (Cpu(0, 0, 0), Cpu(0, 1, 1), Cpu(0, 1, 5), Cpu(1, 3, 3))
    assert topology.quota is None


def test_this_machine_can_be_read() -> None:
    """Here and now: what the affinity says, in whole cores."""
    topology = read_topology()
    assert set(topology.numbers) == os.sched_getaffinity(0)
    assert 1 <= topology.cores <= len(topology.numbers)


@pytest.mark.parametrize(
    ("files", "quota"),
    [
        ({"cpu.max": "150000 100000\n"}, 1.5),
        ({"cpu.max": "max 100000\n"}, None),
        ({"a/cpu.max": "400000 100000\n", "a/b/cpu.max": "max 100000\n"}, 4.0),
        ({"a/cpu.max": "400000 100000\n", "a/b/cpu.max": "100000 50000\n"}, 2.0),
        ({}, None),
    ],
)
def test_the_least_quota_upwards_counts(tmp_path: Path, files: dict[str, str], quota: float | None) -> None:
    """Cgroup v2: our own limit or a parent's, whichever is less; where our path is not here, the root's."""
    write(tmp_path / "self/cgroup", "0::/a/b\n")
    for name, text in files.items():
        write(tmp_path / "fs/cgroup" / name, text)
    assert read_topology(tmp_path, tmp_path).quota == quota


@pytest.mark.parametrize(("limit", "quota"), [("300000", 3.0), ("-1", None)])
def test_the_quota_of_cgroup_v1(tmp_path: Path, limit: str, quota: float | None) -> None:
    """Cgroup v1 keeps limit and period apart, and -1 is none."""
    write(tmp_path / "self/cgroup", "4:cpu,cpuacct:/pod\n3:memory:/\n")
    write(tmp_path / "fs/cgroup/cpu/pod/cpu.cfs_quota_us", limit)
    write(tmp_path / "fs/cgroup/cpu/pod/cpu.cfs_period_us", "100000")
    assert read_topology(tmp_path, tmp_path).quota == quota
