"""Implements `ObjectStore` for gs://."""

import base64
import contextlib
import errno
import io
import os
from concurrent.futures import ThreadPoolExecutor

import google.auth
import google_crc32c
import requests
import urllib3
from apache_beam.io.gcp.gcsio import create_storage_client
from apache_beam.options.pipeline_options import GoogleCloudOptions, PipelineOptions
from google.api_core.exceptions import Conflict, GoogleAPICallError, NotFound, PreconditionFailed, RequestRangeNotSatisfiable
from google.auth.exceptions import DefaultCredentialsError, GoogleAuthError, InvalidOperation, TransportError
from google.cloud import storage
from google.cloud.storage.exceptions import DataCorruption, InvalidResponse

from beam_pipelines.errors import UserError
from beam_pipelines.storage import MAX_FILE_BYTES
from beam_pipelines.storage.object_stores import object_store
from beam_pipelines.storage.object_stores.object_store import NUM_THREADS, Names, ObjectStore, Page
from beam_pipelines.storage.object_stores.retries import (
    ABANDON_SECONDS,
    CHECK_SECONDS,
    CONNECT_SECONDS,
    RESPONSE_SECONDS,
    Breaker,
    Transient,
    foreign_answer,
    split_path,
    status_error,
)
from beam_pipelines.storage.object_stores.store_options import StoreOptions
from beam_pipelines.storage.object_stores.upload import Upload
from beam_pipelines.storage.versions import FileStat

_CREDENTIALS = "GOOGLE_APPLICATION_CREDENTIALS"
_TYPE = "application/octet-stream"
_BROKEN_OFF = (
    ConnectionError,
    DataCorruption,
    TransportError,
    requests.ConnectionError,
    requests.Timeout,
    requests.exceptions.ChunkedEncodingError,
    requests.exceptions.JSONDecodeError,  # The response is a web page of a proxy.
    urllib3.exceptions.HTTPError,
)


