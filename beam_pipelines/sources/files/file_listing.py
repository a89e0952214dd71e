"""Lists the files below a folder in a file system or in an object store.

Hidden files, system files such as `Thumbs.db`, notes such as README, checksums, and files that match `--ignore` are
ignored and counted. Links to files below the source's root are followed. With `--follow_links`, all links are followed,
except links to a folder that contains the link itself. Dead letters are created for links that are not followed, for
devices, and for names that are not valid UTF-8.
"""

import itertools
import operator
import os
import posixpath
from typing import Any, Callable, Iterable, Iterator, NamedTuple, Sequence

from beam_pipelines.elements.dead_letters import DeadLetter
from beam_pipelines.errors import UserError, printable
from beam_pipelines.sources.files.other_files import is_ignored
from beam_pipelines.sources.files.paths import is_odd, is_utf8, join, matches
from beam_pipelines.sources.files.patterns import InputNames
from beam_pipelines.sources.files.roots import Root
from beam_pipelines.storage.files import files_at, is_remote
from beam_pipelines.storage.input_errors import kind_of, listing_error

# Enough for a large cluster. In an object store, each part may take one more listing request.
MAX_PARTS = 32
LINK_OUT = "a link to a target outside the input folder (use --follow_links to follow it)"
LINK_TO_FOLDER = "a link to a folder (use --follow_links to follow it)"


class ListedFile(NamedTuple):
    """A file below the root.

    Attributes:
        path: The path of the file, relative to the root.
        num_bytes: The size of the file in bytes, as listed by an object store; 0 on a disk.
    """

    path: str
    num_bytes: int


class Level(NamedTuple):
    """The files and subfolders directly in a folder, without ignored entries. Names are sorted.

    Attributes:
        folders: Names of folders, and of links to folders that are followed.
        links: Names of links to folders that are not followed.
        files: Names of files, and of links to files.
        others: Names of other entries, such as broken links.
    """

    folders: list[str]
    links: list[str]
    files: list[str]
    others: list[str]

    @property
    def has_files(self) -> bool:
        """Whether the folder contains entries that are neither folders nor links to folders."""
        return bool(self.files or self.others)


class FolderPart(NamedTuple):
    """One part of a listing. A part consists of folders on a disk, or of a range of names in an object store.

    Attributes:
        folders: Folders of a disk to list recursively.
        alone: Folders of a disk to list without their subfolders.
        first: The first name of the range in a store. The name itself need not exist.
        end: The exclusive end of the range in a store; empty means that the range has no end.
    """

    folders: list[str]
    alone: list[str]
    first: str = ""
    end: str = ""


