"""How much memory can be taken before the kernel starts to end processes for it."""

from __future__ import annotations

from pathlib import Path


def available_bytes(root: Path = Path("/")) -> int | None:
    """What this process and its container may still take; None where the kernel does not say.

    Args:
        root: where proc and sys are.
    """
    rooms = [room for room in (_machine(root), *_containers(root)) if room is not None]
    return min(rooms, default=None)


def _machine(root: Path) -> int | None:
    fields = _fields(root / "proc/meminfo")
    if "MemAvailable" not in fields:
        return None
    return 1024 * (fields["MemAvailable"] + fields.get("SwapFree", 0))


def _containers(root: Path) -> list[int | None]:
    """The room in each control group above this process, of both versions."""
    rooms: list[int | None] = []
    for line in _text(root / "proc/self/cgroup").splitlines():
        hierarchy, controllers, path = line.split(":", 2)
        if hierarchy == "0":
            mount, files = "sys/fs/cgroup", ("memory.max", "memory.current")
            cache = ("inactive_file", "active_file")
        elif "memory" in controllers.split(","):
            mount, files = "sys/fs/cgroup/memory", ("memory.limit_in_bytes", "memory.usage_in_bytes")
            cache = ("total_inactive_file", "total_active_file")
        else:
            continue
        # In a container the path may be the host's, and the mount what lies under it.
        group = Path(path.lstrip("/"))
        rooms += [_group(root / mount / folder, files, cache) for folder in (group, *group.parents)]
    return rooms


def _group(folder: Path, files: tuple[str, str], cache: tuple[str, str]) -> int | None:
    limit, used = (_text(folder / name).strip() for name in files)
    if not limit.isdigit() or not used.isdigit():
        return None
    stat = _fields(folder / "memory.stat")
    return int(limit) - int(used) + sum(stat.get(name, 0) for name in cache)


def _fields(path: Path) -> dict[str, int]:
    """Lines of a name and a number."""
    found = {}
    for line in _text(path).splitlines():
        words = line.replace(":", " ").split()
        if len(words) >= 2 and words[1].isdigit():
            found[words[0]] = int(words[1])
    return found


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
