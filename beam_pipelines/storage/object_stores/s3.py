"""Implements `ObjectStore` for s3://."""

import contextlib
import errno
import functools
from typing import Any, Mapping

import boto3
import botocore.session
from apache_beam.options.pipeline_options import PipelineOptions, S3Options
from botocore import exceptions, loaders, parsers
from botocore.config import Config

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

COPY_BYTES = 128 << 20  # Maximum size of a copy request, because the store responds only after the copy.
_MAX_PARTS = 10_000

_STATUS = {  # For error codes that come with a different HTTP status, or without a status.
    "AccessDenied": 403,
    "InternalError": 500,
    "RequestTimeout": 408,
    "SlowDown": 503,
    "ServiceUnavailable": 503,
    "Throttling": 429,
    "ThrottlingException": 429,
    "RequestLimitExceeded": 429,
    "BandwidthLimitExceeded": 429,
}
_NOT_CONNECTED = (exceptions.EndpointConnectionError, exceptions.ConnectTimeoutError)
_BROKEN_OFF = (
    exceptions.HTTPClientError,
    exceptions.ConnectionError,
    exceptions.IncompleteReadError,
    exceptions.FlexibleChecksumError,
    exceptions.MetadataRetrievalError,
    parsers.ResponseParserError,  # The listing is truncated, or the response is a web page of a proxy.
)
_NO_CREDENTIALS = (exceptions.NoCredentialsError, exceptions.PartialCredentialsError)


@functools.cache
def _loader() -> loaders.Loader:
    """Returns a cached loader of botocore's service descriptions, which are megabytes of JSON."""
    return loaders.create_loader()


