"""Files with many examples in each: which of them an input means, and in which split they are.

    the input                    the files
    a file                       that one
    data/train-*.tfrecord        what the pattern fits; `**/` stands for any folders
    data/shard-{000..010}.tar    eleven names; {a,b} stands for either
    a folder                     what is named like such a file, in it and below

A file is named like a split if `train`, `val`, `test`, … is a word of its name, or of its folder's.
"""

import itertools
import math
import os
import posixpath
import re
from typing import Callable

from beam_pipelines.config.prepare_config import PrepareConfig
from beam_pipelines.elements.dead_letters import DeadLetter
from beam_pipelines.errors import UserError, printable
from beam_pipelines.sources.folders.file_listing import FileListing
from beam_pipelines.sources.folders.roots import Root
from beam_pipelines.sources.splits import SPLIT_FOLDERS
from beam_pipelines.storage.files import files_at, is_remote

MAX_NAMES = 1_000_000

_BRACES = re.compile(r"\{([^{}]*)\}")
_RANGE = re.compile(r"(\d{1,9})\.\.(\d{1,9})")
_MAGIC = re.compile(r"[*?\[{]")
_GLOB = re.compile(r"(\*\*/|\*|\?|\[!?[^\]/]+\])")
_WORD = re.compile(r"[A-Za-z]+")


class Containers:
    """The files of an input.

    Args:
        config: Where they lie, and which are ignored.
        is_container: Whether a file is named like one; asked of a folder's files.
        expected: How they are named, for a message.

    Attributes:
        root: The folder that they lie below.
        names: Paths below it, in ascending order; at least one.

    Raises:
        UserError: There is none.
    """

    def __init__(self, config: PrepareConfig, is_container: Callable[[str], bool], expected: str) -> None:
        self._config = config
        self._num_ignored = 0
        self._dead_letters: list[DeadLetter] = []
        folder, literal, patterns = _split_input(config.input)
        self.root = Root(folder)
        if not literal and not patterns:
            names = self._all_files()
            self.names = sorted(name for name in names if is_container(name.rpartition("/")[2]))
            self._num_ignored += len(names) - len(self.names)
        else:
            self.names = sorted(self._fitting(literal, patterns))
        if not self.names:
            raise UserError(f"--input={config.input}: no file; expected {expected}")

    def beside(self, part: str) -> tuple[int, list[DeadLetter]]:
        """What is told with the first file: how many others are ignored, and what can't be opened."""
        return (self._num_ignored, self._dead_letters) if part == self.names[0] else (0, [])

    def splits(self) -> dict[str, str]:
        """The split of each file by its name; empty unless all are named like one, or where other splits were asked for."""
        if self._config.split_folders is False:
            return {}
        splits = {name: split for name in self.names if (split := split_in_name(name))}
        if len(splits) < len(self.names):
            if self._config.split_folders:
                other = next(name for name in self.names if name not in splits)
                raise UserError(
                    f"--split_folders=yes: {printable(other)!r} is not named like a split; expected a name such as train-00000"
                )
            return {}
        if self._config.splits is not None and len(set(splits.values())) == 1:
            return {}  # one split, which is to be divided
        return splits

    def _all_files(self) -> list[str]:
        listing = FileListing(self.root, self._config.ignore)
        names = []
        for found in listing.walk():
            if isinstance(found, DeadLetter):
                self._dead_letters.append(found)
            else:
                names.append(found.path)
        self._num_ignored = listing.num_ignored
        return names

    def _fitting(self, literal: set[str], patterns: list[str]) -> set[str]:
        for name in literal if len(literal) == 1 else ():  # of many, each says so when it is opened
            if not files_at(self.root.path).exists(f"{self.root.path}/{name}"):
                raise UserError(f"--input={self._config.input}: no such file or folder; expected one, or a pattern of names")
        if not patterns:
            return literal
        globs = list(map(_as_regex, patterns))
        if any("/" in pattern for pattern in patterns):
            names = self._all_files()
        else:  # there may be millions of files below
            names = FileListing(self.root, self._config.ignore).top_level()[1]
        found = literal.union(name for name in names if any(glob.fullmatch(name) for glob in globs))
        self._num_ignored = 0
        self._dead_letters = [
            letter for letter in self._dead_letters if any(glob.fullmatch(letter.path) for glob in globs)
        ]
        return found


def split_in_name(path: str) -> str | None:
    """`flowers-train.tfrecord-00000-of-00016`, `val/7.tar`: the last word that names a split, a file's before a folder's."""
    for part in reversed(path.split("/")):
        named = [SPLIT_FOLDERS[word.lower()] for word in _WORD.findall(part) if word.lower() in SPLIT_FOLDERS]
        if named:
            return named[-1]
    return None


def expand_braces(pattern: str) -> list[str]:
    """`{000..010}` is a range, as wide as its first number; `{a,b}` a choice.

    Raises:
        UserError: They are more than `MAX_NAMES`, or a range descends.
    """
    pieces = _BRACES.split(pattern)
    choices = [_choices(piece) if index % 2 else [piece] for index, piece in enumerate(pieces)]
    if math.prod(map(len, choices)) > MAX_NAMES:
        raise UserError(f"--input={pattern}: more than {MAX_NAMES} names; expected no more")
    return ["".join(chosen) for chosen in itertools.product(*choices)]


def _choices(text: str) -> list[str]:
    match = _RANGE.fullmatch(text)
    if not match:
        return text.split(",")
    first, last = int(match[1]), int(match[2])
    if not 0 <= last - first < MAX_NAMES:
        raise UserError(f"--input=…{{{text}}}…: expected an ascending range of at most {MAX_NAMES} names")
    return [str(number).zfill(len(match[1])) for number in range(first, last + 1)]


def _split_input(path: str) -> tuple[str, set[str], list[str]]:
    """A folder, and the names and patterns below it that an input means; neither: whatever lies there."""
    if is_remote(path):
        if not path.endswith("/") and not _MAGIC.search(path) and files_at(path).exists(path):
            folder, _, name = path.rpartition("/")
            return folder, {name}, []
    elif os.path.isfile(path):
        folder, name = os.path.split(os.path.realpath(path))
        return folder, {name}, []
    elif os.path.isdir(path):
        return path, set(), []
    magic = _MAGIC.search(path)
    if magic is None:
        folder, _, name = path.rpartition("/")
        return (path.rstrip("/"), set(), []) if is_remote(path) else (folder or ".", {name}, [])
    folder, slash, _ = path[: magic.start()].rpartition("/")
    names = [posixpath.normpath(name) for name in expand_braces(path[len(folder) + len(slash) :])]
    patterns = [name for name in names if _MAGIC.search(name)]
    return folder or slash or ".", set(names).difference(patterns), patterns


def _as_regex(pattern: str) -> re.Pattern[str]:
    """A glob pattern: `*` and `?` stay within one part of a path, `**/` does not."""
    return re.compile("".join(map(_as_regex_piece, _GLOB.split(pattern))))


def _as_regex_piece(piece: str) -> str:
    if piece.startswith("[") and len(piece) > 2:
        negated = piece.startswith("[!")
        characters = re.sub(r"([\\\]^\[&~|])", r"\\\1", piece[1 + negated : -1])
        return f"[{'^/' if negated else ''}{characters}]"
    return {"**/": "(?:.*/)?", "*": "[^/]*", "?": "[^/]"}.get(piece) or re.escape(piece)
