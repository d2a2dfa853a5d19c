"""What the kernel says of this process's mappings."""

from __future__ import annotations

import re
from pathlib import Path


def huge_mapped_bytes(address: int) -> int:
    """How much of the mapping that begins there is mapped in huge pages of shared memory."""
    smaps = Path("/proc/self/smaps").read_text(encoding="utf-8")
    found = re.search(rf"^{address:x}-.*?ShmemPmdMapped: +(\d+) kB", smaps, re.DOTALL | re.MULTILINE)
    assert found is not None, f"nothing is mapped at {address:x}"
    return int(found[1]) * 1024
