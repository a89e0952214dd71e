"""Paths of a data set's files, which are local ones or URLs."""

import os
import re
import urllib.parse

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")


def scheme_of(path: str | os.PathLike[str]) -> str:
    """Returns the scheme of a URL in lower case; "" for a local path, `file://` among them."""
    found = _SCHEME.match(os.fspath(path))
    scheme = found[1].lower() if found else ""
    return "" if scheme == "file" else scheme


def is_url(path: str | os.PathLike[str]) -> bool:
    """Whether it is written as a URL, be it of a local file."""
    return _SCHEME.match(os.fspath(path)) is not None


def join(directory: str | os.PathLike[str], name: str) -> str:
    """The path of a data set's file."""
    return f"{os.fspath(directory).rstrip('/')}/{name}"


def local_path(path: str) -> str:
    """A local path, without its `file://`."""
    return path[path.index("://") + 3 :] if path[:7].lower() == "file://" else path


def bucket_and_key(path: str) -> tuple[str, str]:
    """The two parts of a URL: `scheme://bucket`, or a server, and the object there."""
    scheme, _, rest = path.partition("://")
    bucket, _, key = rest.partition("/")
    if scheme.lower() in ("http", "https"):  # such a URL may be written with escapes, and is sent with its own
        key = urllib.parse.unquote(key)
    return f"{scheme}://{bucket}", key
