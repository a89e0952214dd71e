"""Reads, writes and lists objects with obstore, which supports Azure, web servers, and other kinds of stores.

The classes for `gs://` and `s3://` inherit from the class in this module. All threads of a process share the
connections of one client per bucket.
"""

import contextlib
import datetime
import errno
import itertools
import os
import re
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Callable, Iterator, NamedTuple, Protocol, Sequence

import obstore
import obstore.store
from obstore.exceptions import AlreadyExistsError, BaseError, PreconditionError

from beam_pipelines.errors import StorageError, UserError, printable
from beam_pipelines.storage import MAX_FILE_BYTES
from beam_pipelines.storage.object_stores.retries import (
    CHECK_ATTEMPTS,
    CHECK_SECONDS,
    CONNECT_SECONDS,
    RESPONSE_SECONDS,
    Breaker,
    Transient,
    foreign_answer,
    persist,
    split_path,
    status_error,
)
from beam_pipelines.storage.object_stores.store_options import StoreOptions
from beam_pipelines.storage.versions import FileStat, changed_error
from tf_input.storage.credentials import azure_options, missing_keys

AZURE_SCHEMES = ("az", "azure", "adl", "abfs", "abfss")
NUM_THREADS = 32
PAGE_OBJECTS = 1000  # The maximum that object stores allow.
# Object stores require chunks of at least 5 MiB and a multiple of 256 KiB, and allow at most 10,000 chunks.
CHUNK_BYTES = 16 << 20
MAX_COPY_BYTES = 5 << 30  # The maximum size of a copy inside S3.
_SMALL_BYTES = 4 << 20
Names = list[str]  # An alias, because `list` is a method inside the class.
Sizes = list[tuple[str, int]]

_STATUS = re.compile(r"status code: (\d{3}) ?([A-Za-z '-]*)")
_CODE = re.compile(r"<Code>(\w+)</Code>")
_NOT_CONNECTED = re.compile(r"dns error|tcp connect error|ConnectError|Connection refused")
_BROKEN_OFF = re.compile(r"HTTP error|Header missing|invalid \w+ response|non-partial response")
_AFTER_END = re.compile(r"status code: 416|Wanted range starting at")
_ODD_NAME = re.compile(r"(^|/)\.{0,2}(/|$)|[\x00-\x1f\x7f]")


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


class Upload(Protocol):
    """A large object that is being written."""

    def write(self, data: bytes) -> int:
        """Writes the next bytes of the object and returns their number."""


