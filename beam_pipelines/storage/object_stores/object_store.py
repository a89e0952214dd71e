"""Defines the interface of object stores.

Beam's own implementation opens a connection for each file, and reads one file at a time. In this module, all threads of
a process share the connections of one client. Beam's options and credentials are used.
"""

import abc
import contextlib
import itertools
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Callable, Iterator, NamedTuple, Sequence

from beam_pipelines.errors import StorageError, UserError, printable
from beam_pipelines.storage.object_stores.retries import CHECK_ATTEMPTS, CHECK_SECONDS, Breaker, Transient, persist, split_path
from beam_pipelines.storage.object_stores.upload import Upload
from beam_pipelines.storage.versions import FileStat, changed_error

NUM_THREADS = 32
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
    next_token: str | None


class ObjectStore(abc.ABC):
    """An object store. All threads of a process share an instance. All failures raise an `OSError`.

    Subclasses implement single requests in private methods, without catching errors of client libraries. This base
    class implements retries, paths, and operations that need several requests.
    """

    library_errors: tuple[type[Exception], ...]
    breaker: Breaker

    def read(self, path: str) -> bytes:
        """Reads a whole object with a single request. The maximum size is `storage.MAX_FILE_BYTES`."""
        return self.call(path, self._get, 0, None)[0]

    def read_range(self, path: str, offset: int, num_bytes: int, version: str | None = None) -> bytes:
        """Reads a part of an object. Returns fewer bytes if the object ends within the requested range.

        Raises:
            DataError: The object has another version than the given one.
        """
        if not num_bytes:
            return b""
        data, actual = self.call(path, self._get, offset, num_bytes)
        if version is not None and version != (actual := actual or self.stat(path).version):
            raise changed_error(path, version, actual)
        return data

    def size(self, path: str) -> int:
        """Returns an object's size in bytes."""
        return self.stat(path).size

    def stat(self, path: str) -> FileStat:
        """Returns the size in bytes and the version of an object. The version is its ETag or its generation."""
        return self.call(path, self._head)

    def exists(self, path: str) -> bool:
        """Returns whether an object with exactly this name exists."""
        try:
            self.size(path)
        except FileNotFoundError:
            return False
        return True

    def write(self, path: str, data: bytes) -> None:
        """Writes an object atomically."""
        self.call(path, self._put, data)

    def read_versioned(self, path: str) -> tuple[bytes, str]:
        """Reads a whole object. Returns its bytes and its version, which `write_if` accepts.

        Raises:
            FileNotFoundError: The object does not exist.
        """
        return self.call(path, self._get_versioned)

    def write_if(self, path: str, data: bytes, version: str | None) -> str | None:
        """Writes an object atomically, unless another writer has changed it.

        Args:
            path: The path of the object.
            data: The new contents. They must be unique, for example contain an ID, so that a writer whose response was
                lost recognizes its own write.
            version: The version to replace. None if the object must not exist.

        Returns:
            The new version, or None if another writer was faster and nothing was written.

        Raises:
            OSError: The request failed, or the store does not support conditional writes.
        """
        written = self.call(path, self._put_if, data, version)
        if written:
            return written
        try:
            stored, actual_version = self.read_versioned(path)
        except FileNotFoundError:
            return None
        return actual_version if stored == data else None

    @contextlib.contextmanager
    def create(self, path: str) -> Iterator[Upload]:
        """Context manager for uploading a large object in chunks.

        The object is created after the block, unless an exception is raised.
        """
        upload = self._make_upload(path)
        try:
            yield upload
            upload.finish()
        except BaseException:
            with contextlib.suppress(OSError):  # The store deletes old uploads itself.
                upload.abandon()
            raise

    def top_level(self, folder: str, is_short: bool = False) -> tuple[Names, Names]:
        """Returns the sorted names of the folders and the objects that are directly in a folder.

        With `is_short`, only the first page is returned. Unlike in `list`, folders with an empty name ("//") are
        omitted.
        """
        start = len(split_path(_as_folder(folder))[1])
        folders: Names = []
        objects: Names = []
        for page in itertools.islice(self._pages(folder, "/"), 1 if is_short else None):
            folders += [name for prefix in page.folders if (name := prefix[start:-1])]
            objects += [key[start:] for key, _ in page.objects if not _is_marker(key)]
        return sorted(folders), sorted(objects)

    def list(self, folder: str) -> Iterator[tuple[str, int]]:
        """Yields the relative path and the size in bytes of each object below a folder, sorted by key."""
        for page in self.pages_from(folder):
            yield from page

    def pages_from(self, folder: str, first: str = "") -> Iterator[Sizes]:
        """Yields the pages of a listing from the relative path `first`. The first page may begin earlier."""
        start = len(split_path(_as_folder(folder))[1])
        for page in self._pages(folder, first=first):
            yield [(key[start:], size) for key, size in page.objects if not _is_marker(key)]

    def is_one_page(self, folder: str) -> bool:
        """Returns whether a single request lists a whole folder."""
        return next(self._pages(folder)).next_token is None

    def remove(self, path: str) -> None:
        """Removes an object if it exists."""
        bucket, key = split_path(path)
        self._remove(bucket, [key])

    def remove_all(self, folder: str, but: Sequence[str] = ()) -> None:
        """Removes all objects below a folder, except the relative paths in `but`."""
        bucket, prefix = split_path(_as_folder(folder))
        kept = {prefix + name for name in but}
        for page in self._pages(folder):
            if keys := [key for key, _ in page.objects if key not in kept]:
                self._remove(bucket, keys)

    def abandon_uploads(self, folder: str) -> None:
        """Aborts all unfinished uploads in a folder, which killed runs may have left. Current uploads fail, too."""
        self._abandon_uploads(_as_folder(folder))

    def copy_all(self, source: str, target: str, last: str) -> None:
        """Copies all objects below `source` to `target` inside the store. The object `last` is copied last."""
        source, target = _as_folder(source), _as_folder(target)
        last_size = self.size(source + last)  # If the object is missing, fails before anything is copied.

        def copy(item: tuple[str, int]) -> None:
            self._copy(source + item[0], target + item[0], item[1])

        with ThreadPoolExecutor(NUM_THREADS) as pool:
            items = (item for item in self.list(source) if item[0] != last)
            while batch := [*itertools.islice(items, 1000)]:
                for _ in pool.map(copy, batch):  # An error cancels the remaining copies.
                    pass
        copy((last, last_size))

    def check_access(self, path: str) -> None:
        """Checks that objects with a path prefix can be listed. Gives up after a few retries.

        Raises:
            UserError: The bucket, the credentials or the permissions are missing.
            StorageError: The store does not respond, or is too busy.
        """
        split_path(path)
        try:
            self.call(_as_folder(path), self._probe, patience=CHECK_SECONDS, min_attempts=CHECK_ATTEMPTS)
        except OSError as error:
            kind = StorageError if isinstance(error, (Transient, StorageError)) else UserError
            raise kind(f"{printable(path)}: {' '.join(str(error.strerror or error).split())}", path) from None

    def call(self, path: str, request: Callable, *arguments: Any, **how_often: Any) -> Any:
        """Sends a request for an object, with retries (see `persist`)."""
        bucket, key = split_path(path)
        explain = lambda error: self._os_error(path, error)
        return persist(path, lambda: request(bucket, key, *arguments), self.library_errors, explain, self.breaker, **how_often)

    def _pages(self, folder: str, delimiter: str = "", first: str = "") -> Iterator[Page]:
        token = None
        while True:
            page = self.call(_as_folder(folder), self._page, delimiter, token, first)
            yield page
            token = page.next_token
            if not token:
                return

    @abc.abstractmethod
    def _get(self, bucket: str, key: str, offset: int, num_bytes: int | None) -> tuple[bytes, str]:
        """Returns the bytes and the version of an object. If the range begins after the end, both are empty."""

    @abc.abstractmethod
    def _head(self, bucket: str, key: str) -> FileStat: ...

    @abc.abstractmethod
    def _put(self, bucket: str, key: str, data: bytes) -> None: ...

    @abc.abstractmethod
    def _get_versioned(self, bucket: str, key: str) -> tuple[bytes, str]: ...

    @abc.abstractmethod
    def _put_if(self, bucket: str, key: str, data: bytes, version: str | None) -> str | None:
        """Returns the new version of the object, or None if the object did not have the expected version."""

    @abc.abstractmethod
    def _page(self, bucket: str, prefix: str, delimiter: str, token: str | None, first: str) -> Page:
        """Returns a page of keys with a prefix. The page may omit keys that sort before `prefix + first`."""

    @abc.abstractmethod
    def _probe(self, bucket: str, prefix: str) -> None:
        """Lists at most one object, with a short timeout."""

    @abc.abstractmethod
    def _remove(self, bucket: str, keys: Names) -> None:
        """Removes a page of objects and ignores missing objects. May make several calls."""

    @abc.abstractmethod
    def _abandon_uploads(self, folder: str) -> None:
        """Aborts all unfinished uploads below a folder. May make several calls."""

    @abc.abstractmethod
    def _copy(self, source: str, target: str, num_bytes: int) -> None:
        """Copies an object of any size. May make several calls."""

    @abc.abstractmethod
    def _make_upload(self, path: str) -> Upload: ...

    @abc.abstractmethod
    def _os_error(self, path: str, error: Exception) -> OSError: ...


def _as_folder(path: str) -> str:
    return path.rstrip("/") + "/"


def _is_marker(key: str) -> bool:
    """Returns whether an object is a folder marker, which some third-party tools create."""
    return key.endswith("/")
