"""Expands file name patterns in `--input`, such as `train-*.tfrecord` and `shard-{000..010}.tar`."""

import itertools
import math
import os
import posixpath
import re
from typing import Collection, NamedTuple

from beam_pipelines.errors import UserError
from beam_pipelines.storage.files import files_at, is_remote

MAX_NAMES = 1_000_000

_BRACES = re.compile(r"\{([^{}]*)\}")
_RANGE = re.compile(r"(\d{1,9})\.\.(\d{1,9})")
_MAGIC = re.compile(r"[*?\[{]")
_GLOB = re.compile(r"(\*\*/|\*|\?|\[!?[^\]/]+\])")


class InputNames(NamedTuple):
    """An input path, divided into a folder and optional file names or patterns. If there are no names or patterns, the
    whole folder is the input.

    Attributes:
        folder: The folder that names and patterns are relative to.
        literal: Names of files in the folder.
        patterns: Patterns of names in the folder.
    """

    folder: str
    literal: set[str]
    patterns: list[str]

    @property
    def is_deep(self) -> bool:
        """Whether a pattern can match files in subfolders."""
        return any("/" in pattern for pattern in self.patterns)

    def fitting(self, names: Collection[str]) -> list[str]:
        """Returns the names that match a pattern."""
        globs = list(map(_as_regex, self.patterns))
        return [name for name in names if any(glob.fullmatch(name) for glob in globs)]

    def may_fit_below(self, folder: str) -> bool:
        """Returns whether a pattern can match any file in the given folder."""
        parts = folder.split("/")
        for pattern in self.patterns:
            *above, _ = pattern.split("/")
            fixed = above[: above.index("**")] if "**" in above else above
            is_deep_enough = len(fixed) < len(above) or len(parts) <= len(above)
            if is_deep_enough and all(_as_regex(item).fullmatch(part) for item, part in zip(fixed, parts)):
                return True
        return False


def expand_braces(pattern: str) -> list[str]:
    """Expands braces: `{000..010}` is a zero-padded range, and `{a,b}` is a choice. Raises `UserError` if there are
    more than `MAX_NAMES` names, or a range is descending."""
    chunks = _BRACES.split(pattern)
    choices = [_choices(chunk) if index % 2 else [chunk] for index, chunk in enumerate(chunks)]
    if math.prod(map(len, choices)) > MAX_NAMES:
        raise UserError(
            f"--input={pattern}: the braces stand for more than {MAX_NAMES} names. Use a pattern with * or ? instead."
        )
    return ["".join(chosen) for chosen in itertools.product(*choices)]


def _choices(text: str) -> list[str]:
    match = _RANGE.fullmatch(text)
    if not match:
        return text.split(",")
    first, last = int(match[1]), int(match[2])
    if not 0 <= last - first < MAX_NAMES:
        raise UserError(
            f"--input=…{{{text}}}…: not a range of 1 to {MAX_NAMES} names in ascending order. Correct the two numbers."
        )
    return [str(number).zfill(len(match[1])) for number in range(first, last + 1)]


def split_input(path: str) -> InputNames:
    """Splits an input path into a folder and optional file names or patterns. An existing file or folder is never
    treated as a pattern."""
    if is_remote(path):
        if not path.endswith("/") and not _MAGIC.search(path) and files_at(path).exists(path):
            folder, _, name = path.rpartition("/")
            return InputNames(folder, {name}, [])
    elif os.path.isfile(path):
        folder, name = os.path.split(os.path.realpath(path))
        return InputNames(folder, {name}, [])
    elif os.path.isdir(path):
        return InputNames(path, set(), [])
    magic = _MAGIC.search(path)
    if magic is None:
        folder, _, name = path.rpartition("/")
        return InputNames(path.rstrip("/"), set(), []) if is_remote(path) else InputNames(folder or ".", {name}, [])
    folder, slash, _ = path[: magic.start()].rpartition("/")
    names = [posixpath.normpath(name) for name in expand_braces(path[len(folder) + len(slash) :])]
    patterns = [name for name in names if _MAGIC.search(name)]
    return InputNames(folder or slash or ".", set(names).difference(patterns), patterns)


def _as_regex(pattern: str) -> re.Pattern[str]:
    """Compiles a glob pattern. The wildcards `*` and `?` match within one path component, and `**/` matches any number
    of components."""
    try:
        return re.compile("".join(map(_segment_as_regex, _GLOB.split(pattern))))
    except re.error as error:
        raise UserError(f"--input=…{pattern}: invalid pattern ({error}). Use shell syntax, such as [a-z]*.csv.") from None


def _segment_as_regex(segment: str) -> str:
    if segment.startswith("[") and len(segment) > 2:
        negated = segment.startswith("[!")
        characters = re.sub(r"([\\\]^\[&~|])", r"\\\1", segment[1 + negated : -1])
        return f"[{'^/' if negated else ''}{characters}]"
    return {"**/": "(?:.*/)?", "*": "[^/]*", "?": "[^/]"}.get(segment) or re.escape(segment)
