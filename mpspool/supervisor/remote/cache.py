"""The copies of one model's versions: a folder that looks like a base path, and in which a version is whole or not at all.

Beside version 7's folder lies `7.json`, what the store said of it when it was copied; while it is copied it is `7.partial`.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from mpspool.core.rundir import write_file
from mpspool.supervisor.remote import disk_room
from mpspool.supervisor.remote.listing import File, Listing, total_bytes
from mpspool.supervisor.version_folders import version_folders

_PARTIAL = ".partial"
_CHUNK_BYTES = 2**20

# Brings a file to a path, and says meanwhile how many bytes of it have come.
Copy = Callable[[File, Path, Callable[[int], None]], None]


class CacheError(Exception):
    """A version is not copied; the text says why, and what to do."""


class Cache:
    """Of one model.

    Args:
        folder: absolute; created, with all above it, by held().
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @contextlib.contextmanager
    def held(self) -> Iterator[bool]:
        """Nobody else copies here meanwhile, or it is False: somebody else does. Raises CacheError."""
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            descriptor = os.open(self.folder / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise CacheError(
                f"{self.folder} cannot be used: {error.strerror}; name a folder that we may write to in cache_dir"
            ) from error
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield False
            else:
                yield True
        finally:
            os.close(descriptor)

    def versions(self) -> dict[int, Path]:
        """The versions that are here, all of them whole."""
        try:
            return version_folders(self.folder, os.listdir(self.folder))
        except FileNotFoundError:
            return {}

    def listing(self, number: int) -> Listing | None:
        """What the store said of a version when it was copied; None where that is not known."""
        try:
            return msgspec.json.decode(self._record(number).read_bytes(), type=Listing)
        except (OSError, msgspec.DecodeError):
            return None

    def clear(self) -> None:
        """Removes what an end in the middle of a copy has left."""
        for path in self.folder.glob(f"*{_PARTIAL}"):
            shutil.rmtree(path, ignore_errors=True)

    def remove(self, number: int) -> None:
        """Forgets a version, so that it is never seen half gone."""
        folder = self.versions()[number]
        self._record(number).unlink(missing_ok=True)
        gone = self.folder / f"gone.{number}{_PARTIAL}"
        folder.rename(gone)
        shutil.rmtree(gone, ignore_errors=True)

    def take(
        self,
        number: int,
        listing: Listing,
        copy: Copy,
        may_be_put: Callable[[Path], bool],
    ) -> bool:
        """Copies a version, in place of what is here of it; whole, or not at all.

        Args:
            number: of it.
            listing: what it consists of.
            copy: brings one of its files.
            may_be_put: asked when all have come, with where they are: whether it may be here now.

        Returns:
            False where it may not.

        Raises:
            CacheError: there is no room for it, or what came is not what was announced.
            OSError: the file system refused.
        """
        size = total_bytes(listing)
        try:
            with disk_room.kept(self.folder, size) as kept:
                return self._take(number, listing, copy, may_be_put, kept)
        except disk_room.NoRoomError as error:
            raise CacheError(
                f"version {number} takes {size:,} bytes, and {error}: free some, or name another folder in cache_dir"
            ) from error

    def _take(
        self,
        number: int,
        listing: Listing,
        copy: Copy,
        may_be_put: Callable[[Path], bool],
        kept: disk_room.Room,
    ) -> bool:
        partial = self.folder / f"{number}{_PARTIAL}"
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(mode=0o700)
        try:
            _copy_all(listing, partial, copy, kept)
            if not may_be_put(partial):
                return False
            _sync_folders(partial)
            self._put(number, partial, listing)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
        return True

    def _put(self, number: int, partial: Path, listing: Listing) -> None:
        """Without its record a version is copied anew: an end between any two of these steps does no harm."""
        if number in self.versions():
            self.remove(number)
        partial.rename(self.folder / str(number))
        write_file(self._record(number), msgspec.json.encode(listing))
        _sync(self.folder)

    def _record(self, number: int) -> Path:
        return self.folder / f"{number}.json"


def _copy_all(listing: Listing, folder: Path, copy: Copy, kept: disk_room.Room) -> None:
    for file in listing:
        target = folder / file.name
        target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        copy(file, target, kept.came)
        _check(file, target)
        kept.done(file.size)


def _check(file: File, target: Path) -> None:
    """That a copy is what was announced, and on disk. Raises CacheError, OSError."""
    descriptor = os.open(target, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        if (size := os.fstat(descriptor).st_size) != file.size:
            raise CacheError(f"{file.name} came with {size:,} bytes, and {file.size:,} were announced")
        if file.md5 and (found := _md5(descriptor)) != file.md5:
            raise CacheError(f"{file.name} came with the MD5 {found}, and {file.md5} was announced")
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _md5(descriptor: int) -> str:
    found = hashlib.md5(usedforsecurity=False)
    while chunk := os.read(descriptor, _CHUNK_BYTES):
        found.update(chunk)
    return found.hexdigest()


def _sync_folders(root: Path) -> None:
    for folder, _, _ in os.walk(root):
        _sync(Path(folder))


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
