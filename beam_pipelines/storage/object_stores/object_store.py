"""Defines the interface of object stores, which use the same options and credentials as Beam.

Beam's own implementation opens a new connection for each file, and reads one file at a time. In this module, all
threads of a process share the connections of one client.
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
PAGE_OBJECTS = 1000  # the maximum of the stores
Names = list[str]  # inside the class, `list` is a method
Sizes = list[tuple[str, int]]


class Page(NamedTuple):
    """A page of a listing of objects, in the order of the keys.

    Attributes:
        objects: The full keys of the objects, with their sizes in bytes.
        folders: The full prefixes of the folders, which end with the delimiter.
        next_token: The token for the request of the next page, or None on the last page.
    """

    objects: list[tuple[str, int]]
    folders: list[str]
    next_token: str | None


class ObjectStore(abc.ABC):
    """An object store, which all threads of a process share. All failures raise an `OSError`.

    Subclasses implement single requests in private methods, and do not catch the errors of client libraries. The
    base class implements retries, paths and operations that consist of several requests.
    """

    library_errors: tuple[type[Exception], ...]
    breaker: Breaker

    def read(self, path: str) -> bytes:
        """Reads a whole object of at most `storage.MAX_FILE_BYTES` bytes with a single request."""
        return self.call(path, self._get, 0, None)[0]

    def read_range(self, path: str, offset: int, num_bytes: int, version: str | None = None) -> bytes:
        """Reads a part of an object. If the object ends within the requested range, fewer bytes are returned.

        Raises:
            DataError: The object does not have the given version.
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
        """Returns the size of an object in bytes and its version, which is its ETag or its generation."""
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
        """Reads a whole object, and returns the bytes and the version. The version can be passed to `write_if`.

        Raises:
            FileNotFoundError: The object does not exist.
        """
        return self.call(path, self._get_versioned)

    def write_if(self, path: str, data: bytes, version: str | None) -> str | None:
        """Writes an object atomically unless another writer has changed the object in the meantime.

        Args:
            path: The path of the object.
            data: The new content, which must be unique for each write, for example by an ID. If the response is lost,
                the writer recognizes its own write by its content.
            version: The version to replace, or None if the object must not exist yet.

        Returns:
            The new version, or None if another writer was first and nothing was written.

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

        The object is created at the end of the block, unless the block raises an exception.
        """
        upload = self._make_upload(path)
        try:
            yield upload
            upload.finish()
        except BaseException:
            with contextlib.suppress(OSError):  # the store deletes old uploads itself
                upload.abandon()
            raise

    def top_level(self, folder: str, is_short: bool = False) -> tuple[Names, Names]:
        """Returns the sorted names of the folders and of the objects directly in a folder.

        With `is_short`, returns only the first page. Folders with an empty name ("//") are omitted, unlike in `list`.
        """
        start = len(split_path(_as_folder(folder))[1])
        folders: Names = []
        objects: Names = []
        for page in itertools.islice(self._pages(folder, "/"), 1 if is_short else None):
            folders += [name for prefix in page.folders if (name := prefix[start:-1])]
            objects += [key[start:] for key, _ in page.objects if not _is_marker(key)]
        return sorted(folders), sorted(objects)

    def list(self, folder: str) -> Iterator[tuple[str, int]]:
        """Yields the relative path and the size in bytes of each object below a folder, in the order of the keys."""
        for page in self.pages_from(folder):
            yield from page

    def pages_from(self, folder: str, first: str = "") -> Iterator[Sizes]:
        """Yields the pages of a listing, starting at the relative path `first`. The first page may begin before
        `first`."""
        start = len(split_path(_as_folder(folder))[1])
        for page in self._pages(folder, first=first):
            yield [(key[start:], size) for key, size in page.objects if not _is_marker(key)]

    def is_one_page(self, folder: str) -> bool:
        """Lists a folder with a single request and returns whether the response is complete."""
        return next(self._pages(folder)).next_token is None

    def remove(self, path: str) -> None:
        """Removes an object if it exists."""
        bucket, key = split_path(path)
        self._remove(bucket, [key])

    def remove_all(self, folder: str, but: Sequence[str] = ()) -> None:
        """Removes all objects below a folder, except those whose relative paths are in `but`."""
        bucket, prefix = split_path(_as_folder(folder))
        kept = {prefix + name for name in but}
        for page in self._pages(folder):
            if keys := [key for key, _ in page.objects if key not in kept]:
                self._remove(bucket, keys)

    def abandon_uploads(self, folder: str) -> None:
        """Aborts all unfinished uploads that killed runs have left in a folder. Uploads in progress fail,
        too."""
        self._abandon_uploads(_as_folder(folder))

    def copy_all(self, source: str, target: str, last: str) -> None:
        """Copies all objects below `source` to `target` inside the store.

        The object `last` is copied after all other objects.
        """
        source, target = _as_folder(source), _as_folder(target)
        last_size = self.size(source + last)  # fails before any copy if the object is missing

        def copy(item: tuple[str, int]) -> None:
            self._copy(source + item[0], target + item[0], item[1])

        with ThreadPoolExecutor(NUM_THREADS) as pool:
            items = (item for item in self.list(source) if item[0] != last)
            while batch := [*itertools.islice(items, 1000)]:
                for _ in pool.map(copy, batch):  # an error cancels the remaining copies
                    pass
        copy((last, last_size))

    def check_access(self, path: str) -> None:
        """Checks that the objects with a given path prefix can be listed, and gives up after a few retries.

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
        """Sends a request for an object with retries (see `persist`).

        The path of the object is converted to a bucket and a key.
        """
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
        """Returns the bytes and the version of an object.

        The bytes and the version are empty if the byte range begins after the end of the object.
        """

    @abc.abstractmethod
    def _head(self, bucket: str, key: str) -> FileStat: ...

    @abc.abstractmethod
    def _put(self, bucket: str, key: str, data: bytes) -> None: ...

    @abc.abstractmethod
    def _get_versioned(self, bucket: str, key: str) -> tuple[bytes, str]: ...

    @abc.abstractmethod
    def _put_if(self, bucket: str, key: str, data: bytes, version: str | None) -> str | None:
        """Returns the new version of the object, or None if the version before the request was not the expected
        version."""

    @abc.abstractmethod
    def _page(self, bucket: str, prefix: str, delimiter: str, token: str | None, first: str) -> Page:
        """Returns a page of the keys that begin with a prefix. The page may omit keys that sort before `prefix +
        first`."""

    @abc.abstractmethod
    def _probe(self, bucket: str, prefix: str) -> None:
        """Lists at most one object, with a short timeout."""

    @abc.abstractmethod
    def _remove(self, bucket: str, keys: Names) -> None:
        """Removes a page of objects. Ignores objects that do not exist. May make several calls."""

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
    """Returns whether an object is only a folder marker. Some third-party tools create such objects."""
    return key.endswith("/")
