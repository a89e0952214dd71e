"""Where each cloud's own tools look for keys and endpoints, as obstore's options; obstore itself looks in the environment.

What obstore alone would do where there are none is to wait for the metadata server of a cloud that this is not; here that is asked
once, for a moment. Without any keys requests are not signed: public data are read, and others say what is missing.
"""

import http.client
import importlib.util
import json
import os
import pathlib
from typing import Any

_METADATA_HOST, _METADATA_SECONDS = "169.254.169.254", 1.0
_MAX_ANSWER_BYTES = 1 << 16
_FAMILIES = {"s3a": "s3", **dict.fromkeys(("azure", "adl", "abfs", "abfss"), "az")}
_GOOGLE_KEYS = (
    "GOOGLE_APPLICATION_CREDENTIALS",
    "GOOGLE_SERVICE_ACCOUNT",
    "GOOGLE_SERVICE_ACCOUNT_PATH",
    "GOOGLE_SERVICE_ACCOUNT_KEY",
    "GOOGLE_BEARER_TOKEN",
    "GOOGLE_SKIP_SIGNATURE",
)
_AMAZON_KEYS = (
    "AWS_ACCESS_KEY_ID",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
    "AWS_SKIP_SIGNATURE",
)

_AZURE_KEYS = (
    "AZURE_STORAGE_ACCOUNT_KEY",
    "AZURE_STORAGE_ACCESS_KEY",
    "AZURE_STORAGE_MASTER_KEY",
    "AZURE_STORAGE_SAS_KEY",
    "AZURE_STORAGE_SAS_TOKEN",
    "AZURE_STORAGE_TOKEN",
    "AZURE_STORAGE_CLIENT_ID",
    "AZURE_CLIENT_ID",
    "AZURE_FEDERATED_TOKEN_FILE",
    "AZURE_USE_AZURE_CLI",
    "AZURE_SKIP_SIGNATURE",
)


def google_options() -> dict[str, Any]:
    """Returns the options with which obstore's GCSStore finds the user's credentials, or asks without any."""
    if emulator := os.environ.get("STORAGE_EMULATOR_HOST"):
        url = emulator if "://" in emulator else f"http://{emulator}"
        unsigned = {"disable_oauth": True, "client_email": "", "private_key": "", "private_key_id": ""}
        return {"service_account_key": json.dumps({"gcs_base_url": url.rstrip("/"), **unsigned})}
    if any(os.environ.get(name) for name in _GOOGLE_KEYS):
        return {}
    folder = os.environ.get("CLOUDSDK_CONFIG") or pathlib.Path.home() / ".config" / "gcloud"
    if (found := pathlib.Path(folder, "application_default_credentials.json")).is_file():
        return {"application_credentials": os.fspath(found)}
    return {} if _is_google_machine() else {"skip_signature": True}


def amazon_options() -> dict[str, Any]:
    """Returns the options with which obstore's S3Store finds the user's credentials, or asks without any."""
    if any(os.environ.get(name) for name in _AMAZON_KEYS):
        return {}
    if importlib.util.find_spec("boto3") is None:
        return {} if _has_amazon_role() else {"skip_signature": True}
    from obstore.auth.boto3 import Boto3CredentialProvider

    try:  # profiles, single sign-on, the machine's role
        return {"credential_provider": Boto3CredentialProvider()}
    except ValueError:  # none of them
        return {"skip_signature": True}


def azure_options() -> dict[str, Any]:
    """Returns the options with which obstore's AzureStore finds the user's credentials, or asks without any."""
    if any(os.environ.get(name) for name in _AZURE_KEYS):
        return {}
    is_azure = _answers(_METADATA_HOST, "/metadata/instance?api-version=2021-02-01", {"Metadata": "true"})
    return {} if is_azure else {"skip_signature": True}


def missing_keys(scheme: str) -> str:
    """What to say where a request was refused that was not signed, because there are no keys; else nothing."""
    options, where = {
        "gs": (google_options, "`gcloud auth application-default login` makes some, GOOGLE_APPLICATION_CREDENTIALS names a file of them"),
        "s3": (amazon_options, "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY are some, so is the role of a machine, and, with boto3 installed, those of AWS_PROFILE"),
        "az": (azure_options, "AZURE_STORAGE_ACCOUNT_KEY is one, and AZURE_USE_AZURE_CLI=true takes those of `az login`"),
    }.get(_FAMILIES.get(scheme, scheme), (dict, ""))
    return f"; it was asked without keys, as there are none: {where}" if options().get("skip_signature") else ""


def _is_google_machine() -> bool:
    return _answers(os.environ.get("GCE_METADATA_HOST", _METADATA_HOST), "/", {"Metadata-Flavor": "Google"}, "Metadata-Flavor")


def _has_amazon_role() -> bool:
    """Whether this is a machine of Amazon's with a role, whose keys obstore gets from the metadata server."""
    if os.environ.get("AWS_EC2_METADATA_DISABLED", "").lower() == "true":
        return False
    host = os.environ.get("AWS_METADATA_ENDPOINT", _METADATA_HOST).rpartition("://")[2].rstrip("/")
    token = _ask(host, "/latest/api/token", {"X-aws-ec2-metadata-token-ttl-seconds": "60"}, method="PUT")
    if not token:  # not of Amazon's, which have had tokens since 2019
        return False
    return bool(_ask(host, "/latest/meta-data/iam/security-credentials/", {"X-aws-ec2-metadata-token": token.decode()}))


def _answers(host: str, path: str, headers: dict[str, str], header: str = "") -> bool:
    """Whether the metadata server of a cloud answers."""
    return _ask(host, path, headers, header) is not None


def _ask(host: str, path: str, headers: dict[str, str], header: str = "", method: str = "GET") -> bytes | None:
    """The answer of a cloud's metadata server; None if it gives no answer, or not the header that is expected."""
    connection = http.client.HTTPConnection(host, timeout=_METADATA_SECONDS)
    try:
        connection.request(method, path, headers=headers)
        response = connection.getresponse()
        is_good = response.status == 200 and (not header or response.getheader(header) is not None)
        return response.read(_MAX_ANSWER_BYTES) if is_good else None
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()
