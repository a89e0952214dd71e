"""The options for object stores. Beam sends them to all workers, and each task contains them for its worker process."""

import os
import sys
from typing import Any, Callable, NamedTuple

from beam_pipelines.storage import STORE_TIMEOUT

# Names of Beam's options for S3, and of boto3's parameters.
_S3_OPTIONS = {
    "s3_access_key_id": "aws_access_key_id",
    "s3_secret_access_key": "aws_secret_access_key",
    "s3_session_token": "aws_session_token",
    "s3_region_name": "region_name",
    "s3_endpoint_url": "endpoint_url",
    "s3_api_version": "api_version",
    "s3_verify": "verify",
}
# The environment variables with credentials and servers.
_VARIABLES = ("AWS_", "AZURE_", "GOOGLE_", "STORAGE_EMULATOR_HOST")


class StoreOptions(NamedTuple):
    """The options for object stores.

    Attributes:
        timeout: The time without a successful response after which a store is unavailable, in seconds.
        s3: The (name, value) pairs of boto3's parameters that are set.
        is_anonymous: Whether requests to Google Cloud Storage are not signed.
        impersonated: The value of `--impersonate_service_account`, or "".
        environment: The (name, value) pairs of the environment variables with credentials and servers.
        number: A number that differs between commands in one process, so that each command finds its credentials again.
    """

    timeout: float = STORE_TIMEOUT
    s3: tuple[tuple[str, Any], ...] = ()
    is_anonymous: bool = False
    impersonated: str = ""
    environment: tuple[tuple[str, str], ...] = ()
    number: int = 0


_task_options = StoreOptions()
_last: tuple[Any, StoreOptions] = None, _task_options  # Beam's options, which are slow to parse, and the result.


def current_options() -> StoreOptions:
    """Returns the options of this process: those of Beam's file systems or, in a worker process, those of the task."""
    global _last
    environment = tuple((name, value) for name, value in os.environ.items() if name.startswith(_VARIABLES))
    beam = sys.modules.get("apache_beam.io.filesystems")
    pipeline_options = getattr(beam, "FileSystems", None) and beam.FileSystems._pipeline_options
    if pipeline_options is None:
        return _task_options._replace(environment=environment)
    if _last[0] is not pipeline_options:
        _last = pipeline_options, _read(pipeline_options)._replace(number=_last[1].number + 1)
    return _last[1]._replace(environment=environment)


def call_with_options(options: StoreOptions, function: Callable[..., Any], *args: Any) -> Any:
    """Applies options to this worker process and calls a function."""
    global _task_options
    if options != _task_options:
        _task_options = options
        for name in [name for name in os.environ if name.startswith(_VARIABLES)]:
            del os.environ[name]
        os.environ.update(options.environment)
    return function(*args)


def _read(pipeline_options: Any) -> StoreOptions:
    from apache_beam.options.pipeline_options import GoogleCloudOptions, S3Options

    from beam_pipelines.storage.object_stores.pipeline_options import StoreTimeout

    s3, google = pipeline_options.view_as(S3Options), pipeline_options.view_as(GoogleCloudOptions)
    given = [(parameter, getattr(s3, option)) for option, parameter in _S3_OPTIONS.items() if getattr(s3, option) is not None]
    return StoreOptions(
        pipeline_options.view_as(StoreTimeout).store_timeout,
        (*given, *([("use_ssl", False)] if s3.s3_disable_ssl else [])),
        google.no_auth,
        google.impersonate_service_account or "",
    )
