"""The files below a folder, in a file system or in an object store, by the rules that `image_folder` has for them.

Hidden files, `Thumbs.db`, `desktop.ini`, `__MACOSX`, README, LICENSE and the like, checksums, and what `--ignore` names are ignored,
and counted. A link to a file below the source's root is like the file; any other link, a device, and a name that is not UTF-8 or may
turn into another one on its way to a store, is a dead letter.
"""

import fnmatch
import os
from typing import Iterator, NamedTuple

from beam_pipelines.elements.dead_letters import DeadLetter
from beam_pipelines.errors import printable
from beam_pipelines.sources.folders.other_files import is_left_out
from beam_pipelines.sources.folders.roots import OutsideError, Root
from beam_pipelines.storage.files import files_at, is_remote
from beam_pipelines.storage.input_errors import kind_of, listing_error


class FoundFile(NamedTuple):
    """A file.

    Attributes:
        path: Relative to the root.
        num_bytes: Its size; 0 where that would have cost a look at it.
    """

    path: str
    num_bytes: int


class FileListing:
    """Lists files.

    Args:
        root: Of the source.
        ignore: Glob patterns of names or paths that are not wanted.
        with_sizes: Each file's size is wanted too. A store says it in any case.

    Attributes:
        num_ignored: Files that were ignored.
    """

    def __init__(self, root: Root, ignore: tuple[str, ...], with_sizes: bool = False) -> None:
        self.num_ignored = 0
        self._root = root
        self._ignore = ignore
        self._with_sizes = with_sizes
        self._is_remote = is_remote(root.path)

    def walk(self, folder: str = "") -> Iterator[FoundFile | DeadLetter]:
        """All files below a folder, relative to the root; "" is the root.

        Raises:
            UserError: A folder cannot be read.
        """
        return self._walk_store(folder) if self._is_remote else self._walk_disk(folder)

    def top_level(self, folder: str = "") -> tuple[list[str], list[str]]:
        """Names of the folders and of the files directly in a folder, each sorted, links to folders left out.

        Raises:
            UserError: It cannot be read.
        """
        if self._is_remote:
            folders, files = files_at(self._root.path).top_level(join(self._root.path, folder))
        else:
            entries = self._scan(folder)
            folders = [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
            files = [entry.name for entry in entries if entry.is_file()]
        return tuple([name for name in names if not self._is_ignored(join(folder, name))] for names in (folders, files))

    def _walk_disk(self, folder: str) -> Iterator[FoundFile | DeadLetter]:
        folders = [folder]
        while folders:
            parent = folders.pop()
            for entry in self._scan(parent):
                path = join(parent, entry.name)
                if self._is_ignored(path):
                    self.num_ignored += 1
                elif entry.is_dir(follow_symlinks=False):
                    folders.append(path)
                else:
                    yield self._look_at(entry, path)

    def _look_at(self, entry: os.DirEntry, path: str) -> FoundFile | DeadLetter:
        if not is_utf8(path):
            return DeadLetter(printable(path), "list", "not_utf8", "the file's name is not UTF-8")
        if not entry.is_file(follow_symlinks=False):
            refusal = self._refuse(entry, path)
            if refusal:
                return DeadLetter(path, "list", *refusal)
        return FoundFile(path, entry.stat().st_size if self._with_sizes else 0)

    def _refuse(self, entry: os.DirEntry, path: str) -> tuple[str, str] | None:
        """Reason and message for what is not a plain file; None for a link to one below the root."""
        if not entry.is_symlink():
            return "not_a_file", "neither a file nor a folder"
        try:
            self._root.relative(path)
        except OutsideError:
            return "outside", "a link out of the input folder, which is not followed"
        kind = kind_of(entry.path)
        if kind == "folder":
            return "symlink", "a link to a folder, which is not followed"
        return None if kind == "file" else ("symlink", "a broken link")

    def _walk_store(self, folder: str) -> Iterator[FoundFile | DeadLetter]:
        for name, num_bytes in files_at(self._root.path).list(join(self._root.path, folder)):
            path = join(folder, name)
            parts = name.split("/")
            if not all(part not in ("", ".", "..") for part in parts):
                yield DeadLetter(printable(path), "list", "odd_name", "a name with an empty part, '.' or '..' in it")
            elif any(self._is_ignored(join(folder, "/".join(parts[: end + 1]))) for end in range(len(parts))):
                self.num_ignored += 1
            else:
                yield FoundFile(path, num_bytes)

    def _scan(self, folder: str) -> list[os.DirEntry]:
        try:
            with os.scandir(join(self._root.path, folder)) as entries:
                return sorted(entries, key=lambda entry: entry.name)
        except OSError as error:
            name = printable(folder) or self._root.path
            told = f"--input={self._root.path}: folder {name!r} cannot be read: {error.strerror}"
            raise listing_error(error, join(self._root.path, folder), told) from error

    def _is_ignored(self, path: str) -> bool:
        name = path.rpartition("/")[2]
        return is_left_out(name) or matches(path, self._ignore)


def join(folder: str, name: str) -> str:
    """The path of a name in a folder; "" is the root."""
    return f"{folder}/{name}" if folder and name else folder or name


def matches(path: str, patterns: tuple[str, ...]) -> bool:
    """Whether a path, or the name at its end, is like one of the patterns."""
    name = path.rpartition("/")[2]
    return any(fnmatch.fnmatch(name, pattern) or fnmatch.fnmatch(path, pattern) for pattern in patterns)


def is_utf8(text: str) -> bool:
    """Whether a text can be encoded in UTF-8."""
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:  # bytes that are not UTF-8 come as lone surrogates
        return False
    return True