class FileListing:
    """Lists the files below a root.

    Args:
        root: The root of the source.
        ignore: Glob patterns of names or paths to ignore.

    Attributes:
        num_ignored: The number of files that were ignored.
        is_remote: Whether the root is in an object store.
    """

    def __init__(self, root: Root, ignore: tuple[str, ...]) -> None:
        self.num_ignored = 0
        self._root = root
        self._ignore = ignore
        self.is_remote = is_remote(root.path)

    def walk(self, folder: str = "") -> Iterator[ListedFile | DeadLetter]:
        """Yields all files below a folder ("" is the root). The files of each folder are sorted by name. Raises
        `UserError` if a folder cannot be read."""
        if self.is_remote:
            for _, files in self._walk_store(files_at(self._root.path).list(join(self._root.path, folder)), folder):
                yield from files
        else:
            for _, files in self._walk_disk([folder]):
                yield from sorted(files, key=operator.itemgetter(0))

    def walk_part(self, part: FolderPart) -> Iterator[tuple[str, Iterator[ListedFile | DeadLetter]]]:
        """Yields the folders of one part of the listing, each with an iterator over the files that are directly in it.

        The caller must consume the files of a folder before it requests the next folder. In an object store, a folder
        can be yielded more than once, and files below an invalid folder name are reported in the root folder. Raises
        `UserError` if a folder cannot be read.
        """
        if self.is_remote:
            return self._walk_store(self._names_between(part.first, part.end))
        return itertools.chain(((folder, self._files_in(folder, [])) for folder in part.alone), self._walk_disk([*part.folders]))

    def cut(self, folders: Iterable[str], above: Sequence[str]) -> list[FolderPart]:
        """Divides the files below the root into up to `MAX_PARTS` parts.

        Args:
            folders: Folders of equal depth. A folder and all its subfolders belong to the same part.
            above: The parent folders of `folders`. The files directly in these parent folders are also listed.
        """
        folders = sorted(folders, key=lambda folder: f"{folder}/")  # the order in which a store lists their files
        size = max(1, -(-len(folders) // MAX_PARTS))
        dealt = [folders[start : start + size] for start in range(0, len(folders), size)] or [[]]
        if not self.is_remote:
            return [FolderPart(some, [] if number else [*above]) for number, some in enumerate(dealt)]
        if len(dealt) > 1 and files_at(self._root.path).is_one_page(self._root.path):
            dealt = dealt[:1]
        bounds = ["", *(f"{some[0]}/" for some in dealt[1:]), ""]
        return [FolderPart([], [], first, end) for first, end in itertools.pairwise(bounds)]

    def level(self, folder: str = "", is_short: bool = False) -> Level:
        """Lists the files and subfolders directly in a folder ("" is the root). With `is_short`, reads only the first
        page of names from an object store, and lists only one file on a disk. Raises `UserError` if the folder cannot
        be read."""
        if self.is_remote:
            folders, files = files_at(self._root.path).top_level(join(self._root.path, folder), is_short)
            is_kept = [[name for name in names if not self._is_ignored(folder, name, names is folders)] for names in (folders, files)]
            return Level(sorted(is_kept[0]), [], sorted(is_kept[1]), [])
        names = Level([], [], [], [])
        for entry in self._scan(folder):
            path, is_file = join(folder, entry.name), entry.is_file(follow_symlinks=False)
            if (is_file and is_short and names.files) or self._is_entry_ignored(entry, path):
                continue
            kind = "file" if is_file else "folder" if entry.is_dir(follow_symlinks=False) else kind_of(entry.path)
            if kind == "folder":
                (names.links if entry.is_symlink() and not self._is_followed(path) else names.folders).append(entry.name)
            else:
                (names.files if kind == "file" else names.others).append(entry.name)
        return Level(*map(sorted, names))

    def top_level(self, folder: str = "", is_short: bool = False) -> tuple[list[str], list[str]]:
        """Returns the sorted names of the subfolders and of the files directly in a folder. Links are treated like
        their targets. With `is_short`, reads only the first page of names from an object store. Raises `UserError` if
        the folder cannot be read."""
        level = self.level(folder, is_short and self.is_remote)
        return sorted([*level.folders, *level.links]), level.files

    def fitting(self, wanted: InputNames) -> tuple[list[str], list[DeadLetter]]:
        """Returns the paths that match the patterns, and the dead letters of files and folders that match or may
        contain matches. Raises `UserError` if a folder cannot be read."""
        names: list[str] = []
        rejected: dict[str, DeadLetter] = {}
        for listed_file in self.walk() if wanted.is_deep else self._direct_files(""):
            if isinstance(listed_file, DeadLetter):
                rejected[listed_file.path] = listed_file
            else:
                names.append(listed_file.path)
        folders = (path for path in rejected if os.path.isdir(f"{self._root.path}/{path}"))
        fitting = {*wanted.fitting(rejected), *filter(wanted.may_fit_below, folders)}
        return wanted.fitting(names), [rejected[path] for path in sorted(fitting)]

    def take_files(self, folder: str, is_wanted: Callable[[str], Any]) -> list[str]:
        """Returns the sorted names of the files directly in a folder that satisfy `is_wanted`. Raises `UserError` if
        the folder or one of these files cannot be read, for example because it is a link that is not followed."""
        wanted = sorted(outcome for outcome in self._direct_files(folder) if is_wanted(posixpath.basename(outcome.path)))
        self.reject(result for result in wanted if isinstance(result, DeadLetter))
        return [posixpath.basename(value.path) for value in wanted]

    def reject(self, dead_letters: Iterable[DeadLetter]) -> None:
        """Raises `UserError` if there is a dead letter. Used by sources that need every file."""
        for letter in dead_letters:
            raise self._rejection(letter.path, letter.message, "a file")

    def take_folder(self, folder: str) -> str:
        """Returns the path of a folder. Raises `UserError` if the folder, or a folder above it, is a link that is not
        followed."""
        for path in itertools.accumulate(folder.split("/"), join):
            if not self.is_remote and os.path.islink(f"{self._root.path}/{path}") and not self._is_followed(path):
                raise self._rejection(printable(path), LINK_TO_FOLDER, "a folder")
        return folder

    def _rejection(self, path: str, problem: str, expected: str) -> UserError:
        leave = "" if problem in (LINK_OUT, LINK_TO_FOLDER) else f", or leave it out with --ignore={path!r}"
        return UserError(f"--input={self._root.path}: {path!r} is {problem}. Replace it with {expected}{leave}.")

    def _direct_files(self, folder: str) -> Iterator[ListedFile | DeadLetter]:
        """Yields the files directly in a folder, in any order. Links to folders are omitted."""
        if self.is_remote:
            yield from (ListedFile(join(folder, name), 0) for name in self.top_level(folder)[1])
        else:
            # A separate listing, because `walk` counts the ignored files.
            files = FileListing(self._root, self._ignore)._files_in(folder, [])
            yield from (file for file in files if isinstance(file, ListedFile) or not os.path.isdir(f"{self._root.path}/{file.path}"))

    def _walk_disk(self, folders: list[str]) -> Iterator[tuple[str, Iterator[ListedFile | DeadLetter]]]:
        while folders:
            parent = folders.pop()
            yield parent, self._files_in(parent, folders)

    def _files_in(self, folder: str, folders: list[str]) -> Iterator[ListedFile | DeadLetter]:
        below = f"{folder}/" if folder else ""
        for entry in self._scan(folder):
            path = below + entry.name
            if self._is_entry_ignored(entry, path):
                self.num_ignored += 1
            elif not (is_plain := entry.is_file(follow_symlinks=False)) and (
                entry.is_dir(follow_symlinks=False) or self._is_followed(path)
            ):
                folders.append(path)
            else:
                rejected = None if is_plain and is_utf8(path) else self._reject(entry, path)
                yield rejected or ListedFile(path, 0)

    def _reject(self, entry: os.DirEntry, path: str) -> DeadLetter | None:
        """Returns the dead letter for a folder entry, or None if the entry is a link to a file that may be read."""
        kind = None
        if not is_utf8(path):
            rejection = "not_utf8", "a file name that is not valid UTF-8"
        elif not entry.is_symlink():
            rejection = "not_a_file", "neither a file nor a folder"
        elif not self._root.follows_links and not self._root.holds(os.path.realpath(entry.path)):
            rejection = "outside", LINK_OUT
        elif (kind := kind_of(entry.path)) == "folder":
            rejection = "symlink", "a link to a folder that contains the link" if self._root.follows_links else LINK_TO_FOLDER
        elif kind == "other":
            rejection = "symlink", "a link to neither a file nor a folder"
        else:
            rejection = "symlink", "a broken link"
        return None if kind == "file" else DeadLetter(printable(path), "list", *rejection)

    def _is_followed(self, path: str) -> bool:
        """Returns whether a path is a link to a folder that is followed."""
        return self._root.follows_links and kind_of(f"{self._root.path}/{path}") == "folder" and not self._root.is_loop(path)

    def _names_between(self, first: str, end: str) -> Iterator[tuple[str, int]]:
        for page in files_at(self._root.path).pages_from(self._root.path, first):
            yield from (item for item in page if first <= item[0] and (not end or item[0] < end))
            if end and page and page[-1][0] >= end:
                return

    def _walk_store(self, listed: Iterable[tuple[str, int]], folder: str = "") -> Iterator[tuple[str, Iterator[ListedFile | DeadLetter]]]:
        for parent, objects in itertools.groupby(listed, lambda item: item[0].rpartition("/")[0]):
            parts = parent.split("/")
            paths = [folder] if is_odd(parts) else [*itertools.accumulate(parts, join, initial=folder)]
            ignored = next((above for above, part in zip(paths[:-1], parts) if self._is_ignored(above, part, is_folder=True)), None)
            if ignored is None:
                yield paths[-1], self._objects_in(folder, objects)
            else:
                self.num_ignored += sum(1 for _ in objects)
                yield ignored, iter(())

    def _objects_in(self, folder: str, objects: Iterable[tuple[str, int]]) -> Iterator[ListedFile | DeadLetter]:
        for name, num_bytes in objects:
            path = join(folder, name)
            if is_odd(name.split("/")):
                yield DeadLetter(printable(path), "list", "odd_name", "a name with an empty part, '.' or '..' in it")
            elif self._is_ignored(*posixpath.split(path)):
                self.num_ignored += 1
            else:
                yield ListedFile(path, num_bytes)

    def _scan(self, folder: str) -> Iterator[os.DirEntry]:
        try:
            with os.scandir(join(self._root.path, folder)) as entries:
                yield from entries
        except OSError as error:
            name = printable(folder) or self._root.path
            message = f"--input={self._root.path}: folder {name!r} cannot be read: {error.strerror}"
            if isinstance(error, NotADirectoryError) and not folder:
                advice = "Pass a folder, or omit --source to detect the format of the file."
                message = f"--input={self._root.path}: is a file, but this --source reads a folder. {advice}"
            raise listing_error(error, join(self._root.path, folder), message) from error

    def _is_entry_ignored(self, entry: os.DirEntry, path: str) -> bool:
        if is_ignored(entry.name) and (is_ignored(entry.name, is_folder=True) or kind_of(entry.path) != "folder"):
            return True
        return bool(self._ignore) and matches(path, self._ignore)

    def _is_ignored(self, folder: str, name: str, is_folder: bool = False) -> bool:
        return is_ignored(name, is_folder) or (bool(self._ignore) and matches(join(folder, name), self._ignore))


def name_first(dead_letters: Iterable[DeadLetter]) -> str:
    """Returns a message about the first dead letter of a listing that contains no valid file."""
    first = min(dead_letters, default=None)
    return f" ({first.path!r} is {first.message})" if first else ""
