"""With this folder in PYTHONPATH, a worker runs app.py of this folder, which can look at itself first."""

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
