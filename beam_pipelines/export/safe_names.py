"""Converts keys and class names to safe file names.

The resulting path is always inside the export directory, and different names have different paths.

Forbidden characters are escaped as in a URL, with `%` and two hex digits. Long names are truncated, and `%~` and a hash
are appended.

    ../up        %2E./up
    a//b         a/%/b
    .hidden      %2Ehidden
    100%25       100%2525
"""

import hashlib
import re

# Path separators, control characters, and strings that look like an escape. In WebDataset, the extension begins at the
# first dot of a name.
_UNSAFE = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\\/]|%(?=[0-9A-Fa-f]{2}|~|$)")
_UNSAFE_OR_DOT = re.compile(rf"{_UNSAFE.pattern}|\.")
_HIDDEN = re.compile(r"^(\.|_(?=_))")  # Readers of folders and tar files skip names that start with these characters.
_MAX_PART, _MAX_PATH = 200, 1000  # In bytes.


def safe_name(text: str) -> str:
    """Converts a string to a single path component, such as a file name."""
    return _part(text, _UNSAFE)


def safe_path(text: str) -> str:
    """Converts a string to a relative path."""
    return _path(text, _UNSAFE)


def safe_stem(text: str) -> str:
    """Converts a string to a relative path whose last component contains no dot."""
    return _path(text, _UNSAFE_OR_DOT)


def _path(text: str, unsafe_at_end: re.Pattern[str]) -> str:
    *folders, name = text.split("/")
    path = "/".join([*(_part(folder, _UNSAFE) for folder in folders), _part(name, unsafe_at_end)])
    return path if len(path.encode()) <= _MAX_PATH else f"%~{_hash(text)}"


def _part(text: str, unsafe: re.Pattern[str]) -> str:
    escaped = _HIDDEN.sub(_escape, unsafe.sub(_escape, text)) or "%"
    if len(escaped.encode()) <= _MAX_PART:
        return escaped
    return f"{escaped.encode()[: _MAX_PART - 20].decode(errors='ignore')}%~{_hash(text)}"


def _escape(match: re.Match[str]) -> str:
    return "".join(f"%{byte:02X}" for byte in match[0].encode())


def _hash(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
