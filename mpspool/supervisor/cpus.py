"""CPUs: cpusets as text, what this machine has, and how slots share it. Only `read_topology` looks outside."""

from __future__ import annotations

import itertools
import math
import os
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Self, TypeVar

# The kernel's own upper bound (NR_CPUS), so that a slip such as 0-99999999 is named, not expanded.
MAX_CPUS = 8192

T = TypeVar("T")

_RANGE = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9}))?", re.ASCII)


@dataclass(frozen=True, slots=True, order=True)
class Cpu:
    """One logical CPU.

    Attributes:
        node: its NUMA node.
        core: its physical core, by the number of that core's first logical CPU.
    """

    node: int
    core: int
    number: int


@dataclass(frozen=True, slots=True)
class Topology:
    """The CPUs we may use.

    Attributes:
        cpus: by node, then physical core, then number.
        quota: CPUs' worth of time we get (cgroup cpu.max); None for no limit.
        simulated: they are stand-ins, never to be pinned to.
    """

    cpus: tuple[Cpu, ...]
    quota: float | None = None
    simulated: bool = False

    @classmethod
    def simulate(cls, count: int) -> Self:
        """`count` CPUs from 0 on one node, each a core of its own."""
        return cls(tuple(Cpu(0, number, number) for number in range(count)), simulated=True)

    @property
    def numbers(self) -> list[int]:
        return sorted(cpu.number for cpu in self.cpus)

    @property
    def cores(self) -> int:
        """Physical cores' worth of work we can do: the visible ones, or the quota rounded up if less."""
        physical = len({cpu.core for cpu in self.cpus})
        return physical if self.quota is None else min(physical, math.ceil(self.quota))

    def share(self, slots: int) -> int | None:
        """CPUs' worth of time one of `slots` gets under the quota, rounded up; None without a quota."""
        return None if self.quota is None else max(1, math.ceil(self.quota / slots))


def pinned(sets: Sequence[Sequence[int]]) -> int:
    """How many CPUs there are for workers that are pinned to these; 0 where one is not pinned."""
    return len({cpu for cpus in sets for cpu in cpus}) if all(sets) else 0


def parse_cpusets(text: str) -> list[list[int]]:
    """Reads "2-4;5-7" or "2,3,4;5,6,7": sets apart by ";", numbers and ranges within one by ",".

    Raises:
        ValueError: naming the set and the part that cannot be read.
    """
    return [_parse_cpuset(part, index, text) for index, part in enumerate(text.split(";"), start=1)]


def _parse_cpuset(part: str, index: int, text: str) -> list[int]:
    where = f"cpuset {index} of {text!r}"
    if not part.strip():
        raise ValueError(f'{where} is empty; write sets as "2-4;5-7"')
    return sorted({cpu for item in part.split(",") for cpu in _parse_range(item.strip(), where)})


def _parse_range(item: str, where: str) -> range:
    match = _RANGE.fullmatch(item)
    if match is None:
        raise ValueError(
            f"{where}: {item!r} is neither a CPU nor a range such as 2-4; auto, split and none stand alone"
        )
    first, last = int(match[1]), int(match[2] or match[1])
    if last < first:
        raise ValueError(f"{where}: the range {item!r} runs backwards; write {last}-{first}")
    if last >= MAX_CPUS:
        raise ValueError(f"{where}: CPU {last} is beyond {MAX_CPUS - 1}, the last there can be")
    return range(first, last + 1)


def format_cpus(cpus: Iterable[int]) -> str:
    """The shortest text for a set: [0, 1, 2, 5] is "0-2,5"."""
    runs: list[list[int]] = []
    for cpu in sorted(cpus):
        if runs and cpu == runs[-1][1] + 1:
            runs[-1][1] = cpu
        else:
            runs.append([cpu, cpu])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)


def read_topology(sys: Path = Path("/sys"), proc: Path = Path("/proc")) -> Topology:
    """The CPUs this process may run on (cgroup cpusets included), their cores, nodes and quota."""
    nodes = _nodes(sys)
    cpus = [Cpu(nodes.get(cpu, 0), _core(sys, cpu), cpu) for cpu in os.sched_getaffinity(0)]
    return Topology(tuple(sorted(cpus)), _quota(sys / "fs/cgroup", proc))


def _nodes(sys: Path) -> dict[int, int]:
    return {
        cpu: int(folder.name.removeprefix("node"))
        for folder in (sys / "devices/system/node").glob("node[0-9]*")
        for cpu in _cpulist(folder / "cpulist")
    }


def _core(sys: Path, cpu: int) -> int:
    topology = sys / f"devices/system/cpu/cpu{cpu}/topology"
    for name in ("core_cpus_list", "thread_siblings_list"):
        if siblings := _cpulist(topology / name):
            return min(siblings)
    return cpu


