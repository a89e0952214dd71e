"""Reads, writes and lists objects with obstore, which supports Azure, web servers, and other kinds of stores.

The classes for `gs://` and `s3://` inherit from the class in this module. All threads of a process share the
connections of one client per bucket.
"""

import contextlib
import errno
import itertools
import os
from concurrent.futures import ThreadPoolExecutor
from typing import Any, BinaryIO, Callable, Iterator, Sequence

import obstore
import obstore.store
from obstore.exceptions import AlreadyExistsError, BaseError, PreconditionError

from beam_pipelines.errors import StorageError, UserError, printable
from beam_pipelines.storage import MAX_FILE_BYTES
from beam_pipelines.storage.object_stores import upload as uploads
from beam_pipelines.storage.object_stores.clients import (
    NUM_THREADS,
    checked_name,
    client_settings,
    explain,
    has_no_bucket,
    is_after_end,
    patient_retries,
)
from beam_pipelines.storage.object_stores.object_listing import ObjectListing, as_folder, is_marker
from beam_pipelines.storage.object_stores.retries import (
    CHECK_ATTEMPTS,
    CHECK_SECONDS,
    RESPONSE_SECONDS,
    Breaker,
    Transient,
    foreign_answer,
    persist,
    split_path,
)
from beam_pipelines.storage.object_stores.store_options import StoreOptions
from beam_pipelines.storage.versions import FileStat, changed_error
from tf_input.process import check_client_fork
from tf_input.storage.credentials import azure_options, missing_keys

AZURE_SCHEMES = ("az", "azure", "adl", "abfs", "abfss")
MAX_COPY_BYTES = 5 << 30  # The maximum size of a copy inside S3.
_SMALL_BYTES = 4 << 20


