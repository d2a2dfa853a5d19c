"""`python -m tests.fuzz TARGET [libFuzzer's options]`: runs until something is found, or as long as the options say."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["mpspool"], enable_loader_override=False):
    from tests.fuzz.targets import TARGETS, seeds


def main() -> None:
    name, *options = sys.argv[1:]
    if name not in TARGETS:
        sys.exit(f"{name} is no target: there are {', '.join(TARGETS)}")
    with tempfile.TemporaryDirectory() as folder:
        for number, seed in enumerate(seeds(name)):
            (Path(folder) / str(number)).write_bytes(seed)
        atheris.Setup([sys.argv[0], *options, folder], TARGETS[name]())
        atheris.Fuzz()


if __name__ == "__main__":
    main()
