"""Joins, normalizes and compares paths."""

import fnmatch
import unicodedata
from typing import Sequence


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
