"""Implements listings and writes for gs://, with Google's JSON API. Reads use obstore, which uses Google's XML API."""

import base64
import contextlib
import errno
import os
import urllib.parse
from typing import Any

import google.auth
import google_crc32c
import obstore.store
import requests
import urllib3
from google.auth import impersonated_credentials
from google.auth.credentials import Credentials
from google.auth.exceptions import DefaultCredentialsError, GoogleAuthError, TransportError
from google.auth.transport.requests import AuthorizedSession
from obstore.auth.google import GoogleCredentialProvider

from beam_pipelines.errors import UserError
from beam_pipelines.storage.object_stores import object_listing
from beam_pipelines.storage.object_stores.clients import NUM_THREADS
from beam_pipelines.storage.object_stores.object_listing import Page
from beam_pipelines.storage.object_stores.object_store import ObjectStore
from beam_pipelines.storage.object_stores.retries import (
    ABANDON_SECONDS,
    CHECK_SECONDS,
    CONNECT_SECONDS,
    RESPONSE_SECONDS,
    Transient,
    foreign_answer,
    split_path,
    status_error,
)
from beam_pipelines.storage.object_stores.store_options import StoreOptions
from beam_pipelines.storage.object_stores.upload import Upload
from tf_input.storage.credentials import google_options

_CREDENTIALS = "GOOGLE_APPLICATION_CREDENTIALS"
_SCOPE = "https://www.googleapis.com/auth/devstorage.full_control"
_INCOMPLETE = 308
_BROKEN_OFF = (ConnectionError, TransportError, requests.RequestException, urllib3.exceptions.HTTPError)


class _Refused(Exception):
    """An error response of the JSON API."""

    def __init__(self, response: requests.Response) -> None:
        self.status, self.reason = response.status_code, response.reason or ""
        with contextlib.suppress(ValueError, KeyError, TypeError):
            self.reason = response.json()["error"]["message"]
        super().__init__(self.reason)


class _GcsUpload(Upload):
    """A resumable upload with the JSON API."""

    def __init__(self, store: "GcsStore", path: str) -> None:
        super().__init__(store, path)
        self._url, self._checksum = "", google_crc32c.Checksum()
        self._arrived = 0  # The number of bytes that the store has confirmed.
        self._is_known = True  # False after a request without a response.

    def send(self, chunk: bytes, is_last: bool) -> None:
        self._url = self._url or self.store.call(self.path, self.store.begin_upload)
        self._checksum.update(chunk)
        while self._arrived < self.num_bytes:
            self.store.call(self.path, lambda *_: self._send_rest(chunk, is_last))

    def abandon(self, error: BaseException) -> None:
        if self._url:
            with contextlib.suppress(OSError):  # The store deletes old uploads itself.
                self.store.call(self.path, lambda *_: self.store.send("DELETE", self._url), patience=ABANDON_SECONDS)

    def _send_rest(self, chunk: bytes, is_last: bool) -> None:
        """Sends the missing part of a chunk. If the last attempt had no response, first asks which bytes have arrived."""
        if not self._is_known:
            self._note(self._put(b"", "bytes */*"))
            self._is_known = True
            return
        before, self._is_known = self._arrived, False
        span = f"bytes {before}-{self.num_bytes - 1}/{self.num_bytes if is_last else '*'}"
        self._note(self._put(chunk[before - self.num_bytes :], span))
        self._is_known = True
        if self._arrived == before:
            raise ConnectionError("the store received no byte of a chunk")

    def _put(self, data: bytes, span: str) -> requests.Response:
        return self.store.send("PUT", self._url, self.store.options.timeout, data=data, headers={"Content-Range": span})

    def _note(self, response: requests.Response) -> None:
        if response.status_code == _INCOMPLETE:
            arrived = response.headers.get("Range")
            self._arrived = int(arrived.rpartition("-")[2]) + 1 if arrived else 0
        else:
            self._arrived = self.num_bytes
            try:
                _check_sum(response.json(), self._checksum)
            except OSError:
                self.store.remove(self.path)
                raise