class GcsStore(ObjectStore):
    """Accesses Google Cloud Storage, or the emulator at `STORAGE_EMULATOR_HOST`."""

    library_errors = (
        GoogleAPICallError,
        GoogleAuthError,
        InvalidResponse,
        requests.RequestException,
        *_BROKEN_OFF,
    )

    def __init__(self, options: PipelineOptions):
        # Otherwise, the first request to a bucket starts a thread that requests the bucket's metadata for telemetry.
        os.environ.setdefault("DISABLE_GCS_PYTHON_CLIENT_OTEL_BUCKET_METADATA", "true")
        emulator = os.environ.get("STORAGE_EMULATOR_HOST")
        self._endpoint = emulator or "storage.googleapis.com"
        self._anonymous = bool(emulator) or not _has_credentials(options)
        timeout = options.view_as(StoreOptions).store_timeout
        self.timeouts = min(CONNECT_SECONDS, timeout), min(RESPONSE_SECONDS, timeout)
        self.once = {"timeout": self.timeouts, "retry": None}  # `call` retries requests.
        self.breaker = Breaker(self._endpoint, timeout)
        self._client = create_storage_client(options, use_credentials=not self._anonymous)
        self.uploads = requests.Session()  # The URL of an upload needs no credentials.
        for session in (self._client._http, self.uploads):
            for scheme in ("https://", "http://"):
                session.mount(scheme, requests.adapters.HTTPAdapter(pool_maxsize=2 * NUM_THREADS))

    def blob(self, bucket: str, key: str) -> storage.Blob:
        """Returns the client library's handle for an object, which does not have to exist."""
        return self._client.bucket(bucket).blob(key)

    def _get(self, bucket: str, key: str, offset: int, num_bytes: int | None) -> tuple[bytes, str]:
        data, blob = _Bounded(), self.blob(bucket, key)
        span = {} if num_bytes is None else {"start": offset, "end": offset + num_bytes - 1}
        try:
            blob.download_to_file(data, raw_download=True, **span, **self.once)
        except RequestRangeNotSatisfiable:  # The range begins after the end of the object.
            return b"", ""
        return data.getvalue(), _version(blob)

    def _head(self, bucket: str, key: str) -> FileStat:
        blob = self.blob(bucket, key)
        blob.reload(**self.once)
        return FileStat(blob.size, _version(blob))

    def _put(self, bucket: str, key: str, data: bytes) -> None:
        self.blob(bucket, key).upload_from_string(data, content_type=_TYPE, checksum="crc32c", **self.once)

    def _get_versioned(self, bucket: str, key: str) -> tuple[bytes, str]:
        blob = self.blob(bucket, key)
        data = blob.download_as_bytes(raw_download=True, **self.once)
        return data, str(blob.generation)  # Both come from the same response.

    def _put_if(self, bucket: str, key: str, data: bytes, version: str | None) -> str | None:
        blob = self.blob(bucket, key)
        condition = {"if_generation_match": int(version or 0)}  # 0: the object must not exist
        try:
            blob.upload_from_string(data, content_type=_TYPE, checksum="crc32c", **condition, **self.once)
        except (Conflict, PreconditionFailed):
            return None
        return str(blob.generation)

    def _page(self, bucket: str, prefix: str, delimiter: str, token: str | None, first: str) -> Page:
        fields = "kind,items(name,size),prefixes,nextPageToken"
        names = {"prefix": prefix, "delimiter": delimiter or None, "page_token": token}
        if first:
            names["start_offset"] = prefix + first
        blobs = self._client.list_blobs(bucket, page_size=object_store.PAGE_OBJECTS, fields=fields, **names, **self.once)
        page = next(blobs.pages, None)
        if page is not None and "kind" not in page.raw_page:
            raise foreign_answer("a listing without the field kind", None)
        objects = [(blob.name, blob.size) for blob in page or ()]
        return Page(objects, sorted(blobs.prefixes), blobs.next_page_token)

    def _probe(self, bucket: str, prefix: str) -> None:
        try:
            blobs = self._client.list_blobs(bucket, prefix=prefix, max_results=1, timeout=CHECK_SECONDS, retry=None)
        except ValueError as error:  # The bucket name is invalid.
            raise OSError(errno.EINVAL, str(error)) from None
        next(blobs.pages, None)

    def _remove(self, bucket: str, keys: Names) -> None:
        def remove(bucket: str, key: str) -> None:
            with contextlib.suppress(NotFound):
                self.blob(bucket, key).delete(**self.once)

        with ThreadPoolExecutor(NUM_THREADS) as pool:
            for _ in pool.map(lambda key: self.call(f"gs://{bucket}/{key}", remove), keys):
                pass

    def _abandon_uploads(self, folder: str) -> None:
        """Does nothing. GCS does not list or bill unfinished uploads, and deletes them after a week."""

    def _copy(self, source: str, target: str, num_bytes: int) -> None:
        blob = self.blob(*split_path(source))

        def rewrite(bucket: str, key: str, token: str | None) -> str | None:
            return self.blob(bucket, key).rewrite(blob, token=token, **self.once)[0]

        token = self.call(target, rewrite, None)
        while token:
            token = self.call(target, rewrite, token)

    def _make_upload(self, path: str) -> Upload:
        return _GcsUpload(self, path)

    def _os_error(self, path: str, error: Exception) -> OSError:
        status = getattr(error, "code", None) or getattr(getattr(error, "response", None), "status_code", None)
        if self._anonymous and (status in (401, 403) or isinstance(error, InvalidOperation)):  # No credentials.
            bucket, _ = split_path(path)
            message = f"no Google credentials were found, and bucket '{bucket}' is not public"
            return OSError(errno.EACCES, message, path)
        if isinstance(error, (requests.ConnectionError, TransportError)):
            return Transient(errno.EHOSTUNREACH, f"{self._endpoint} is not reachable", path)
        if isinstance(error, _BROKEN_OFF):
            return Transient(errno.EIO, str(error), path)
        if status:
            return status_error(path, int(status), _reason(error), no_bucket="bucket does not exist" in str(error))
        return OSError(errno.EACCES if isinstance(error, GoogleAuthError) else errno.EIO, str(error), path)