def _cpulist(path: Path) -> list[int]:
    text = _read(path)
    return parse_cpusets(text)[0] if text else []


def _read(path: Path) -> str:
    """The file's text; empty where there is no such file, as on kernels and in containers without it."""
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def _quota(cgroup: Path, proc: Path) -> float | None:
    """The least quota from our own cgroup up to the root, of version 2 or 1."""
    quotas = []
    for line in _read(proc / "self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            quotas += [_quota_v2(folder) for folder in _upwards(cgroup, path)]
        elif "cpu" in controllers.split(","):
            quotas += [_quota_v1(folder) for folder in _upwards(cgroup / "cpu", path)]
    return min((quota for quota in quotas if quota is not None), default=None)


def _upwards(mount: Path, path: str) -> list[Path]:
    # A path of the host, seen from inside a container, does not exist here: its root is then ours.
    here = PurePosixPath(path.lstrip("/"))
    return [mount / here, *(mount / parent for parent in here.parents)]


def _quota_v2(folder: Path) -> float | None:
    limit, _, period = _read(folder / "cpu.max").partition(" ")
    return int(limit) / int(period) if limit.isdecimal() else None


def _quota_v1(folder: Path) -> float | None:
    limit, period = _read(folder / "cpu.cfs_quota_us"), _read(folder / "cpu.cfs_period_us")
    return int(limit) / int(period) if limit.isdecimal() and period.isdecimal() else None


def assign(topology: Topology, near: Sequence[int | None]) -> list[list[int]]:
    """Gives each slot its CPUs.

    A slot stays on one NUMA node wherever there are at least as many slots as nodes; a node's
    physical cores are shared evenly and whole; only with more slots than cores are a core's
    threads parted, and only with more slots than CPUs are CPUs shared, in turn.

    Args:
        topology: the CPUs there are; at least one.
        near: for each slot the node its device hangs on; None where that does not matter.

    Returns:
        For each slot its CPUs, ascending, never empty.
    """
    nodes: dict[int, list[Cpu]] = defaultdict(list)
    for cpu in sorted(topology.cpus):
        nodes[cpu.node].append(cpu)
    wanted = [node if node in nodes else None for node in near]
    if set(wanted) == {None} and len(near) < len(nodes):
        return [sorted(cpu.number for cpu in cpus) for cpus in _join_nodes(list(nodes.values()), len(near))]
    shares = _place(nodes, wanted)
    given = {node: iter(_share(nodes[node], count)) for node, count in Counter(shares).items()}
    return [next(given[node]) for node in shares]


def _join_nodes(nodes: list[list[Cpu]], slots: int) -> list[list[Cpu]]:
    """Fewer slots than nodes: whole nodes to each, the largest first, to whoever has least so far."""
    joined: list[list[Cpu]] = [[] for _ in range(slots)]
    for cpus in sorted(nodes, key=len, reverse=True):
        min(joined, key=len).extend(cpus)
    return joined


def _place(nodes: dict[int, list[Cpu]], wanted: Sequence[int | None]) -> list[int]:
    """A node for each slot: the wanted one, else where a slot more still leaves each the most cores."""
    counts = Counter(node for node in wanted if node is not None)
    cores = {node: len({cpu.core for cpu in cpus}) for node, cpus in nodes.items()}
    free = []
    for _ in range(wanted.count(None)):
        # Every node gets a slot before any gets a second, or its CPUs would lie idle.
        node = max(nodes, key=lambda node: (counts[node] == 0, cores[node] / (counts[node] + 1), -node))
        counts[node] += 1
        free.append(node)
    rest = iter(sorted(free))
    return [next(rest) if node is None else node for node in wanted]


def _share(cpus: list[Cpu], slots: int) -> list[list[int]]:
    """Parts one node's CPUs, given by core, among its slots."""
    cores: dict[int, list[int]] = defaultdict(list)
    for cpu in cpus:
        cores[cpu.core].append(cpu.number)
    if slots <= len(cores):
        return [sorted(itertools.chain(*part)) for part in _parts(list(cores.values()), slots)]
    if slots <= len(cpus):
        return [sorted(part) for part in _parts([cpu.number for cpu in cpus], slots)]
    return [[cpus[slot % len(cpus)].number] for slot in range(slots)]


def _parts(items: list[T], count: int) -> list[list[T]]:
    size, larger = divmod(len(items), count)
    ends = [(index + 1) * size + min(index + 1, larger) for index in range(count)]
    return [items[start:end] for start, end in zip([0, *ends], ends, strict=False)]
