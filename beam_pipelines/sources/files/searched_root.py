"""Finds files by their names below one or more folders, for tables that contain only the names of images."""

import functools

from beam_pipelines.errors import InvalidInput, printable
from beam_pipelines.sources.files.file_listing import FileListing, ListedFile
from beam_pipelines.sources.files.paths import join, nfc
from beam_pipelines.sources.files.roots import Root

_NUM_SHOWN = 5


class SearchedRoot(Root):
    """A root that looks up files in several folders, or anywhere below these folders.

    The folders are listed once, when the first file is looked up. Each file in these folders takes about 350 bytes of
    memory.

    Args:
        path: The folder that contains all searched folders, or its URL.
        follows_links: Whether links may lead outside the root, and to folders.
        folders: The searched folders, relative to the root. An empty string is the root itself.
        ignore: Glob patterns of names or paths to ignore.
        is_deep: Whether to also search the subfolders of the searched folders.
    """

    def __init__(self, path: str, follows_links: bool, folders: tuple[str, ...], ignore: tuple[str, ...], is_deep: bool) -> None:
        super().__init__(path, follows_links)
        self._searched = folders or ("",)
        self._ignore = ignore
        self._is_deep = is_deep

    def relative(self, path: str) -> str:
        """Returns the path of a file, relative to the root.

        Args:
            path: The name of the file, optionally with its parent folders, or its absolute path below the root.

        Raises:
            OutsideError: The path is invalid, or the file is a link that is not followed.
            InvalidInput: `no_image`: there is no such file; `ambiguous`: there are several.
        """
        name = super().relative(path)
        if path.startswith(("/", "\\")) or "://" in path:
            return name
        wanted = nfc(name)
        candidates = self._paths_by_name.get(wanted.rpartition("/")[2], [])
        if self._is_deep:
            found = [item for item in candidates if f"/{nfc(item)}".endswith(f"/{wanted}")]
        else:
            places = {join(folder, wanted) for folder in map(nfc, self._searched)}
            found = [item for item in candidates if nfc(item) in places]
        if not found:
            where = ", ".join(printable(join(self.path, folder)) for folder in self._searched[:_NUM_SHOWN])
            raise InvalidInput("no_image", f"has {printable(path)!r}, which is not in {where}{' or below' if self._is_deep else ''}")
        if len(found) > 1:
            some = " and ".join(map(printable, found[:_NUM_SHOWN]))
            raise InvalidInput("ambiguous", f"has {printable(path)!r}, which is the name of {len(found)} files: {some}")
        return super().relative(found[0])

    @functools.cached_property
    def _paths_by_name(self) -> dict[str, list[str]]:
        """A mapping from file names, in NFC, to the paths of all files with this name."""
        paths: dict[str, list[str]] = {}
        listing = FileListing(self, self._ignore)
        for folder in self._searched:
            for file in listing.walk(folder):
                if isinstance(file, ListedFile):
                    found = paths.setdefault(nfc(file.path.rpartition("/")[2]), [])
                    if file.path not in found:  # Searched folders may contain each other.
                        found.append(file.path)
        return paths
