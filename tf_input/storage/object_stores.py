"""Reads and lists objects at gs://, s3://, az:// and https:// URLs with obstore, and retries failed requests."""

import datetime
import os
import pathlib
import re
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Callable, Sequence

from tf_input.process import check_client_fork
from tf_input.storage.credentials import amazon_options, azure_options, google_options, missing_keys
from tf_input.storage.packages import import_package
from tf_input.storage.paths import bucket_and_key, join, scheme_of
from tf_input.storage.remote_files import RemoteFiles

_WEB = ("http", "https")
_AZURE = ("az", "azure", "adl", "abfs", "abfss")
SCHEMES = ("gs", "s3", "s3a", *_AZURE, *_WEB)

_STREAM_CHUNK_BYTES = 256 << 10  # the memory of larger buffers would not be reused, which is slow
_NUM_REQUESTS = 16  # number of parallel requests for many files
# Retries for about five seconds, because the store may be busy, but not longer, because its address may be misspelled.
_RETRIES = {
    "max_retries": 8,
    "retry_timeout": datetime.timedelta(minutes=3),
    "backoff": {"init_backoff": datetime.timedelta(seconds=0.1), "max_backoff": datetime.timedelta(seconds=2), "base": 3},
}
# A whole response may take an hour, because it may be large. A connection without data for 30 seconds is retried.
_CLIENT = {"timeout": "1h", "read_timeout": "30s", "connect_timeout": "5s", "pool_max_idle_per_host": "64"}
_STATUS = re.compile(r"status code: (\d{3}[A-Za-z '-]*)")
_AFTER_END = "416"


class ObjectStoreFiles(RemoteFiles):
    """Reads objects in buckets and files on web servers. It implements `Files`.

    Each process creates its own obstore clients when it first reads an object.
    """

    def __init__(self) -> None:
        self._obstore = import_package("obstore")
        self._stores: dict[str, Any] = {}
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[type["ObjectStoreFiles"], tuple[()]]:
        return ObjectStoreFiles, ()

    def read(self, path: str) -> bytes:
        return self._ask(path, lambda store, key: self._obstore.get(store, key).bytes().to_bytes())

    def _read_range(self, path: str, begin: int, num_bytes: int) -> bytes:
        if num_bytes <= 0:
            return b""
        return self._ask(path, lambda store, key: bytes(self._obstore.get_range(store, key, start=begin, length=num_bytes)))

    def _read_into(self, path: str, begin: int, buffer: memoryview) -> int:
        def read(store: Any, key: str) -> int:
            num_read = 0
            # Copies the response as it arrives. Otherwise, a whole chunk would be in memory twice.
            for chunk in self._obstore.get(store, key, options={"range": (begin, begin + len(buffer))}).stream(
                min_chunk_size=_STREAM_CHUNK_BYTES
            ):
                data = memoryview(chunk)
                buffer[num_read : num_read + len(data)] = data
                num_read += len(data)
            return num_read

        return self._ask(path, read) or 0 if len(buffer) else 0

    def sizes(self, directory: str, names: Sequence[str]) -> list[int | None]:
        if scheme_of(directory) in _WEB:
            with ThreadPoolExecutor(_NUM_REQUESTS) as threads:
                return list(threads.map(self._size, [join(directory, name) for name in names]))
        folders = dict.fromkeys(os.path.dirname(join(directory, name)) for name in names)
        sizes_by_path = {}
        for folder in folders:
            listed = self._ask(f"{folder}/", lambda store, key: self._obstore.list_with_delimiter(store, key)["objects"])
            sizes_by_path |= {join(bucket_and_key(folder)[0], item["path"]): item["size"] for item in listed}
        return [sizes_by_path.get(join(directory, name)) for name in names]

    def copy_directory(self, path: str, copy: str) -> None:
        if scheme_of(path) in _WEB:
            raise OSError(f"{path}: web servers do not list directories. Copy the files to a local directory first.")
        bucket, key = bucket_and_key(path)
        listed = self._ask(f"{path}/", lambda store, key: self._obstore.list(store, key).collect())
        names = [item["path"].removeprefix(f"{key}/") for item in listed]
        if not names:
            raise FileNotFoundError(f"{path} does not exist")

        def copy_one(name: str) -> None:
            written = pathlib.Path(copy, name)
            written.parent.mkdir(parents=True, exist_ok=True)
            written.write_bytes(self.read(join(path, name)))

        with ThreadPoolExecutor(_NUM_REQUESTS) as threads:
            list(threads.map(copy_one, names))

    def _size(self, path: str) -> int | None:
        try:
            return self._ask(path, lambda store, key: self._obstore.head(store, key)["size"])
        except FileNotFoundError:
            return None

    def _ask(self, path: str, ask: Callable[[Any, str], Any]) -> Any:
        """Sends a request to the store of a path. obstore's errors are converted to an `OSError` with the path of the
        object and the status of the response."""
        bucket, key = bucket_and_key(path)
        try:
            return ask(self._store(bucket), key)
        except FileNotFoundError:
            raise FileNotFoundError(f"{path} does not exist") from None
        except (self._obstore.exceptions.BaseError, ValueError) as error:
            message = str(error).partition("\n")[0]
            match = _STATUS.search(message)
            status = match[1] if match else message
            if status.startswith(_AFTER_END):  # a range after the end of a file is valid
                return b""
            advice = missing_keys(scheme_of(path)) if status.startswith(("401", "403")) else ""
            raise OSError(f"{path}: {status}{advice}") from None

    def _store(self, bucket: str) -> Any:
        check_client_fork()
        with self._lock:
            if bucket not in self._stores:
                self._stores[bucket] = _make_store(bucket)
            return self._stores[bucket]


def _make_store(bucket: str) -> Any:
    store = import_package("obstore.store")
    scheme, name = scheme_of(bucket), bucket.partition("://")[2]
    settings = {"client_options": {**_CLIENT, "allow_http": True}, "retry_config": _RETRIES}
    if scheme == "gs":
        return store.GCSStore(name, **google_options(), **settings)
    if scheme in _AZURE:
        return store.from_url(bucket, **azure_options(), **settings)
    if scheme in _WEB:
        return store.HTTPStore(bucket, **settings)
    return store.S3Store(name, **amazon_options(), **settings)