class ObjectStore(ObjectListing):
    """An object store. It implements `Files`, and all threads of a process share an instance.

    Each private method sends a single request, and does not catch errors from client libraries.

    Args:
        scheme: The scheme of the URLs.
        options: The options of this process.
    """

    library_errors: tuple[type[Exception], ...] = (BaseError, FileNotFoundError)
    advice = ""  # What to do if access is denied.
    endpoint = ""  # The URL of the server.
    new_upload: type[uploads.Upload] = uploads.ObstoreUpload

    def __init__(self, scheme: str, options: StoreOptions) -> None:
        self._scheme, self.options = scheme, options
        self.is_web = scheme.startswith("http")
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
        return self.call(path, self._get)[0]

    def read_range(self, path: str, offset: int, num_bytes: int, version: str | None = None) -> bytes:
        if not num_bytes:
            return b""
        data, actual = self.call(path, self._get, (offset, offset + num_bytes))
        if version is not None and version != (actual := actual or self.stat(path).version):
            raise changed_error(path, version, actual)
        return data

    def size(self, path: str) -> int:
        return self.stat(path).size

    def stat(self, path: str) -> FileStat:
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
        self.call(path, self._put, data)

    def read_versioned(self, path: str) -> tuple[bytes, str]:
        data, version = self.call(path, self._get)
        return data, version.partition(" ")[2]

    def write_if(self, path: str, data: bytes, version: str | None) -> str | None:
        written = self.call(path, self._put_if, data, version)
        if written:
            return written
        try:
            stored, actual_version = self.read_versioned(path)
        except FileNotFoundError:
            return None
        return actual_version if stored == data else None

    @contextlib.contextmanager
    def create(self, path: str) -> Iterator[BinaryIO]:
        upload = self.new_upload(self, path)
        try:
            yield upload
            upload.finish()
        except BaseException as error:
            upload.abandon(error)
            raise

    def remove(self, path: str) -> None:
        """Removes an object if it exists."""
        with contextlib.suppress(FileNotFoundError):
            self.call(path, lambda bucket, key: obstore.delete(self._client_at(bucket), checked_name(key)))

    def remove_all(self, folder: str, but: Sequence[str] = ()) -> None:
        """Removes all objects below a folder, except the relative paths in `but`."""
        folder = as_folder(folder)
        bucket, prefix = split_path(folder)
        kept = {prefix + name for name in but}
        for page in self._pages(folder):
            if keys := [key for key, _ in page.objects if key not in kept and not is_marker(key)]:
                try:
                    self.call(folder, lambda bucket, _: obstore.delete(self._client_at(bucket), keys))
                except FileNotFoundError:  # The response of an earlier attempt was lost.
                    for key in keys:
                        self.remove(f"{folder.removesuffix(prefix)}{key}")

    def abandon_uploads(self, folder: str) -> None:
        """Aborts all unfinished uploads in a folder, which killed runs may have left behind. Current uploads fail, too.

        Only S3 requires this, because other stores delete old uploads themselves.
        """

    def copy_all(self, source: str, target: str, last: str) -> None:
        """Copies all objects below `source` to `target` inside the store. The object `last` is copied last."""
        source, target = as_folder(source), as_folder(target)
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
            self.call(as_folder(path), self._probe, patience=CHECK_SECONDS, min_attempts=CHECK_ATTEMPTS)
        except OSError as error:
            kind = StorageError if isinstance(error, (Transient, StorageError)) else UserError
            raise kind(f"{printable(path)}: {' '.join(str(error.strerror or error).split())}", path) from None

    def call(self, path: str, request: Callable, *arguments: Any, **how_often: Any) -> Any:
        """Sends a request for an object, with retries (see `persist`)."""
        bucket, key = split_path(path)
        explain = lambda error: self._os_error(path, error)
        return persist(path, lambda: request(bucket, key, *arguments), self.library_errors, explain, self.breaker, **how_often)

    def _connect(self, bucket: str, **settings: Any) -> Any:
        """Returns a new obstore client for a bucket or a web server."""
        make = obstore.store.HTTPStore if self.is_web else obstore.store.from_url
        return make(f"{self._scheme}://{bucket}", **self._credentials, **settings)

    def _client_at(self, bucket: str, seconds: float = RESPONSE_SECONDS, **retries: Any) -> Any:
        """Returns a client for a bucket.

        Args:
            bucket: The bucket.
            seconds: The time without data after which a request fails.
            **retries: Settings for retries by obstore. Without them, `call` retries requests.
        """
        check_client_fork()
        key = bucket, seconds, bool(retries)
        if key not in self._clients:
            self._clients[key] = self._connect(bucket, **client_settings(self.options.timeout, seconds, **retries))
        return self._clients[key]

    def patient_client(self, bucket: str) -> Any:
        """Returns a client that retries requests itself. It is used for large data and for paged listings."""
        return self._client_at(bucket, self.options.timeout / 2, **patient_retries(self.options.timeout))

    def _get(self, bucket: str, key: str, span: tuple[int, int] | None = None) -> tuple[bytes, str]:
        """Returns the bytes and the version of an object. If the range begins after the end, both are empty."""
        options = {"range": span} if span else {}
        try:
            result = obstore.get(self._client_at(bucket), checked_name(key), options=options)
        except BaseError as error:
            if span and is_after_end(error):
                return b"", ""
            raise
        size = result.meta["size"]
        if not span and size > MAX_FILE_BYTES:
            raise OSError(errno.EFBIG, f"the file has {size} bytes, more than the limit of {MAX_FILE_BYTES}")
        version = self._version(result.meta)
        return result.bytes().to_bytes(), version

    def _head(self, bucket: str, key: str) -> FileStat:
        meta = obstore.head(self._client_at(bucket), checked_name(key))
        return FileStat(meta["size"], self._version(meta))

    def _version(self, meta: Any) -> str:
        """Returns the version of an object. Raises `Transient` if the response is not from the store."""
        if tag := meta["e_tag"]:
            return f"ETag {tag}"
        if not self.is_web:
            raise foreign_answer("an object without an ETag", None)
        return f"modified {meta['last_modified'].isoformat()}"

    def _put(self, bucket: str, key: str, data: bytes) -> None:
        client = self._client_at(bucket) if len(data) <= _SMALL_BYTES else self.patient_client(bucket)
        obstore.put(client, checked_name(key), data, use_multipart=False)

    def _put_if(self, bucket: str, key: str, data: bytes, version: str | None) -> str | None:
        """Returns the new version of the object, or None if the object did not have the expected version."""
        try:
            mode = {"e_tag": version} if version else "create"
            return obstore.put(self._client_at(bucket), key, data, mode=mode, use_multipart=False)["e_tag"]
        except (AlreadyExistsError, PreconditionError):
            return None
        except FileNotFoundError as error:  # The object to replace, or the bucket does not exist.
            if version and not has_no_bucket(error):
                return None
            raise

    def _probe(self, bucket: str, prefix: str) -> None:
        """Lists at most one page of objects, with a short timeout. On a web server, looks for the file."""
        client = self._client_at(bucket, CHECK_SECONDS)
        if self.is_web:
            obstore.head(client, prefix.rstrip("/"))
        else:
            next(obstore.list(client, prefix), None)

    def _copy(self, source: str, target: str, num_bytes: int) -> None:
        """Copies an object of any size. Makes several calls."""
        if num_bytes > MAX_COPY_BYTES:
            with self.create(target) as file:
                for offset in range(0, num_bytes, uploads.CHUNK_BYTES):
                    file.write(self.read_range(source, offset, min(uploads.CHUNK_BYTES, num_bytes - offset)))
            return

        def check(*unused: str) -> None:
            if (size := self.size(target)) != num_bytes:  # Azure copies large objects after its response.
                raise Transient(errno.EIO, f"the copy has {size} of {num_bytes} bytes", target)

        key = split_path(source)[1]
        self.call(target, lambda bucket, copy: obstore.copy(self._client_at(bucket, self.options.timeout), key, copy))
        self.call(target, check)

    def _os_error(self, path: str, error: Exception) -> OSError:
        return explain(path, error, self.endpoint, self.advice)
