"""Lists objects with obstore. obstore omits the slash at the end of names, and fails for some names."""

import itertools
from typing import Any, Callable, Iterator, NamedTuple, Sequence

import obstore
from obstore.exceptions import BaseError

from beam_pipelines.storage.object_stores.retries import split_path

PAGE_OBJECTS = 1000  # The maximum that object stores allow.
Names = list[str]  # An alias, because `list` is a method inside the class.
Sizes = list[tuple[str, int]]


class Page(NamedTuple):
    """A page of a listing of objects, sorted by key.

    Attributes:
        objects: The (full key, size in bytes) of each object.
        folders: The full prefixes of the folders, including the delimiter at their end.
        next_token: The token for requesting the next page. None on the last page.
    """

    objects: list[tuple[str, int]]
    folders: list[str]
    next_token: str | None = None


class ObjectListing:
    """The methods of an object store that list objects. Subclasses send the requests."""

    is_web = False  # Whether the store is a web server, which does not list files.
    call: Callable[..., Any]
    patient_client: Callable[[str], Any]

    def top_level(self, folder: str, is_short: bool = False) -> tuple[Names, Names]:
        """Returns the sorted names of the folders and the objects that are directly in a folder.

        If `is_short` is set, only the first page is returned. Unlike in `list`, folders with an empty name ("//") are
        omitted. On a web server, all folders appear empty, because web servers do not list folders.
        """
        start = len(split_path(as_folder(folder))[1])
        folders: Names = []
        objects: Names = []
        for page in itertools.islice(self._pages(folder, "/"), 1 if is_short else None):
            folders += [name for prefix in page.folders if (name := prefix[start:-1])]
            objects += [key[start:] for key, _ in page.objects if not is_marker(key)]
        return sorted(folders), sorted(objects)

    def list(self, folder: str) -> Iterator[tuple[str, int]]:
        """Yields the relative path and the size in bytes of each object below a folder, sorted by key."""
        for page in self.pages_from(folder):
            yield from page

    def pages_from(self, folder: str, first: str = "") -> Iterator[Sizes]:
        """Yields the pages of a listing from the relative path `first`. The first page may begin earlier."""
        start = len(split_path(as_folder(folder))[1])
        for page in self._pages(folder, first=first):
            yield [(key[start:], size) for key, size in page.objects if not is_marker(key)]

    def is_one_page(self, folder: str) -> bool:
        """Returns whether a single request lists a whole folder."""
        return next(self._pages(folder)).next_token is None

    def _pages(self, folder: str, delimiter: str = "", first: str = "") -> Iterator[Page]:
        """Yields the pages of a listing. The listing may begin before the relative path `first`."""
        folder = as_folder(folder)
        bucket, prefix = split_path(folder)
        if self.is_web:
            yield Page([], [])
            return
        client = self.patient_client(bucket)
        if delimiter:
            listed = self.call(folder, lambda *_: obstore.list_with_delimiter(client, prefix))
            folders = [f"{name}/" for name in listed["common_prefixes"]]
            yield Page([(item["path"], item["size"]) for item in listed["objects"]], folders)
            return
        stream, last = None, None

        def next_items(*unused: str) -> Sequence[Any]:
            nonlocal stream
            stream = stream or obstore.list(client, prefix, offset=last, chunk_size=PAGE_OBJECTS)
            try:
                return next(stream, ())
            except BaseError:
                stream = None
                raise

        while items := self.call(folder, next_items):
            # obstore removes the slash at the end of folder markers.
            parents = {parent for item in items for parent in itertools.accumulate(item["path"].split("/")[:-1], "{}/{}".format)}
            objects = [(item["path"], item["size"]) for item in items if item["size"] or item["path"] not in parents]
            yield Page([item for item in objects if last is None or item[0] > last], [], items[-1]["path"])
            last = items[-1]["path"]
        yield Page([], [])

    def _numbered_pages(self, folder: str, delimiter: str = "", first: str = "") -> Iterator[Page]:
        """Yields the pages of a listing. Each page is requested with `_page`, which subclasses implement."""
        token = None
        while True:
            page = self.call(as_folder(folder), self._page, delimiter, token, first)
            yield page
            token = page.next_token
            if not token:
                return

    def _page(self, bucket: str, prefix: str, delimiter: str, token: str | None, first: str) -> Page:
        """Returns a page of keys with a prefix. The page may omit keys that sort before `prefix + first`."""
        raise NotImplementedError


def as_folder(path: str) -> str:
    return path.rstrip("/") + "/"


def is_marker(key: str) -> bool:
    """Returns whether an object is a folder marker, which some third-party tools create."""
    return key.endswith("/")
