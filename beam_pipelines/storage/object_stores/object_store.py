"""Object stores, gs:// and s3://, with the options and the credentials of Beam's filesystems.

Beam opens a new connection for each file, and waits for each in turn. Here a process has one client for a store, and any number of
its threads share that client's connections.
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
PAGE_OBJECTS = 1000  # as many as a store gives at once
Names = list[str]  # inside the class `list` is its method
Sizes = list[tuple[str, int]]


class Page(NamedTuple):
    """One page of a listing, in key order.

    Attributes:
        objects: The keys of the objects, whole, with their sizes in bytes.
        folders: The prefixes of the folders, whole, up to the delimiter, which is their last character.
        next_token: The token to ask the next page with; None: this is the last.
    """

    objects: list[tuple[str, int]]
    folders: list[str]
    next_token: str | None


class ObjectStore(abc.ABC):
    """One store, for all threads of a process. Whatever fails is an OSError.

    A subclass makes single requests, named with an underscore, and lets its library's errors through; attempts, paths and whatever
    takes several requests are here.
    """

    library_errors: tuple[type[Exception], ...]
    breaker: Breaker

    def read(self, path: str) -> bytes:
        """Reads a whole object, of at most `storage.MAX_FILE_BYTES`, in one request."""
        return self.call(path, self._get, 0, None)[0]

    def read_range(self, path: str, offset: int, num_bytes: int, version: str | None = None) -> bytes:
        """Reads a part of an object; fewer bytes if the object ends before.

        Raises:
            DataError: The object does not have the version that is asked for.
        """
        if not num_bytes:
            return b""
        data, found = self.call(path, self._get, offset, num_bytes)
        if version is not None and version != (found := found or self.stat(path).version):
            raise changed_error(path, version, found)
        return data

    def size(self, path: str) -> int:
        """Returns an object's size in bytes."""
        return self.stat(path).size

    def stat(self, path: str) -> FileStat:
        """Returns the size of an object in bytes and its version: its ETag or its generation."""
        return self.call(path, self._head)

    def exists(self, path: str) -> bool:
        """Whether there is an object of exactly that name."""
        try:
            self.size(path)
        except FileNotFoundError:
            return False
        return True

    def write(self, path: str, data: bytes) -> None:
        """Writes an object whole, or not at all."""
        self.call(path, self._put, data)

    def read_versioned(self, path: str) -> tuple[bytes, str]:
        """A whole object, and the version that it has: what `write_if` takes.

        Raises:
            FileNotFoundError: There is none.
        """
        return self.call(path, self._get_versioned)

    def write_if(self, path: str, data: bytes, version: str | None) -> str | None:
        """Writes an object whole if nobody else has written it in between.

        Args:
            path: The path of the object.
            data: The new contents of the object. No two writers may write the same, nor one writer twice: they hold an id that is made for
                this write. By it a writer knows its own where the answer to it was lost.
            version: The version that it replaces; None: there is no such object yet.

        Returns:
            The version that it has now; None: somebody else was there first, and nothing was written.

        Raises:
            OSError: Also where the store does not take conditional writes.
        """
        written = self.call(path, self._put_if, data, version)
        if written:
            return written
        try:
            found, found_version = self.read_versioned(path)
        except FileNotFoundError:
            return None
        return found_version if found == data else None

    @contextlib.contextmanager
    def create(self, path: str) -> Iterator[Upload]:
        """A large object, sent while it is written. It is there once the block ends well; after an exception nothing is."""
        upload = self._make_upload(path)
        try:
            yield upload
            upload.finish()
        except BaseException:
            with contextlib.suppress(OSError):  # the store expires an upload that it cannot be asked to forget
                upload.abandon()
            raise

    def top_level(self, folder: str, is_short: bool = False) -> tuple[Names, Names]:
        """Names of the folders and of the objects directly in a folder, each sorted; of the first page alone if it `is_short`.

        A name with two "/" behind one another lies in no folder that has a name: `list` has it.
        """
        start = len(split_path(_as_folder(folder))[1])
        folders: Names = []
        objects: Names = []
        for page in itertools.islice(self._pages(folder, "/"), 1 if is_short else None):
            folders += [name for prefix in page.folders if (name := prefix[start:-1])]
            objects += [key[start:] for key, _ in page.objects if not _is_marker(key)]
        return sorted(folders), sorted(objects)

    def list(self, folder: str) -> Iterator[tuple[str, int]]:
        """(path relative to the folder, bytes) of every object below it, in key order, a page at a time."""
        for page in self.pages_from(folder):
            yield from page

    def pages_from(self, folder: str, first: str = "") -> Iterator[Sizes]:
        """What `list` gives, a page at a time, from about the path `first` on: a page may begin before it, none leaves it out."""
        start = len(split_path(_as_folder(folder))[1])
        for page in self._pages(folder, first=first):
            yield [(key[start:], size) for key, size in page.objects if not _is_marker(key)]

    def is_one_page(self, folder: str) -> bool:
        """Whether one request lists every object below a folder: it is made."""
        return next(self._pages(folder)).next_token is None

    def remove(self, path: str) -> None:
        """Removes an object; one that is not there stays so."""
        bucket, key = split_path(path)
        self._remove(bucket, [key])

    def remove_all(self, folder: str, but: Sequence[str] = ()) -> None:
        """Removes every object below a folder, but for those that are named `but`."""
        bucket, prefix = split_path(_as_folder(folder))
        kept = {prefix + name for name in but}
        for page in self._pages(folder):
            if keys := [key for key, _ in page.objects if key not in kept]:
                self._remove(bucket, keys)

    def abandon_uploads(self, folder: str) -> None:
        """Forgets what a run that was killed has sent of large objects below a folder; one that is still on its way fails."""
        self._abandon_uploads(_as_folder(folder))

    def copy_all(self, source: str, target: str, last: str) -> None:
        """Copies every object below `source` to below `target` inside the store, the object named `last` after all others."""
        source, target = _as_folder(source), _as_folder(target)
        last_size = self.size(source + last)  # before anything is copied

        def copy(item: tuple[str, int]) -> None:
            self._copy(source + item[0], target + item[0], item[1])

        with ThreadPoolExecutor(NUM_THREADS) as pool:
            items = (item for item in self.list(source) if item[0] != last)
            while batch := [*itertools.islice(items, 1000)]:
                for _ in pool.map(copy, batch):  # the first error cancels those that have not begun
                    pass
        copy((last, last_size))

    def check_access(self, path: str) -> None:
        """Asks the store whether objects below a path can be listed: one that is silent twice, and one that is busy for a moment.

        Raises:
            UserError: They cannot: no such bucket, no credentials, no permission.
            StorageError: Nobody is there, or it is too busy to answer.
        """
        split_path(path)
        try:
            self.call(_as_folder(path), self._probe, patience=CHECK_SECONDS, min_attempts=CHECK_ATTEMPTS)
        except OSError as error:
            kind = StorageError if isinstance(error, (Transient, StorageError)) else UserError
            raise kind(f"{printable(path)}: {' '.join(str(error.strerror or error).split())}", path) from None

    def call(self, path: str, request: Callable, *arguments: Any, **how_often: Any) -> Any:
        """Makes a request for the bucket and the key of a path; how often, see `persist`."""
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
        """The bytes, and the version of their object; both empty if the object ends before."""

    @abc.abstractmethod
    def _head(self, bucket: str, key: str) -> FileStat: ...

    @abc.abstractmethod
    def _put(self, bucket: str, key: str, data: bytes) -> None: ...

    @abc.abstractmethod
    def _get_versioned(self, bucket: str, key: str) -> tuple[bytes, str]: ...

    @abc.abstractmethod
    def _put_if(self, bucket: str, key: str, data: bytes, version: str | None) -> str | None:
        """The new version; None: the store has refused since another one is there, or none where one is expected."""

    @abc.abstractmethod
    def _page(self, bucket: str, prefix: str, delimiter: str, token: str | None, first: str) -> Page:
        """Keys below a prefix; those before prefix + first need not be among them."""

    @abc.abstractmethod
    def _probe(self, bucket: str, prefix: str) -> None:
        """Lists one object at most, and does not wait long."""

    @abc.abstractmethod
    def _remove(self, bucket: str, keys: Names) -> None:
        """Removes a page of objects, those that are gone already too, in as many calls as it takes."""

    @abc.abstractmethod
    def _abandon_uploads(self, folder: str) -> None:
        """In as many calls as it takes."""

    @abc.abstractmethod
    def _copy(self, source: str, target: str, num_bytes: int) -> None:
        """Copies one object of any size, in as many calls as it takes."""

    @abc.abstractmethod
    def _make_upload(self, path: str) -> Upload: ...

    @abc.abstractmethod
    def _os_error(self, path: str, error: Exception) -> OSError: ...


def _as_folder(path: str) -> str:
    return path.rstrip("/") + "/"


def _is_marker(key: str) -> bool:
    """An object that other tools put where a folder would be."""
    return key.endswith("/")
