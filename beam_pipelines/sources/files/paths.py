"""Joins, normalizes and compares paths and names of files."""

import fnmatch
import unicodedata
from typing import Collection, Iterable, Sequence

from beam_pipelines.images.images import IMAGE_EXTENSIONS

_IMAGE_ENDS = tuple(IMAGE_EXTENSIONS)


def nfc(text: str) -> str:
    """Returns a string in Unicode's normal form C (NFC), which is the same on every system. Keys have this form."""
    return text if text.isascii() else unicodedata.normalize("NFC", text)


def join(folder: str, name: str) -> str:
    """Joins a folder and a name. An empty folder is the root."""
    return f"{folder}/{name}" if folder and name else folder or name


def matches(path: str, patterns: tuple[str, ...]) -> bool:
    """Returns whether the whole path, or only the last component of the path, matches one of the patterns."""
    name = path.rpartition("/")[2]
    return any(fnmatch.fnmatch(name, pattern) or fnmatch.fnmatch(path, pattern) for pattern in patterns)


def is_utf8(text: str) -> bool:
    """Returns whether a string can be encoded in UTF-8."""
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:  # the operating system's lone surrogates for other bytes
        return False
    return True


def is_odd(parts: Sequence[str]) -> bool:
    """Returns whether a component of a path is empty, "." or "..". Object stores may change such paths."""
    return "" in parts or "." in parts or ".." in parts


def is_image_name(name: str) -> bool:
    """Returns whether a file has the extension of an image format."""
    return name.lower().endswith(_IMAGE_ENDS)


def find_usual(names: Collection[str], usual: Iterable[str]) -> str | None:
    """Returns the name that matches the first possible of the usual names, which are in lower case, or None."""
    by_name = {name.lower(): name for name in sorted(names, reverse=True)}
    return next((by_name[name] for name in usual if name in by_name), None)
