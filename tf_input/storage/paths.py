"""Functions for local paths and URLs of files in a dataset."""

import os
import re
import urllib.parse

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")


def scheme_of(path: str | os.PathLike[str]) -> str:
    """Returns the scheme of a URL in lower case, or "" for a local path or a `file://` URL."""
    match = _SCHEME.match(os.fspath(path))
    scheme = match[1].lower() if match else ""
    return "" if scheme == "file" else scheme


def is_url(path: str | os.PathLike[str]) -> bool:
    """Returns whether a path has the form of a URL, including `file://` URLs."""
    return _SCHEME.match(os.fspath(path)) is not None


def join(directory: str | os.PathLike[str], name: str) -> str:
    """Returns the path of a file in a directory or URL."""
    return f"{os.fspath(directory).rstrip('/')}/{name}"


def local_path(path: str) -> str:
    """Returns a local path without the prefix `file://`."""
    return path[path.index("://") + 3 :] if path[:7].lower() == "file://" else path


def bucket_and_key(path: str) -> tuple[str, str]:
    """Splits a URL into `scheme://bucket` (or `scheme://server`) and the key of the object."""
    scheme, _, rest = path.partition("://")
    bucket, _, key = rest.partition("/")
    if scheme.lower() in ("http", "https"):  # obstore escapes the path again
        key = urllib.parse.unquote(key)
    return f"{scheme}://{bucket}", key
