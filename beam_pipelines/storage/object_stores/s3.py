"""Implements listings and the removal of unfinished uploads for s3:// with boto3. All other requests use obstore.

The module also uses boto3 to find credentials and endpoints, including the ones in profiles.
"""

import contextlib
import errno
import functools
import os
import pathlib
from typing import Any, Mapping

import boto3
import botocore.session
import obstore.store
from botocore import UNSIGNED, exceptions, loaders, parsers
from botocore.config import Config
from obstore.auth.boto3 import Boto3CredentialProvider

from beam_pipelines.errors import UserError
from beam_pipelines.storage.object_stores import object_listing
from beam_pipelines.storage.object_stores.clients import NUM_THREADS
from beam_pipelines.storage.object_stores.object_listing import Page
from beam_pipelines.storage.object_stores.object_store import ObjectStore
from beam_pipelines.storage.object_stores.retries import (
    CHECK_SECONDS,
    CONNECT_SECONDS,
    RESPONSE_SECONDS,
    Transient,
    foreign_answer,
    status_error,
)
from beam_pipelines.storage.object_stores.store_options import StoreOptions

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
    exceptions.MetadataRetrievalError,
    parsers.ResponseParserError,  # The listing is truncated, or the response is a web page of a proxy.
)


@functools.cache
def _loader() -> loaders.Loader:
    """Returns a cached loader of botocore's service descriptions, which are several megabytes of JSON."""
    return loaders.create_loader()


class S3Store(ObjectStore):
    """Accesses Amazon S3 or a compatible store, according to Beam's `--s3_…` options."""

    _pages = ObjectStore._numbered_pages
    library_errors = (*ObjectStore.library_errors, exceptions.BotoCoreError, exceptions.ClientError, parsers.ResponseParserError)

    def __init__(self, scheme: str, options: StoreOptions) -> None:
        parameters = dict(options.s3)
        keys = {name: parameters.pop(name, None) for name in ("aws_access_key_id", "aws_secret_access_key", "aws_session_token")}
        session = botocore.session.get_session()
        session.register_component("data_loader", _loader())
        try:
            self._session = boto3.session.Session(botocore_session=session, region_name=parameters.pop("region_name", None), **keys)
            has_keys = self._session.get_credentials() is not None
            self._parameters = {"config": Config(signature_version=None if has_keys else UNSIGNED), **parameters}
            self._client = self._make_client(*(min(limit, options.timeout) for limit in (CONNECT_SECONDS, RESPONSE_SECONDS)))
        except (exceptions.BotoCoreError, ValueError) as error:
            raise UserError(f"s3://: {error}") from None
        self.endpoint = self._client.meta.endpoint_url
        if not has_keys:
            self.advice = "; no AWS credentials were found in the environment, in ~/.aws, in --s3_access_key_id or from the machine's role"
        self._keeps_conditions = False  # True after the store has respected the condition of a write.
        super().__init__(scheme, options)

    def _make_client(self, connect_seconds: float, response_seconds: float) -> Any:
        config = Config(
            connect_timeout=connect_seconds,
            read_timeout=response_seconds,
            max_pool_connections=2 * NUM_THREADS,
            retries={"total_max_attempts": 1, "mode": "standard"},  # `call` retries requests.
        )
        return self._session.client("s3", **{**self._parameters, "config": config.merge(self._parameters["config"])})

    def _connect(self, bucket: str, **settings: Any) -> Any:
        credentials = self._session.get_credentials()
        signing = {"credential_provider": Boto3CredentialProvider(self._session)} if credentials else {"skip_signature": True}
        is_amazon = self.endpoint.startswith("https://") and ".amazonaws.com" in self.endpoint
        region = self._find_region(bucket) if is_amazon else self._client.meta.region_name or "us-east-1"
        place = {"region": region} if is_amazon else {"region": region, "endpoint": self.endpoint}
        authority = self._parameters.get("verify") or os.environ.get("AWS_CA_BUNDLE")
        if isinstance(authority, str):
            settings["client_options"]["root_certificate"] = pathlib.Path(authority).read_bytes()
        elif self._parameters.get("verify") is False:
            settings["client_options"]["allow_invalid_certificates"] = True
        return obstore.store.S3Store(bucket, **place, **signing, **settings)

    def _find_region(self, bucket: str) -> str:
        """Returns the region of a bucket, because obstore does not follow redirects to other regions."""
        try:
            response = self._client.head_bucket(Bucket=bucket)
        except exceptions.ClientError as error:
            response = error.response
        headers = response.get("ResponseMetadata", {}).get("HTTPHeaders", {})
        return headers.get("x-amz-bucket-region") or self._client.meta.region_name or "us-east-1"

    def _put_if(self, bucket: str, key: str, data: bytes, version: str | None) -> str | None:
        tag = super()._put_if(bucket, key, data, version)
        if tag and not self._keeps_conditions:
            # A store that ignores conditions writes an existing object again. Other stores reject the write.
            if super()._put_if(bucket, key, data, None):
                advice = "Use a store that supports If-Match and If-None-Match, so that two runs cannot write the same dataset"
                message = f"{self.endpoint} ignores the condition of a conditional write. {advice}"
                raise OSError(errno.ENOTSUP, message, f"s3://{bucket}/{key}")
            self._keeps_conditions = True
        return tag

    def _page(self, bucket: str, prefix: str, delimiter: str, token: str | None, first: str) -> Page:
        request = {"Bucket": bucket, "Prefix": prefix, "Delimiter": delimiter, "MaxKeys": object_listing.PAGE_OBJECTS}
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

    def abandon_uploads(self, folder: str) -> None:
        folder = folder.rstrip("/") + "/"
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

    def _os_error(self, path: str, error: Exception) -> OSError:
        if isinstance(error, exceptions.ClientError):
            code = error.response.get("Error", {}).get("Code", "")
            status = _STATUS.get(code) or error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 400)
            return status_error(path, status, code + (self.advice if status in (401, 403) else ""), no_bucket=code == "NoSuchBucket")
        if isinstance(error, _NOT_CONNECTED):
            return Transient(errno.EHOSTUNREACH, f"{self.endpoint} is not reachable", path)
        if isinstance(error, _BROKEN_OFF):
            return Transient(errno.EIO, str(error), path)
        return OSError(errno.EIO, str(error), path) if isinstance(error, exceptions.BotoCoreError) else super()._os_error(path, error)


def _check_page(response: Mapping[str, Any], num_results: int) -> None:
    """Raises `Transient` if a page of a listing is invalid or incomplete, so that no input is missed."""
    if "IsTruncated" not in response:
        raise foreign_answer("a listing without the field IsTruncated", None)
    if num_results < response.get("KeyCount", 0):  # Some stores do not count folders.
        raise Transient(errno.EIO, f"a page of a listing has {num_results} names, but its KeyCount is {response['KeyCount']}")
    if response["IsTruncated"] and not response.get("NextContinuationToken"):
        raise Transient(errno.EIO, "a page of a listing is truncated, but has no continuation token for the next page")


def _just_before(key: str) -> str:
    """Returns a key that is sorted a little before the given key."""
    before = ord(key[-1]) - 1
    before = 0xD7FF if 0xD800 <= before < 0xE000 else before  # Skips surrogates.
    return key[:-1] + (f"{chr(before)}\U0010fffd" if before > 0 else "")
