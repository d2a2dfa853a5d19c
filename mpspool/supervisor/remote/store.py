"""A remote base path as fsspec shows it: its versions, their files, and how one is copied. Nothing it says is trusted."""

from __future__ import annotations

import base64
import binascii
import errno
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

import fsspec
from fsspec.callbacks import Callback

from mpspool.supervisor.remote.listing import File, Listing
from mpspool.supervisor.remote.place import scheme
from mpspool.supervisor.version_folders import MAX_VERSION, is_number

# By scheme, the package that fsspec needs, and what of ours brings it.
_PACKAGES = {
    **dict.fromkeys(("s3", "s3a"), ("s3fs", "s3")),
    **dict.fromkeys(("gs", "gcs"), ("gcsfs", "gs")),
    **dict.fromkeys(("abfs", "abfss", "az", "adl"), ("adlfs", "abfs")),
    **dict.fromkeys(("hdfs",), ("pyarrow", "hdfs")),
}
# What changes with a file's content, as the stores call it.
_TAGS = (
    *("ETag", "etag", "checksum", "Content-MD5", "Digest", "md5Hash", "crc32c", "generation"),
    *("LastModified", "Last-Modified", "last_modified", "updated", "mtime", "created", "modificationTime"),
)
# Base64, in Google's words and HTTP's. S3's ETag is no MD5 under aws:kms, and does not say so.
_MD5S = ("md5Hash", "Content-MD5")
_MAX_FILES = 10_000
_MAX_DEPTH = 16
_CONNECT_S, _READ_S = 10, 60
_FULL = (errno.ENOSPC, errno.EDQUOT)


class StoreError(Exception):
    """The store did not give what was asked for; the text says what, and what to do where that is known."""


class Store:
    """One remote base path.

    Args:
        url: with its scheme.
        beat: called whenever something has come from the store.

    Raises:
        StoreError: nothing opens such a scheme, or its package is not installed.
    """

    def __init__(self, url: str, beat: Callable[[], None] = lambda: None) -> None:
        self._beat = beat
        self._web = scheme(url) in ("http", "https")
        try:
            self._files, path = fsspec.url_to_fs(url, **_options(self._web))
        except ImportError as error:
            raise StoreError(_not_installed(url, error)) from error
        except Exception as error:
            raise StoreError(f"{url} cannot be opened: {_words(error)}") from error
        self._path = path.rstrip("/")

    def versions(self) -> dict[int, str]:
        """The version folders, whole or not: the path of each by its number. Raises StoreError."""
        self._files.invalidate_cache()
        found: dict[int, str] = {}
        for name, entry in self._children(self._path, strict=False).items():
            number = _version(name) if entry["type"] == "directory" else None
            # Of "7" and "007" the plain name counts, as in a local base path.
            if number is not None and (number not in found or name == str(number)):
                found[number] = entry["name"].rstrip("/")
        return found

    def listing(self, path: str) -> Listing:
        """All files of a version. Raises StoreError, also for what must not be copied."""
        self._files.invalidate_cache()
        files: list[File] = []
        folders = [(path, "")]
        while folders:
            folder, above = folders.pop()
            for name, entry in self._children(folder, strict=True).items():
                below = f"{above}{name}"
                if entry.get("islink") or entry["type"] not in ("file", "directory"):
                    raise StoreError(f"{below} in {path} is neither file nor folder; links are not followed")
                if entry["type"] == "directory":
                    folders.append((entry["name"].rstrip("/"), f"{below}/"))
                else:
                    files.append(self._file(below, entry))
                if len(files) > _MAX_FILES or below.count("/") > _MAX_DEPTH:
                    raise StoreError(f"{path} has more than {_MAX_FILES} files, or folders without an end")
        return tuple(sorted(files))

    def copy(self, path: str, file: File, target: Path, came: Callable[[int], None]) -> None:
        """Copies one file of a version.

        Args:
            path: the version's, as versions() has it.
            file: of its listing.
            target: a file that is not there, in a folder that is.
            came: called with the number of bytes that have come, where the library says it; in a thread of its own, maybe.

        Raises:
            StoreError: the store did not give all of it.
            OSError: there is no room for it.
        """
        source = f"{path}/{quote(file.name) if self._web else file.name}"
        try:
            self._files.get_file(source, str(target), callback=self._callback(file, came))
        except OSError as error:
            if error.errno in _FULL:
                raise
            raise StoreError(f"{source} was not copied: {_words(error)}") from error
        except Exception as error:
            raise StoreError(f"{source} was not copied: {_words(error)}") from error

    def _callback(self, file: File, came: Callable[[int], None]) -> Any:
        def look(_size: int | None, value: int, **_: Any) -> None:
            self._beat()
            if value > file.size:
                raise StoreError(f"more came than the {file.size:,} bytes that were announced")
            came(value)

        return Callback(hooks={"look": look})

    def _children(self, path: str, *, strict: bool) -> dict[str, dict[str, Any]]:
        """What lies directly in a folder, by name. `strict` refuses a name that leads elsewhere, else it is left out."""
        try:
            # The slash keeps a web server from sending us on to it, and everybody from showing a file for a folder.
            entries = self._files.ls(f"{path}/" if self._web else path, detail=True)
        except Exception as error:
            raise StoreError(f"{path} cannot be listed: {_words(error)}") from error
        self._beat()
        if self._web:
            entries = [_without_dot(entry, path) for entry in entries]
        found = {}
        for entry in entries:
            full = entry["name"]
            if not full.startswith(f"{path}/"):
                continue
            name = full.removeprefix(f"{path}/").rstrip("/")
            if name in ("", ".") or (self._web and ("?" in name or "#" in name)):
                continue  # the folder itself; a page's links that sort it
            if self._web:
                name = unquote(name)
            if _leads_elsewhere(name):
                if strict:
                    raise StoreError(f"{path} lists {name!r}, which is no name of a file in it")
                continue
            found[name] = entry
        return found

    def _file(self, name: str, entry: Mapping[str, Any]) -> File:
        if self._web or entry.get("size") is None:
            try:
                entry = self._files.info(entry["name"])
            except Exception as error:
                raise StoreError(f"{entry['name']} cannot be looked at: {_words(error)}") from error
            self._beat()
        if entry.get("size") is None:
            raise StoreError(
                f"{entry['name']}: the store does not say how large it is, so no copy can be checked"
            )
        tag = "|".join(f"{key}={entry[key]}" for key in _TAGS if entry.get(key) is not None)
        return File(name, int(entry["size"]), tag, _md5(entry))


