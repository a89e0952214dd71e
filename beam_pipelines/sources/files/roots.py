"""Resolves the file paths in tables and annotations, and checks that the files are below the root folder."""

import os
import posixpath

from beam_pipelines.errors import printable
from beam_pipelines.storage.files import is_remote

_MAX_FOLDERS = 1 << 16


class OutsideError(ValueError):
    """Raised if a path is invalid or leads outside the root folder of the source."""


class Root:
    """The folder, or the prefix in an object store, that contains all files of a source.

    Args:
        path: The path of the folder, or its URL.
        follows_links: Whether links may lead outside the folder, and to folders.
        folder: The subfolder that relative paths start from, with a trailing "/"; empty for the root.

    Attributes:
        path: The path with links resolved, or a URL, without a trailing "/".
    """

    def __init__(self, path: str, follows_links: bool = False, folder: str = "") -> None:
        self.follows_links, self._folder = follows_links, folder
        self._is_remote = is_remote(path)
        self._given = path.rstrip("/") if self._is_remote else os.path.abspath(path)
        self.path = self._given if self._is_remote else os.path.realpath(path)
        self._folders: dict[str, bool] = {}

    def relative(self, path: str) -> str:
        """Converts a path from a table or an annotation to a path relative to the root.

        The file does not have to exist. Links to files outside the root are invalid, unless links are followed.

        Args:
            path: A path relative to the root, or an absolute path below it. Both "/" and Windows' "\\" are separators.

        Raises:
            OutsideError: The path is empty, contains NUL or invalid text, or leads outside the root.
        """
        name = path if "\\" not in path else path.replace("\\", "/")
        if self._folder and not name.startswith("/") and not is_remote(name):
            name = self._folder + name
        if is_remote(name) and not name.startswith((f"{self._given}/", f"{self.path}/")):
            raise self._outside(path)
        for base in (self._given, self.path):
            if name.startswith(f"{base}/"):
                name = name[len(base) + 1 :]
        if name.startswith("./") or "//" in name or "/." in name:
            name = posixpath.normpath(name)
        is_outside = name in ("", ".", "..") or name.startswith(("/", "../")) or is_remote(name)
        if is_outside or "\0" in name or not _is_text(name):
            raise self._outside(path)
        if not self._is_remote and not self.follows_links and not self._stays_inside(name):
            raise OutsideError(f"{printable(path)!r} is a link to a target outside {self.path} (use --follow_links to follow it)")
        return name

    def is_loop(self, path: str) -> bool:
        """Returns whether a path is a link to a folder that contains the link itself."""
        target = os.path.realpath(f"{self.path}/{path}").rstrip("/")
        folders = path.split("/")[:-1]
        above = ("/".join([self.path, *folders[:depth]]) for depth in range(len(folders) + 1))
        return any(f"{os.path.realpath(folder)}/".startswith(f"{target}/") for folder in above)

    def holds(self, path: str) -> bool:
        """Returns whether a resolved path is the root or a path below the root."""
        return path == self.path or path.startswith(f"{self.path.rstrip('/')}/")

    def _outside(self, path: str) -> OutsideError:
        advice = ". If it is relative to this folder, remove the '/' at its start" if path.startswith("/") else ""
        return OutsideError(f"{printable(path)!r} is not a path below {self.path}{advice}")

    def _stays_inside(self, name: str) -> bool:
        folder, _, _ = name.rpartition("/")
        if folder not in self._folders:  # cache per folder: there are many files in few folders
            if len(self._folders) == _MAX_FOLDERS:
                self._folders.clear()
            self._folders[folder] = self.holds(os.path.realpath(f"{self.path}/{folder}"))
        if not self._folders[folder]:
            return False
        path = f"{self.path}/{name}"
        return not os.path.islink(path) or self.holds(os.path.realpath(path))


def _is_text(name: str) -> bool:
    """Returns whether a name is valid text. In paths, surrogate characters are valid only if they represent undecodable
    bytes of a file name."""
    try:
        os.fsencode(name)
    except UnicodeEncodeError:
        return False
    return True
