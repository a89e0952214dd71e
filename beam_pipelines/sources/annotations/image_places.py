"""Finds files by the paths in an annotation file, even if these are paths on another machine."""

import os
import unicodedata
from typing import Iterable, NamedTuple, Sequence

from beam_pipelines.errors import InvalidInput
from beam_pipelines.sources.cells.cells import read_path
from beam_pipelines.sources.files.paths import join
from beam_pipelines.sources.files.roots import Root
from beam_pipelines.storage.files import files_at, is_remote

_NUM_PROBED, _MAX_DEPTH = 5, 12  # how many paths to look for, and how many of their first folders to remove at most


class ImagePlace(NamedTuple):
    """Where to find files by the paths in an input.

    Attributes:
        folder: The folder that the paths are relative to, as a path relative to the root.
        prefix: The prefix to remove from the paths, such as the path of a folder on another machine.
    """

    folder: str
    prefix: str = ""

    def path(self, stated: str) -> str:
        """Converts a path in an input to a path relative to the root. Absolute paths and URLs remain absolute."""
        path = portable(stated).removeprefix(self.prefix)
        return path if path.startswith("/") or is_remote(path) else join(self.folder, path)


def find_place(root: Root, folders: Iterable[str], paths: Sequence[str], may_shorten: bool = True) -> ImagePlace | None:
    """Tries possible folders and prefixes of paths. Returns the first combination with which one of the first paths
    exists, or None.

    Args:
        root: The root of the source.
        folders: The possible folders, relative to the root.
        paths: The paths of files or folders, as written in the input.
        may_shorten: Whether to also try the paths without their first folders.
    """
    first = [portable(path) for path in paths[:_NUM_PROBED]]
    existing = [folder for folder in folders if not folder or is_folder(join(root.path, folder))]
    depth = min(max((path.count("/") for path in first), default=0), _MAX_DEPTH) if may_shorten else 0
    for num in range(depth + 1):
        for folder in existing:
            for path in first:
                parts = path.split("/")
                place = ImagePlace(folder, "/".join(parts[:num]) + "/" if num else "")
                if parts[num:] and _exists(root, place.path(path)):
                    return place
    return None


def portable(path: str) -> str:
    """Replaces the backslashes in a Windows path with slashes."""
    return path.replace("\\", "/") if path[1:3] in (":\\", ":/") or path[:2] == "\\\\" or "/" not in path else path


def is_folder(path: str) -> bool:
    """Returns whether a folder exists."""
    return any(files_at(path).top_level(path, True)) if is_remote(path) else os.path.isdir(path)


def _exists(root: Root, path: str) -> bool:
    try:
        path = read_path(path, root)
    except InvalidInput:
        return False
    forms = {path, *(unicodedata.normalize(form, path) for form in ("NFC", "NFD"))}
    return any(files_at(root.path).exists(f"{root.path}/{item}") for item in sorted(forms))