def _version(name: str) -> int | None:
    digits = name.lstrip("0") or "0"
    if not is_number(name) or len(digits) > len(str(MAX_VERSION)) or int(digits) > MAX_VERSION:
        return None
    return int(digits)


def _without_dot(entry: dict[str, Any], path: str) -> dict[str, Any]:
    """As on a page that has its links without "./" before them."""
    name = entry["name"].removeprefix(f"{path}/./")
    return entry if name == entry["name"] else {**entry, "name": f"{path}/{name}"}


def _leads_elsewhere(name: str) -> bool:
    return name in ("", ".", "..") or "/" in name or "\0" in name


def _md5(entry: Mapping[str, Any]) -> str:
    for key in _MD5S:
        try:
            content = base64.b64decode(entry.get(key) or "", validate=True)
        except (binascii.Error, ValueError, TypeError):
            continue
        if len(content) == 16:
            return content.hex()
    return ""


def _options(web: bool) -> dict[str, Any]:
    if not web:
        return {}
    import aiohttp

    # Its own default ends every copy after five minutes, and waits as long for a server that is silent.
    limits = aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_S, sock_read=_READ_S)
    return {"client_kwargs": {"timeout": limits}}


def _not_installed(url: str, error: ImportError) -> str:
    package, extra = _PACKAGES.get(scheme(url), ("", ""))
    if not package:
        return f"{url} cannot be opened: {_words(error)}"
    return f"{url} needs the package {package}: pip install 'mpspool[{extra}]'"


def _words(error: BaseException) -> str:
    """On one line; fsspec has a bare path for what is not there."""
    if isinstance(error, FileNotFoundError) and not error.strerror:
        return "it is not there"
    return " ".join(str(error).split()) or type(error).__name__
