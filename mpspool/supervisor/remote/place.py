"""Which base paths are remote, and where their copies lie. Pure."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from mpspool.core.ids import escape

COPYING = "copying what is new from"
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_LOCAL = ("file", "local")
_WEB = ("http", "https")
# Of a model's name; what tells one folder from another is the digest behind it.
_NAME_CHARACTERS = 60


def is_remote(base_path: str) -> bool:
    """Whether it has a scheme, such as s3://; whether that is one that can be opened is not looked at."""
    return _SCHEME.match(base_path) is not None


def scheme(url: str) -> str:
    """Of a remote base path, in small letters."""
    found = _SCHEME.match(url)
    assert found is not None
    return found[1].lower()


def refusal(url: str) -> str:
    """Why a remote base path cannot be one; "" where nothing is known against it. Secrets in it are not repeated."""
    if scheme(url) in _LOCAL:
        return f"{url} is a local folder: give its path alone, without {scheme(url)}://"
    if _has_secrets(url):
        return (
            f"{shown(url)} is given with a user or a password, which logs and the status would show: give it without,"
            " and name them where the store's own package looks for them (its environment or files)"
        )
    if scheme(url) in _WEB and ("?" in url or "#" in url):
        return f"{shown(url)} has a query or a fragment, which no folder has: give the address up to it"
    return ""


def shown(url: str) -> str:
    """As it may be told: without what may be secret."""
    head, authority, path = _parts(url)
    if _has_secrets(url):
        authority = authority.rpartition("@")[2]
    if scheme(url) in _WEB:
        path = re.split("[?#]", path)[0]
    return f"{head}://{authority}{path}"


def copying(urls: Sequence[str]) -> str:
    """What is said before what is there is copied, which may take long."""
    return f"{COPYING} {', '.join(urls)}"


def _has_secrets(url: str) -> bool:
    """A user with a password, or anybody at a web server; abfs:// has a container there."""
    _, authority, _ = _parts(url)
    user, at, _ = authority.rpartition("@")
    return bool(at) and (scheme(url) in _WEB or ":" in user)


def _parts(url: str) -> tuple[str, str, str]:
    head, _, rest = url.partition("://")
    authority, slash, path = rest.partition("/")
    return head, authority, slash + path


def cache_folder(cache_dir: Path, model: str, url: str) -> Path:
    """Where the versions of a model from there are copied to; another model or place has another folder."""
    digest = hashlib.blake2b(f"{model}\n{url.rstrip('/')}".encode(), digest_size=8).hexdigest()
    return cache_dir / f"{escape(model)[:_NAME_CHARACTERS]}-{digest}"


def default_cache_dir(environ: Mapping[str, str] = os.environ) -> Path:
    """One folder per user, which outlasts the machine's restart: $XDG_CACHE_HOME/mpspool, else ~/.cache/mpspool."""
    cache = environ.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path(os.path.expanduser("~")) / ".cache") / "mpspool"
