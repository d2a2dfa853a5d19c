"""With this folder in PYTHONPATH, `python -m mpspool.worker` runs app.py of this folder instead of its own."""

import importlib.abc
import importlib.util
import sys
from pathlib import Path


class _Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, fullname, path=None, target=None):  # type: ignore[no-untyped-def]
        if fullname != "mpspool.worker.app":
            return None
        return importlib.util.spec_from_file_location(fullname, Path(__file__).with_name("app.py"))


sys.meta_path.insert(0, _Finder())