class GcsStore(ObjectStore):
    """Accesses Google Cloud Storage, or the emulator at `STORAGE_EMULATOR_HOST`."""

    _pages = ObjectStore._numbered_pages
    library_errors = (*ObjectStore.library_errors, _Refused, GoogleAuthError, *_BROKEN_OFF)
    new_upload = _GcsUpload

    def __init__(self, scheme: str, options: StoreOptions) -> None:
        emulator = os.environ.get("STORAGE_EMULATOR_HOST")
        self.endpoint = "https://storage.googleapis.com"
        if emulator:
            self.endpoint = (emulator if "://" in emulator else f"http://{emulator}").rstrip("/")
        self._emulator_options = google_options() if emulator else {}
        self._google_credentials = None if emulator else _find_credentials(options)
        if not self._google_credentials:
            self.advice = "; no Google credentials were found. Run `gcloud auth application-default login`, or set " + _CREDENTIALS
        self._session = AuthorizedSession(self._google_credentials) if self._google_credentials else requests.Session()
        for scheme in ("https://", "http://"):
            self._session.mount(scheme, requests.adapters.HTTPAdapter(pool_maxsize=2 * NUM_THREADS))
        super().__init__(scheme, options)

    def _connect(self, bucket: str, **settings: Any) -> Any:
        if self._emulator_options:
            signing = self._emulator_options
        elif self._google_credentials:
            signing = {"credential_provider": GoogleCredentialProvider(self._google_credentials)}
        else:
            signing = {"skip_signature": True}
        return obstore.store.GCSStore(bucket, **signing, **settings)

    def _version(self, meta: Any) -> str:
        if meta["version"] is None:
            raise foreign_answer("an object without a generation", None)
        return f"generation {meta['version']}"

    def _put(self, bucket: str, key: str, data: bytes, **condition: int) -> str:
        query = {"uploadType": "media", "name": key, **condition}
        answer = self._ask("POST", "/upload/storage/v1" + _name_path(bucket), query, data=data)
        _check_sum(answer, google_crc32c.Checksum(data))
        return answer["generation"]

    def _put_if(self, bucket: str, key: str, data: bytes, version: str | None) -> str | None:
        try:
            return self._put(bucket, key, data, ifGenerationMatch=int(version or 0))  # 0: the object must not exist
        except _Refused as error:
            if error.status in (409, 412):
                return None
            raise

    def _page(self, bucket: str, prefix: str, delimiter: str, token: str | None, first: str) -> Page:
        query = {
            "prefix": prefix,
            "delimiter": delimiter or None,
            "pageToken": token,
            "startOffset": prefix + first if first else None,
            "maxResults": object_listing.PAGE_OBJECTS,
            "fields": "kind,items(name,size),prefixes,nextPageToken",
        }
        answer = self._ask("GET", "/storage/v1" + _name_path(bucket), query)
        objects = [(item["name"], int(item["size"])) for item in answer.get("items", ())]
        return Page(objects, answer.get("prefixes", []), answer.get("nextPageToken"))

    def _probe(self, bucket: str, prefix: str) -> None:
        self._ask("GET", "/storage/v1" + _name_path(bucket), {"prefix": prefix, "maxResults": 1}, seconds=CHECK_SECONDS)

    def _copy(self, source: str, target: str, num_bytes: int) -> None:
        def copy(bucket: str, key: str, token: str | None) -> str | None:
            path = f"/storage/v1{_name_path(*split_path(source))}/rewriteTo{_name_path(bucket, key)}"
            return self._ask("POST", path, {"rewriteToken": token}).get("rewriteToken")

        token = self.call(target, copy, None)
        while token:
            token = self.call(target, copy, token)

    def send(self, method: str, url: str, seconds: float = RESPONSE_SECONDS, **request: Any) -> requests.Response:
        """Sends a request of the JSON API. Raises an exception if the response is an error."""
        timeouts = min(CONNECT_SECONDS, self.options.timeout), min(seconds, self.options.timeout)
        response = self._session.request(method, url, timeout=timeouts, allow_redirects=False, **request)
        if response.status_code >= 300 and response.status_code != _INCOMPLETE:
            raise _Refused(response)
        return response

    def begin_upload(self, bucket: str, key: str) -> str:
        """Starts a resumable upload and returns its URL."""
        query = {"uploadType": "resumable", "name": key}
        response = self.send("POST", self.endpoint + "/upload/storage/v1" + _name_path(bucket), params=query, json={})
        place = urllib.parse.urlsplit(response.headers.get("Location", ""))
        if not place.query:
            raise foreign_answer("an upload without a location", response.headers.get("Content-Type"))
        return f"{self.endpoint}{place.path}?{place.query}"

    def _ask(self, method: str, path: str, query: dict[str, Any], **request: Any) -> dict[str, Any]:
        response = self.send(method, self.endpoint + path, params=query, **request)
        try:
            answer = response.json()
        except ValueError:
            answer = None
        if not isinstance(answer, dict) or "kind" not in answer:
            raise foreign_answer("not an object of the JSON API", response.headers.get("Content-Type"))
        return answer

    def _os_error(self, path: str, error: Exception) -> OSError:
        if isinstance(error, _Refused):
            reason = error.reason + (self.advice if error.status in (401, 403) else "")
            return status_error(path, error.status, reason, no_bucket="bucket" in error.reason)
        if isinstance(error, (requests.ConnectionError, TransportError)):
            return Transient(errno.EHOSTUNREACH, f"{self.endpoint} is not reachable", path)
        if isinstance(error, _BROKEN_OFF):
            return Transient(errno.EIO, str(error), path)
        return OSError(errno.EACCES, str(error), path) if isinstance(error, GoogleAuthError) else super()._os_error(path, error)


def _check_sum(answer: dict[str, Any], checksum: google_crc32c.Checksum) -> None:
    expected = base64.b64encode(checksum.digest()).decode()
    if answer.get("crc32c", expected) != expected:
        raise OSError(errno.EIO, f"the uploaded object has CRC32C {answer['crc32c']} instead of {expected}")


def _name_path(bucket: str, key: str = "") -> str:
    """Returns the path of a bucket's objects, or of an object, in the JSON API."""
    return f"/b/{urllib.parse.quote(bucket, safe='')}/o" + (f"/{urllib.parse.quote(key, safe='')}" if key else "")


def _find_credentials(options: StoreOptions) -> Credentials | None:
    """Returns the user's Google credentials. Without credentials, requests are not signed."""
    if options.is_anonymous:
        return None
    try:
        credentials, _ = google.auth.default(scopes=[_SCOPE])
    except DefaultCredentialsError as error:
        if os.environ.get(_CREDENTIALS):
            raise UserError(f"{_CREDENTIALS}={os.environ[_CREDENTIALS]}: {error}") from None
        return None
    if options.impersonated:
        *delegates, target = options.impersonated.split(",")
        return impersonated_credentials.Credentials(credentials, target, [_SCOPE], delegates)
    return credentials
