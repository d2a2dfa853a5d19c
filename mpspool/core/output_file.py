"""A file that a command is to write."""

import os
from pathlib import Path


def why_not(path: Path, option: str) -> str:
    """Why what a command finds out could not be written there, and what to do; "" where it could, by what can be seen.

    Args:
        path: of the file, which there may be.
        option: of the command's, which names it.
    """
    folder = path.absolute().parent
    if path.is_dir():
        why = "it is a folder"
    elif not folder.is_dir():
        why = f"there is no folder {str(folder)!r}"
    elif os.access(path if path.exists() else folder, os.W_OK):
        return ""
    else:
        why = "it may not be written"
    return f"cannot write {str(path)!r}: {why}; name another file with {option}"