class S3Store(ObjectStore):
    """Accesses Amazon S3 or a compatible store, according to Beam's `--s3_…` options."""

    library_errors = (exceptions.BotoCoreError, exceptions.ClientError, parsers.ResponseParserError)

    def __init__(self, options: PipelineOptions):
        s3 = options.view_as(S3Options)
        self._options = {
            "aws_access_key_id": s3.s3_access_key_id,
            "aws_secret_access_key": s3.s3_secret_access_key,
            "aws_session_token": s3.s3_session_token,
            "endpoint_url": s3.s3_endpoint_url,
            "region_name": s3.s3_region_name,
            "api_version": s3.s3_api_version,
            "verify": s3.s3_verify,
            "use_ssl": not s3.s3_disable_ssl,
        }
        timeout = options.view_as(StoreOptions).store_timeout
        self._client = self._make_client(min(CONNECT_SECONDS, timeout), min(RESPONSE_SECONDS, timeout))
        self.breaker = Breaker(self._client.meta.endpoint_url, timeout)
        self._keeps_conditions = False  # True after the store has respected the condition of a write.

    def _make_client(self, connect_seconds: float, response_seconds: float) -> Any:
        config = Config(
            connect_timeout=connect_seconds,
            read_timeout=response_seconds,
            max_pool_connections=2 * NUM_THREADS,
            retries={"total_max_attempts": 1, "mode": "standard"},  # `call` retries requests.
        )
        try:
            session = botocore.session.get_session()  # A new session finds current credentials.
            session.register_component("data_loader", _loader())
            return boto3.session.Session(botocore_session=session).client("s3", config=config, **self._options)
        except (exceptions.BotoCoreError, ValueError) as error:
            raise UserError(f"s3://: {error}") from None

    def _get(self, bucket: str, key: str, offset: int, num_bytes: int | None) -> tuple[bytes, str]:
        request = {"Bucket": bucket, "Key": key}
        if num_bytes is not None:
            request["Range"] = f"bytes={offset}-{offset + num_bytes - 1}"
        try:
            response = self._client.get_object(**request)
        except exceptions.ClientError as error:
            if _status(error) == 416:  # The range begins after the end of the object.
                return b"", ""
            raise
        version = _version(response)
        if response["ContentLength"] > MAX_FILE_BYTES:
            response["Body"].close()
            raise OSError(errno.EFBIG, f"the file has {response['ContentLength']} bytes, more than the limit of {MAX_FILE_BYTES}")
        return response["Body"].read(), version

    def _head(self, bucket: str, key: str) -> FileStat:
        response = self._client.head_object(Bucket=bucket, Key=key)
        return FileStat(response["ContentLength"], _version(response))

    def _put(self, bucket: str, key: str, data: bytes) -> None:
        self._client.put_object(Bucket=bucket, Key=key, Body=data)

    def _get_versioned(self, bucket: str, key: str) -> tuple[bytes, str]:
        response = self._client.get_object(Bucket=bucket, Key=key)
        return response["Body"].read(), response["ETag"]

    def _put_if(self, bucket: str, key: str, data: bytes, version: str | None) -> str | None:
        is_none = {"IfNoneMatch": "*"}
        etag = self._put_on(bucket, key, data, {"IfMatch": version} if version else is_none)
        if etag and not self._keeps_conditions:
            # A store that ignores conditions writes an existing object again. Other stores reject the write.
            if self._put_on(bucket, key, data, is_none):
                raise self._no_conditions(bucket, key, "ignores the condition of a conditional write")
            self._keeps_conditions = True
        return etag

    def _put_on(self, bucket: str, key: str, data: bytes, condition: dict[str, str]) -> str | None:
        """Writes an object if a condition is met. Returns the new ETag, or None if the condition is not met."""
        try:
            return self._client.put_object(Bucket=bucket, Key=key, Body=data, **condition)["ETag"]
        except exceptions.ClientError as error:
            code = error.response.get("Error", {}).get("Code", "")
            if _status(error) == 501:
                raise self._no_conditions(bucket, key, "responds with status 501 to a conditional write") from None
            if _status(error) in (409, 412) or code == "NoSuchKey":
                return None
            raise

    def _no_conditions(self, bucket: str, key: str, problem: str) -> OSError:
        advice = "Use a store that supports If-Match and If-None-Match, so that two runs cannot write the same dataset"
        return OSError(errno.ENOTSUP, f"{self._client.meta.endpoint_url} {problem}. {advice}", f"s3://{bucket}/{key}")

    def _page(self, bucket: str, prefix: str, delimiter: str, token: str | None, first: str) -> Page:
        request = {"Bucket": bucket, "Prefix": prefix, "Delimiter": delimiter, "MaxKeys": object_store.PAGE_OBJECTS}
        if token:
            request["ContinuationToken"] = token
        elif first:
            request["StartAfter"] = _just_before(prefix + first)  # `StartAfter` is exclusive.
        response = self._client.list_objects_v2(**request)
        objects = [(entry["Key"], entry["Size"]) for entry in response.get("Contents", ())]
        folders = [entry["Prefix"] for entry in response.get("CommonPrefixes", ())]
        _check_page(response, len(objects) + len(folders))
        return Page(objects, folders, response.get("NextContinuationToken"))

    def _probe(self, bucket: str, prefix: str) -> None:
        self._make_client(CHECK_SECONDS, CHECK_SECONDS).list_objects_v2(Bucket=bucket, Prefix=prefix, MaxKeys=1)

    def _remove(self, bucket: str, keys: Names) -> None:
        def remove(bucket: str, key: str) -> None:
            objects = {"Objects": [{"Key": key} for key in keys], "Quiet": True}
            for error in self._client.delete_objects(Bucket=bucket, Delete=objects).get("Errors", ()):
                raise exceptions.ClientError({"Error": error}, "DeleteObjects")

        self.call(f"s3://{bucket}", remove)

    def _abandon_uploads(self, folder: str) -> None:
        markers: dict[str, str] = {}
        while True:
            page = self.call(folder, lambda bucket, key: self._client.list_multipart_uploads(Bucket=bucket, Prefix=key, **markers))
            for upload in page.get("Uploads", ()):
                name = {"Key": upload["Key"], "UploadId": upload["UploadId"]}
                with contextlib.suppress(FileNotFoundError):  # The upload has already been aborted.
                    self.call(folder, lambda bucket, _: self._client.abort_multipart_upload(Bucket=bucket, **name))
            if not page.get("IsTruncated"):
                return
            markers = {"KeyMarker": page["NextKeyMarker"], "UploadIdMarker": page["NextUploadIdMarker"]}

    def _copy(self, source: str, target: str, num_bytes: int) -> None:
        source_bucket, source_key = split_path(source)
        request = {"CopySource": {"Bucket": source_bucket, "Key": source_key}}
        if num_bytes <= COPY_BYTES:
            self.call(target, lambda bucket, key: self._client.copy_object(Bucket=bucket, Key=key, **request))
            return
        upload = _Multipart(self, target)
        step = max(COPY_BYTES, -(-num_bytes // _MAX_PARTS))
        try:
            for start in range(0, num_bytes, step):
                last_byte = min(start + step, num_bytes) - 1
                upload.add("upload_part_copy", CopySourceRange=f"bytes={start}-{last_byte}", **request)
            upload.complete(num_bytes)
        except BaseException:
            with contextlib.suppress(OSError):
                upload.abandon()
            raise

    def _make_upload(self, path: str) -> Upload:
        return _S3Upload(self, path)

    def _os_error(self, path: str, error: Exception) -> OSError:
        if isinstance(error, exceptions.ClientError):
            code = error.response.get("Error", {}).get("Code", "")
            return status_error(path, _status(error), code, no_bucket=code == "NoSuchBucket")
        if isinstance(error, _NO_CREDENTIALS):
            places = "in the environment, in ~/.aws, in --s3_access_key_id or from the machine's role"
            return OSError(errno.EACCES, f"no AWS credentials were found {places}", path)
        if isinstance(error, _NOT_CONNECTED):
            endpoint = self._client.meta.endpoint_url
            return Transient(errno.EHOSTUNREACH, f"{endpoint} is not reachable", path)
        if isinstance(error, _BROKEN_OFF):
            return Transient(errno.EIO, str(error), path)
        return OSError(errno.EIO, str(error), path)


def _status(error: exceptions.ClientError) -> int:
    code = error.response.get("Error", {}).get("Code", "")
    return _STATUS.get(code) or error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 400)


def _version(response: Mapping[str, Any]) -> str:
    """Returns the version of an object from a response. Raises `Transient` if the response is not from the store."""
    if not response.get("ETag"):
        raise foreign_answer("an object without an ETag", response.get("ContentType"))
    return f"ETag {response['ETag']}"


def _check_page(response: Mapping[str, Any], num_results: int) -> None:
    """Raises `Transient` if a page of a listing is invalid or incomplete, because inputs must not be lost."""
    if "IsTruncated" not in response:
        raise foreign_answer("a listing without the field IsTruncated", None)
    if num_results < response.get("KeyCount", 0):  # Some stores do not count folders.
        raise Transient(errno.EIO, f"a page of a listing has {num_results} names, but its KeyCount is {response['KeyCount']}")
    if response["IsTruncated"] and not response.get("NextContinuationToken"):
        raise Transient(errno.EIO, "a page of a listing is truncated, but has no continuation token for the next page")


def _just_before(key: str) -> str:
    """Returns a key that sorts shortly before the given key."""
    before = ord(key[-1]) - 1
    before = 0xD7FF if 0xD800 <= before < 0xE000 else before  # Skips surrogates.
    return key[:-1] + (f"{chr(before)}\U0010fffd" if before > 0 else "")


class _Multipart:
    """A multipart upload. The object is created when the upload is completed."""

    def __init__(self, store: S3Store, path: str):
        self._store, self._path = store, path
        self._parts: list[dict[str, Any]] = []
        self._id = self._call("create_multipart_upload")["UploadId"]

    def add(self, method: str, **request: Any) -> None:
        number = len(self._parts) + 1
        response = self._call(method, UploadId=self._id, PartNumber=number, **request)
        part = response.get("CopyPartResult", response)
        names = ("ETag", "ChecksumCRC32", "ChecksumCRC32C", "ChecksumCRC64NVME", "ChecksumSHA1", "ChecksumSHA256")
        self._parts.append({"PartNumber": number, **{name: part[name] for name in names if name in part}})

    def complete(self, num_bytes: int) -> None:
        try:
            self._call("complete_multipart_upload", UploadId=self._id, MultipartUpload={"Parts": self._parts})
        except FileNotFoundError:  # An earlier attempt may have succeeded, although its response was lost.
            if not (self._store.exists(self._path) and self._store.size(self._path) == num_bytes):
                raise

    def abandon(self) -> None:
        self._call("abort_multipart_upload", patience=ABANDON_SECONDS, UploadId=self._id)

    def _call(self, method: str, patience: float | None = None, **request: Any) -> dict[str, Any]:
        send = getattr(self._store._client, method)
        return self._store.call(self._path, lambda bucket, key: send(Bucket=bucket, Key=key, **request), patience=patience)


class _S3Upload(Upload):
    """Uploads a large object to S3 in parts."""

    def __init__(self, store: S3Store, path: str):
        super().__init__(lambda data: store.write(path, data))
        self._store, self._path = store, path
        self._multipart: _Multipart | None = None

    def send(self, chunk: bytes, is_last: bool) -> None:
        if self._multipart is None:
            self._multipart = _Multipart(self._store, self._path)
        self._multipart.add("upload_part", Body=chunk)
        if is_last:
            self._multipart.complete(self.num_bytes + len(chunk))

    def abandon(self) -> None:
        if self._multipart is not None:
            self._multipart.abandon()