def _has_credentials(options: PipelineOptions) -> bool:
    """Returns whether Google credentials exist. Without credentials, Beam's own check takes 20 seconds."""
    chosen = options.view_as(GoogleCloudOptions)
    if chosen.no_auth:
        return False
    try:
        google.auth.default(scopes=chosen.gcp_oauth_scopes)
    except DefaultCredentialsError as error:
        if os.environ.get(_CREDENTIALS):
            raise UserError(f"{_CREDENTIALS}={os.environ[_CREDENTIALS]}: {error}") from None
        return False
    return True


def _version(blob: storage.Blob) -> str:
    """Returns the version of an object from a response. Raises `Transient` if the response is not from the store."""
    if blob.generation is None:
        raise foreign_answer("an object without a generation", blob.content_type)
    return f"generation {blob.generation}"


def _reason(error: Exception) -> str:
    errors = getattr(error, "errors", None) or [{}]
    return errors[0].get("message") or getattr(error, "message", None) or str(error)


class _Bounded(io.BytesIO):
    """A memory buffer that raises `OSError` if it exceeds the maximum file size."""

    def write(self, data: bytes) -> int:
        if self.tell() + len(data) > MAX_FILE_BYTES:
            raise OSError(errno.EFBIG, f"the file has more than {MAX_FILE_BYTES} bytes, which is the limit")
        return super().write(data)


class _GcsUpload(Upload):
    """A resumable upload. The object is created when the last chunk has been sent."""

    def __init__(self, store: GcsStore, path: str):
        super().__init__(lambda data: store.write(path, data))
        self._store, self._path = store, path
        self._address = ""
        self._checksum = google_crc32c.Checksum()
        self._arrived = 0  # Number of bytes that the store has confirmed.
        self._is_known = True  # False after a request without a response.

    def send(self, chunk: bytes, is_last: bool) -> None:
        if not self._address:
            self._address = self._store.call(self._path, self._begin)
        self._checksum.update(chunk)
        end = self.num_bytes + len(chunk)
        try:
            while self._arrived < end:
                self._store.call(self._path, self._send_rest, chunk, end, is_last)
        except FileNotFoundError:  # The upload may be complete, although the response was lost.
            if not is_last:
                raise
        if is_last:
            self._store.call(self._path, self._check)

    def abandon(self) -> None:
        if self._address:
            self._store.call(self._path, self._forget, patience=ABANDON_SECONDS)

    def _forget(self, *unused: str) -> None:
        self._store.uploads.delete(self._address, timeout=self._store.timeouts)

    def _begin(self, bucket: str, key: str) -> str:
        blob = self._store.blob(bucket, key)
        return blob.create_resumable_upload_session(content_type=_TYPE, checksum=None, **self._store.once)

    def _send_rest(self, bucket: str, key: str, chunk: bytes, end: int, is_last: bool) -> None:
        """Sends the missing part of a chunk. If the last attempt had no response, first asks which bytes have arrived.
        """
        if not self._is_known:
            self._note(self._put(b"", "bytes */*"), end)
            self._is_known = True
            return
        before, self._is_known = self._arrived, False
        span = f"bytes {before}-{end - 1}/{end if is_last else '*'}"
        self._note(self._put(chunk[before - self.num_bytes :], span), end)
        self._is_known = True
        if self._arrived == before:
            raise ConnectionError("the store received no byte of a chunk")

    def _put(self, data: bytes, span: str) -> requests.Response:
        return self._store.uploads.put(
            self._address, data, headers={"Content-Range": span}, timeout=self._store.timeouts, allow_redirects=False
        )

    def _note(self, response: requests.Response, end: int) -> None:
        if response.status_code == 308:
            arrived = response.headers.get("Range")
            self._arrived = int(arrived.rpartition("-")[2]) + 1 if arrived else 0
        elif response.ok:
            self._arrived = end
        else:
            raise InvalidResponse(response, response.reason)

    def _check(self, bucket: str, key: str) -> None:
        blob = self._store.blob(bucket, key)
        blob.reload(**self._store.once)
        expected = base64.b64encode(self._checksum.digest()).decode()
        if blob.crc32c != expected:
            blob.delete(**self._store.once)
            raise OSError(errno.EIO, f"the uploaded object has CRC32C {blob.crc32c} instead of {expected}", self._path)
