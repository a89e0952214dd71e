"""Names of the files and folders in an input, from which the format of the input is detected."""

import enum
import fnmatch
import functools
import itertools
import os
import re
from typing import Callable, Iterable, NamedTuple

from beam_pipelines.images.images import IMAGE_EXTENSIONS
from beam_pipelines.parallel.read_ahead import read_ahead
from beam_pipelines.sources.files.label_files import read_head
from beam_pipelines.sources.files.other_files import is_ignored
from beam_pipelines.sources.files.paths import find_usual
from beam_pipelines.sources.files.split_names import SPLIT_FOLDERS
from beam_pipelines.storage.files import files_at, is_remote

_IMAGE_ENDS = tuple(end for end in IMAGE_EXTENSIONS if end != ".npy")

# The number of entries to read in one folder, and of names to keep. A larger folder probably has the images of a class.
_MAX_ENTRIES, _MAX_NAMES = 100_000, 1000


class Certainty(enum.IntEnum):
    """How clearly names show a format. The format with the highest certainty is used."""

    FOLDER = 0  # any folder
    EXTENSION = 1  # files with the usual extension, but possibly with other contents, such as notes
    LAYOUT = 2  # files or folders with the usual names
    MARKER = 3  # a file that only this format has
    CONTENT = 4  # the first bytes of the only input file


class Recognition(NamedTuple):
    """The reason why an input seems to have a certain format.

    Attributes:
        evidence: The names that show the format, for a message.
        certainty: How clearly the names show the format.
        options: The options that the format needs besides `--source` to read the input, for a message.
    """

    evidence: str
    certainty: Certainty = Certainty.LAYOUT
    options: str = ""


class InputNames:
    """The names of files and folders in an input, without hidden files and system files.

    Folders are read on demand. In an object store, several folders or files are read concurrently, and only once.

    Args:
        path: The path or URL of the input.
        is_folder: Whether the input is a folder. If it is None, this is looked up; a missing input is treated as a
            file.
        may_be_class: Whether the input may be a class folder. If so, reading stops at the first image.
    """

    def __init__(self, path: str, is_folder: bool | None = None, may_be_class: bool = False) -> None:
        self.path = path
        self._may_be_class = may_be_class
        self.is_folder = self._find_is_folder() if is_folder is None else is_folder
        self._folders: dict[str, InputNames] = {}
        self._heads: dict[str, bytes] = {}

    @property
    def name(self) -> str:
        """The last component of the path."""
        return self.path.rpartition("/")[2]

    def _find_is_folder(self) -> bool:
        if not is_remote(self.path):
            return os.path.isdir(self.path)
        self.is_folder = not files_at(self.path).exists(self.path)
        return any(self._listing)

    @functools.cached_property
    def _listing(self) -> "_Listing":
        return _list_folder(self.path, self._may_be_class) if self.is_folder else _Listing([], [], [])

    @property
    def folders(self) -> list[str]:
        """The names of the folders, sorted."""
        return self._listing.folders

    @property
    def files(self) -> list[str]:
        """The names of the files that are not images, sorted."""
        return self._listing.files

    @property
    def images(self) -> list[str]:
        """The names of the first images that were read, sorted."""
        return self._listing.images

    @property
    def has_images(self) -> bool:
        """Whether the folder contains images."""
        return bool(self._listing.images)

    @functools.cached_property
    def below(self) -> "tuple[InputNames, ...]":
        """The subfolders, except class folders. A class folder contains images, and is not named like a split."""
        may_be_class = {name: name.lower() not in SPLIT_FOLDERS for name in self.folders}
        if is_remote(self.path):
            inner = [self._subfolder(name) for name in self.folders]
            are_classes = read_ahead(lambda names: names.has_images, ((names, 1) for names in inner))
        else:
            inner = [InputNames(f"{self.path}/{name}", True, may_be_class[name]) for name in self.folders]
            are_classes = (may_be_class[names.name] and names.has_images for names in inner)
        return tuple(names for names, is_class in zip(inner, are_classes) if not (may_be_class[names.name] and is_class))

    def folder(self, *usual: str) -> "InputNames | None":
        """Returns the subfolder with the first of the given lower-case names that exists, ignoring case, or None."""
        name = find_usual(self.folders, usual)
        return name and self._subfolder(name)

    def _subfolder(self, name: str) -> "InputNames":
        return self._folders.setdefault(name, InputNames(f"{self.path}/{name}", True))

    def find(self, *patterns: str) -> str:
        """Returns the first file in the folder whose name matches one of the patterns, ignoring case, or "". If the input
        is a file, only the name of this file is compared."""
        names = self.files if self.is_folder else [self.name]
        return next((name for name in names if _matcher(patterns)(name.lower())), "")

    def head(self, name: str = "") -> bytes:
        """Returns the first 64 KiB of a file in the folder, or of the input itself. Returns b"" if the file cannot be
        read."""
        if name not in self._heads:
            self._heads[name] = read_head(f"{self.path}/{name}" if name else self.path)
        return self._heads[name]

    def heads(self, names: Iterable[str]) -> Iterable[tuple[str, bytes]]:
        """Yields pairs of a file in the folder and its first 64 KiB (see `head`)."""
        read = lambda name: (name, self.head(name))
        return read_ahead(read, ((name, 1) for name in names)) if is_remote(self.path) else map(read, names)


class _Listing(NamedTuple):
    folders: list[str]
    files: list[str]  # without images
    images: list[str]


def _list_folder(path: str, until_image: bool) -> _Listing:
    found = _Listing([], [], [])
    if is_remote(path):
        folders, files = files_at(path).top_level(path)
        found.folders.extend(folders)
        for name in files:
            (found.images if name.lower().endswith(_IMAGE_ENDS) else found.files).append(name)
    else:
        with os.scandir(path) as entries:
            for entry in itertools.islice(entries, _MAX_ENTRIES):
                # Skip is_dir() for image names, because a folder may have a million of them.
                is_image = entry.name.lower().endswith(_IMAGE_ENDS) and entry.name[0] != "."
                (found.images if is_image else found.folders if entry.is_dir() else found.files).append(entry.name)
                if is_image and until_image:
                    break
    return _Listing(*(sorted(name for name in names if not is_ignored(name, is_folder=True))[:_MAX_NAMES] for names in found))


@functools.cache
def _matcher(patterns: tuple[str, ...]) -> Callable[[str], object]:
    """Compiles glob patterns into one function that matches a lower-case name."""
    return re.compile("|".join(fnmatch.translate(pattern.lower()) for pattern in patterns)).match
