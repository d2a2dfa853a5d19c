"""fsspec's `full://` for tests: a local folder whose files find the disk full while there is a file `disk_is_full` in it.

What a client library does then is what the kernel makes it do, half of a file and ENOSPC: a file system of our own that is
full would take rights that tests do not have.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

from fsspec import AbstractFileSystem
from fsspec.implementations.local import LocalFileSystem


class FullStore(AbstractFileSystem):
    protocol = "full"

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._local = LocalFileSystem()

    def ls(self, path: str, detail: bool = True, **_kwargs: object) -> Any:
        return self._local.ls(path, detail=detail)

    def get_file(self, rpath: str, lpath: str, **_kwargs: object) -> None:
        content = Path(rpath).read_bytes()
        full = any((folder / "disk_is_full").exists() for folder in Path(rpath).parents)
        Path(lpath).write_bytes(content[: len(content) // 2] if full else content)
        if full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