class ObjectStore:
    """An object store. All threads of a process share an instance. All failures raise an `OSError`.

    Private methods send single requests, without catching errors of client libraries.

    Args:
        scheme: The scheme of the URLs.
        options: The options of this process.
    """

    library_errors: tuple[type[Exception], ...] = (BaseError, FileNotFoundError)
    advice = ""  # What to do if access is denied.
    endpoint = ""  # The URL of the server.

    def __init__(self, scheme: str, options: StoreOptions) -> None:
        self._scheme, self.options = scheme, options
        self._is_web = scheme.startswith("http")
        self._credentials: dict[str, Any] = {}
        if scheme in AZURE_SCHEMES:
            self._credentials = azure_options()
            if endpoint := os.environ.get("AZURE_STORAGE_ENDPOINT"):
                self.endpoint = self._credentials["endpoint"] = endpoint
            self.advice = missing_keys("az") if self._credentials.get("skip_signature") else ""
        self.endpoint = self.endpoint or f"{scheme}://"
        self.breaker = Breaker(self.endpoint, options.timeout)
        self._clients: dict[tuple[str, float, bool], Any] = {}

    def read(self, path: str) -> bytes:
        """Reads a whole object with a single request. The maximum size is `storage.MAX_FILE_BYTES`."""
        return self.call(path, self._get)[0]

    def read_range(self, path: str, offset: int, num_bytes: int, version: str | None = None) -> bytes:
        """Reads a part of an object. Returns fewer bytes if the object ends within the requested range.

        Raises:
            DataError: The object has another version than the given one.
        """
        if not num_bytes:
            return b""
        data, actual = self.call(path, self._get, (offset, offset + num_bytes))
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
        except OSError as error:
            if error.errno != errno.EILSEQ:
                raise
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
        data, version = self.call(path, self._get)
        return data, version.partition(" ")[2]

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

        The object is created after the block, unless an exception is raised. Then, the chunks are removed.
        """
        upload = _Upload(self, path)
        try:
            yield upload
            upload.finish()
        except BaseException as error:
            upload.abandon(error)
            raise

    def top_level(self, folder: str, is_short: bool = False) -> tuple[Names, Names]:
        """Returns the sorted names of the folders and the objects that are directly in a folder.

        With `is_short`, only the first page is returned. Unlike in `list`, folders with an empty name ("//") are
        omitted. Web servers do not list folders, so all their folders are empty.
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
        with contextlib.suppress(FileNotFoundError):
            self.call(path, lambda bucket, key: obstore.delete(self._client_at(bucket), _checked(key)))

    def remove_all(self, folder: str, but: Sequence[str] = ()) -> None:
        """Removes all objects below a folder, except the relative paths in `but`."""
        folder = _as_folder(folder)
        bucket, prefix = split_path(folder)
        kept = {prefix + name for name in but}
        for page in self._pages(folder):
            if keys := [key for key, _ in page.objects if key not in kept and not _is_marker(key)]:
                try:
                    self.call(folder, lambda bucket, _: obstore.delete(self._client_at(bucket), keys))
                except FileNotFoundError:  # The response of an earlier attempt was lost.
                    for key in keys:
                        self.remove(f"{folder.removesuffix(prefix)}{key}")

    def abandon_uploads(self, folder: str) -> None:
        """Aborts all unfinished uploads in a folder, which killed runs may have left. Current uploads fail, too.

        Only S3 requires this, because other stores delete old uploads themselves.
        """

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

    def _connect(self, bucket: str, **settings: Any) -> Any:
        """Returns a new client of obstore for a bucket or a web server."""
        make = obstore.store.HTTPStore if self._is_web else obstore.store.from_url
        return make(f"{self._scheme}://{bucket}", **self._credentials, **settings)

    def _client_at(self, bucket: str, seconds: float = RESPONSE_SECONDS, **retries: Any) -> Any:
        """Returns a client for a bucket.

        Args:
            bucket: The bucket.
            seconds: The time without data after which a request fails.
            **retries: Settings for retries by obstore. Without them, `call` retries requests.
        """
        key = bucket, seconds, bool(retries)
        if key not in self._clients:
            seconds, connect_seconds = (min(limit, self.options.timeout) for limit in (seconds, CONNECT_SECONDS))
            self._clients[key] = self._connect(
                bucket,
                client_options={
                    "allow_http": True,
                    "connect_timeout": datetime.timedelta(seconds=connect_seconds),
                    "read_timeout": datetime.timedelta(seconds=seconds),
                    "timeout": "1h",
                    "pool_max_idle_per_host": str(2 * NUM_THREADS),
                    "default_headers": {"Accept-Encoding": "gzip"},  # Otherwise, GCS decompresses objects.
                },
                retry_config={"max_retries": 0, **retries},
            )
        return self._clients[key]

    def patient_client(self, bucket: str) -> Any:
        """Returns a client for large requests, and for streams of requests, which obstore must retry itself."""
        backoff = {"init_backoff": datetime.timedelta(seconds=0.2), "max_backoff": datetime.timedelta(seconds=20), "base": 2}
        timeout = datetime.timedelta(seconds=self.options.timeout)
        return self._client_at(bucket, self.options.timeout / 2, max_retries=10_000, retry_timeout=timeout, backoff=backoff)

    def _get(self, bucket: str, key: str, span: tuple[int, int] | None = None) -> tuple[bytes, str]:
        """Returns the bytes and the version of an object. If the range begins after the end, both are empty."""
        options = {"range": span} if span else {}
        try:
            result = obstore.get(self._client_at(bucket), _checked(key), options=options)
        except BaseError as error:
            if span and _AFTER_END.search(str(error)):
                return b"", ""
            raise
        size = result.meta["size"]
        if not span and size > MAX_FILE_BYTES:
            raise OSError(errno.EFBIG, f"the file has {size} bytes, more than the limit of {MAX_FILE_BYTES}")
        version = self._version(result.meta)
        return result.bytes().to_bytes(), version

    def _head(self, bucket: str, key: str) -> FileStat:
        meta = obstore.head(self._client_at(bucket), _checked(key))
        return FileStat(meta["size"], self._version(meta))

    def _version(self, meta: Any) -> str:
        """Returns the version of an object. Raises `Transient` if the response is not from the store."""
        if tag := meta["e_tag"]:
            return f"ETag {tag}"
        if not self._is_web:
            raise foreign_answer("an object without an ETag", None)
        return f"modified {meta['last_modified'].isoformat()}"

    def _put(self, bucket: str, key: str, data: bytes) -> None:
        client = self._client_at(bucket) if len(data) <= _SMALL_BYTES else self.patient_client(bucket)
        obstore.put(client, _checked(key), data, use_multipart=False)

    def _put_if(self, bucket: str, key: str, data: bytes, version: str | None) -> str | None:
        """Returns the new version of the object, or None if the object did not have the expected version."""
        try:
            mode = {"e_tag": version} if version else "create"
            return obstore.put(self._client_at(bucket), key, data, mode=mode, use_multipart=False)["e_tag"]
        except (AlreadyExistsError, PreconditionError):
            return None
        except FileNotFoundError as error:  # The object to replace, or the bucket does not exist.
            if version and not _has_no_bucket(error):
                return None
            raise

    def _pages(self, folder: str, delimiter: str = "", first: str = "") -> Iterator[Page]:
        """Yields the pages of a listing. The listing may begin before the relative path `first`."""
        folder = _as_folder(folder)
        bucket, prefix = split_path(folder)
        if self._is_web:
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

    def _numbered_pages(self, folder: str, delimiter: str, first: str) -> Iterator[Page]:
        """Yields the pages of a listing. Each page is requested with `_page`, which subclasses implement."""
        token = None
        while True:
            page = self.call(_as_folder(folder), self._page, delimiter, token, first)
            yield page
            token = page.next_token
            if not token:
                return

    def _page(self, bucket: str, prefix: str, delimiter: str, token: str | None, first: str) -> Page:
        """Returns a page of keys with a prefix. The page may omit keys that sort before `prefix + first`."""
        raise NotImplementedError

    def _probe(self, bucket: str, prefix: str) -> None:
        """Lists at most one page of objects, with a short timeout. On a web server, looks for the file."""
        client = self._client_at(bucket, CHECK_SECONDS)
        if self._is_web:
            obstore.head(client, prefix.rstrip("/"))
        else:
            next(obstore.list(client, prefix), None)

    def _copy(self, source: str, target: str, num_bytes: int) -> None:
        """Copies an object of any size. Makes several calls."""
        if num_bytes > MAX_COPY_BYTES:
            with self.create(target) as file:
                for offset in range(0, num_bytes, CHUNK_BYTES):
                    file.write(self.read_range(source, offset, min(CHUNK_BYTES, num_bytes - offset)))
            return

        def check(*unused: str) -> None:
            if (size := self.size(target)) != num_bytes:  # Azure copies large objects after its response.
                raise Transient(errno.EIO, f"the copy has {size} of {num_bytes} bytes", target)

        key = split_path(source)[1]
        self.call(target, lambda bucket, copy: obstore.copy(self._client_at(bucket, self.options.timeout), key, copy))
        self.call(target, check)

    def _os_error(self, path: str, error: Exception) -> OSError:
        text = str(error).partition("\nDebug source")[0]
        if match := _STATUS.search(text):
            code = _CODE.search(text)
            reason = (code[1] if code else match[2].strip()) + (self.advice if match[1] in ("401", "403") else "")
            return status_error(path, int(match[1]), reason, no_bucket=_has_no_bucket(error))
        if isinstance(error, FileNotFoundError):
            return status_error(path, 404, "")
        if _NOT_CONNECTED.search(str(error)):
            return Transient(errno.EHOSTUNREACH, f"{self.endpoint} is not reachable", path)
        reason = "no response in time" if "TimedOut" in str(error) else text.strip().partition("\n")[0]
        return (Transient if _BROKEN_OFF.search(text) else OSError)(errno.EIO, reason, path)


class _Upload:
    """A large object that is being written. An object that fits into one chunk is written with a single request."""

    def __init__(self, store: ObjectStore, path: str) -> None:
        self._store, self._path = store, path
        self._first, self._writer = bytearray(), None
        self._num_bytes, self._has_failed = 0, False

    def write(self, data: bytes) -> int:
        self._num_bytes += len(data)
        if self._writer is None and self._num_bytes <= CHUNK_BYTES:
            self._first += data
            return len(data)
        if self._writer is None:
            bucket, key = split_path(self._path)
            self._writer = obstore.open_writer(self._store.patient_client(bucket), key, buffer_size=CHUNK_BYTES, max_concurrency=1)
            self._send(self._writer.write, self._first)
        self._send(self._writer.write, data)
        return len(data)

    def finish(self) -> None:
        """Sends the remaining bytes. Afterwards, the object exists."""
        if self._writer is None:
            self._store.write(self._path, bytes(self._first))
            return
        try:
            self._send(self._writer.close)
        except (FileNotFoundError, Transient):  # An attempt may have succeeded, although its response was lost.
            if not (self._store.exists(self._path) and self._store.size(self._path) == self._num_bytes):
                raise

    def abandon(self, error: BaseException) -> None:
        """Removes the chunks that have been sent."""
        if self._writer is not None and not self._has_failed:  # After a failure, obstore would wait for the store again.
            with contextlib.suppress(BaseError, OSError):  # The store deletes old uploads itself.
                self._writer.__exit__(type(error), error, None)

    def _send(self, send: Callable, *data: bytes) -> None:
        self._has_failed = True
        self._store.call(self._path, lambda *_: send(*data), patience=0.0)
        self._has_failed = False


def _as_folder(path: str) -> str:
    return path.rstrip("/") + "/"


def _is_marker(key: str) -> bool:
    """Returns whether an object is a folder marker, which some third-party tools create."""
    return key.endswith("/")


def _checked(key: str) -> str:
    """Returns the key of an object. Raises `OSError` if obstore does not support the key."""
    if _ODD_NAME.search(key):
        raise OSError(errno.EILSEQ, "the name has an empty part, a part '.' or '..', or a control character", key)
    return key


def _has_no_bucket(error: Exception) -> bool:
    """Returns whether a request failed because the bucket does not exist."""
    return bool(re.search("<Code>(NoSuchBucket|ContainerNotFound)</Code>", str(error)))
